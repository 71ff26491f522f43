# Installs the prerequisites of bin/test, bin/quickstart and bin/docs, which source this file. PACKAGES lists the
# Debian packages that the script needs.

stage() {
    printf -- '-- %s\n' "$*"
}

fail() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 1
}

# Some packages are recognized by the files or commands that the scripts use: these may have another origin
# than Debian. All others are looked up by name.
is_installed() {
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
        is_installed "$package" || printf '%s ' "$package"
    done
}

install_packages() {
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || fail "this is not Debian: install the equivalents of: $missing"
    [ "$(id -u)" -eq 0 ] || fail "packages are missing; run: sudo apt-get install --no-install-recommends $missing"
    stage "apt-get install $missing(about a minute)"
    # A machine that has just booted may be updating itself, and holds the lock of dpkg meanwhile.
    install="apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300"
    # shellcheck disable=SC2086 # one word for each package
    said=$( (apt-get update -qq && $install --download-only $missing) 2>&1) || fail "$said"
    # In its own session, where Ctrl-C does not reach it: an interrupted installation needs repair by hand.
    stage "installing the downloaded packages; Ctrl-C takes effect afterwards"
    # shellcheck disable=SC2086
    said=$(setsid $install $missing 2>&1) || fail "$said"
    missing=$(missing_packages)
    [ -z "$missing" ] || fail "apt-get has installed $missing, but its files or commands are missing"
}

choose_python() {
    python=${PYTHON:-python3}
    # In Debian, the module venv is a separate package.
    if ! is_installed python3-venv; then
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is missing, older than 3.9, or has no module venv"
        python=/usr/bin/python3
        PACKAGES="$PACKAGES python3-venv"
    fi
}

# Installs missing packages, and sets $python to the Python to use.
prepare_machine() {
    choose_python
    install_packages
}

# Makes a virtual environment with the pinned packages of a file, unless it has been made for these; it needs
# so many MB: make_venv DIRECTORY FILE MEGABYTES
make_venv() {
    wanted=$({ "$python" -VV; echo "$1"; cat "$2"; } | cksum)
    [ "$(cat "$1/made-for" 2>/dev/null)" != "$wanted" ] || return 0
    stage "virtual environment in $1 (about 10 s)"
    rm -rf "$1"
    mkdir -p "$1"
    # The message of pip does not say that a disk is full.
    free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free" -ge "$3" ] || fail "$3 MB are needed, $free MB are free in $(dirname "$1")"
    said=$(install_venv "$1" "$2" 2>&1) || fail "$(printf '%s\n' "$said" | tail -n 20)
packages could not be installed, see above; PIP_INDEX_URL names another index, if PyPI can't be reached"
    printf '%s' "$wanted" >"$1/made-for"
}

install_venv() {
    "$python" -m venv "$1" &&
        "$1/bin/python" -m pip install -q --disable-pip-version-check \
            --no-cache-dir --only-binary :all: --require-hashes -r "$2"
}
