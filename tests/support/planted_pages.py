"""Result pages with one planted error each, and honest ones; written before their rules.

A page is the founding form: a head that names model and data set, and one table of figures. Honest
rows follow one simple machine: a card trains a share of its dense peak, more cards lose a little,
starting takes a minute or two, figures are rounded as pages round them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Card(NamedTuple):
    """A card: its name on pages, memory (GiB), dense peaks (TFLOP/s) by precision label."""

    name: str
    memory: float
    peaks: dict[str, float]


class Work(NamedTuple):
    """A workload: samples of a pass and passes, FLOP a sample, the quality it ends with."""

    model: str
    dataset: str
    metric: str
    samples: int
    passes: float
    flops: float
    quality: float


CARDS = (
    Card("A100", 40.0, {"amp": 312, "bf16": 312, "tf32": 156}),
    Card("H100", 80.0, {"amp": 989, "bf16": 989}),
    Card("V100", 32.0, {"amp": 125, "fp32": 15.7}),
    Card("MI300X", 192.0, {"amp": 1307, "bf16": 1307}),
)
WORKS = (
    Work("distilbert", "SST-2", "acc", 67_349, 3, 1.45e11, 0.911),
    Work("resnet50", "ImageNet-1k", "acc", 1_281_167, 45, 2.45e10, 0.7596),
    Work("vision transformer", "ImageNet-1k", "acc", 1_281_167, 10, 1.05e11, 0.781),
    Work("bert large uncased", "wikipedia", "mlm_acc", 250_000, 1, 1.0e12, 0.72),
)
# fp8 on the MI300X was removed from the set: the device has it, so it is no error.
LACKING = {"V100": "bf16", "A100": "fp8", "H100": "fp4", "MI300X": "fp4"}
WORLDS = ((1, 1), (1, 8), (2, 8))
LABELS = {(1, 1): "单机单卡（1x1）", (1, 8): "单机8卡（1x8）", (2, 8): "两机8卡（2x8）"}


@dataclass(frozen=True)
class PageRow:
    """A row of figures before it is printed."""

    card: str
    label: str
    precision: str
    e2e_time: float
    p_whole: float
    p_train: float
    p_core: float
    quality: float
    used: float
    memory: float
    quality_text: str = ""

    def text(self) -> str:
        """Return the row as pages print it."""
        rates = (f"{rate:.1f}" for rate in (self.p_whole, self.p_train, self.p_core))
        quality = self.quality_text or f"{self.quality:.3f}"
        cells = (
            f"{self.card}{self.label}",
            self.precision,
            "/",
            f"{self.e2e_time:.1f}",
            *rates,
            quality,
            f"{self.used:.1f}/{self.memory:.1f}",
        )
        return "| " + " | ".join(cells) + " |"


def make_page(work: Work, rows: list[PageRow], names: str) -> str:
    """Return a page in the founding form; the table's first row is line 13."""
    head = [
        "配置",
        "precision",
        "fix_hp",
        "e2e_time",
        "p_whole",
        "p_train",
        "p_core",
        work.metric,
        "mem",
    ]
    lines = [
        "* 通用指标",
        "",
        "| 指标名称 | 指标值 | 特殊说明 |",
        "| --- | --- | --- |",
        f"| 模型 | {work.model} | |",
        f"| 数据集 | {work.dataset} | |",
        f"| 硬件设备简称 | {names} | |",
        "",
        "* 性能指标",
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
        *(row.text() for row in rows),
    ]
    return "\n".join(lines) + "\n"


FIRST_LINE = 13


def make_correct_rows(draw: random.Random, work: Work, card: Card, precision: str) -> list[PageRow]:
    """Return the rows of one, eight and sixteen cards; one to three of them."""
    share = draw.uniform(0.12, 0.48)
    used = card.memory * draw.uniform(0.3, 0.93)
    rows, scaling = [], 1.0
    for world in WORLDS[: draw.choice((1, 2, 3, 3))]:
        devices = world[0] * world[1]
        scaling *= 1.0 if devices == 1 else draw.uniform(0.8, 0.98)  # no more devices gain
        core = card.peaks[precision] * 1e12 * share / work.flops * devices * scaling
        train = core * draw.uniform(0.93, 0.995)
        samples = work.samples * work.passes * draw.uniform(0.98, 1.02)
        evaluating = samples / train * draw.uniform(0.01, 0.08)
        starting = draw.uniform(25, 110)
        e2e = round(samples / train + evaluating + starting, 1)
        rows.append(
            PageRow(
                card.name,
                LABELS[world],
                precision,
                e2e,
                samples / e2e,
                train,
                core,
                work.quality + draw.uniform(-0.004, 0.004),
                used,
                card.memory,
            )
        )
    return rows


def iterate_correct_pages() -> Iterator[str]:
    """Yield pages that together have at least eighty honest rows."""
    draw = random.Random(20261123)
    rows = 0
    while rows < 80:
        work, card = draw.choice(WORKS), draw.choice(CARDS)
        precision = draw.choice(list(card.peaks))
        correct_rows = make_correct_rows(draw, work, card, precision)
        rows += len(correct_rows)
        yield make_page(work, correct_rows, card.name)


def _pick(draw: random.Random) -> tuple[Work, Card, list[PageRow]]:
    while True:
        work, card = draw.choice(WORKS), draw.choice(CARDS)
        rows = make_correct_rows(draw, work, card, draw.choice(list(card.peaks)))
        if len(rows) == 3:
            return work, card, rows


# Kind of error: times planted, world of the wrong row (None: any), the change.
KINDS: dict[str, tuple[int, int | None, Callable[..., PageRow]]] = {
    "quality above its range": (
        3,
        None,
        lambda _draw, work, card, row: replace(row, quality=1.083),
    ),
    "quality below zero": (1, None, lambda _draw, work, card, row: replace(row, quality=-0.911)),
    "percent among fractions": (
        5,
        None,
        lambda _draw, work, card, row: replace(row, quality=row.quality * 100),
    ),
    "no throughput": (2, None, lambda _draw, work, card, row: replace(row, p_core=0.0)),
    "negative time": (2, None, lambda _draw, work, card, row: replace(row, e2e_time=-row.e2e_time)),
    "negative memory": (1, None, lambda _draw, work, card, row: replace(row, used=-row.used)),
    "eight slower than one": (5, 1, lambda _draw, work, card, row: _lower_rate(row, 11.0)),
    "precision that the card lacks": (
        6,
        None,
        lambda _draw, work, card, row: replace(row, precision=LACKING[card.name]),
    ),
    "label of other machines": (
        3,
        1,
        lambda _draw, work, card, row: replace(row, label="单机8卡（2x8）"),
    ),
    "label of other devices": (
        3,
        0,
        lambda _draw, work, card, row: replace(row, label="单机单卡（1x8）"),
    ),
    "time halved": (
        3,
        None,
        lambda _draw, work, card, row: replace(row, e2e_time=row.e2e_time / 2.4),
    ),
    "digit of throughput": (
        3,
        None,
        lambda _draw, work, card, row: replace(row, p_whole=row.p_whole * 0.31),
    ),
    "counted once a rank": (4, 1, lambda _draw, work, card, row: _raise_rate(row, 8)),
    "counted once a rank of two machines": (
        2,
        2,
        lambda _draw, work, card, row: _raise_rate(row, 16),
    ),
    "core below train": (
        3,
        None,
        lambda _draw, work, card, row: replace(row, p_core=row.p_train, p_train=row.p_core * 1.04),
    ),
    "whole above train": (
        1,
        None,
        lambda _draw, work, card, row: replace(row, p_train=row.p_whole * 0.9),
    ),
    "more memory than the card": (
        3,
        None,
        lambda _draw, work, card, row: replace(row, used=row.memory * 1.12),
    ),
    "another card's memory": (
        2,
        None,
        lambda _draw, work, card, row: replace(row, memory=row.memory + 8),
    ),
    "above the peak": (
        3,
        0,
        lambda _draw, work, card, row: _raise_rate(
            row, 1.3 * card.peaks[row.precision] * 1e12 / work.flops / row.p_core
        ),
    ),
}


def _lower_rate(row: PageRow, times: float) -> PageRow:
    return replace(
        row,
        e2e_time=row.e2e_time * times,
        p_whole=row.p_whole / times,
        p_train=row.p_train / times,
        p_core=row.p_core / times,
    )


def _raise_rate(row: PageRow, times: float) -> PageRow:
    return replace(
        row, p_whole=row.p_whole * times, p_train=row.p_train * times, p_core=row.p_core * times
    )


class Planted(NamedTuple):
    """A page with its error, and the lines of which a finding must name one."""

    kind: str
    text: str
    lines: tuple[int, ...]


def iterate_planted_pages() -> Iterator[Planted]:
    """Yield sixty pages with one error each."""
    draw = random.Random(1123)
    for kind, (times, world, change) in KINDS.items():
        for _ in range(times):
            work, card, rows = _pick(draw)
            world_index = draw.randrange(3) if world is None else world
            rows[world_index] = change(draw, work, card, rows[world_index])
            yield Planted(kind, make_page(work, rows, card.name), (FIRST_LINE + world_index,))
    for times in (1.25, 0.8, 1.5, 0.5, 1.1):
        work, card, rows = _pick(draw)
        other = [
            replace(_raise_rate(row, times), card="K200", e2e_time=row.e2e_time / times)
            for row in rows
        ]
        lines = tuple(FIRST_LINE + 3 + number for number in range(3))
        yield Planted(
            "rows of one card times a constant", make_page(work, rows + other, card.name), lines
        )
