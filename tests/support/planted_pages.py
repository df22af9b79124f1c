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
    """A workload, and the quality that it ends with."""

    model: str
    dataset: str
    metric: str
    samples: int  # of a pass over the data
    passes: float
    flops: float  # of a sample
    quality: float


CARDS = (
    Card("A100", 40.0, {"amp": 312, "bf16": 312, "tf32": 156}),
    Card("H100", 80.0, {"amp": 989, "bf16": 989}),
    Card("V100", 32.0, {"amp": 125, "fp32": 15.7}),
    Card("MI300X", 192.0, {"amp": 1307, "bf16": 1307}),
)
WORKS = (
    Work(
        model="distilbert",
        dataset="SST-2",
        metric="acc",
        samples=67_349,
        passes=3,
        flops=1.45e11,
        quality=0.911,
    ),
    Work(
        model="resnet50",
        dataset="ImageNet-1k",
        metric="acc",
        samples=1_281_167,
        passes=45,
        flops=2.45e10,
        quality=0.7596,
    ),
    Work(
        model="vision transformer",
        dataset="ImageNet-1k",
        metric="acc",
        samples=1_281_167,
        passes=10,
        flops=1.05e11,
        quality=0.781,
    ),
    Work(
        model="bert large uncased",
        dataset="wikipedia",
        metric="mlm_acc",
        samples=250_000,
        passes=1,
        flops=1.0e12,
        quality=0.72,
    ),
)
# By card, a precision that it does not have. (The MI300X has fp8.)
LACKING = {"V100": "bf16", "A100": "fp8", "H100": "fp4", "MI300X": "fp4"}
WORLDS = ((1, 1), (1, 8), (2, 8))  # nodes and devices of each
# By world: one machine with one card, one machine with eight, two machines with eight each.
LABELS = {(1, 1): "单机单卡（1x1）", (1, 8): "单机8卡（1x8）", (2, 8): "两机8卡（2x8）"}


@dataclass(frozen=True)
class PageRow:
    """A row of figures before it is printed."""

    card: str
    label: str  # of ``LABELS``
    precision: str
    e2e_time: float  # seconds
    # Samples per second: over the whole time, over training, and over its steps alone.
    p_whole: float
    p_train: float
    p_core: float
    quality: float
    used: float  # GiB of memory, of ``memory``
    memory: float

    def text(self) -> str:
        """Return the row as pages print it."""
        # ``label`` says how many machines and cards; memory is in GiB, used and in all.
        rates = (f"{rate:.1f}" for rate in (self.p_whole, self.p_train, self.p_core))
        cells = (
            f"{self.card}{self.label}",
            self.precision,
            "/",  # no hyperparameter was changed
            f"{self.e2e_time:.1f}",
            *rates,
            f"{self.quality:.3f}",
            f"{self.used:.1f}/{self.memory:.1f}",
        )
        return "| " + " | ".join(cells) + " |"


def make_page(work: Work, rows: list[PageRow], names: str) -> str:
    """Return a Chinese page: facts of the run, then the rows, the first in line ``FIRST_LINE``.

    That is line 13. The facts are the names of model, data set and card; the heads of the columns
    begin with the configuration, and the last but one is the metric of the quality.

    Args:
        work: the model that was trained, its data set and its metric.
        rows: a row for each run.
        names: of the cards, as the page's head has them.
    """
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


FIRST_LINE = 13  # the line of the first row: the heads take twelve lines


def make_correct_rows(rng: random.Random, work: Work, card: Card, precision: str) -> list[PageRow]:
    """Return the rows of one, eight and sixteen cards; one to three of them.

    A row has the figures of a run. All are computed from one another, so that nothing contradicts;
    ranges of random numbers are what is plausible of a real run. ``WORLDS`` has pairs of the number
    of nodes and of cards in each. ``card.peaks`` are TFLOP/s, ``work.flops`` FLOPs of a sample, and
    ``work.samples`` those of a pass over the data.
    """
    share_of_peak = rng.uniform(0.12, 0.48)
    used = card.memory * rng.uniform(0.3, 0.93)
    rows = []
    scaling = 1.0
    num_rows = rng.choice((1, 2, 3, 3))  # three more often
    for world in WORLDS[:num_rows]:
        nodes, devices_per_node = world
        devices = nodes * devices_per_node
        scaling *= 1.0 if devices == 1 else rng.uniform(0.8, 0.98)  # more devices lose a little
        # Rates are samples per second: ``core`` of steps alone, ``train`` of training.
        core = card.peaks[precision] * 1e12 * share_of_peak / work.flops * devices * scaling
        train = core * rng.uniform(0.93, 0.995)  # time between steps is lost
        # The training ends a little earlier or later than planned.
        samples = work.samples * work.passes * rng.uniform(0.98, 1.02)
        evaluation_s = samples / train * rng.uniform(0.01, 0.08)
        start_s = rng.uniform(25, 110)
        e2e_time = round(samples / train + evaluation_s + start_s, 1)
        rows.append(
            PageRow(
                card=card.name,
                label=LABELS[world],
                precision=precision,
                e2e_time=e2e_time,
                p_whole=samples / e2e_time,
                p_train=train,
                p_core=core,
                quality=work.quality + rng.uniform(-0.004, 0.004),
                used=used,
                memory=card.memory,
            )
        )
    return rows


def iterate_correct_pages() -> Iterator[str]:
    """Yield pages that together have at least eighty correct rows.

    ``WORKS`` are models with their data, and ``CARDS`` accelerators, with their peak rate for each
    precision. The seed is any number, and makes the same pages each time.
    """
    rng = random.Random(20261123)
    rows = 0
    while rows < 80:
        work, card = rng.choice(WORKS), rng.choice(CARDS)
        precision = rng.choice(list(card.peaks))
        correct_rows = make_correct_rows(rng, work, card, precision)
        rows += len(correct_rows)
        yield make_page(work, correct_rows, card.name)


def _draw_three_rows(rng: random.Random) -> tuple[Work, Card, list[PageRow]]:
    """Return a random work and card with a correct row for each of ``WORLDS``."""
    # ``make_correct_rows`` returns one to three rows at random; draws with fewer are thrown away.
    while True:
        work, card = rng.choice(WORKS), rng.choice(CARDS)
        rows = make_correct_rows(rng, work, card, rng.choice(list(card.peaks)))
        if len(rows) == 3:
            return work, card, rows


class PageMistake(NamedTuple):
    """A kind of mistake.

    Args:
        times: on how many pages it is planted, in one row each.
        change: returns the wrong row for a work, a card and a correct row.
        world: index in ``WORLDS`` of the row that becomes wrong; None: a random one.
    """

    times: int
    change: Callable[[Work, Card, PageRow], PageRow]
    world: int | None = None


KINDS: dict[str, PageMistake] = {
    "quality above its range": PageMistake(
        times=3,
        change=lambda work, card, row: replace(row, quality=1.083),
    ),
    "quality below zero": PageMistake(
        times=1, change=lambda work, card, row: replace(row, quality=-0.911)
    ),
    "percent among fractions": PageMistake(
        times=5,
        change=lambda work, card, row: replace(row, quality=row.quality * 100),
    ),
    "no throughput": PageMistake(times=2, change=lambda work, card, row: replace(row, p_core=0.0)),
    "negative time": PageMistake(
        times=2, change=lambda work, card, row: replace(row, e2e_time=-row.e2e_time)
    ),
    "negative memory": PageMistake(
        times=1, change=lambda work, card, row: replace(row, used=-row.used)
    ),
    "eight slower than one": PageMistake(
        times=5, world=1, change=lambda work, card, row: _lower_rate(row, times=11.0)
    ),
    "precision that the card lacks": PageMistake(
        times=6,
        change=lambda work, card, row: replace(row, precision=LACKING[card.name]),
    ),
    "label of other machines": PageMistake(
        times=3,
        world=1,
        change=lambda work, card, row: replace(row, label="单机8卡（2x8）"),
    ),
    "label of other devices": PageMistake(
        times=3,
        world=0,
        change=lambda work, card, row: replace(row, label="单机单卡（1x8）"),
    ),
    "time halved": PageMistake(
        times=3,
        change=lambda work, card, row: replace(row, e2e_time=row.e2e_time / 2.4),
    ),
    "digit of throughput": PageMistake(
        times=3,
        change=lambda work, card, row: replace(row, p_whole=row.p_whole * 0.31),
    ),
    "counted once a rank": PageMistake(
        times=4, world=1, change=lambda work, card, row: _raise_rate(row, times=8)
    ),
    "counted once a rank of two machines": PageMistake(
        times=2,
        world=2,
        change=lambda work, card, row: _raise_rate(row, times=16),
    ),
    "core below train": PageMistake(
        times=3,
        change=lambda work, card, row: replace(row, p_core=row.p_train, p_train=row.p_core * 1.04),
    ),
    "whole above train": PageMistake(
        times=1,
        change=lambda work, card, row: replace(row, p_train=row.p_whole * 0.9),
    ),
    "more memory than the card": PageMistake(
        times=3,
        change=lambda work, card, row: replace(row, used=row.memory * 1.12),
    ),
    "another card's memory": PageMistake(
        times=2,
        change=lambda work, card, row: replace(row, memory=row.memory + 8),
    ),
    "above the peak": PageMistake(
        times=3,
        world=0,
        change=lambda work, card, row: _raise_rate(
            row, times=1.3 * card.peaks[row.precision] * 1e12 / work.flops / row.p_core
        ),
    ),
}


def _lower_rate(row: PageRow, times: float) -> PageRow:
    """Return the row of a run that is ``times`` slower; its time fits its rates.

    ``e2e_time`` is the seconds of the whole run. The rates, in samples per second, are over the
    whole run (``p_whole``), over training (``p_train``) and over its steps alone (``p_core``).
    """
    return replace(
        row,
        e2e_time=row.e2e_time * times,
        p_whole=row.p_whole / times,
        p_train=row.p_train / times,
        p_core=row.p_core / times,
    )


def _raise_rate(row: PageRow, times: float) -> PageRow:
    """Return the row with rates ``times`` higher and the time as it was.

    The rates, in samples per second, are over the whole run (``p_whole``), over training
    (``p_train``) and over its steps alone (``p_core``).
    """
    return replace(
        row, p_whole=row.p_whole * times, p_train=row.p_train * times, p_core=row.p_core * times
    )


class Planted(NamedTuple):
    """A page with its mistake, and the lines of which a finding must name one."""

    kind: str
    text: str
    lines: tuple[int, ...]


def iterate_planted_pages() -> Iterator[Planted]:
    """Yield sixty pages with one error each: 55 of one wrong row, 5 of invented rows of a card.

    ``KINDS`` has, by the name of each mistake, on how many pages it is planted (``times``, 55 in
    all), in which row (``world``) and how the row changes. Rows begin in line ``FIRST_LINE``.
    ``_draw_three_rows`` returns a random workload, a card, and correct rows of the card: on 1 and
    on 8 devices of one machine, and on two machines with 8 each. The last part of a ``Planted``
    are lines of the page: a check is right if its finding names one of them.
    """
    rng = random.Random(1123)
    for kind, mistake in KINDS.items():
        for _ in range(mistake.times):
            work, card, rows = _draw_three_rows(rng)
            # Any row, or the only one in which such a mistake can be seen.
            index = rng.randrange(3) if mistake.world is None else mistake.world
            rows[index] = mistake.change(work, card, rows[index])
            yield Planted(kind, make_page(work, rows, card.name), (FIRST_LINE + index,))
    for factor in (1.25, 0.8, 1.5, 0.5, 1.1):  # arbitrary, faster and slower than the first card
        work, card, rows = _draw_three_rows(rng)
        # Invented rows of another card: those of the first one, times a constant.
        copies = [
            replace(_raise_rate(row, times=factor), card="K200", e2e_time=row.e2e_time / factor)
            for row in rows
        ]
        lines = tuple(FIRST_LINE + len(rows) + index for index in range(len(copies)))
        yield Planted(
            "rows of one card times a constant", make_page(work, rows + copies, card.name), lines
        )
