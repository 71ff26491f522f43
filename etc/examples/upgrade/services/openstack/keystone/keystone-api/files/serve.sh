# Runs uwsgi so that no request is lost when it is stopped: at SIGTERM /healthcheck begins to fail, so that HAProxy
# sends nothing more, and a little later uwsgi finishes what it has and ends.
set -eu

ini=$1 draining=$2

stop() {
    touch "$draining"
    sleep {{ keystone_drain }}
    kill -TERM "$uwsgi"
    wait "$uwsgi"
    exit $?  # Without it: the status that SIGTERM has given to the `wait` below.
}

rm -f "$draining"
trap stop TERM
uwsgi --ini "$ini" &
uwsgi=$!
wait "$uwsgi"
