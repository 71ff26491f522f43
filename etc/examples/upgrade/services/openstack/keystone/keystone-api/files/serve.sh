# Runs uwsgi so that no request is lost when it is stopped: at SIGTERM the file goes for which HAProxy asks, so that
# HAProxy sends nothing more; a little later uwsgi finishes what it has, and ends.
set -eu

ini=$1 in_service=$2

stop() {
    trap '' TERM
    rm "$in_service"
    sleep {{ keystone_drain }}
    kill -TERM "$uwsgi"
    wait "$uwsgi"
    exit $? # Without it: the status that SIGTERM has given to the `wait` below.
}

touch "$in_service"
trap stop TERM
uwsgi --ini "$ini" &
uwsgi=$!
wait "$uwsgi"
