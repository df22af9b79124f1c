"""The kinds of device that ranks can run on, found without importing torch.

Owns the registry. A vendor is one module here, or a package elsewhere that offers an
object of the ``Vendor`` Protocol under the entry-point group ``trainmark.devices``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.devices.cpu import Cpu
from trainmark.devices.cuda import Cuda
from trainmark.errors import EnvironmentFault, UsageError, nearest
from trainmark.plugins import offered

if TYPE_CHECKING:
    from trainmark.protocols import Vendor

ENTRY_POINT_GROUP = "trainmark.devices"


def vendors() -> dict[str, Vendor]:
    """Return every known vendor by name; accelerators first, the CPU last."""
    known: dict[str, Vendor] = {"cuda": Cuda()}
    for entry in offered(ENTRY_POINT_GROUP):
        vendor: Vendor = entry.load()()
        known[vendor.name] = vendor
    known["cpu"] = Cpu()
    return known


def choose(name: str | None) -> Vendor:
    """Return the vendor called ``name``, or the first that has a device here.

    Raises:
        UsageError: no vendor of that name.
        EnvironmentFault: the vendor has no device here.
    """
    known = vendors()
    if name is None:
        return next(vendor for vendor in known.values() if vendor.count() > 0)
    if name not in known:
        raise UsageError(f"unknown device {name!r}", where="--device", remedy=nearest(name, known))
    vendor = known[name]
    if vendor.count() == 0:
        present = ", ".join(item.name for item in known.values() if item.count() > 0)
        raise EnvironmentFault(
            f"no {name} device that this installation can use",
            where="--device",
            rule=f"a {name} device needs its driver and a torch built for it",
            remedy=f"devices present: {present}; see `trainmark list devices`",
        )
    return vendor
