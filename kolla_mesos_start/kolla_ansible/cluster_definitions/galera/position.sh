# Prints how far this host's data go, for the election: `UUID:SEQNO`, or `none` if this host has no data that count.
#
#     sh position.sh DEFAULTS-FILE DATA MARK        DATA is the directory, MARK a file that exists during a join
#
# It fails if nothing can be said yet; then this host is no candidate. Rules, in their order:
#
#   a process still has the data open                            fails: wait for its end
#   no data, except files that were left by a transfer           none
#   installing.sst: killed while the data were created           none
#   sst_in_progress: killed during a state transfer              none
#   joining, and Galera has withdrawn its state                  none: the transfer may have copied half of the files.
#                                                                On failure, the transfer's script removes
#                                                                sst_in_progress, so that file proves nothing.
#   joining, and the machine has been started since then        none: a transfer does not sync the files that it writes,
#                                                                so a power cut may have emptied some of them
#   no state of Galera's (grastate.dat)                          fails: data of another server are not overwritten
#   InnoDB can't be recovered                                    fails
#   InnoDB and grastate.dat agree about the group                UUID:SEQNO
#   Galera has withdrawn its state, but not during a join        UUID:SEQNO: killed during a schema change, which
#                                                                withdraws the state on all hosts at the same time
#   new data that have never been in a cluster                   none
#   InnoDB and grastate.dat disagree about the group             fails
#
# `none` is safe for a host that was killed while it joined: the cluster that it joined had all that this host had.
set -eu

defaults=$1 data=$2 mark=$3
nothing=00000000-0000-0000-0000-000000000000

fail() {
    echo "$data: $*" >&2
    exit 1
}

none() {
    echo "$data: $*" >&2
    echo none
    exit
}

[ -d "$data" ] || none "there is none"
resolved=$(cd "$data" && pwd -P)
# mariadbd itself would wait 30 s for a lock. Processes of other users, which have no business here, are not seen.
user=$(find /proc/[0-9]*/fd /proc/[0-9]*/cwd -maxdepth 1 \( -lname "$resolved" -o -lname "$resolved/*" \) -print 2>/dev/null | head -n 1)
[ -z "$user" ] || fail "process $(echo "$user" | cut -d / -f 3) still has it open"
[ -n "$(find "$data" -mindepth 1 -maxdepth 1 ! -name '*.sst' ! -name lost+found)" ] || none "empty"
[ ! -e "$data/installing.sst" ] || none "the data were not created completely"
[ ! -e "$data/sst_in_progress" ] || none "a state transfer was interrupted (sst_in_progress)"

group=$(sed -n 's/^uuid:[[:space:]]*//p' "$data/grastate.dat" 2>/dev/null || :)
[ -n "$group" ] || group=$nothing
if [ -e "$mark" ] && [ "$group" = $nothing ]; then
    none "a join was interrupted"
fi
boot=$(cat /proc/sys/kernel/random/boot_id)
if [ -e "$mark" ] && [ "$(cat "$mark")" != "$boot" ]; then
    none "a join was interrupted by a power cut"
fi
[ -e "$data/grastate.dat" ] || fail "not data of a Galera cluster (no grastate.dat): move them away, or import them into the cluster"

# Not a file of mktemp's: mariadbd opens it as its own user.
log=$mark.log
rm -rf "$log"
mkdir "$log"
trap 'rm -rf "$log"' EXIT
chmod 755 "$log"
: >"$log/recover.err"
chmod 666 "$log/recover.err"
mariadbd --defaults-file="$defaults" --wsrep-recover --skip-networking --log-error="$log/recover.err" >&2 || {
    status=$?
    grep -F '[ERROR]' "$log/recover.err" | tail -n 5 >&2 || :
    fail "mariadbd --wsrep-recover: status $status"
}
recovered=$(sed -n 's/.*Recovered position: *\([0-9a-f-]*:[0-9-]*\).*/\1/p' "$log/recover.err" | tail -n 1)
[ -n "$recovered" ] || fail "mariadbd --wsrep-recover reports no position"
case $recovered in
    $nothing:*)
        [ "$group" = $nothing ] || fail "grastate.dat names the group $group, InnoDB none"
        none "new data"
        ;;
    "$group":* | *:*)
        case $group in
            "${recovered%:*}" | $nothing) ;;
            *) fail "grastate.dat names the group $group, InnoDB ${recovered%:*}" ;;
        esac
        ;;
esac
[ "${recovered#*:}" -ge 0 ] || fail "mariadbd --wsrep-recover reports $recovered"
echo "$recovered"
