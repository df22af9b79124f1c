#!/bin/sh
# Build the hollow card for one release of torch: tests/hollow/build.sh FOLDER TORCH_VERSION
#
# FOLDER/headers             CUDA's headers
# FOLDER/TORCH_VERSION/venv  torch's CUDA build without NVIDIA's libraries, and what the tests need
# FOLDER/TORCH_VERSION/card  the library, under the names of NVIDIA's libraries
#
# What is there already stays. HOLLOW_PIP adds options to pip for torch, for example an index.
set -eu

folder=$1
version=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$folder/nodes" "$folder/$version"
folder=$(cd "$folder" && pwd)
venv=$folder/$version/venv
headers=$folder/headers
python=${PYTHON:-python3}

fail() {
    echo "hollow: $1" >&2
    echo "  fix: $2" >&2
    exit 2
}

for tool in gcc nm readelf; do
    command -v "$tool" >/dev/null || fail "$tool is not installed" "install gcc and binutils"
done

# --no-deps: what requires torch would install NVIDIA's libraries, which would be loaded instead.
pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"
}

if [ ! -e "$venv/.installed" ]; then
    echo "hollow: installing torch $version for CUDA into $venv: some GB, minutes" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv"
    others=$(mktemp)
    trap 'rm -f "$others"' EXIT
    cat "$root/requirements.lock" "$root/requirements-dev.lock" |
        grep -E '^[A-Za-z0-9_.-]+==' | grep -v '^torch==' | sort -u >"$others"
    pip_install --requirement "$others" "nvidia-ml-py>=12.535" "torchao>=0.18"
    # --isolated: a user's index may hold a torch of the same version without CUDA.
    # shellcheck disable=SC2086 # several options
    pip_install --isolated ${HOLLOW_PIP:-} "torch==$version"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    grep -Eq "^cuda.*= '13" "$site/torch/version.py" || fail \
        "torch $version is not built for CUDA 13: $(grep -E '^cuda' "$site/torch/version.py")" \
        "remove $venv, and name an index that has such a build: HOLLOW_PIP='--index-url ...'"
    triton=$(sed -n 's/^Requires-Dist: \(triton[^;]*\);.*/\1/p' \
        "$site"/torch-*.dist-info/METADATA | head -1)
    # shellcheck disable=SC2086 # several options
    pip_install --isolated ${HOLLOW_PIP:-} "$triton"
    touch "$venv/.installed"
fi
if [ ! -d "$headers/nvidia" ]; then
    pip_install --target "$headers" "nvidia-cuda-runtime>=13,<14" "nvidia-cuda-crt>=13,<14"
fi

touch "$folder/nodes/nvidia0"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" "$here/build_card.py" "$site/torch" "$headers/nvidia/cu13/include" \
    "$folder/$version/card"
