"""Compute how the same work scales from few ranks to many.

Owns what the same work of several worlds is, and which efficiencies are doubtful. Weak scaling:
each rank has the same batch; strong scaling: all ranks together have it. The efficiency is the
throughput of a device over that in the smallest world.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from trainmark.record.stats import Launches, over_launches
from trainmark.record.trust import refuted
from trainmark.record.work import groups, work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trainmark.record.record import Record

Kind = Literal["weak", "strong"]
MAX_EFFICIENCY = 1.05  # no device does more work because there are others; 5% is noise
_BATCH = ("micro_batch_size", "grad_accum_steps")
# Fields of the work that differ between worlds. ``world``: for which one a recipe was written.
OF_WORLD = frozenset({"ran_world", "world", *_BATCH})


@dataclass(frozen=True, slots=True)
class World:
    """The launches of one world.

    Args:
        name: nodes x ranks of a node, ``2x8``.
        samples_per_rank: in an optimizer step.
        throughput: ``final_result`` of all ranks together.
        efficiency: share of the throughput of a device in the smallest world.
        low: lower end of the efficiency's interval, from the far ends of the intervals of both
            worlds; None: one of them has a single launch, or it is the smallest world.
        doubt: why the efficiency is not to be believed.
    """

    name: str
    ranks: int
    samples_per_rank: int
    throughput: Launches
    efficiency: float
    low: float | None = None
    high: float | None = None
    doubt: Message | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The worlds that did the same work, the smallest first."""

    kind: Kind
    case: str
    unit: str
    worlds: tuple[World, ...]

    @property
    def doubts(self) -> list[Message]:
        """Return why efficiencies are not to be believed."""
        return [world.doubt for world in self.worlds if world.doubt is not None]


def find_scaling(
    works: Sequence[Sequence[Record]], *, allow: Collection[str] = ()
) -> list[tuple[Scaling, Record]]:
    """Return how each work scales that several worlds did, with a record of its smallest world.

    Args:
        works: launches of each work; those that did not pass, or are contradicted, do not count.
        allow: keys of the work in which worlds may differ besides.
    """
    families: dict[tuple[Kind, str], list[Sequence[Record]]] = {}
    for launches in map(_counted, works):
        if not launches:
            continue
        for kind in ("weak", "strong"):
            families.setdefault((kind, _family(launches[0], kind, allow)), []).append(launches)
    found = []
    for (kind, _), members in families.items():
        if len(members) > 1:
            members.sort(key=lambda launches: launches[0].plan.world_size)
            found.append((_scaling(kind, members), members[0][0]))
    return found


def scaling_between(
    a: Sequence[Record], b: Sequence[Record], allow: Collection[str] = ()
) -> Scaling | None:
    """Return how the work of ``a`` and ``b`` scales.

    None unless they differ only in the ranks and in what ``allow`` names.
    """
    works = groups(_counted([*a, *b]))
    found = [
        scaling
        for scaling, _ in find_scaling(works, allow=allow)
        if len(scaling.worlds) == len(works)
    ]
    worlds = {launches[0].plan.world_size for launches in works}
    return found[0] if found and len(worlds) == len(works) else None


def _counted(launches: Sequence[Record]) -> list[Record]:
    """Return the launches with a throughput that counts."""
    return [
        one for one in launches
        if one.passed and not refuted(one.trust) and one.figure("final_result") is not None
    ]  # fmt: skip


def _family(record: Record, kind: Kind, allow: Collection[str]) -> str:
    """Return what worlds have in common that scale in this way."""
    may_differ = OF_WORLD.union(allow)
    same = {name: value for name, value in work(record).items() if name not in may_differ}
    batch = [record.plan.recipe[name] for name in _BATCH]
    size = batch if kind == "weak" else prod(batch) * record.plan.world_size
    return f"{size} {sorted(same.items())}"


def _scaling(kind: Kind, members: Sequence[Sequence[Record]]) -> Scaling:
    first = members[0][0]
    smallest = _world(members[0], None)
    return Scaling(
        kind=kind,
        case=first.plan.case,
        unit=first.figures["final_result"].unit,
        worlds=(smallest, *(_world(launches, smallest) for launches in members[1:])),
    )


def _world(launches: Sequence[Record], smallest: World | None) -> World:
    """Return a world, held against the smallest one; None: it is that one."""
    plan = launches[0].plan
    throughput = over_launches([one.figure("final_result") or 0.0 for one in launches])
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
            "scaling_above_one", world=name, first=smallest.name, efficiency=efficiency,
            most=MAX_EFFICIENCY,
        )  # fmt: skip
    return World(name, ranks, samples, throughput, efficiency, low, high, doubt)
