"""Compile the hollow card for one installed torch: python build_card.py TORCH HEADERS OUT.

Compiles the sources in ``card/``, and adds a function that returns 0 for every other symbol of
NVIDIA's libraries that torch imports. The result is one library under all their names.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent / "card"
LIBRARY = "libhollow.so"
NVIDIA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|cufile|cupti|curand|cusolver|cusolverMg|cusparse"
    r"|cusparseLt|nccl|nvJitLink|nvrtc|nvshmem_host)\.so"
)
NVIDIA_SYMBOL = re.compile(r"(__)?(cu|nv|nccl)")
# What programs open by name, so that no library of torch lists it.
OPENED_BY_NAME = ("libcuda.so.1", "libnvidia-ml.so.1")
# Names of the driver's functions in the source that Triton compiles on the card.
TRITON_SOURCE = "triton/backends/nvidia/driver.c"
DRIVER_FUNCTION = re.compile(r"\bcu[A-Z]\w+")
CUDNN_REQUIREMENT = re.compile(
    r"^Requires-Dist: nvidia-cudnn-cu13==(\d+)\.(\d+)\.(\d+)", re.MULTILINE
)
# What torch and trainmark look up by name, beyond the functions in card/.
LOOKED_UP_BY_NAME = (
    "cuCtxGetLimit",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxSetLimit",
    "cuDeviceGetUuid",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuLaunchCooperativeKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)


class Symbols(NamedTuple):
    """Names in the symbol table of a library or an object file.

    Args:
        defined: the names that it defines.
        undefined: the names that it imports, each with its version; empty for no version.
    """

    defined: set[str]
    undefined: set[tuple[str, str]]


def read_symbols(file: Path, *options: str) -> Symbols:
    """Return the symbols that ``nm`` lists; undefined ones have the version that they ask for.

    A line of its output ends with a letter for the kind, and the name: ``U cudaMalloc@libcudart``.

    Args:
        file: a library or an object file.
        options: of ``nm``.
    """
    defined: set[str] = set()
    undefined: set[tuple[str, str]] = set()
    for line in run("nm", *options, str(file)).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        if kind in "Uw":  # undefined, or weak and undefined
            undefined.add((name, version.lstrip("@")))
        else:
            defined.add(name)
    return Symbols(defined, undefined)


def list_needed_libraries(file: Path) -> set[str]:
    """Return the names of the libraries that a library is linked with."""
    return set(re.findall(r"NEEDED.*\[(.+?)\]", run("readelf", "--dynamic", str(file))))


def read_cudnn_version(torch: Path) -> int:
    """Return the version of cuDNN that the installed torch requires, as cuDNN counts: 92000."""
    (metadata,) = torch.parent.glob("torch-*.dist-info/METADATA")
    required = CUDNN_REQUIREMENT.search(metadata.read_text(encoding="utf-8"))
    if required is None:
        sys.exit(f"build_card: {metadata} requires no cuDNN for CUDA 13")
    major, minor, patch = map(int, required.groups())
    return major * 10_000 + minor * 100 + patch


def compile_sources(headers: Path, out: Path, *, cudnn: int) -> list[Path]:
    """Compile each source in ``card/``; return the object files.

    Args:
        headers: folder with the vendor's headers, which the sources include.
        out: folder of the object files.
        cudnn: the version that cuDNN reports by default.
    """
    objects = []
    for source in sorted(SOURCES.glob("*.c")):
        compiled = out / f"{source.stem}.o"
        run(
            "gcc",
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            f"-DCUDNN_VERSION_REPORTED={cudnn}",
            f"-I{headers}",
            "-c",
            str(source),
            "-o",
            str(compiled),
        )
        objects.append(compiled)
    return objects


def build(torch: Path, headers: Path, out: Path) -> None:
    """Build the hollow card in ``out`` for the torch package in the folder ``torch``.

    It is one library in place of NVIDIA's: sources in ``card/`` implement some of their functions,
    and all others that torch, Triton or programs look for are stubs that return 0. ``headers`` is
    the folder with NVIDIA's headers, which the sources include.
    """
    out.mkdir(parents=True, exist_ok=True)
    # What torch imports from the vendor: functions whose names begin with its prefixes, for which
    # ``NVIDIA_SYMBOL`` is the pattern; ``NVIDIA_LIBRARY`` is that of its libraries' names.
    libraries = sorted((torch / "lib").glob("*.so*"))
    symbols = [read_symbols(file, "--dynamic") for file in libraries]
    defined_by_torch = set().union(*(table.defined for table in symbols))
    imports = {
        (name, version)
        for table in symbols
        for name, version in table.undefined
        if NVIDIA_SYMBOL.match(name) and name not in defined_by_torch
    }

    objects = compile_sources(headers, out, cudnn=read_cudnn_version(torch))
    implemented = set().union(*(read_symbols(file).defined for file in objects))
    # The functions of the driver that Triton calls, as the C source that it brings names them.
    used_by_triton = DRIVER_FUNCTION.findall(
        (torch.parent / TRITON_SOURCE).read_text(encoding="utf-8")
    )
    # ``LOOKED_UP_BY_NAME``: functions that torch and trainmark ask for while they run.
    names = {name for name, _ in imports}.union(LOOKED_UP_BY_NAME, used_by_triton)
    stubs = sorted(names - implemented)
    stub_source, version_script = out / "stubs.c", out / "versions.map"
    stub_source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in stubs))
    version_script.write_text(format_versions(imports))
    # -fno-builtin: the compiler knows some of the names with other types.
    run(
        "gcc",
        "-O1",
        "-fPIC",
        "-fno-builtin",
        "-shared",
        "-o",
        str(out / LIBRARY),
        *map(str, objects),
        str(stub_source),
        f"-Wl,--version-script={version_script}",
        "-lpthread",
        "-ldl",
    )

    # ``OPENED_BY_NAME``: libraries that no library of torch is linked with.
    # The library has the names of all libraries that torch and other programs open.
    needed = set().union(*(list_needed_libraries(file) for file in libraries))
    file_names = {name for name in needed if NVIDIA_LIBRARY.match(name)}.union(OPENED_BY_NAME)
    for name in file_names:
        link = out / name
        link.unlink(missing_ok=True)
        link.symlink_to(LIBRARY)
    num_written = len(implemented)
    print(f"{out}: {num_written} symbols written, {len(stubs)} stubs, {len(file_names)} libraries")


def format_versions(imports: set[tuple[str, str]]) -> str:
    """Return a linker script that gives each symbol the version that torch imports."""
    names_of_version = defaultdict(list)
    for name, version in sorted(imports):
        if version:
            names_of_version[version].append(f"{name};")
    return "".join(
        f"{version} {{ global: {' '.join(names)} }};\n"
        for version, names in sorted(names_of_version.items())
    )


def run(*command: str) -> str:
    """Run a tool and return what it prints; end the program with its message if it fails."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"build_card: {' '.join(command[:3])} … failed:\n{process.stderr}")
    return process.stdout


if __name__ == "__main__":
    build(*map(Path, sys.argv[1:4]))
