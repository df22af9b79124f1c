"""What limits a training: its time as shares of 100%, and a table of rules with their arithmetic.

Owns the rules: each tells how much of the training time it costs, and advises only what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Table, table
from trainmark.pages.phrases import heads
from trainmark.pages.texts import Phrase, t
from trainmark.protocols import SET_LIMITS
from trainmark.record.run.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.record.record import Record

_STEPS = ("compile", "warmup", "train")  # whose windows ``train_parts_ns`` takes apart
_LEAST_SHARE = 0.005  # of the training time; less is told with the rest
_GOOD_USE, _ROOMY = 0.4, 0.5  # of the matmul rate; of the memory


class Limit(NamedTuple):
    """A rule that holds: the share of the time that it costs, the sentence, the arithmetic."""

    rule: str
    cost: float
    said: Phrase
    arithmetic: str


def shares(record: Record) -> dict[str, float]:
    """Return the seconds of the training time by what they were spent on; empty without any."""
    spans, parts = record.spans.by_name_ns, record.spans.train_parts_ns
    found = {
        "compute": parts.get("compute", 0), "data": parts.get("data_wait", 0),
        "evaluation": spans.get("evaluate", 0),
        "rest": parts.get("other", 0) + spans.get("checkpoint", 0),
    }  # fmt: skip
    return {name: ns / 1e9 for name, ns in found.items()} if any(found.values()) else {}


def bar(record: Record) -> Bars | None:
    """Return one bar to 100% of the training time, below it what limits it; None without steps."""
    spent, at, drawn = shares(record), 0.0, []
    total = sum(spent.values())
    for name, seconds in spent.items():
        share = seconds / total
        called = "compute_all" if name == "compute" and record.plan.world_size > 1 else name
        if share >= _LEAST_SHARE:
            shown, hover = f"{100 * share:.0f}%", f"{seconds:.3f} s / {total:.3f} s"
            drawn.append(Bar(t(f"limit.{called}"), at, at + share, name, shown, hover))
        at += share
    if not drawn:
        return None
    return Bars(t("limit.title"), tuple(drawn), gravest(record), stacked=True)


def gravest(record: Record) -> Phrase:
    """Return the sentence of the rule that costs most; that it computes where none holds."""
    found = max(limits(record), key=lambda one: one.cost, default=None)
    if found is not None:
        return found.said
    spent = shares(record)
    if not spent:
        return ""
    share = spent["compute"] / sum(spent.values())
    if (rate := record.figure("MAMFU")) is None:
        return t("limit.none", share=f"{share:.0%}")
    return t("limit.none_rate", share=f"{share:.0%}", rate=f"{rate:.2g}%")


def rules_table(record: Record) -> Table | None:
    """Return the rules that hold with their arithmetic, the costliest first; None without any."""
    found = sorted(limits(record), key=lambda one: -one.cost)
    rows = ((one.rule, one.arithmetic, one.said) for one in found)
    return table(heads("audit.rule", "audit.arithmetic", "remark"), rows) if found else None


def limits(record: Record) -> list[Limit]:
    """Return what the rules find in a run."""
    return [one for one in (rule(record) for rule in _RULES) if one is not None]


def _spent_on(name: str, least: float, record: Record) -> Limit | None:
    spent = shares(record)
    total = sum(spent.values())
    if not total or spent[name] / total < least:
        return None
    share = spent[name] / total
    arithmetic = f"{spent[name]:.3f} s / {total:.3f} s = {share:.1%} ≥ {least:.0%}"
    return Limit(name, share, t(f"advice.{name}", share=f"{share:.0%}"), arithmetic)


def _data(record: Record) -> Limit | None:
    return _spent_on("data", 0.05, record)


def _evaluation(record: Record) -> Limit | None:
    return _spent_on("evaluation", 0.25, record)


def throttled(record: Record, interval: str) -> dict[int, float]:
    """Return the share of an interval with clocks lowered beyond set limits, by first rank."""
    found: dict[int, float] = {}
    for device in record.telemetry.devices if record.telemetry else ():
        use = device.over.get(interval)  # type: ignore[call-overload]
        beyond = [share for why, share in (use.throttled or {}).items() if why not in SET_LIMITS] \
            if use else []  # fmt: skip
        if device.ranks and max(beyond, default=0.0) > 0:
            found[device.ranks[0]] = max(beyond)
    return found


def _clocks(record: Record) -> Limit | None:
    found = throttled(record, "measured")
    if not found:
        return None
    rank = max(found, key=found.__getitem__)
    share = found[rank]
    said = t("advice.clocks", rank=rank, share=f"{share:.0%}")
    return Limit("clocks", share, said, f"{share:.1%} ≥ 5%") if share >= 0.05 else None


def slowest(record: Record) -> tuple[int, float] | None:
    """Return the slowest rank and by what share its median step is longer than the ranks' median.

    None where all are alike within 2%.
    """
    times = {one.rank: one.step_ns for one in record.ranks if one.step_ns}
    if len(times) < 2:
        return None
    rank = max(times, key=times.__getitem__)
    share = times[rank] / sorted(times.values())[(len(times) - 1) // 2] - 1
    return (rank, share) if share >= 0.02 else None


def _rank(record: Record) -> Limit | None:
    found = slowest(record)
    if found is None or found[1] < 0.05:
        return None
    rank, over = found
    lost = over / (1 + over)
    said = t("advice.rank", rank=rank, share=f"{over:.0%}")
    return Limit("rank", lost, said, f"{over:.3f} / {1 + over:.3f} = {lost:.1%}")


def _other_work(record: Record) -> Limit | None:
    """Return that other programs used the cores that a run computed on or read with."""
    share: float = record.environment.get("others_cpu_share") or 0.0
    if share <= BUSY_SHARE:
        return None
    said = t("advice.other_work", share=f"{share:.0%}")
    return Limit("other_work", share, said, f"{share:.1%} of the cores")


def _batch(record: Record) -> Limit | None:
    """Return that a larger batch may use the device better: little of its rate and memory used."""
    rate, used, total = (record.figure(name) for name in ("MAMFU", "mem", "mem_total"))
    if rate is None or not used or not total or record.plan.device.torch_type == "cpu":
        return None
    if rate >= 100 * _GOOD_USE or used / total >= _ROOMY or record.plan.recipe["compile"]:
        return None
    said = t("advice.batch", rate=f"{rate:.0f}%", memory=f"{used / total:.0%}")
    shown = cells.memory(used, total)
    return Limit(
        "batch", 0.05, said, f"MAMFU {rate:.1f}% < {_GOOD_USE:.0%}; {shown} < {_ROOMY:.0%}"
    )


_RULES: tuple[Callable[[Record], Limit | None], ...] = (
    _data, _evaluation, _clocks, _rank, _other_work, _batch,
)  # fmt: skip
