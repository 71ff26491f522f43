# Runs uwsgi so that no request is lost when it is stopped: SIGTERM removes the file that HAProxy checks, so that
# HAProxy sends no new requests; then uwsgi finishes its requests and exits.
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
