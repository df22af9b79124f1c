"""Which torch is installed, read without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe


def read_installed_version() -> str:
    """Return the version of the installed torch, without its local part (``+cu130``)."""
    return _read_version("torch").partition("+")[0]


def _read_version(package: str) -> str:
    """Return the version of an installed package, without importing the package."""
    from importlib.metadata import version  # slow to import, and `trainmark list` does not need it

    return version(package)


def require_torch(oldest: str, feature: str, *, where: str, fix: str) -> None:
    """Refuse a feature that the installed torch lacks.

    Args:
        oldest: the first version that has it.
        feature: as the user writes it, for example ``precision=fp8``.
        where: the field that asks for it.
        fix: what to use instead.

    Raises:
        EnvironmentFault: torch is older; nothing was started.
    """
    from packaging.version import Version

    installed = read_installed_version()
    # Vendors' builds often have the version of a pre-release, 2.11.0a0; they count as the release.
    if Version(installed).release < Version(oldest).release:
        raise EnvironmentFault(
            f"{feature} needs torch {oldest} or newer, but {installed} is installed",
            where=where,
            fix=f"install a newer torch, or {fix}",
        )


def refuse_missing_features(recipe: Recipe, vendor: Vendor, ranks: int) -> None:
    """Refuse features of several cases that torch 2.7.1 lacks or computes wrongly.

    2.11 is the oldest version after 2.7.1 that was tried. Features of one case alone are checked in
    its recipe's ``check``.

    Args:
        ranks: number of ranks on all nodes.

    Raises:
        EnvironmentFault: the installed torch is too old.
    """
    # Only some cases have these fields. The others get the default, which means "off".
    if getattr(recipe, "checkpoint_every_steps", None) is not None:
        # One process saves with async_save(no_dist=True), which 2.7.1 does not take.
        require_torch(
            "2.11",
            "checkpoint_every_steps",
            where="recipe field checkpoint_every_steps",
            fix="remove the field",
        )
    if ranks > 1 and getattr(recipe, "fsdp", False) and _uses_gloo(vendor):
        # FSDP2 of 2.7.1 asks gloo for the mean of gradients and gets their sum.
        fix = "use one rank (--nproc 1)"
        if getattr(recipe, "expert_parallel", 1) == 1:  # ranks that share experts need fsdp
            fix = "use fsdp=false or one rank (--nproc 1)"
        require_torch(
            "2.11",
            f"fsdp=true on {vendor.name} devices",
            where="recipe field fsdp",
            fix=fix,
        )


def _uses_gloo(vendor: Vendor) -> bool:
    """Tell whether gloo exchanges the tensors of a vendor's devices.

    The backend is ``gloo`` for all, or is given for each type of device: ``cpu:gloo,npu:gloo``.
    """
    for backend in vendor.collective_backend.split(","):
        torch_type, _, name = backend.rpartition(":")
        if name == "gloo" and torch_type in ("", vendor.torch_type):
            return True
    return False
