# Whether this host is a member of a working cluster.
#
#     sh ready.sh DEFAULTS-FILE DIRECTORY
set -eu

defaults=$1 directory=$2
# SHOW works also while Galera refuses queries. A donor is a member: it serves a state transfer.
mariadb --defaults-file="$defaults" --connect-timeout=5 --batch --skip-column-names \
    --execute="SHOW STATUS WHERE Variable_name IN ('wsrep_cluster_status', 'wsrep_local_state')" |
    awk '{ value[$1] = $2 }
        END {
            if (value["wsrep_cluster_status"] != "Primary") { print "cluster status: " value["wsrep_cluster_status"]; exit 1 }
            if (value["wsrep_local_state"] != 4 && value["wsrep_local_state"] != 2) { print "local state: " value["wsrep_local_state"]; exit 1 }
        }'
# From now on the data count after a power cut, too. The removal of the mark must be on the disk as well, before the election
# records that this host has joined: with the mark it would have no data, and be refused.
if [ -e "$directory/joining" ]; then
    sync --file-system "$directory"
    mv "$directory/joining" "$directory/joined"
fi
if [ -e "$directory/joined" ]; then
    sync "$directory"
    rm -f "$directory/joined"
fi
