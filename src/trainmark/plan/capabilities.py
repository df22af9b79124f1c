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

if TYPE_CHECKING:
    from trainmark.plan.choosing import Choice
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe

ACCELERATOR = "accelerator"  # any vendor with a device here, but never the processor


def capable_vendor(
    choice: Choice, device: str | None, *, elsewhere: Elsewhere | None, ranks_share_cores: bool
) -> Vendor:
    """Return the vendor that can run ``choice``.

    Args:
        device: as for ``--device``, or ``accelerator``; None: the case key's hardware, or the
            first that is here.
        elsewhere: the machines of a launcher; None: this one.
        ranks_share_cores: whether there may be more ranks than cores of a processor; they run,
            but compete for it.

    Raises:
        UsageError: no vendor is called so.
        EnvironmentFault: it is not here, has too few devices, or refuses the recipe.
    """
    wanted = device or case_key.vendor_of(choice.hardware)
    if elsewhere is not None:
        named = elsewhere.device if wanted == ACCELERATOR else wanted
        here = wanted == ACCELERATOR and named is None
        vendor = _accelerator() if here else elsewhere.vendor(named)
        elsewhere.refuse_incapable(vendor, choice)
        return vendor
    vendor = _accelerator() if wanted == ACCELERATOR else devices.choose(wanted)
    if choice.nnodes > 1:
        raise EnvironmentFault(
            f"{choice.nnodes} machines needed, the local launcher has 1",
            where="CASE, --recipe or --nnodes",
            rule="several machines need an engine or ssh",
            remedy="add --launcher (see `trainmark list launchers`), or --nproc for one machine",
        )
    refuse_ranks(vendor, choice.recipe, choice.nproc, ranks_share_cores=ranks_share_cores)
    return vendor


def refuse_ranks(vendor: Vendor, recipe: Recipe, nproc: int, *, ranks_share_cores: bool) -> None:
    """Refuse ``recipe`` on ``nproc`` ranks of this machine; see ``capable_vendor``."""
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

    def refuse_incapable(self, vendor: Vendor, choice: Choice) -> None:
        """Refuse what the nodes do not have.

        Raises:
            EnvironmentFault: more nodes or devices than the site has.
        """
        for asked, most, unit, option in (
            (choice.nnodes, self.nodes, "nodes", "--nnodes"),
            (choice.nproc, self.devices_per_node, f"{vendor.name} devices on a node", "--nproc"),
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
