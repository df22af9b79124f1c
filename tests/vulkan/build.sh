#!/bin/sh
# Install torchvulkan beside a Python with torch: tests/vulkan/build.sh PYTHON FOLDER
set -eu

python=$1
folder=$2
if ! ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1; then
    echo "vulkan: Mesa's software driver is not installed" >&2
    echo "  fix: apt-get install mesa-vulkan-drivers libvulkan1" >&2
    exit 2
fi
[ -d "$folder/torchvulkan" ] || "$python" -m pip install --quiet --disable-pip-version-check \
    --no-deps --target "$folder" "torchvulkan>=0.2.1,<0.3"
