# Becomes mariadbd in Kolla's image, as the election has decided.
#
#     sh start.sh DEFAULTS-FILE DATA MARK        as for position.sh
#
# KOLLA_ELECTION is `first` for the winner, and `join` for the others. KOLLA_ELECTION_GROUP and KOLLA_ELECTION_POSITION
# are what position.sh has printed on this host, and empty for `none`. DATA is a volume, so the marks are in it: their names
# end with .sst, because the scripts of a state transfer keep such files.
set -eu

data=$2 mark=$3
nothing=00000000-0000-0000-0000-000000000000
incomplete=$data/installing.sst

# Replaces grastate.dat: the group, and whether this host may bootstrap it. Galera writes the sequence number at a stop.
state() {
    printf '# GALERA saved state\nversion: 2.1\nuuid:    %s\nseqno:   -1\nsafe_to_bootstrap: %s\n' "$1" "$2" \
        >"$data/grastate.new"
    sync "$data/grastate.new"
    mv "$data/grastate.new" "$data/grastate.dat"
    sync "$data"
}

# Removes what an interrupted installation has left.
clear() {
    [ ! -e "$incomplete" ] || find "$data" -mindepth 1 -maxdepth 1 ! -name lost+found ! -path "$incomplete" -exec rm -rf {} +
}

# Creates the data as the image does for kolla-ansible. Until they are complete, this host has none.
install() {
    : >"$incomplete"
    sync "$incomplete" "$data"
    clear
    KOLLA_BOOTSTRAP='' kolla_start
    state $nothing 1
    sync --file-system "$data"
    rm "$incomplete"
    sync "$data"
}

group=$KOLLA_ELECTION_GROUP
seqno=$KOLLA_ELECTION_POSITION
case $KOLLA_ELECTION in
    first)
        if [ -z "$group" ]; then
            # A cluster with a new name.
            [ -e "$data/grastate.dat" ] && [ ! -e "$incomplete" ] || install
            BOOTSTRAP_ARGS=--wsrep-new-cluster
        else
            if grep -q "^uuid:[[:space:]]*$group" "$data/grastate.dat"; then
                BOOTSTRAP_ARGS="--wsrep-new-cluster --wsrep_start_position=$group:$seqno"
            else
                # Killed during a schema change, which may be done here and nowhere else although others have the same
                # number. A number that no other host has, and no cache, make them copy these data.
                rm -f "$data/galera.cache"
                BOOTSTRAP_ARGS="--wsrep-new-cluster --wsrep_start_position=$group:$((seqno + 1))"
            fi
            state "$group" 1
        fi
        rm -f "$mark"
        sync "$data"
        ;;
    join)
        # ready.sh removes it. It must be on the disk before the first file changes.
        cat /proc/sys/kernel/random/boot_id >"$mark"
        sync "$mark" "$data"
        if [ -z "$group" ]; then
            clear
            rm -f "$data/grastate.dat" "$data/sst_in_progress" "$incomplete"
            BOOTSTRAP_ARGS=--wsrep_start_position=$nothing:-1
        else
            BOOTSTRAP_ARGS=--wsrep_start_position=$group:$seqno
        fi
        ;;
    *)
        echo "KOLLA_ELECTION=$KOLLA_ELECTION: expected first or join" >&2
        exit 64
        ;;
esac
# Only for `install`.
unset DB_ROOT_PASSWORD
export BOOTSTRAP_ARGS
exec kolla_start
