"""Honest pages raise no alarm; errors that are planted in them are found where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trainmark.judge.audit import audit, subject
from trainmark.library.importers import files
from trainmark.library.importers.table import Page
from trainmark.record.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.judge.audit import Finding

    Cells = list[list[str]]

# Samples and epochs, samples/s of an A100 at half precision, metric and target.
CASES = {
    "distilbert_sst2": (67349 * 3, 150.0, "acc", 0.91),
    "dlrm_criteo": (4195197692, 3.6e6, "auc", 0.8027),
    "resnet50": (1281167 * 30, 410.0, "acc", 0.76),
    "vit": (1281167 * 10, 310.0, "acc", 0.8),
}
# Speed over an A100, GiB, precisions and their speed.
CARDS = {
    "A100": (1.0, 40, {"fp32": 0.35, "tf32": 1.0, "amp": 1.9}),
    "V100": (0.45, 32, {"fp16": 2.0}),
    "H100": (2.1, 80, {"bf16": 2.0}),
    "MI300X": (1.8, 192, {"bf16": 2.0}),
}
WORLDS = (("单机单卡", 1, 1), ("单机8卡", 1, 8), ("双机8卡", 2, 8))
HEADS = ["configuration", "precision", "e2e_time", "p_whole", "p_train", "p_core", "metric", "mem"]


def table(rng: np.random.Generator, case: str, card: str, start_s: float) -> Cells:
    """Return rows whose figures follow from samples, times and waits."""
    (samples, rate, _, target), (speed, memory, precisions) = CASES[case], CARDS[card]
    precision = str(rng.choice([*precisions]))
    rows = []
    for words, nodes, cards in WORLDS:
        world = nodes * cards
        loss = 1 - 0.03 * np.log2(world) * rng.uniform(0.5, 1.5)
        core = rate * speed * precisions[precision] * world * loss * rng.uniform(0.98, 1.02)
        train = core * (1 - rng.uniform(0.005, 0.05))
        whole = train * (1 - rng.uniform(0.01, 0.08))
        digits = 1 if core < 1e5 else 0
        rows.append([
            f"{card}{words}（{nodes}x{cards}）", precision,
            f"{samples / whole + start_s * rng.uniform(0.5, 1.3):.1f}",
            *(f"{x:.{digits}f}" for x in (whole, train, core)),
            f"{target + rng.uniform(0, 0.005):.4f}/{target}",
            f"{memory * rng.uniform(0.4, 0.95):.1f}/{memory}.0",
        ])  # fmt: skip
    return rows


def audited(case: str, rows: Cells) -> list[Finding]:
    heads = [CASES[case][2] if head == "metric" else head for head in HEADS]
    lines = [heads, ["---"] * len(heads), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    found = list(files.read_page(text, Page(file="page.md", form="flagperf", model=case)))
    assert all(isinstance(one, Row) for one in found)
    return audit([subject.of_row(one) for one in found if isinstance(one, Row)])


def test_honest_rows_of_several_cards_cases_and_lengths_raise_no_alarm() -> None:
    rng = np.random.default_rng(1)
    for case in CASES:
        for card in CARDS:
            for start_s in (10.0, 60.0, 180.0):
                assert audited(case, table(rng, case, card, start_s)) == [], (case, card, start_s)


def put(column: str, change: Callable[[str], str], row: int = 1) -> Callable[[Cells], Cells]:
    """Return what changes a cell of the second row."""

    def changed(rows: Cells) -> Cells:
        at = HEADS.index(column)
        rows[row][at] = change(rows[row][at])
        return rows

    return changed


def times(text: str, factor: float) -> str:
    return f"{float(text) * factor:.1f}"


def slow(rows: Cells) -> Cells:
    factor = 0.6 * float(rows[0][5]) / float(rows[1][5])
    rows[1][3:6] = [times(x, factor) for x in rows[1][3:6]]
    rows[1][2] = times(rows[1][2], 1 / factor)
    return rows


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        ("range", put("metric", lambda _: "1.915")),
        ("range", put("metric", lambda _: "-0.91")),
        ("range", put("metric", lambda text: f"{100 * float(text.split('/')[0]):.2f}")),
        ("range", put("p_train", lambda _: "0")),
        ("range", put("e2e_time", lambda text: f"-{text}")),
        ("scaling", slow),
        ("label", put("configuration", lambda text: text.replace("1x8", "2x8"))),
        ("label", put("precision", lambda _: "bf16")),
        ("side_by_side", put("e2e_time", lambda text: times(text, 3.0))),
        ("side_by_side", put("e2e_time", lambda text: times(text, 0.1))),
        ("ordering", put("p_whole", lambda text: times(text, 1.2))),
        ("memory", put("mem", lambda _: "35.2/32.0")),
        ("memory", put("mem", lambda _: "20.0/48.0")),
        ("target", put("metric", lambda text: f"0.5/{text.split('/')[1]}")),
    ],
)
def test_a_planted_error_is_found_in_its_row(rule: str, planted: Callable[[Cells], Cells]) -> None:
    rng = np.random.default_rng(2)
    for case in ("resnet50", "vit"):
        found = audited(case, planted(table(rng, case, "V100", 60.0)))
        assert {one.subject.line for one in found} == {4}, case
        assert rule in {one.rule for one in found}


def test_one_card_s_figures_times_a_factor_are_found() -> None:
    rows = table(np.random.default_rng(3), "resnet50", "A100", 60.0)
    copied = [[x[0].replace("A100", "X9"), x[1], times(x[2], 1 / 1.37),
               *(times(y, 1.37) for y in x[3:6]), *x[6:]] for x in rows]  # fmt: skip
    found = audited("resnet50", rows + copied)
    assert {one.rule for one in found} == {"ratios"}
    assert {one.subject.line for one in found} == {6, 7, 8}
