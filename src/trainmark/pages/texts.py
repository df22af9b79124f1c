"""Words of pages in English and Chinese, and phrases, which get a language when they are shown.

Owns what a record says in a few words: device, configuration, verdict, trust.
A phrase is a string, a number, a text by its key (``t``), a message, or several of them together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.plan.plan import SIMULATED
from trainmark.record.figures import FIGURES
from trainmark.record.messages import MESSAGES, in_short, render
from trainmark.spec import Message, Text, message
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trainmark.record.record import Record, Trust, Verification
    from trainmark.record.stats import Launches
    from trainmark.spec import FigureSpec

LANGUAGES = ("en", "zh")
# A space beside a Chinese character and another one or a mark of full width: texts have it around
# their places, for values in Latin letters.
_NO_SPACE = re.compile(
    r"(?<=[\u4e00-\u9fff]) +(?=[\u4e00-\u9fff\u3001-\u3011\uff00-\uffef])"
    r"|(?<=[\u3001-\u3011\uff00-\uffef]) +| +(?=[\u3001-\u3011\uff00-\uffef])"
)
Phrase = object
# ``doubt``: passed, and must not be quoted; ``bad``: failed.
Tone = Literal["plain", "muted", "good", "warn", "doubt", "bad", "heading"]
TONES: dict[str, Tone] = {"usable": "good", "noisy": "warn", "do_not_quote": "doubt"}


@dataclass(frozen=True, slots=True)
class T:
    """The text called ``key``, its places filled with ``values``."""

    key: str
    values: dict[str, Phrase]


@dataclass(frozen=True, slots=True)
class Link:
    """A phrase that leads to an address, in HTML."""

    text: Phrase
    href: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A value that is not known, with the reason, which HTML shows on hover."""

    reason: Phrase
    mark: str = cells.NOTHING


def _read() -> dict[str, Text]:
    """Return the texts by ``kind.name``."""
    tables = read_toml(Path(__file__).with_suffix(".toml"))
    texts = {f"{kind}.{name}": Text(**x) for kind, of in tables.items() for name, x in of.items()}
    return texts | {code: text for code, text in MESSAGES.items() if code.startswith("status.")}


TEXTS = _read()


def t(key: str, **values: Phrase) -> T:
    """Return the text called ``key``, its places filled with ``values``."""
    assert key in TEXTS, f"no text {key!r}"
    return T(key, values)


def term(kind: str, name: str) -> Phrase:
    """Return the text ``kind.name``; the name where there is none."""
    return t(f"{kind}.{name}") if f"{kind}.{name}" in TEXTS else name


def join(parts: Iterable[Phrase], by: str = "comma") -> tuple[Phrase, ...]:
    """Return phrases with a separator of ``[sep]`` in texts.toml between them."""
    return tuple(x for part in parts for x in (t(f"sep.{by}"), part))[1:]


def say(phrase: Phrase, lang: str) -> str:  # noqa: PLR0911 - a kind each
    """Return a phrase in a language."""
    match phrase:
        case str():
            return phrase
        case None:
            return cells.NOTHING
        case bool():
            return say(t(f"fact.{'yes' if phrase else 'no'}"), lang)
        case T():
            text = TEXTS[phrase.key].in_language(lang)
            values = {
                name: value if isinstance(value, int | float) else say(value, lang)
                for name, value in phrase.values.items()
            }
            if not values:
                return text
            filled = text.format(**values)
            return _NO_SPACE.sub("", filled) if lang == "zh" else filled
        case tuple():
            return "".join(say(part, lang) for part in phrase)
        case Text():
            return phrase.in_language(lang)
        case Message():
            return render(phrase, lang)
        case Link():
            return say(phrase.text, lang)
        case Missing():
            return phrase.mark
    return str(phrase)


def known(value: Phrase) -> Phrase:
    """Return a value, or that it is not known."""
    return t("fact.unknown") if value in (None, "") else value


def worded(value: Phrase) -> Phrase:
    """Return a value, or that there is none."""
    return t("fact.none") if value in (None, "", {}) else value


def pairs(values: Mapping[str, Any] | None) -> Phrase:
    """Return names and values in a row, none where there are none."""
    return worded(values and join((name, " ", worded(value)) for name, value in values.items()))


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


def unit_of(figure: str) -> Phrase:
    """Return the unit of a figure, of a device where it is one's."""
    unit = FIGURES[figure].unit
    return t("first.per_device", unit=unit) if figure == "token/p/s" else unit


def configuration(device: str, *, nnodes: int, nproc: int, cards: bool = True) -> Phrase:
    """Return a configuration's name, ``A100 1 node x 8 (1x8)`` or ``A100单机8卡（1x8）``."""
    nodes = t(f"nodes.{nnodes}") if nnodes in (1, 2) else t("nodes.more", n=nnodes)
    count = t("nodes.alone") if nproc == 1 else nproc
    return t(
        f"configuration.{'cards' if cards else 'processes'}",
        device=device, nodes=nodes, count=count, nproc=nproc, world=f"{nnodes}x{nproc}",
    )  # fmt: skip


def record_configuration(record: Record) -> Phrase:
    """Return the configuration of a record; says so if it is simulated or did not pass."""
    marks: list[Phrase] = [] if record.passed else [t(f"status.{record.status}")]
    if SIMULATED in record.labels:
        marks.append(message("trust_simulated_device"))
    plan = record.plan
    named = configuration(
        short_device(record), nnodes=plan.nnodes, nproc=plan.nproc, cards=has_cards(record)
    )
    return (named, *((" [", mark, "]") for mark in marks))


def definition(spec: FigureSpec, record: Record) -> Phrase:
    """Return what a figure means on the kind of device that ran."""
    return spec.definition if has_cards(record) else spec.on_host or spec.definition


def devices(record: Record) -> Phrase:
    """Return how many devices of which product a run had; on a host, its name and its ranks."""
    world, name = record.plan.world_size, short_device(record)
    if has_cards(record):
        return f"{world} x {name}" if world > 1 else name
    return join((name, counted("ranks", world)))


def dataset_name(record: Record) -> Phrase:
    """Return the name of the data set; of generated data, which form it has."""
    name = record.plan.about.dataset
    return t("data.generated", name=name) if record.plan.data.origin == "generated" else name


def counted(kind: str, n: int) -> Phrase:
    """Return a number of ``ranks``, ``launches``, ``rows`` and such in words: ``1 launch``."""
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


def heads(*names: str) -> list[Phrase]:
    """Return headings by their names in the texts."""
    return [t(name if "." in name else f"head.{name}") for name in names]
