"""Describe the machine and the software, as far as they affect measurements."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices.cores import count_usable_cores
from trainmark.devices.vendors.cpu import read_model_name, read_total_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import Vendor

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "pydantic",
)
# Variables that affect measurements on any device and contain no secrets.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_BLOCKTIME",
    "KMP_AFFINITY",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "PYTORCH_ALLOC_CONF",
    "TORCH_COMPILE_DISABLE",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "LD_PRELOAD",
    "MALLOC_CONF",
)


def read_node_name() -> str:
    """Return the name that the engine gives this machine, else the one it gives itself."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def read_package_versions() -> dict[str, str]:
    """Return the versions, by name, of the installed packages that a result depends on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue  # not installed: the run does not use it
    return versions


def read_trainmark_commit() -> str | None:
    """Return the commit of the git checkout from which Trainmark runs.

    ``-dirty`` is appended if files that git tracks differ from the commit. None: Trainmark does not
    run from a checkout, or git fails.
    """
    root = Path(__file__).parents[3]  # the folder that has src
    if not (root / ".git").exists():
        return None
    try:
        commit = _run_git(root, "rev-parse", "HEAD")
        changed_files = _run_git(root, "status", "--porcelain", "-uno")
        return f"{commit}-dirty" if changed_files else commit
    except (OSError, subprocess.SubprocessError):
        return None  # git is not installed, fails or takes too long


def _run_git(root: Path, *arguments: str) -> str:
    """Run git in the folder ``root`` and return its output.

    Raises:
        OSError: git is not installed.
        SubprocessError: git fails, or does not end within 10 s.
    """
    process = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10
    )
    return process.stdout.strip()


# Facts that cannot be read inside a container; the user sets them as variables.
IMAGE_VARIABLE = "TRAINMARK_CONTAINER_IMAGE"
DIGEST_VARIABLE = "TRAINMARK_CONTAINER_DIGEST"
VERSION_VARIABLE = "TRAINMARK_CONTAINER_VERSION"
NETWORK_VARIABLE = "TRAINMARK_NETWORK"


def describe_container(
    variables: Mapping[str, str], root: Path = Path("/")
) -> dict[str, str | None]:
    """Return kind, version, image and digest of the container of the run; None for unknown ones.

    If the run has a container, this process is in it. Files and variables of the container's engine
    tell its kind, but not always version, image and digest: only apptainer names the image. So the
    script that starts the container passes these three in variables, which take precedence.

    Args:
        variables: the environment of the ranks.
        root: the folder in which the engines' files are looked for; a test passes another one.
    """
    kind = None
    image = None
    if (root / ".dockerenv").exists():
        kind = "docker"
    elif (root / "run" / ".containerenv").exists():  # podman-run(1), 2026-11-21
        kind = "podman"
    elif "APPTAINER_NAME" in variables or "SINGULARITY_NAME" in variables:
        kind = "apptainer" if "APPTAINER_NAME" in variables else "singularity"
        image = variables[f"{kind.upper()}_NAME"]  # file name of the image
    image = variables.get(IMAGE_VARIABLE) or image
    digest_in_name = image.partition("@")[2] if image else ""
    return {
        # Container engines set the variable ``container`` for systemd.
        "container": kind or variables.get("container") or None,
        "container_version": variables.get(VERSION_VARIABLE),
        "container_image": image,
        "container_digest": variables.get(DIGEST_VARIABLE) or digest_in_name or None,
    }


def read_os_name() -> str:
    """Return the operating system's name from its own files."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.platform()  # the system has no os-release file


def read_machine_model() -> str | None:
    """Return the machine's product name from its firmware; None: unknown."""
    file = Path("/sys/class/dmi/id/product_name")
    try:
        return file.read_text().strip() or None
    except OSError:
        return None  # no firmware table, or not for this user


def count_numa_nodes() -> int | None:
    """Return the number of NUMA nodes; None: unknown."""
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return len(nodes) or None


def select_variables(variables: Mapping[str, str], vendor: Vendor) -> dict[str, str]:
    """Return the variables that go into the record, sorted by name.

    These are the ones that affect measurements on any device (``VARIABLES``), and those that
    ``vendor`` names for its own devices.

    Args:
        variables: the environment of the ranks.
    """
    # A pattern is the name of a variable, or a prefix of names followed by ``*``.
    patterns = (*VARIABLES, *vendor.recorded_variables)
    return {
        name: value
        for name, value in sorted(variables.items())
        if any(is_recorded(name, pattern) for pattern in patterns)
    }


def is_recorded(name: str, pattern: str) -> bool:
    """Tell whether ``pattern`` selects the variable ``name`` for the record.

    Args:
        pattern: the name of a variable, or a prefix of names followed by ``*``.
    """
    if pattern.endswith("*"):
        return name.startswith(pattern.removesuffix("*"))
    return name == pattern


def describe_environment(variables: Mapping[str, str], vendor: Vendor) -> dict[str, Any]:
    """Return everything about the machine that a reader needs to compare results.

    Args:
        variables: the environment of the ranks.
        vendor: vendor of the devices on which they run.
    """
    return {
        "commit": read_trainmark_commit(),
        "packages": read_package_versions(),
        "python": platform.python_version(),
        "os": read_os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "machine": read_machine_model(),
        "cpu": read_model_name(),
        "cpu_cores": count_usable_cores(),
        "numa_nodes": count_numa_nodes(),
        "memory_total_bytes": read_total_memory_bytes(),
        "driver": vendor.driver_version(),
        **describe_container(variables),
        # What the user calls the network, such as "InfiniBand, 200Gb/s": it cannot be detected.
        "network": variables.get(NETWORK_VARIABLE),
        "variables": select_variables(variables, vendor),
    }
