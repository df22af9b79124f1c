"""What this machine can do: the device that runs a request here, or why none does.

Owns the reasons for which a run is refused, or one of a plan file skipped. Must not know data
or folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.errors import EnvironmentFault, UsageError, nearest
from trainmark.plan import case_key
from trainmark.plan.plan_file import ACCELERATOR

if TYPE_CHECKING:
    from trainmark.plan.requests import Request
    from trainmark.protocols import Vendor
    from trainmark.spec import Recipe


def capable_vendor(
    request: Request, *, chosen: str | None, default: str, elsewhere: Elsewhere | None = None
) -> Vendor:
    """Return the vendor that can run ``request``, each rank on a device or core of its own.

    Args:
        chosen: as for ``--device``, or ``accelerator``; none: the case key's hardware.
        default: the same, where neither says anything.
        elsewhere: the machines of a launcher; None: this one.

    Raises:
        UsageError: no vendor is called so.
        EnvironmentFault: it is not here, has too few devices, or refuses the recipe.
    """
    wanted = chosen or case_key.vendor_of(request.hardware) or default
    if elsewhere is not None:
        by_site = elsewhere.device if wanted == ACCELERATOR else wanted
        vendor = elsewhere.vendor(by_site) if by_site else _accelerator()
        elsewhere.refuse_incapable(vendor, request)
        return vendor
    names = [*devices.choices(), ACCELERATOR]
    if wanted not in names:
        raise UsageError(
            f"unknown device {wanted!r}", where="--device", remedy=nearest(wanted, names)
        )
    vendor = _accelerator() if wanted == ACCELERATOR else devices.choose(wanted)
    refuse_incapable(vendor, request, ranks_share_cores=False)
    return vendor


def refuse_incapable(vendor: Vendor, request: Request, *, ranks_share_cores: bool) -> None:
    """Refuse a request that ``vendor`` cannot run here.

    Args:
        ranks_share_cores: whether there may be more ranks than cores of a processor; they run,
            but compete for it.

    Raises:
        EnvironmentFault: several machines, too few devices, or a recipe that they cannot do.
    """
    if request.nnodes > 1:
        raise EnvironmentFault(
            f"{request.nnodes} machines needed, the local launcher has 1",
            where="CASE, --recipe or --nnodes",
            rule="several machines need an engine or ssh",
            remedy="add --launcher (see `trainmark list launchers`), or --nproc for one machine",
        )
    refuse_ranks(vendor, request.recipe, request.nproc, ranks_share_cores=ranks_share_cores)


def refuse_ranks(vendor: Vendor, recipe: Recipe, nproc: int, *, ranks_share_cores: bool) -> None:
    """Refuse ``recipe`` on ``nproc`` ranks of this machine; see ``refuse_incapable``."""
    # Before the count, because it knows why there are fewer devices than there could be.
    refusal = vendor.refuse(recipe, nproc)
    if refusal is not None:
        raise EnvironmentFault(refusal.why, where=f"device {vendor.name}", remedy=refusal.way_out)
    here = vendor.count()
    if nproc > here and not (vendor.counts_cores and ranks_share_cores):
        unit = "cores" if vendor.counts_cores else f"{vendor.name} devices"
        raise EnvironmentFault(
            f"{nproc} {unit} needed, {here} here",
            where="--nproc",
            rule="each rank has a device of its own",
            remedy=f"use --nproc {here} or less; see `trainmark list devices`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The machines that a launcher starts a run on, as the site's file describes them.

    Args:
        device: vendor of their devices; None: as ``--device`` says, or as this machine has.
        nodes: that a run may have; None: unknown.
        devices_per_node: None: unknown.
        labels: of runs there.
    """

    launcher: str
    device: str | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    labels: tuple[str, ...] = ()

    def vendor(self, chosen: str | None) -> Vendor:
        """Return the vendor of the nodes' devices, which need not be on this machine.

        Raises:
            UsageError: no vendor is called so.
        """
        name = chosen or self.device
        if name is None:
            return devices.choose(None)
        known = devices.all_vendors()
        if name in known:
            return known[name]
        of_type = [one for one in known.values() if one.torch_type == name]
        if len(of_type) == 1:
            return of_type[0]
        raise UsageError(
            f"device {name!r} does not name one vendor",
            where="--device",
            rule="this machine cannot tell what devices the nodes have",
            remedy=nearest(name, known),
        )

    def refuse_incapable(self, vendor: Vendor, request: Request) -> None:
        """Refuse what the nodes do not have.

        Raises:
            EnvironmentFault: more nodes or devices than the site has.
        """
        for asked, most, unit, option in (
            (request.nnodes, self.nodes, "nodes", "--nnodes"),
            (request.nproc, self.devices_per_node, f"{vendor.name} devices on a node", "--nproc"),
        ):
            if most is not None and asked > most:
                raise EnvironmentFault(
                    f"{asked} {unit} needed, the site has {most}",
                    where=option,
                    rule="as its site file says; local and container have one node",
                    remedy=f"use {option} {most} or less, correct the site file, or name another "
                    "--launcher",
                )


def _accelerator() -> Vendor:
    vendor = devices.first(accelerator=True)
    if vendor is not None:
        return vendor
    for fault in devices.unusable():
        raise fault
    raise EnvironmentFault(
        "no accelerator here; --device cpu takes the processor",
        remedy="for other machines name their device in the site file",
    )
