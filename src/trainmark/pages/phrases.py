"""What a record says in a few words: device, configuration, status, verdict, trust, cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Tone, table
from trainmark.pages.texts import TEXTS, Phrase, join, known, t
from trainmark.plan.plan import SIMULATED
from trainmark.record.messages import in_short, render
from trainmark.spec import Text, message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.pages.document import Table
    from trainmark.rank.events import HangGroup
    from trainmark.record.record import Record, Trust, Verification
    from trainmark.record.stats import Launches
    from trainmark.spec import FigureSpec, Message

TONES: dict[str, Tone] = {"usable": "good", "noisy": "warn", "do_not_quote": "bad"}
_LONGEST_RANKS = 40  # characters


def sentence(record: Record, found: Message | None, none: Phrase = "") -> Phrase:
    """Return a message of a record; ``none`` where there is no message."""
    if found is None:
        return none
    own = record.plan.about.messages
    return Text(render(found, "en", own), render(found, "zh", own))


def has_cards(record: Record) -> bool:
    """Tell whether each rank has a device to itself; on a host's own cores they share one."""
    return record.plan.device.torch_type != "cpu"


def speed_name(record: Record) -> str:
    """Return the figure that is a case's speed: where tokens count, those of a device."""
    return "token/p/s" if record.plan.about.work_unit == "tokens" else "p_train"


def num_parameters(record: Record) -> int | None:
    """Return the number of the model's parameters; None where the run ended before it told."""
    found: int | None = (record.environment.get("job") or {}).get("parameters")
    return found


def configuration(device: str, *, nnodes: int, nproc: int, cards: bool = True) -> Phrase:
    """Return a configuration's name, ``A100 1 node x 8 (1x8)`` or ``A100单机8卡（1x8）``."""
    nodes = t(f"nodes.{nnodes}") if nnodes in (1, 2) else t("nodes.more", n=nnodes)
    count = t("nodes.alone") if nproc == 1 else nproc
    return t(
        f"configuration.{'cards' if cards else 'processes'}",
        device=device, nodes=nodes, count=count, nproc=nproc, world=f"{nnodes}x{nproc}",
    )  # fmt: skip


def device_configuration(record: Record) -> Phrase:
    """Return the configuration of a record."""
    plan = record.plan
    return configuration(
        short_device(record), nnodes=plan.nnodes, nproc=plan.nproc, cards=has_cards(record)
    )


def record_configuration(record: Record) -> Phrase:
    """Return the configuration of a record; says so if it is simulated or did not pass."""
    marks: list[Phrase] = [] if record.passed else [t(f"status.{record.status}")]
    if SIMULATED in record.labels:
        marks.append(message("trust_simulated_device"))
    return (device_configuration(record), *((" [", mark, "]") for mark in marks))


def definition(spec: FigureSpec, record: Record) -> Phrase:
    """Return what a figure means on the kind of device that ran."""
    return spec.definition if has_cards(record) else spec.on_host or spec.definition


def devices(record: Record) -> Phrase:
    """Return how many devices of which product a run had; on a host, its name and its ranks."""
    world, name = record.plan.world_size, short_device(record)
    if has_cards(record):
        return f"{world} x {name}" if world > 1 else name
    return join((name, counted("ranks", world)))


def counted(kind: str, n: int) -> Phrase:
    """Return a number of ``ranks``, ``nodes``, ``launches`` in words: ``1 launch``."""
    return t(f"count_of.{kind}", n=n) if n != 1 else t(f"count_one.{kind}")


def ends(over: Launches, shown: Callable[[float], str]) -> Phrase:
    """Return the 95% interval over launches, of few the range, and which of them it is."""
    kind = "range" if over.is_range else "interval"
    return t(f"ends.{kind}", low=shown(over.low), high=shown(over.high))


def verdict(record: Record) -> Phrase:
    """Return the quality against the target as a sentence."""
    quality = record.quality
    if quality.value is None:
        reason = sentence(record, quality.reason, known(None))
        return t("verdict.none", metric=quality.metric, reason=reason)
    key = "no_target" if quality.target is None else "reached" if quality.reached else "missed"
    value = cells.quality(quality.value, target=quality.target)
    target = "" if quality.target is None else f"{quality.target:g}"
    said = t(f"verdict.{key}", metric=quality.metric, value=value, target=target)
    if quality.best_possible is None:
        return said
    limit = "best" if record.plan.about.higher_is_better else "lowest"
    return join((said, t(f"verdict.{limit}", best=f"{quality.best_possible:.3f}")), "semicolon")


def label_text(label: str) -> Phrase:
    """Return a label with what it means."""
    for key in (f"label.{label}", f"label.{label.rpartition('-')[0]}"):
        if key in TEXTS:
            return t("label.form", label=label, meaning=t(key))
    return label


def trust_line(trust: Trust, word: Verification, side: Phrase = "") -> Phrase:
    """Return grade, whether evidence was checked, and the reasons, of a side of a comparison."""
    label = t("trust.of", side=side) if side else t("trust.label")
    reasons = join(map(in_short, trust.reasons), "semicolon")
    return join((label, grade_line(trust, word), *([reasons] if trust.reasons else ())), "colon")


def grade_line(trust: Trust, word: Verification) -> Phrase:
    """Return the grade, and whether evidence was checked."""
    return join((t(f"trust.{trust.grade}"), t(f"trust.{word}")))


def hang_table(groups: Sequence[HangGroup]) -> Table:
    """Return where the ranks were when a run was stopped, a row for the ranks at one place."""
    rows = []
    for group in groups:
        ranks = group["ranks"]
        if len(ranks) > _LONGEST_RANKS:
            ranks = f"{ranks[:_LONGEST_RANKS]}…"
        state = (t(f"hang.{group['state']}"), f" {group['call']}" if group["call"] else "")
        rows.append((ranks, state, group["where"]))
    return table((t(f"hang.{name}") for name in ("ranks", "state", "place")), rows)


def heads(*names: str) -> list[Phrase]:
    """Return headings by their names in the texts."""
    return [t(name if "." in name else f"head.{name}") for name in names]
