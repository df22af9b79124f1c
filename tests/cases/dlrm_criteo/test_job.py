"""The DLRM case on one process: its steps, its counts, its learning rate, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from support.tiny_dlrm import write_log
from trainmark.cases.dlrm_criteo.case import CASE, DlrmRecipe
from trainmark.cases.dlrm_criteo.data.layout import read_spec
from trainmark.cases.dlrm_criteo.job import build, compute_lr_factor, load_data
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.errors import EnvironmentFault
from trainmark.protocols import Counts, JobContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CARDINALITIES = (3, 40, 200, 7)
ROWS = {"train": 1_003, "test": 601}
SMALL = DlrmRecipe(
    data="generated",
    embedding_dim=8,
    bottom_layers="16,8",
    top_layers="16,1",
    micro_batch_size=100,
    learning_rate=0.5,
    warmup_lr_steps=0,
    decay_start_step=10_000,
)


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    """Restore the number of threads, which the device of ``make_job`` sets to 1."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of click data whose labels follow from two categories of a row."""
    return write_clicks(tmp_path_factory.mktemp("clicks"))


def write_clicks(folder: Path) -> Path:
    """Write rows whose label is mostly 0 if two categories are both even, and 1 otherwise."""
    rng = np.random.default_rng(7)
    splits = {}
    for split, rows in ROWS.items():
        columns = [rng.integers(cardinality, size=rows) for cardinality in CARDINALITIES]
        # Not clicked if both are even.
        clicked = (columns[0] % 2 + columns[1] % 2) > 0
        numbers = rng.random((rows, 13))
        labels = clicked ^ (rng.random(rows) < 0.05)  # 5% are wrong
        splits[split] = numbers, labels, columns
    write_log(folder, CARDINALITIES, splits)
    return folder


def make_job(folder: Path, **changes: Any) -> Any:
    """Build the job on one rank; ``changes`` are to the recipe ``SMALL``."""
    context = JobContext(
        recipe=replace(SMALL, **changes),
        data_dir=folder,
        rank=0,
        world_size=1,
        device=CpuDevice(threads=1),
    )
    return build(context, load_data(context))


def train(job: Any, epochs: int) -> None:
    """Train some epochs; ``step`` returns None at the end of an epoch."""
    for epoch in range(epochs):
        batches = job.batches(epoch)
        while job.step(batches) is not None:
            pass


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_trains_each_row_once(folder: Path, shuffle: bool) -> None:
    """1,003 rows in batches of 100: ten whole ones and one of 3; ``shuffle``: in random order."""
    job = make_job(folder, shuffle_batches=shuffle)
    batches = list(job.batches(0))
    assert len(batches) == job.steps_per_epoch == 11
    sizes = [batch.counts.samples for batch in batches]
    assert sorted(sizes) == [3] + [100] * 10  # 1,003 rows
    assert sum((batch.counts for batch in batches), Counts()) == Counts(
        samples=1_003, sequences=1_003
    )
    # Without gradient accumulation each batch is a whole step.
    assert all(
        batch.closes_step and batch.step_samples == batch.counts.samples for batch in batches
    )
    assert (sizes[-1] == 3) is (not shuffle)  # with this seed, the short batch is not last
    files = read_spec(folder).files["train"]
    expected = np.fromfile(files.numerical, "<f2").reshape(-1, 13)
    rows = torch.cat([batch.tensors[0] for batch in batches]).numpy()
    assert sorted(rows.tolist()) == sorted(expected.tolist())  # the rows of the file, in any order
    if shuffle:
        # The next epoch has another order.
        other = torch.cat([batch.tensors[0] for batch in job.batches(1)]).numpy()
        assert not np.array_equal(other, rows)


def test_steps_follow_the_schedule_in_tables_and_dense_layers(folder: Path) -> None:
    """Each step is repeated by hand with plain SGD, and must change all weights as the job does.

    The recipe has a learning rate of 0.5, which here is reached after four steps of warm-up.
    """
    job = make_job(folder, warmup_lr_steps=4)
    batches = job.batches(0)
    for step in range(3):
        batch = next(batches)
        numerical, labels, ids = batch.tensors
        # The expected step: plain SGD on all tables, joined into one, and on the dense layers.
        weight = job.tables.weight.clone().requires_grad_()
        starts = job.tables._starts  # first row of each table
        rows = weight[(ids.t() + starts).long()]
        logits = job.model(numerical.float(), rows)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        dense = list(job.model.parameters())
        grads = torch.autograd.grad(loss, [weight, *dense])
        rate = 0.5 * (step + 1) / 4  # 0.5 after 4 steps of warm-up
        expected = [
            (value - rate * grad).detach()
            for value, grad in zip([weight, *dense], grads, strict=True)
        ]
        result = job.step(iter([batch]))
        assert result.item() == pytest.approx(loss.item(), abs=1e-6)
        for value, expected_value in zip([job.tables.weight, *dense], expected, strict=True):
            torch.testing.assert_close(value.detach(), expected_value, rtol=0, atol=1e-6)


def test_job_learns_and_scores_each_test_row_once(folder: Path) -> None:
    """The label of a row follows from two of its categories, but is wrong in 5% of the rows."""
    job = make_job(folder, micro_batch_size=50)
    train(job, epochs=12)
    quality = job.evaluate()
    assert quality.samples == ROWS["test"]
    assert quality.value > 0.9  # the AUC; of 0.5 without learning, and below 1 for 5% wrong labels


def test_tables_beyond_memory_are_refused_with_the_number_of_ranks_that_fits(folder: Path) -> None:
    """The tables have 3 + 40 + 200 + 7 rows (``CARDINALITIES``), too many for a tiny device.

    ``SMALL`` is the recipe, whose rows have 8 numbers.
    """

    class SmallDevice(CpuDevice):
        def memory(self) -> Any:
            # The tables have 250 rows of 8 float32, that is, 8,000 bytes.
            return replace(super().memory(), total_bytes=4_000)

    context = JobContext(
        recipe=SMALL, data_dir=folder, rank=0, world_size=1, device=SmallDevice(threads=1)
    )
    with pytest.raises(EnvironmentFault, match="do not fit into the memory of 1 rank") as caught:
        build(context, load_data(context))
    # Tables may take 80% of the memory, 3,200 bytes of each machine: 8,000 bytes need 2.5 of them.
    assert "use at least 3 machines like this one" in str(caught.value)


def test_learning_rate_warms_up_stays_and_decays_quadratically() -> None:
    """The factor by which the learning rate of a step is multiplied; steps count from 0.

    The published recipe warms up linearly for 8,000 steps, so that step 7,999 is the first with
    the full rate. From step 48,000 on it decays to 0 within 24,000 steps: by the square of the
    share that is still left after the step.
    """
    standard = CASE.recipes["standard-1x1"]
    factors = {
        step: compute_lr_factor(standard, step) for step in (0, 7_999, 8_000, 47_999, 59_999)
    }
    assert factors == {
        0: 1 / 8_000,
        7_999: 1.0,
        8_000: 1.0,
        47_999: 1.0,
        59_999: 0.25,  # at half of the decay: the square of a half
    }
    # The first step of the decay; from the last one (71,999) on, the rate is 0.
    assert compute_lr_factor(standard, 48_000) == (23_999 / 24_000) ** 2
    assert compute_lr_factor(standard, 71_999) == compute_lr_factor(standard, 90_000) == 0.0
