#!/bin/sh
# Install the Debian packages that a file names, a package a line: tools/engines.sh FILE
#
# Services that packages bring are not started: the tests start their own.
set -eu

fail() {
    echo "engines: $1" >&2
    echo "  try: $2" >&2
    exit 2
}

lacking=
for package in $(grep -v '^#' "$1"); do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$' ||
        lacking="$lacking $package"
done
[ -n "$lacking" ] || exit 0
command -v apt-get >/dev/null || fail "no apt-get here, and these packages are missing:$lacking" \
    "install their programs, then: pytest -rs tests/engines"
root=
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "you are not root and sudo asks for a password; missing:$lacking" \
        "sudo apt-get install$lacking"
    root=sudo
fi

policy=/usr/sbin/policy-rc.d # asked before a service is started
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $root tee "$policy" >/dev/null
    $root chmod 755 "$policy"
    trap '$root rm -f "$policy"' EXIT
fi
echo "engines: installing$lacking" >&2
# A list of packages that is older than the archive names files that are gone.
$root apt-get update -qq || fail "no list of packages could be had (see above)" "reach an archive of Debian"
# shellcheck disable=SC2086 # a word each
$root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
    --no-install-recommends $lacking >/dev/null ||
    fail "apt-get could not install them (see above)" "sudo apt-get install$lacking"
