#!/bin/sh
# Build a virtual environment with the program in it: tools/install.sh VENV
#
# PYTHON  the interpreter to use; default: the first of 3.11 and 3.12 that works
# TORCH   lock    install the tested torch of requirements.lock (default)
#         system  see the packages PYTHON already has and keep its torch
set -eu

venv=$1
python=${PYTHON:-}
torch=${TORCH:-lock}
here=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "install: $1" >&2
    echo "  way out: $2" >&2
    exit 2
}

supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null
}

if [ -z "$python" ]; then
    for candidate in python3.11 python3.12 python3; do
        if supported "$candidate"; then python=$candidate && break; fi
    done
fi
[ -n "$python" ] || fail "no Python 3.11 or 3.12 here" "install one, or make install PYTHON=PATH"
supported "$python" ||
    fail "PYTHON=$python is not Python 3.11 or 3.12, or does not start" "name another PYTHON"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module" "apt-get install python3-venv"

case $torch in
lock)
    if [ ! -x "$venv/bin/python" ]; then "$python" -m venv "$venv"; fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --requirement "$here/requirements.lock"
    ;;
system)
    "$python" -c 'import torch' ||
        fail "TORCH=system, but $python has no torch" "install the vendor's torch for it first"
    if [ ! -x "$venv/bin/python" ]; then "$python" -m venv --system-site-packages "$venv"; fi
    # Ranges, not the lock: what the interpreter already has stays, torch above all.
    # pip takes a package seen through the system folder as installed.
    version=$("$venv/bin/python" -c 'import torch; print(torch.__version__)')
    constraints=$(mktemp)
    trap 'rm -f "$constraints"' EXIT
    echo "torch==$version" >"$constraints"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$constraints" "setuptools>=77" "$here"
    "$venv/bin/python" -m pip uninstall --quiet --yes trainmark
    ;;
*)
    fail "TORCH=$torch is unknown" "TORCH=lock or TORCH=system"
    ;;
esac
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --no-build-isolation --editable "$here"
