"""Compute how the same work scales from few ranks to many.

Owns when launches of different worlds do the same work, and which efficiencies are doubtful. Weak
scaling: the batch of each rank stays the same; strong scaling: the batch of all ranks together
stays the same. The efficiency is the throughput of a device over that in the smallest world.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from trainmark.record.stats import LaunchSummary, summarize_launches
from trainmark.record.trust import is_refuted
from trainmark.record.work import describe_work, group_by_work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trainmark.record.record import Record

ScalingKind = Literal["weak", "strong"]
MAX_EFFICIENCY = 1.05  # no device does more work because there are others, and 5% is noise
_BATCH = ("micro_batch_size", "grad_accum_steps")
# Fields of the work that differ between worlds; ``world`` is the one that a recipe is for.
WORLD_FIELDS = frozenset({"ran_world", "world", *_BATCH})


@dataclass(frozen=True, slots=True)
class World:
    """The throughput and efficiency of one world.

    Args:
        name: nodes x ranks of a node, ``2x8``.
        samples_per_rank: in an optimizer step.
        throughput: ``final_result`` of all ranks together.
        efficiency: share of the throughput of a device in the smallest world.
        low: lower end of the efficiency's interval, from the far ends of the intervals of both
            worlds; None: one of them has a single launch, or it is the smallest world.
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
    """Return the scaling of each work of several worlds, with a record of its smallest world.

    Args:
        works: launches of each work; those that failed, or that their evidence contradicts, do not
            count.
        allow: further keys of the work in which worlds may differ.
    """
    families: dict[tuple[ScalingKind, str], list[Sequence[Record]]] = {}
    for launches in map(_select_counted, works):
        if not launches:
            continue
        for kind in get_args(ScalingKind):
            key = kind, _family_key(launches[0], kind, allow)
            families.setdefault(key, []).append(launches)
    scalings = []
    for (kind, _), members in families.items():
        if len(members) > 1:
            members.sort(key=lambda launches: launches[0].plan.world_size)
            scalings.append((_make_scaling(kind, members), members[0][0]))
    return scalings


def scaling_between(
    a: Sequence[Record], b: Sequence[Record], allow: Collection[str] = ()
) -> Scaling | None:
    """Return how the work of ``a`` and ``b`` scales.

    None if they differ in more than the number of ranks and the keys in ``allow``.
    """
    works = group_by_work(_select_counted([*a, *b]))
    world_sizes = {launches[0].plan.world_size for launches in works}
    if len(world_sizes) < len(works):
        return None
    for scaling, _ in find_scaling(works, allow=allow):
        if len(scaling.worlds) == len(works):
            return scaling
    return None


def _select_counted(launches: Sequence[Record]) -> list[Record]:
    """Return the launches whose throughput counts."""
    return [
        record
        for record in launches
        if record.passed
        and not is_refuted(record.trust)
        and record.figure("final_result") is not None
    ]


def _family_key(record: Record, kind: ScalingKind, allow: Collection[str]) -> str:
    """Return a key that worlds share if their work scales in this way."""
    may_differ = WORLD_FIELDS.union(allow)
    same = {name: value for name, value in describe_work(record).items() if name not in may_differ}
    batch = [record.plan.recipe[name] for name in _BATCH]
    size = batch if kind == "weak" else prod(batch) * record.plan.world_size
    return f"{size} {sorted(same.items())}"


def _make_scaling(kind: ScalingKind, members: Sequence[Sequence[Record]]) -> Scaling:
    first = members[0][0]
    smallest = _make_world(members[0], None)
    return Scaling(
        kind=kind,
        case=first.plan.case,
        unit=first.figures["final_result"].unit,
        worlds=(smallest, *(_make_world(launches, smallest) for launches in members[1:])),
    )


def _make_world(launches: Sequence[Record], smallest: World | None) -> World:
    """Return a world with its efficiency over the smallest one; None: it is the smallest one."""
    plan = launches[0].plan
    throughput = summarize_launches([record.figure("final_result") or 0.0 for record in launches])
    name, ranks = f"{plan.nnodes}x{plan.nproc}", plan.world_size
    samples = prod(plan.recipe[field] for field in _BATCH)
    if smallest is None:
        return World(name, ranks, samples, throughput, 1.0)
    base, share = smallest.throughput, smallest.ranks / ranks
    efficiency = share * throughput.mean / base.mean
    low = high = doubt = None
    if min(throughput.launches, base.launches) > 1:
        low, high = share * throughput.low / base.high, share * throughput.high / base.low
    if efficiency > MAX_EFFICIENCY:
        doubt = message(
            "scaling_above_one",
            world=name,
            first=smallest.name,
            efficiency=efficiency,
            most=MAX_EFFICIENCY,
        )
    return World(name, ranks, samples, throughput, efficiency, low, high, doubt)
