"""What this machine can do: the device that runs some words here, or why none does.

Owns the reasons for which a run of a plan file is skipped. Must not know data or folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.errors import EnvironmentFault, UsageError, nearest
from trainmark.planning import case_key
from trainmark.planning.plan_file import ACCELERATOR

if TYPE_CHECKING:
    from trainmark.planning.requests import Words
    from trainmark.protocols import Vendor


def able_vendor(words: Words, *, chosen: str | None, default: str) -> Vendor:
    """Return the vendor that can run ``words`` here.

    Args:
        chosen: a device's name, or ``accelerator``; none: the case key's hardware.
        default: the same, where neither says anything.

    Raises:
        UsageError: no vendor is called so.
        EnvironmentFault: it is not here, has too few devices, or refuses the recipe.
    """
    wanted = chosen or case_key.vendor_of(words.hardware) or default
    names = [*devices.vendors(), ACCELERATOR]
    if wanted not in names:
        raise UsageError(
            f"unknown device {wanted!r}", where="--device", remedy=nearest(wanted, names)
        )
    vendor = _accelerator() if wanted == ACCELERATOR else devices.choose(wanted)
    if words.nnodes > 1:
        raise EnvironmentFault(f"{words.nnodes} machines needed, the local launcher has 1")
    here = vendor.count()
    if words.nproc > here:
        # More ranks than cores would run, but they would compete for the processor.
        unit = "cores" if vendor.counts_cores else f"{vendor.name} devices"
        raise EnvironmentFault(f"{words.nproc} {unit} needed, {here} here")
    refusal = vendor.refuse(words.recipe, words.nproc)
    if refusal is not None:
        raise EnvironmentFault(refusal.why)
    return vendor


def _accelerator() -> Vendor:
    for vendor in devices.vendors().values():
        if not vendor.counts_cores and vendor.count() > 0:
            return vendor
    raise EnvironmentFault("no accelerator here; --device cpu takes the processor")
