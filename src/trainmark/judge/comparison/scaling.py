"""Compute how the same work scales from few ranks to many.

Owns when launches of different worlds do the same work, and which efficiencies are doubtful. Weak
scaling: the batch of each rank stays the same; strong scaling: the batch of all ranks together
stays the same. The efficiency is the throughput of a device over that in the smallest world.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from trainmark.recipe import FIELD_ALIASES
from trainmark.record.stats import LaunchSummary, summarize_launches
from trainmark.record.trust import is_refuted
from trainmark.record.work import describe_work, group_by_work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trainmark.record.record import Record

ScalingKind = Literal["weak", "strong"]
MAX_EFFICIENCY = 1.05  # no device does more work because there are others, and 5% is noise
_BATCH = ("micro_batch_size", "grad_accum_steps")  # their product is the samples of a rank a step
# Fields of the work that differ between worlds; ``world`` is the one that a recipe is for.
WORLD_FIELDS = frozenset({"ran_world", "world", *_BATCH})


@dataclass(frozen=True, slots=True)
class World:
    """The throughput and efficiency of one world.

    Args:
        name: nodes x ranks of a node, ``2x8``.
        ranks: number of ranks over all nodes.
        samples_per_rank: in an optimizer step.
        throughput: ``final_result`` of all ranks together, over the launches of this world.
        efficiency: share of the throughput of a device in the smallest world.
        low: lower end of the efficiency's interval, from the far ends of the intervals of both
            worlds; None: one of them has a single launch, or it is the smallest world.
        high: upper end of that interval.
        doubt: why the efficiency is not credible; None: it is.
    """

    name: str
    ranks: int
    samples_per_rank: int
    throughput: LaunchSummary
    efficiency: float
    low: float | None = None
    high: float | None = None
    doubt: Message | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The worlds that did the same work, the smallest first."""

    kind: ScalingKind
    case: str
    unit: str
    worlds: tuple[World, ...]

    @property
    def doubts(self) -> list[Message]:
        """Return why efficiencies are not credible."""
        return [world.doubt for world in self.worlds if world.doubt is not None]


def find_scaling(
    works: Sequence[Sequence[Record]], *, allow: Collection[str] = ()
) -> list[tuple[Scaling, Record]]:
    """Return how throughput scales over works that differ only in their number of ranks.

    Such works are worlds of one scaling. In weak scaling, the batch of each rank is the same in all
    worlds; in strong scaling, the batch of all ranks together is. Each scaling is returned with a
    record of its smallest world.

    Args:
        works: launches of each work; those that failed, or that their evidence contradicts, do not
            count.
        allow: further keys of the work in which worlds may differ.
    """
    # Works that differ only in their world, by the kind of scaling and what they have in common.
    families: dict[tuple[ScalingKind, str], list[Sequence[Record]]] = {}
    for work in works:
        launches = _select_counted(work)
        if not launches:
            continue
        for kind in get_args(ScalingKind):  # a work may scale in both ways, with different works
            key = kind, _make_family_key(launches[0], kind, allow)
            families.setdefault(key, []).append(launches)
    scalings = []
    for (kind, _), family in families.items():
        if len(family) > 1:
            family.sort(key=lambda launches: launches[0].plan.world_size)
            smallest_record = family[0][0]
            scalings.append((_make_scaling(kind, family), smallest_record))
    return scalings


def find_scaling_of_sides(
    a: Sequence[Record], b: Sequence[Record], allow: Collection[str] = ()
) -> Scaling | None:
    """Return how the work of ``a`` and ``b`` scales.

    None if they differ in more than the number of ranks and the keys in ``allow``. None as well if
    there are two works of one world, because a world has one throughput.
    """
    works = group_by_work(_select_counted([*a, *b]))
    world_sizes = {launches[0].plan.world_size for launches in works}
    if len(world_sizes) < len(works):
        return None  # two works of the same world differ in something else, allowed or not
    for scaling, _ in find_scaling(works, allow=allow):
        if len(scaling.worlds) == len(works):  # all works scale together
            return scaling
    return None


def _select_counted(launches: Sequence[Record]) -> list[Record]:
    """Return the launches whose throughput counts; it is the figure ``final_result``."""
    return [
        record
        for record in launches
        if record.passed
        and not is_refuted(record.trust)
        and record.figure("final_result") is not None
    ]


def _make_family_key(record: Record, kind: ScalingKind, allow: Collection[str]) -> str:
    """Return a key that launches of different worlds share if their work scales in this way."""
    may_differ = WORLD_FIELDS.union(FIELD_ALIASES.get(key, key) for key in allow)
    common = {
        name: value for name, value in describe_work(record).items() if name not in may_differ
    }
    batch = [record.plan.recipe[name] for name in _BATCH]  # micro-batch size and their number
    # Weak scaling: each rank keeps its batch. Strong scaling: all ranks together keep theirs.
    size = batch if kind == "weak" else prod(batch) * record.plan.world_size
    return f"{size} {sorted(common.items())}"


def _make_scaling(kind: ScalingKind, family: Sequence[Sequence[Record]]) -> Scaling:
    """Return the scaling over the launches of each world, the smallest world first."""
    first = family[0][0]
    smallest = _make_world(family[0], smallest=None)
    larger = [_make_world(launches, smallest) for launches in family[1:]]
    return Scaling(
        kind=kind,
        case=first.plan.case,
        unit=first.figures["final_result"].unit,
        worlds=(smallest, *larger),
    )


def _make_world(launches: Sequence[Record], smallest: World | None) -> World:
    """Return a world with its efficiency.

    The efficiency is the throughput of a rank divided by that of a rank in the smallest world.

    Args:
        launches: of this world.
        smallest: None: this is the smallest world.
    """
    plan = launches[0].plan
    # Never None: ``_select_counted`` leaves such launches out.
    throughput = summarize_launches([record.figure("final_result") or 0.0 for record in launches])
    name = f"{plan.nnodes}x{plan.nproc}"
    ranks = plan.world_size
    samples_per_rank = prod(plan.recipe[field] for field in _BATCH)  # in a step
    if smallest is None:
        return World(name, ranks, samples_per_rank, throughput, efficiency=1.0)
    base = smallest.throughput
    ranks_ratio = smallest.ranks / ranks
    efficiency = ranks_ratio * throughput.mean / base.mean
    low = None
    high = None
    doubt = None
    # Each end of the efficiency comes from opposite ends of the two throughputs' intervals.
    if min(throughput.launches, base.launches) > 1:  # a single launch has no range
        low = ranks_ratio * throughput.low / base.high
        high = ranks_ratio * throughput.high / base.low
    if efficiency > MAX_EFFICIENCY:
        doubt = message(
            "scaling_above_one",
            world=name,
            first=smallest.name,
            efficiency=efficiency,
            most=MAX_EFFICIENCY,
        )
    return World(name, ranks, samples_per_rank, throughput, efficiency, low, high, doubt)
