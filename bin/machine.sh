# What a machine needs before bin/test and bin/quickstart can begin. Sourced by them; PACKAGES names
# the Debian packages that the script wants.

stage() {
    printf -- '-- %s\n' "$*"
}

fail() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

missing_packages() {
    for package in $PACKAGES; do
        case $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) in
            *" installed") ;;
            *) printf '%s ' "$package" ;;
        esac
    done
}

install_packages() {
    [ -n "$PACKAGES" ] || return 0
    command -v apt-get >/dev/null || fail "this is not Debian; install what gives: $PACKAGES"
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    [ "$(id -u)" -eq 0 ] || fail "packages are missing; run: sudo apt-get install --no-install-recommends $missing"
    stage "apt-get install $missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # one word for each package
    apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $missing >/dev/null
}

choose_python() {
    python=${PYTHON:-python3}
    # Debian's own Python has venv only with a package of its own.
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        python=/usr/bin/python3
        PACKAGES="$PACKAGES python3-venv"
    fi
}

# Installs what is missing, and says in $python which Python to use.
prepare_machine() {
    choose_python
    install_packages
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "$python is older than Python 3.9"
}
