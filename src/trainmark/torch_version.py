"""Which torch is installed, read without importing it."""

from __future__ import annotations

from importlib.metadata import version

from trainmark.errors import EnvironmentFault


def installed_torch() -> str:
    """Return the version of the installed torch, without its local part (``+cu130``)."""
    return version("torch").partition("+")[0]


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

    installed = installed_torch()
    # Vendors' builds are often named as before a release, 2.11.0a0: they count as it.
    if Version(installed).release < Version(oldest).release:
        raise EnvironmentFault(
            f"{feature} needs torch {oldest} or newer, and {installed} is installed",
            where=where,
            fix=f"install a newer torch, or {fix}",
        )
