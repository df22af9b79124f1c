#!/bin/sh
# Build a virtual environment with the program in it: tools/install.sh VENV
#
# PYTHON  the interpreter to use; default: the first of 3.11, 3.12, 3.10 and python3 that fits, and
#         that has torch if TORCH=system; with TORCH=oldest 3.10 is the first
# TORCH   lock    install the tested torch of requirements.lock (default)
#         system  see the packages PYTHON already has and keep its torch
#         oldest  install the lowest versions of pyproject.toml, and what the tests need
# EXTRA   an extra of pyproject.toml to install as well
# WHEELS  a folder of wheels to install from; no network is used then
set -eu

venv=$1
python=${PYTHON:-}
torch=${TORCH:-lock}
extra=${EXTRA:-}
wheels=${WHEELS:-}
here=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "install: $1" >&2
    echo "  try: $2" >&2
    exit 2
}

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

has_torch() {
    "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'
}

# On a terminal pip shows each package with a bar; in a log it says only what is wrong.
pip_install() {
    quiet=--quiet
    [ ! -t 1 ] || quiet=--progress-bar=on
    "$venv/bin/python" -m pip install "$quiet" --disable-pip-version-check \
        ${wheels:+--no-index --find-links "$wheels"} "$@"
}

# Name all that is missing before anything is installed: pip names one package a call.
# Where nothing is missing, pip need not ask an index.
need_all_packages() {
    if lacking=$("$venv/bin/python" "$here/tools/missing.py" ${wheels:+--wheels "$wheels"} \
        ${extra:+--extra "$extra"} "$@"); then
        export PIP_NO_INDEX=1
    elif [ -n "$lacking" ] && { [ -n "$wheels" ] || [ -n "${PIP_NO_INDEX:-}" ]; }; then
        echo "install: packages are missing, and no network is to be used:" >&2
        echo "$lacking" >&2
        exit 2
    fi
}

# Debian and Ubuntu ship Python without what builds a virtual environment.
need_venv_module() {
    "$python" -c 'import venv, ensurepip' 2>/dev/null && return
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    command -v apt-get >/dev/null || fail "$python cannot build a virtual environment" \
        "install its venv module ($package on Debian)"
    root=
    [ "$(id -u)" = 0 ] || root=sudo
    echo "install: $python lacks its venv module; installing $package" >&2
    # shellcheck disable=SC2086 # no word at all for root
    { $root apt-get update -qq && $root apt-get install -y -qq "$package" >/dev/null; } ||
        fail "could not install $package" "install it yourself, then make install again"
}

if [ -z "$python" ]; then
    candidates="python3.11 python3.12 python3.10 python3"
    [ "$torch" != oldest ] || candidates="python3.10 $candidates"
    for candidate in $candidates; do
        fits "$candidate" || continue
        if [ "$torch" != system ] || has_torch "$candidate"; then python=$candidate && break; fi
    done
fi
if [ -z "$python" ] && [ "$torch" = system ]; then
    fail "TORCH=system, but no Python 3.10 or newer on the path has torch" \
        "name the one that has it: PYTHON=/path/to/python"
fi
[ -n "$python" ] || fail "no Python 3.10 or newer here" "install one, or make install PYTHON=PATH"
fits "$python" || fail "PYTHON=$python is not Python 3.10 or newer, or does not start" \
    "name another PYTHON"
case $torch in
    lock | system | oldest) ;;
    *) fail "TORCH=$torch is unknown" "TORCH=lock or TORCH=system" ;;
esac

if [ -n "$wheels" ]; then
    [ -d "$wheels" ] || fail "WHEELS=$wheels is no folder" "name the folder with the wheels"
    wheels=$(cd "$wheels" && pwd)
fi

mode=$venv/.torch
if [ -e "$mode" ] && [ "$(cat "$mode")" != "$torch" ]; then
    fail "$venv was built with TORCH=$(cat "$mode")" "make clean, then make install TORCH=$torch"
fi
say() {
    echo "install: $1" >&2
}

if [ ! -x "$venv/bin/python" ]; then
    say "building $venv with $("$python" --version)"
    if [ "$torch" = system ] && ! "$python" -c 'import ensurepip' 2>/dev/null &&
        "$python" -c 'import pip, venv' 2>/dev/null; then
        # PYTHON's own pip serves, which the path file below shows: no network is needed.
        "$python" -m venv --without-pip "$venv"
    else
        need_venv_module
        "$python" -m venv "$venv"
        # Python 3.11 puts an old setuptools there, which would hide the one that PYTHON has.
        [ "$torch" != system ] || "$venv/bin/python" -m pip uninstall -qqq --yes setuptools
    fi
fi
echo "$torch" >"$mode"

if [ "$torch" = lock ]; then
    say "installing torch and what else requirements.lock names: some GB, minutes on a slow line"
    [ -z "$wheels" ] || need_all_packages --requirements "$here/requirements.lock"
    pip_install --requirement "$here/requirements.lock"
    [ -z "$extra" ] || pip_install --constraint "$here/requirements.lock" \
        --constraint "$here/requirements-dev.lock" --no-build-isolation --editable "$here[$extra]"
elif [ "$torch" = oldest ]; then
    say "installing the lowest versions that pyproject.toml admits"
    listed=$(mktemp)
    trap 'rm -f "$listed"' EXIT
    "$venv/bin/python" "$here/tools/oldest.py" >"$listed"
    pip_install --requirement "$listed" ||
        fail "could not install the lowest versions of pyproject.toml (pip says why above)" \
            "reach a package index; if versions exclude each other, raise a lower bound"
    "$venv/bin/python" "$here/tools/oldest.py" --tools >"$listed"
    pip_install --requirement "$listed" --constraint "$here/requirements-dev.lock" ||
        fail "could not install what the tests need (pip says why above)" "reach a package index"
else
    # As pip knows it: torch.__version__ may have a local part (+cu130) that the package lacks.
    version=$("$python" -c 'import importlib.metadata, torch
print(importlib.metadata.version("torch"))' 2>/dev/null) ||
        fail "TORCH=system, but $python has no torch that it can import" "install the vendor's torch for it first"
    # A path file and not --system-site-packages: that flag sees past PYTHON to its base
    # when PYTHON is itself of a virtual environment, as in many GPU images.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Its whole path but the standard library's: its packages may lie behind path files too.
    "$python" -c 'import os, sys, sysconfig
library = os.path.realpath(sysconfig.get_path("stdlib"))
own = (library, os.path.join(library, "lib-dynload"))
print("\n".join(folder for folder in sys.path[1:]
                if os.path.isdir(folder) and os.path.realpath(folder) not in own))' \
        >"$site/from_python.pth"
    # Ranges, not the lock: what PYTHON has and fits stays, its torch above all.
    pinned=$(mktemp)
    trap 'rm -f "$pinned"' EXIT
    echo "torch==$version" >"$pinned"
    need_all_packages
    say "keeping torch $version of $python; installing what is missing"
    pip_install "setuptools>=77.0.1"
    pip_install --constraint "$pinned" --no-build-isolation --editable "$here[pages,prepare,published,server${extra:+,$extra}]"
fi
pip_install --no-deps --no-build-isolation --editable "$here"
