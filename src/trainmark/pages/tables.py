"""The performance table in the founding form: one row a configuration.

Owns which columns exist and how a record fills them. A column set is a tuple of column
names, so that a case's ``reference.toml`` can ask for another set by naming its headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trainmark.errors import RecordError
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Table
from trainmark.pages.listing import shared
from trainmark.pages.texts import text
from trainmark.plan.overrides import fix_hp_text
from trainmark.plan.plan import SIMULATED
from trainmark.record.messages import render
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.plan.reference import Reference, References
    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec

    _Item = TypeVar("_Item")

QUALITY = "<quality>"
_MOST, _FIRST, _LAST = 40, 24, 4  # of what a page lists for each rank, device or file
PERFORMANCE = ("precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", QUALITY, "mem")


def shortened(
    items: Sequence[_Item], lang: str, as_item: Callable[[str], _Item]
) -> tuple[_Item, ...]:
    """Return all ``items``, of very many the first and the last.

    Args:
        as_item: makes an item of the sentence that says how many are left out between them.
    """
    if len(items) <= _MOST:
        return tuple(items)
    said = text("head.left_out", lang, n=cells.count(len(items) - _FIRST - _LAST))
    return (*items[:_FIRST], as_item(said), *items[-_LAST:])


def shortened_rows(rows: Sequence[tuple[str, ...]], lang: str) -> tuple[tuple[str, ...], ...]:
    """Return all ``rows`` of a table, or some of them as ``shortened`` does."""
    return shortened(rows, lang, lambda said: (said, *[""] * (len(rows[0]) - 1)))


def _rate(name: str) -> Callable[[Record], str]:
    return lambda record: cells.number(record.figure(name))


def _loss_cell(record: Record) -> str:
    loss = record.figure("loss")
    return cells.NOTHING if loss is None else f"{loss:.3f}"


def precision_label(record: Record) -> str:
    """Return the precision as the case's published pages call it: ``amp`` for fp16, say."""
    precision = str(record.plan.recipe["precision"])
    labels = record.plan.about.precision_labels
    return labels.get(precision, precision)


COLUMNS: dict[str, Callable[[Record], str]] = {
    "precision": precision_label,
    "fix_hp": lambda record: fix_hp_text(record.fix_hp),
    "e2e_time": lambda record: cells.seconds(record.figure("e2e_time")),
    "p_whole": _rate("p_whole"),
    "p_train": _rate("p_train"),
    "p_core": _rate("p_core"),
    "token/p/s": _rate("token/p/s"),
    "loss": _loss_cell,
    "mem": lambda record: cells.memory(record.figure("mem"), record.figure("mem_total")),
    "MFU": lambda record: cells.percent(record.figure("MFU")),
    QUALITY: lambda record: cells.quality_and_target(record.quality.value, record.quality.target),
}


def column_set(references: References) -> tuple[str, ...]:
    """Return the columns a case's references are printed with; without any, the usual ones.

    Raises:
        RecordError: more than one header that no column is called.
    """
    if not references.columns:
        return PERFORMANCE
    names = tuple(name if name in COLUMNS else QUALITY for name in references.columns)
    if names.count(QUALITY) > 1:
        strange = [name for name in references.columns if name not in COLUMNS]
        raise RecordError(
            f"unknown columns {', '.join(strange)}",
            where="reference.toml",
            rule=f"besides the quality, columns are {', '.join(sorted(COLUMNS))}",
        )
    return names


def has_cards(record: Record) -> bool:
    """Tell whether each rank has a device to itself; on a host's own cores they share one."""
    return record.plan.device.torch_type != "cpu"


def definition(spec: FigureSpec, records: Sequence[Record], lang: str) -> str:
    """Return what a figure means on the kind of device that ran, or on each kind."""
    on_host = spec.on_host or spec.definition
    means = [spec.definition if has_cards(record) else on_host for record in records]
    return shared([meaning.in_language(lang) for meaning in means])


def configuration(device: str, *, nnodes: int, nproc: int, lang: str, cards: bool = True) -> str:
    """Return a configuration's name, ``A100 1 node x 8 (1x8)`` or ``A100单机8卡（1x8）``.

    ``cards`` is false where ranks are processes that share the host's own cores.
    """
    if lang == "zh":
        unit = "卡" if cards else "进程"
        count = "单" if nproc == 1 else str(nproc)
        machines = {1: "单", 2: "两"}.get(nnodes, str(nnodes))
        return f"{device}{machines}机{count}{unit}（{nnodes}x{nproc}）"
    nodes = "1 node" if nnodes == 1 else f"{nnodes} nodes"
    return f"{device} {nodes} x {nproc} ({nnodes}x{nproc})"


def device_configuration(record: Record, *, lang: str) -> str:
    """Return the configuration of a record."""
    return configuration(
        short_device(record),
        nnodes=record.plan.nnodes,
        nproc=record.plan.nproc,
        lang=lang,
        cards=has_cards(record),
    )


def record_configuration(record: Record, *, lang: str) -> str:
    """Return the configuration of a record; says so if it is simulated or did not pass."""
    marks = [] if record.passed else [text(f"status.{record.status}", lang)]
    if SIMULATED in record.labels:
        marks.append(render(message("trust_simulated_device"), lang))
    return " ".join((device_configuration(record, lang=lang), *(f"[{mark}]" for mark in marks)))


def quality_header(references: References, *, metric: str) -> str:
    """Return the quality's header as the references print it, else the metric's name."""
    return next((name for name in references.columns if name not in COLUMNS), metric)


def performance_table(
    records: Sequence[Record],
    *,
    lang: str = "en",
    columns: Sequence[str] = PERFORMANCE,
    metric: str | None = None,
) -> Table:
    """Return a row a record of one case, in their order; ``/`` where nothing was measured."""
    metric = metric or (records[0].quality.metric if records else QUALITY)
    heads = (metric if name == QUALITY else name for name in columns)
    return Table(
        (text("head.configuration", lang), *heads),
        tuple(
            (record_configuration(record, lang=lang), *(COLUMNS[name](record) for name in columns))
            for record in records
        ),
    )


def reference_configuration(row: Reference, *, lang: str) -> str:
    """Return a reference's configuration: as printed in Chinese, in our words in English."""
    if lang == "zh":
        return row.configuration
    return configuration(row.device, nnodes=row.nnodes, nproc=row.nproc, lang=lang)


def reference_table(references: References, *, lang: str = "en") -> Table:
    """Return published rows under their own headers; in Chinese cell by cell as printed."""
    rows = []
    for row in references.rows:
        printed = row.cells if lang == "zh" else row.cells | row.cells_en
        rows.append((reference_configuration(row, lang=lang), *printed.values()))
    return Table((text("head.configuration", lang), *references.columns), tuple(rows))


def numbers(records: Sequence[Record]) -> list[str]:
    """Return what tells the records apart in headings: nothing for one, ``[1]`` … for more."""
    if len(records) == 1:
        return [""]
    return [f" [{place}]" for place in range(1, len(records) + 1)]


def value_heads(records: Sequence[Record], lang: str) -> list[str]:
    """Return the headings of columns that hold one value of each record."""
    return [number.strip() or text("head.value", lang) for number in numbers(records)]
