# What a machine needs before bin/test and bin/quickstart can begin. Sourced by them; PACKAGES names
# the Debian packages that the script wants.

stage() {
    printf -- '-- %s\n' "$*"
}

fail() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

# By what is used of it, whoever has installed that; else by its name.
is_there() {
    case $1 in
        zookeeper) [ -e /usr/share/java/zookeeper.jar ] ;;
        default-jre-headless) command -v java ;;
        util-linux) command -v flock && command -v setpriv ;;
        python3-venv) "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))' ;;
        *) dpkg-query -W -f='${Status}' "$1" | grep ' installed$' ;;
    esac >/dev/null 2>&1
}

missing_packages() {
    for package in $PACKAGES; do
        is_there "$package" || printf '%s ' "$package"
    done
}

install_packages() {
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || fail "this is not Debian; install what gives: $missing"
    [ "$(id -u)" -eq 0 ] || fail "packages are missing; run: sudo apt-get install --no-install-recommends $missing"
    stage "apt-get install $missing(about a minute)"
    # A machine that has just come up updates itself, and nobody else may install meanwhile.
    install="apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300"
    # shellcheck disable=SC2086 # one word for each package
    said=$( (apt-get update -qq && $install --download-only $missing) 2>&1) || fail "$said"
    # In a session of its own: what Ctrl-C has interrupted would have to be mended by hand.
    stage "setting up what has come; Ctrl-C waits for that"
    # shellcheck disable=SC2086
    said=$(setsid $install $missing 2>&1) || fail "$said"
    missing=$(missing_packages)
    [ -z "$missing" ] || fail "$missing: installed, but what is used of it is not there"
}

choose_python() {
    python=${PYTHON:-python3}
    # Debian's own Python has venv only with a package of its own.
    if ! is_there python3-venv; then
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not there, older than 3.9, or has no venv module"
        python=/usr/bin/python3
        PACKAGES="$PACKAGES python3-venv"
    fi
}

# Installs what is missing, and says in $python which Python to use.
prepare_machine() {
    choose_python
    install_packages
}
