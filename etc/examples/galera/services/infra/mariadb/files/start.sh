# Becomes mariadbd, as the election has decided.
#
#     sh start.sh DEFAULTS-FILE DATA MARK        as for position.sh
#
# KOLLA_ELECTION is `first` for the winner, and `join` for the others. KOLLA_ELECTION_GROUP and KOLLA_ELECTION_POSITION
# are what position.sh has printed on this host, and empty for `none`.
set -eu

defaults=$1 data=$2 mark=$3
directory=$(dirname "$data")
nothing=00000000-0000-0000-0000-000000000000

# Replaces grastate.dat: the group, and whether this host may bootstrap it. Galera writes the sequence number at a stop.
state() {
    printf '# GALERA saved state\nversion: 2.1\nuuid:    %s\nseqno:   -1\nsafe_to_bootstrap: %s\n' "$1" "$2" \
        >"$3/grastate.new"
    sync "$3/grastate.new"
    mv "$3/grastate.new" "$3/grastate.dat"
    sync "$3"
}

# New data appear only when they are complete.
install() {
    rm -rf "$directory/new"
    mariadb-install-db --defaults-file="$defaults" --datadir="$directory/new" \
        --auth-root-authentication-method=socket --auth-root-socket-user=root --skip-test-db >&2
    state $nothing 1 "$directory/new"
    sync --file-system "$directory/new"
    [ ! -d "$data" ] || rmdir "$data"
    mv "$directory/new" "$data"
    sync "$directory"
}

group=$KOLLA_ELECTION_GROUP
seqno=$KOLLA_ELECTION_POSITION
case $KOLLA_ELECTION in
    first)
        if [ -z "$group" ]; then
            [ -e "$data/grastate.dat" ] || install
            set -- # A cluster with a new name.
        else
            if grep -q "^uuid:[[:space:]]*$group" "$data/grastate.dat"; then
                set -- --wsrep_start_position="$group:$seqno"
            else
                # Killed during a schema change, which may be done here and nowhere else although others have the same
                # number. A number that no other host has, and no cache, make them copy these data.
                rm -f "$data/galera.cache"
                set -- --wsrep_start_position="$group:$((seqno + 1))"
            fi
            state "$group" 1 "$data"
        fi
        rm -f "$mark"
        sync "$directory"
        exec mariadbd --defaults-file="$defaults" --wsrep-new-cluster "$@"
        ;;
    join)
        mkdir -p "$data"
        # ready.sh removes it. It must be on the disk before the first file changes.
        cat /proc/sys/kernel/random/boot_id >"$mark"
        sync "$mark" "$directory"
        if [ -z "$group" ]; then
            rm -f "$data/grastate.dat" "$data/sst_in_progress"
            set -- --wsrep_start_position=$nothing:-1
        else
            set -- --wsrep_start_position="$group:$seqno"
        fi
        exec mariadbd --defaults-file="$defaults" "$@"
        ;;
    *)
        echo "KOLLA_ELECTION=$KOLLA_ELECTION: expected first or join" >&2
        exit 64
        ;;
esac
