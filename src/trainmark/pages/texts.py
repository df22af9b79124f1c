"""The texts of pages in English and Chinese, and phrases, which are translated when they are shown.

A phrase is what a page has in place of a string: a string or a number, which are the same in all
languages, a text of texts.toml by its key (``phrase``), a message, or a tuple of phrases, which are
joined. ``translate`` turns it into a string. The module also has the phrases for facts of a record:
device, configuration, verdict, trust.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainmark.pages import cells
from trainmark.plan.plan import SIMULATED
from trainmark.record.figures import FIGURES
from trainmark.record.messages import MESSAGES, fill_sentence, render, shorten
from trainmark.results.store.columns import get_device_name
from trainmark.spec import Message, Text, message
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trainmark.record.record import Record, Trust, Verification
    from trainmark.record.stats import LaunchSummary
    from trainmark.spec import FigureSpec

LANGUAGES = ("en", "zh")
# A space between Chinese characters or marks of full width. Texts have spaces around placeholders
# for values in Latin letters, which a Chinese value must not have.
_NEEDLESS_SPACE = re.compile(
    r"(?<=[\u4e00-\u9fff]) +(?=[\u4e00-\u9fff\u3001-\u3011\uff00-\uffef])"
    r"|(?<=[\u3001-\u3011\uff00-\uffef]) +| +(?=[\u3001-\u3011\uff00-\uffef])"
)
Phrase = object  # any value: ``translate`` turns one of an unknown kind into text by ``str``
# The tone of a text, which its colour shows. ``doubt``: passed, but must not be quoted; ``bad``:
# failed.
Tone = Literal["plain", "muted", "good", "warn", "doubt", "bad", "heading"]
TONES: dict[str, Tone] = {"usable": "good", "noisy": "warn", "do_not_quote": "doubt"}


@dataclass(frozen=True, slots=True)
class KeyedText:
    """The text called ``key`` in texts.toml, whose placeholders are filled with ``values``."""

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


def _read_texts() -> dict[str, Text]:
    """Return the texts of texts.toml by ``table.name``, and those of the statuses of runs.

    The texts of statuses are kept with the messages of records, as ``status.passed``.
    """
    texts = {}
    for table, text_by_name in read_toml(Path(__file__).with_suffix(".toml")).items():
        for name, text_by_language in text_by_name.items():
            texts[f"{table}.{name}"] = Text(**text_by_language)  # by ``en`` and ``zh``
    for code, text in MESSAGES.items():
        if code.startswith("status."):
            texts[code] = text
    return texts


TEXTS = _read_texts()


def phrase(key: str, **values: Phrase) -> KeyedText:
    """Return the text called ``key`` as a phrase, its placeholders filled with ``values``."""
    assert key in TEXTS, f"no text {key!r}"
    return KeyedText(key, values)


def term(kind: str, name: str) -> Phrase:
    """Return the text of texts.toml for a name; the name itself if there is no such text.

    Args:
        kind: table of texts.toml, such as ``span``.
        name: name of a span, for example, as records have it.
    """
    key = f"{kind}.{name}"
    return phrase(key) if key in TEXTS else name


def join(parts: Iterable[Phrase], by: str = "comma") -> tuple[Phrase, ...]:
    """Return phrases with a separator between them.

    Args:
        by: name of the separator in ``[sep]`` of texts.toml: ``comma``, ``semicolon``, ``colon``,
            ``dot`` or ``space``.
    """
    joined: list[Phrase] = []
    for part in parts:
        if joined:
            joined.append(phrase(f"sep.{by}"))
        joined.append(part)
    return tuple(joined)


def translate(content: Phrase, lang: str) -> str:  # noqa: PLR0911 - one return for each type
    """Return a phrase as a string in a language.

    A text by key has its placeholders filled, a ``Text``, which has all languages, gives that of
    this language, a message becomes its sentence, and a link becomes its text. None and a value
    that is missing become a mark, such as a dash. The parts of a tuple are joined.
    """
    match content:
        case str():
            return content
        case None:
            return cells.NOTHING
        case bool():
            return translate(phrase("fact.yes" if content else "fact.no"), lang)
        case KeyedText():
            return _fill_text(content, lang)
        case tuple():
            return "".join(translate(part, lang) for part in content)
        case Text():
            return content.in_language(lang)
        case Message():
            return render(content, lang)
        case Link():
            return translate(content.text, lang)
        case Missing():
            return content.mark
    return str(content)  # a number, for example


def _fill_text(content: KeyedText, lang: str) -> str:
    """Return a text in a language, its placeholders filled with the content's values."""
    text = TEXTS[content.key].in_language(lang)
    if not content.values:
        return text
    # Numbers stay numbers: a placeholder may have a format.
    values = {
        name: value if isinstance(value, int | float) else translate(value, lang)
        for name, value in content.values.items()
    }
    filled = fill_sentence(text, values)
    # Chinese texts have spaces around placeholders for values in Latin letters. They are removed
    # where the value is Chinese.
    return _NEEDLESS_SPACE.sub("", filled) if lang == "zh" else filled


def or_unknown(value: Phrase) -> Phrase:
    """Return a value, or "not known" if it is missing or empty."""
    return phrase("fact.unknown") if value in (None, "") else value


def or_none(value: Phrase) -> Phrase:
    """Return a value, or "none" if it is missing or empty."""
    return phrase("fact.none") if value in (None, "", {}) else value


def format_named_values(values: Mapping[str, Any] | None) -> Phrase:
    """Return names with their values as one phrase, or "none" if there are none."""
    if not values:
        return or_none(None)
    return join((name, " ", or_none(value)) for name, value in values.items())


def translate_message(record: Record, content: Message | None, default: Phrase = "") -> Phrase:
    """Return a message of a record as its text in English and Chinese.

    Args:
        record: its case may have texts of its own for messages.
        content: the message, such as the reason why a figure is missing; None: there is none.
        default: what is returned if there is no message.
    """
    if content is None:
        return default
    case_messages = record.plan.about.messages
    return Text(render(content, "en", case_messages), render(content, "zh", case_messages))


def has_cards(record: Record) -> bool:
    """Tell whether each rank has a device to itself; on a CPU, ranks share the host."""
    return record.plan.device.torch_type != "cpu"


def name_speed_figure(record: Record) -> str:
    """Return the figure that is a case's speed: tokens per device if the case counts tokens."""
    return "token/p/s" if record.plan.about.work_unit == "tokens" else "p_train"


def get_unit(figure: str) -> Phrase:
    """Return the unit of a figure, given by its name; for ``token/p/s`` with "per device"."""
    unit = FIGURES[figure].unit
    return phrase("first.per_device", unit=unit) if figure == "token/p/s" else unit


def describe_configuration(device: str, *, nnodes: int, nproc: int, cards: bool = True) -> Phrase:
    """Return a configuration's name, ``A100 1 node x 8 (1x8)`` or ``A100单机8卡（1x8）``.

    Args:
        device: name of the device.
        nproc: number of ranks on each node.
        cards: whether each rank has a device to itself; else ranks are processes on a host.
    """
    # One and two nodes have words of their own in Chinese.
    nodes = phrase(f"nodes.{nnodes}") if nnodes in (1, 2) else phrase("nodes.more", n=nnodes)
    # Only the Chinese text uses ``count``, and only the English one ``nproc``.
    return phrase(
        "configuration.cards" if cards else "configuration.processes",
        device=device,
        nodes=nodes,
        # Chinese has a word for a single card.
        count=phrase("nodes.alone") if nproc == 1 else nproc,
        nproc=nproc,
        world=f"{nnodes}x{nproc}",
    )


def describe_record_configuration(record: Record) -> Phrase:
    """Return the configuration of a record, marked if its device is simulated or it failed."""
    marks: list[Phrase] = [] if record.passed else [phrase(f"status.{record.status}")]
    if SIMULATED in record.labels:
        marks.append(message("trust_simulated_device"))
    plan = record.plan
    # With cards, the name counts the cards of each node, otherwise its ranks: ranks on a CPU share
    # the processor.
    name = describe_configuration(
        get_device_name(record), nnodes=plan.nnodes, nproc=plan.nproc, cards=has_cards(record)
    )
    return (name, *((" [", mark, "]") for mark in marks))


def get_definition(spec: FigureSpec, record: Record) -> Phrase:
    """Return what a figure means in the run of a record.

    On a CPU, where ranks share the host, some figures have another definition, ``spec.on_host``.
    """
    if has_cards(record):
        return spec.definition
    return spec.on_host or spec.definition


def describe_devices(record: Record) -> Phrase:
    """Return how many devices of which product a run had, ``8 x H100``.

    On a CPU, ranks have no devices of their own; then it is the CPU's product name and the number
    of ranks.
    """
    world = record.plan.world_size
    name = get_device_name(record)
    if has_cards(record):
        return f"{world} x {name}" if world > 1 else name
    return join((name, count_in_words("ranks", world)))


def describe_dataset(record: Record) -> Phrase:
    """Return the name of the data set; for generated data, say that they only have its format."""
    name = record.plan.about.dataset
    return phrase("data.generated", name=name) if record.plan.data.origin == "generated" else name


def count_in_words(kind: str, n: int) -> Phrase:
    """Return a number of ``ranks``, ``launches``, ``rows`` and such in words: ``1 launch``."""
    return phrase(f"count_of.{kind}", n=n) if n != 1 else phrase(f"count_one.{kind}")


def format_interval(summary: LaunchSummary, format_value: Callable[[float], str]) -> Phrase:
    """Return the 95% interval of a figure's mean over launches.

    For fewer than five launches it is the range of their values, and the text names it a range.

    Args:
        summary: the figure over the launches.
        format_value: writes each end of the interval.
    """
    kind = "range" if summary.is_range else "interval"
    low, high = format_value(summary.low), format_value(summary.high)
    return phrase(f"ends.{kind}", low=low, high=high)


def describe_quality(record: Record) -> Phrase:
    """Return the quality against the target as a sentence.

    For generated data the best quality that a model can reach may be known. It is then added.
    """
    quality = record.quality
    if quality.value is None:
        reason = translate_message(record, quality.reason, or_unknown(None))
        return phrase("verdict.none", metric=quality.metric, reason=reason)
    if quality.target is None:
        result = "no_target"
    elif quality.reached:
        result = "reached"
    else:
        result = "missed"
    text = phrase(
        f"verdict.{result}",
        metric=quality.metric,
        value=cells.format_quality(quality.value, target=quality.target),
        target="" if quality.target is None else f"{quality.target:g}",
    )
    if quality.best_possible is None:
        return text
    # The text says "expected best" of an accuracy, for example, and "expected lowest" of a loss.
    wording = "best" if record.plan.about.higher_is_better else "lowest"
    best = phrase(f"verdict.{wording}", best=f"{quality.best_possible:.3f}")
    return join((text, best), "semicolon")


def describe_label(label: str) -> Phrase:
    """Return a label of a run, such as ``oversubscribed``, with its meaning.

    If no text explains the label, it is returned alone.
    """
    # The last part of a label may be a value, as in `name-value`.
    for key in (f"label.{label}", f"label.{label.rpartition('-')[0]}"):
        if key in TEXTS:
            return phrase("label.form", label=label, meaning=phrase(key))
    return label


def describe_trust(trust: Trust, verification: Verification) -> Phrase:
    """Return the grade, whether evidence was checked, and the reasons.

    Args:
        trust: the grade of the figures, such as ``noisy``, and the reasons for it.
        verification: whether the record was checked against its evidence, the files from which it
            was computed, and agrees with it.
    """
    parts: list[Phrase] = [phrase("trust.label"), describe_grade(trust, verification)]
    if trust.reasons:
        parts.append(join(map(shorten, trust.reasons), "semicolon"))
    return join(parts, "colon")


def describe_grade(trust: Trust, verification: Verification) -> Phrase:
    """Return the grade, and whether evidence was checked."""
    return join((phrase(f"trust.{trust.grade}"), phrase(f"trust.{verification}")))


def translate_headings(*names: str) -> list[Phrase]:
    """Return headings of columns by key: ``name`` is of the table ``[head]`` of texts.toml."""
    return [phrase(name if "." in name else f"head.{name}") for name in names]
