# Whether this host is a member of a working cluster.
#
#     sh ready.sh DEFAULTS-FILE DATA MARK        as for position.sh
set -eu

defaults=$1 data=$2 mark=$3
# The server that creates the data is in no cluster, and must not be ended for that.
if [ -e "$data/installing.sst" ]; then
    echo "the data are being created"
    exit 1
fi
# The account of state transfers, if it has a password. Otherwise the account of the operating system.
account=$(sed -n 's/^wsrep[-_]sst[-_]auth *= *//p' "$defaults")
case $account in
    ?*:?*)
        export MYSQL_PWD="${account#*:}"
        set -- --user="${account%%:*}"
        ;;
    *) set -- ;;
esac
# SHOW works also while Galera refuses queries. A donor is a member: it serves a state transfer.
status=$(mariadb --defaults-file="$defaults" "$@" --connect-timeout=5 --batch --skip-column-names --execute="
    SHOW STATUS WHERE Variable_name IN ('wsrep_cluster_status', 'wsrep_connected', 'wsrep_local_state')")
value() {
    echo "$status" | sed -n "s/^$1[[:space:]]*//p"
}
if [ "$(value wsrep_connected)" = OFF ]; then
    # After some failures, of an incremental transfer for example, Galera leaves the cluster, and asks for a restart in the
    # log. The server would run for ever. It answers only after it has been connected once.
    echo "Galera has left the cluster: ending the server"
    kill "$(cat "$(sed -n 's/^pid-file *= *//p' "$defaults")")"
    exit 1
fi
if [ "$(value wsrep_cluster_status)" != Primary ]; then
    echo "cluster status: $(value wsrep_cluster_status)"
    exit 1
fi
case $(value wsrep_local_state) in
    2 | 4) ;;
    *)
        echo "local state: $(value wsrep_local_state)"
        exit 1
        ;;
esac
# From now on the data count after a power cut, too. The removal of the mark must be on the disk as well, before the election
# records that this host has joined: with the mark it would have no data, and be refused.
directory=$(dirname "$mark")
if [ -e "$mark" ]; then
    sync --file-system "$directory"
    mv "$mark" "$mark.done"
fi
if [ -e "$mark.done" ]; then
    sync "$directory"
    rm -f "$mark.done"
fi
