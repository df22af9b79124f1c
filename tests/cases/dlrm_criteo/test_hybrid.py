"""Tables spread over ranks train as one process trains them."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed as dist

from support import tiny_dlrm
from support.real_ranks import call_on_ranks
from support.tiny_dlrm import BATCH, DIM, LAST, SEED, SPREADS, STEPS, Spread
from trainmark.cases.dlrm_criteo.embeddings import BLOCK_ROWS, fill_rows
from trainmark.cases.dlrm_criteo.hybrid import HybridTables
from trainmark.cases.dlrm_criteo.model import build_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")

RANKS = 4


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder of the case with few rows."""
    folder = tmp_path_factory.mktemp("clicks")
    tiny_dlrm.write_clicks(folder)
    return folder


@pytest.fixture(scope="module")
def rank_results_and_jobs(
    tmp_path_factory: pytest.TempPathFactory, clicks: Path
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Train on four real ranks; return two results of each.

    The first maps the name of a spread (how tables lie on ranks) to the result of
    ``tiny_dlrm.train``; the second is the result of ``tiny_dlrm.train_job``.
    """
    folder = tmp_path_factory.mktemp("ranks")
    return call_on_ranks(RANKS, folder, tiny_dlrm.train_rank, clicks, RANKS)


@pytest.fixture(scope="module")
def rank_results_by_spread(
    rank_results_and_jobs: list[tuple[dict[str, Any], Any]],
) -> list[dict[str, Any]]:
    """Return the results of each rank, by the name of the spread of tables."""
    return [by_spread for by_spread, _ in rank_results_and_jobs]


def join_tables(rank_results: list[dict[str, Any]]) -> dict[int, torch.Tensor]:
    """Return whole tables, by their numbers, joined from the pieces of all ranks.

    The ``pieces`` of a rank's result are the rows that it holds, by table and number of the first.
    """
    pieces: dict[int, list[tuple[int, torch.Tensor]]] = {}
    for result in rank_results:
        for (table, first_row), rows in result["pieces"].items():
            pieces.setdefault(table, []).append((first_row, rows))
    return {
        table: torch.cat([rows for _, rows in sorted(parts, key=lambda part: part[0])])
        for table, parts in pieces.items()
    }


@pytest.mark.parametrize("name", SPREADS)
def test_distributed_tables_train_as_on_one_rank(
    rank_results_by_spread: list[dict[str, Any]], name: str
) -> None:
    """``SPREADS`` holds, by name, ways to spread the tables over two or four ranks.

    The fixture has trained each of them and returns losses, logits, weights and pieces of tables.
    """
    spread = SPREADS[name]
    # float32 sums differ by their order; bfloat16 rounds the vectors that ranks exchange.
    tolerance = 1e-5 if spread.dtype == torch.float32 else 2e-2
    single_rank = tiny_dlrm.train(Spread(cardinalities=spread.cardinalities))
    # A spread may use fewer than the four ranks.
    rank_results = [item[name] for item in rank_results_by_spread[: spread.ranks]]
    for step, loss in enumerate(single_rank["losses"]):
        # Losses are sums over a rank's rows.
        assert sum(item["losses"][step] for item in rank_results) == pytest.approx(
            loss, rel=tolerance
        )
        # Logits differ by more: with bfloat16 by up to 0.022 on a CPU.
        logits = torch.cat([item["logits"][step] for item in rank_results])
        torch.testing.assert_close(logits, single_rank["logits"][step], rtol=0, atol=5 * tolerance)
    tables = join_tables(rank_results)
    assert sorted(tables) == list(range(len(spread.cardinalities)))
    for table, rows in join_tables([single_rank]).items():
        torch.testing.assert_close(tables[table], rows, rtol=0, atol=tolerance)
        # The training changed the table by more than the tolerance, so a table without training
        # would not have passed. Changes are 0.007 or more; 0.025 or more of the one with bfloat16.
        fresh = torch.empty_like(rows)
        fill_rows(fresh, table=table, first_row=0, cardinality=len(rows), seed=SEED)
        assert (rows - fresh).abs().max() > max(5e-3, tolerance)
    for item in rank_results:
        for value, expected in zip(item["dense"], single_rank["dense"], strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=tolerance)


def test_job_on_four_ranks_trains_as_on_one(
    rank_results_and_jobs: list[tuple[Any, dict[str, Any]]], clicks: Path
) -> None:
    """The job of the case, from files to the AUC, gives on four ranks what it gives on one.

    The fixture has trained on four real ranks; the job of each is the second of its two results.
    There are ``STEPS``, 10, global batches of ``BATCH``, 24, samples, but the last has ``LAST``, 3.
    Each value of ``dense`` is a weight that all ranks have.
    """
    single_rank = tiny_dlrm.train_job(clicks)
    jobs = [job for _, job in rank_results_and_jobs]
    rows = BATCH * (STEPS - 1) + LAST  # the last batch is shorter
    assert len(single_rank["losses"]) == STEPS
    assert sum(sum(job["samples"]) for job in jobs) == sum(single_rank["samples"]) == rows
    # The loss of a step is the mean of its samples, of which each rank has some.
    for step, loss in enumerate(single_rank["losses"]):
        total = sum(job["losses"][step] * job["samples"][step] for job in jobs)
        assert total / single_rank["samples"][step] == pytest.approx(loss, abs=1e-4)
    for job in jobs:
        # An AUC and its number of rows: the test rows are a copy of the training rows.
        assert job["quality"] == (pytest.approx(single_rank["quality"][0], abs=1e-4), rows)
        for value, expected in zip(job["dense"], single_rank["dense"], strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-4)
        assert [row["rank"] for row in job["facts"]["placement"]] == list(range(RANKS))
    # Every rank reports its dense replica and the tables, or parts of them, that it holds.
    # ``trained``: number of rows by name of a parameter.
    rows_held = Counter[str]()
    for job in jobs:
        rows_held.update(job["trained"])
    rows_of_tables = {
        name: n for name, n in single_rank["trained"].items() if name.startswith("table ")
    }
    assert len(rows_of_tables) == len(tiny_dlrm.CARDINALITIES)
    assert {name: rows_held[name] for name in rows_of_tables} == rows_of_tables
    dense = set(single_rank["trained"]) - set(rows_of_tables)
    assert all(dense <= set(job["trained"]) for job in jobs)


def test_job_reports_the_bytes_that_a_sample_exchanges(
    rank_results_and_jobs: list[tuple[Any, dict[str, Any]]],
) -> None:
    """The fixture has trained on ``RANKS``, 4, ranks, over which the 7 tables are spread."""
    jobs = [job for _, job in rank_results_and_jobs]
    # Each table sends a vector and gets its gradient, unless it shares a rank with the sample.
    bytes_per_sample = [job["facts"]["exchanged_bytes_per_sample"] for job in jobs]
    # 2 directions, 7 tables, vectors of ``DIM``, 8, numbers, 4 bytes a float32. Of four ranks, one
    # has the sample itself, so that three quarters of the vectors go to another rank.
    assert sum(bytes_per_sample) == 2 * 7 * DIM * 4 * (RANKS - 1) / RANKS


@pytest.mark.parametrize("name", SPREADS)
def test_exchanged_bytes_equal_sent_bytes(
    rank_results_by_spread: list[dict[str, Any]], name: str
) -> None:
    """What the job reports as exchanged is what ``torch.distributed`` was given to send.

    ``SPREADS`` are ways to spread tables over ranks, by name; one may use fewer than the four ranks
    of the fixture.
    """
    for item in rank_results_by_spread[: SPREADS[name].ranks]:
        # A pair for each step: bytes counted where torch sends them, and those the job reports.
        counted = [sent for sent, _ in item[name]["bytes"]]
        assert counted == [reported for _, reported in item[name]["bytes"]]
        assert min(counted) > 0


class Echo:
    """An exchange of one rank with itself that records when it starts and when it is waited for."""

    def __init__(self, notes: list[str]) -> None:
        """``notes`` gets "begin" and "wait" of each exchange, in the order of the calls."""
        self.notes = notes

    def __call__(self, received: torch.Tensor, sent: torch.Tensor, *_: Any, **__: Any) -> Echo:
        """Stand for an asynchronous ``all_to_all_single``, and for the handle that it returns.

        Args:
            received: the tensor to fill, which ``wait`` does.
            sent: what the rank sends, here to itself.
        """
        self.notes.append("begin")
        self.received, self.sent = received, sent
        return self

    def wait(self) -> None:
        """Note that the end of the exchange is awaited, and deliver what was sent."""
        self.notes.append("wait")
        self.received.copy_(self.sent)  # only now: an earlier read would see wrong values


def test_both_exchanges_overlap_with_the_bottom_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange is started before the bottom layers compute, and awaited after them.

    The forward pass exchanges the rows of tables, the backward pass their gradients. ``notes``
    keeps the order of all events; ``timed`` the names of the parts that were timed.
    """
    notes: list[str] = []
    # Instead of sending, it notes "begin" when it is called and "wait" when its end is awaited.
    monkeypatch.setattr(dist, "all_to_all_single", Echo(notes))
    # On one rank, which exchanges with itself: the order of the calls is the same on several.
    spread = Spread(ranks=1)
    timed: list[str] = []

    def time_part(name: str) -> AbstractContextManager[None]:
        timed.append(name)
        return nullcontext()

    tables = HybridTables(spread.placement, rank=0, seed=SEED, time_part=time_part)
    num_tables = len(spread.cardinalities)
    # The lists: widths of the two bottom layers and of the two top layers.
    dense = build_model(tiny_dlrm.NUMERICAL, DIM, num_tables, [16, DIM], [16, 1], seed=SEED)
    dense.bottom.register_forward_hook(lambda *_: notes.append("bottom"))
    for part, layers in (("bottom", dense.bottom), ("top", dense.top)):
        for parameter in layers.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda _, part=part: notes.append(f"{part} grad")
            )
    tables.learning_rate = tiny_dlrm.RATE
    before = tables.local.weight.clone()
    numerical, labels, ids = tiny_dlrm.make_batches(spread.cardinalities)[0]
    logits = dense(numerical, tables.start(ids))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    # Forward: the bottom layers compute between the start of the exchange and its end.
    assert notes == ["begin", "bottom", "wait"]
    notes.clear()
    loss.backward()
    # Backward: so do their gradients; each part has two layers with weight and bias.
    assert notes == [*["top grad"] * 4, "begin", *["bottom grad"] * 4, "wait"]
    assert not torch.equal(tables.local.weight, before)  # the tables took their step
    # Forward: look-ups, then the exchange of vectors; backward: that of gradients, then the update.
    assert timed == ["embedding", "exchange", "exchange", "embedding"]


@pytest.mark.parametrize("first_row", [0, 1, 10, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 5])
@pytest.mark.parametrize("rows", [1, 3, BLOCK_ROWS, BLOCK_ROWS + 7])
def test_initial_rows_do_not_depend_on_their_rank(first_row: int, rows: int) -> None:
    """A table's initial rows are drawn in blocks of ``BLOCK_ROWS``, each from its own seed.

    So a rank can draw a part of a table without the rows before it. The parts here begin and end
    within, at and across the borders of blocks.
    """
    cardinality = 3 * BLOCK_ROWS + 100  # rows of the table: three blocks and a part of one
    whole_table, part = torch.empty(cardinality, 2), torch.empty(rows, 2)
    # A rank that holds all rows, and one that holds some. 3 and 5: any table and seed.
    fill_rows(whole_table, table=3, first_row=0, cardinality=cardinality, seed=5)
    fill_rows(part, table=3, first_row=first_row, cardinality=cardinality, seed=5)
    assert torch.equal(part, whole_table[first_row : first_row + rows])
    # Values are uniform between -bound and bound. The largest of so many is nearly the bound, and
    # their mean nearly 0.
    bound = cardinality**-0.5
    assert 0.99 * bound < whole_table.abs().max() <= bound
    assert whole_table.mean().abs() < 0.02 * bound
