"""What the installed torch was built for, without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Vendors whose torch presents their devices as CUDA's, by what they add to its version:
# 2.4.1+corex.4.3.0, 2.8.0+metax3.3.0.2, 2.4.1+das.opt1.dtk2504.
_MAKERS = {"corex": "iluvatar", "metax": "metax", "das": "hygon"}


class TorchBuild(NamedTuple):
    """What the installed torch was built for.

    Args:
        version: with what its builder added: ``2.13.0+cu130``.
        cuda: version of CUDA, or of what another vendor offers in its place; None for a build
            without it.
        hip: version of ROCm's HIP; None for a build without it.
        xpu: version of the compiler for Intel's GPUs; None for a build without it.
    """

    version: str
    cuda: str | None
    hip: str | None = None
    xpu: str | None = None

    @property
    def label(self) -> str:
        """What its builder added to the version: ``cu130``; empty if nothing."""
        return self.version.partition("+")[2]

    @property
    def maker(self) -> str | None:
        """The vendor whose devices it presents as CUDA's; None: NVIDIA, or nobody."""
        return next((who for what, who in _MAKERS.items() if self.label.startswith(what)), None)


def torch_build() -> TorchBuild | None:
    """Return what the version file of the installed torch says; None if there is no torch."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    version_file = Path(found.origin).with_name("version.py")
    if not version_file.exists():
        return None
    fields = {}
    for line in version_file.read_text().splitlines():
        name, _, value = line.partition("=")
        fields[name.split(":")[0].strip()] = value.strip().strip("'\"")
    cuda, hip, xpu = (
        None if (value := fields.get(name, "")) in ("", "None") else value
        for name in ("cuda", "hip", "xpu")
    )
    own = fields.get("__version__", "unknown")
    installed = _installed(version_file.parents[1])
    # CoreX 4.5 names itself in the package's version alone.
    return TorchBuild(installed if installed.startswith(f"{own}+") else own, cuda, hip, xpu)


def _installed(folder: Path) -> str:
    """Return the version of the package; importlib.metadata takes longer to import than this."""
    found = [path.name for path in folder.glob("torch-*.dist-info")]
    return found[0].removeprefix("torch-").removesuffix(".dist-info") if found else ""
