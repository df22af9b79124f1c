"""A DLRM small enough to train in a test, on one rank or on several real ones.

Apart from the tests because a spawned rank has to import it. ``train`` draws its data and
writes the step out, so that nothing but tables, exchange and layers is under test;
``train_job`` is the case as it runs, from files to AUC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainmark.cases.dlrm_criteo.data.layout import write_spec
from trainmark.cases.dlrm_criteo.embeddings import FusedTables
from trainmark.cases.dlrm_criteo.hybrid import HybridTables
from trainmark.cases.dlrm_criteo.model import build_model
from trainmark.cases.dlrm_criteo.placement import FLOAT_BYTES, TABLES_SHARE, Placement, place_tables
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.cases.dlrm_criteo.data.layout import FeatureSpec

CARDINALITIES = (50, 3, 120, 7, 31, 1, 64)  # rows of each table
DIM = 8  # numbers of a table's row
NUMERICAL = 5  # numbers of a sample
BATCH, LAST = 24, 3  # samples of a global batch, and of the last one
STEPS = 10
RATE = 0.5  # learning rate
SEED = 11


@dataclass(frozen=True)
class Spread:
    """How a training is spread over ranks."""

    ranks: int = 1
    row_budget: int = 1000  # rows of tables that fit into a rank's memory
    cardinalities: tuple[int, ...] = CARDINALITIES
    loss_scale: float = 1.0  # factor of gradients, as in mixed precision
    dtype: torch.dtype = torch.float32  # of numbers that ranks exchange

    @property
    def placement(self) -> Placement:
        """Which rank has which rows of the tables.

        ``row_budget`` rows fit into a rank's memory, ``DIM`` is the numbers of a row, and
        ``cardinalities`` are the rows of each table.
        """
        return place_tables(
            make_rank_memory(self.row_budget, DIM), self.cardinalities, DIM, self.ranks
        )


def make_rank_memory(rows: int, dim: int) -> RankMemory:
    """Return the memory of a rank that fits tables of so many rows of ``dim`` numbers.

    A number has ``FLOAT_BYTES``, 4; tables may take ``TABLES_SHARE``, 0.8, of the memory.
    """
    # Two bytes more, so that rounding does not take a row away.
    return RankMemory(int(rows * dim * FLOAT_BYTES / TABLES_SHARE) + 2)


SPREADS = {
    "two": Spread(2),
    "four": Spread(4),  # the last batch of 3 samples leaves one rank without any
    "cut-by-rows": Spread(4, row_budget=75),
    "cut-on-two": Spread(2, row_budget=138, loss_scale=1024.0),
    "more-ranks-than-tables": Spread(4, cardinalities=(9, 40, 5)),
    "bf16-on-the-way": Spread(2, dtype=torch.bfloat16),
}


def make_batches(cardinalities: tuple[int, ...]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return (numerical, labels, ids) of each global batch; the last one is short.

    There are ``STEPS`` batches of ``BATCH`` samples, but the last one has ``LAST``. Shapes:
    (samples, ``NUMERICAL``), (samples,) and (tables, samples). All values are random, with the same
    seed at each call; about 30% of the labels are 1.

    Args:
        cardinalities: rows of each table; an id is the number of a row.
    """
    generator = torch.Generator().manual_seed(SEED)
    batches = []
    for step in range(STEPS):
        size = BATCH if step < STEPS - 1 else LAST
        numerical = torch.randn(size, NUMERICAL, generator=generator)
        # Squared, so that some rows come often.
        share = torch.rand(len(cardinalities), size, generator=generator) ** 2
        ids = (share * torch.tensor(cardinalities)[:, None]).int()
        labels = (torch.rand(size, generator=generator) < 0.3).float()
        batches.append((numerical, labels, ids))
    return batches


class SentBytes:
    """Counts the bytes that one rank sends to others; stands in for ``dist.all_to_all_single``."""

    def __init__(self, rank: int) -> None:
        self.rank, self.total = rank, 0  # ``total``: bytes sent so far
        self.exchange = dist.all_to_all_single  # torch's own function
        dist.all_to_all_single = self  # replaced for the rest of this process

    def __call__(self, received: Tensor, sent: Tensor, *sizes: list[int], **more: Any) -> Any:
        """Exchange; ``sizes``: numbers received from each rank, and sent to each."""
        _received_sizes, sent_sizes = sizes
        numbers = sum(size for rank, size in enumerate(sent_sizes) if rank != self.rank)
        self.total += numbers * sent.element_size()
        return self.exchange(received, sent, *sizes, **more)


def train(
    spread: Spread = Spread(), *, rank: int = 0, group: Any = None, sent: SentBytes | None = None
) -> dict[str, Any]:
    """Take the steps; return what this rank has of them.

    ``DIM`` is the numbers of a table's row, ``NUMERICAL`` the further numbers of a sample, and
    ``RATE`` the learning rate.

    Args:
        spread: how the training is spread over ranks; the default is one rank.
        group: process group of the ranks; None on one rank.
        sent: counts the bytes that this rank sends.

    Returns:
        ``losses``: sums over the samples of each step; ``logits`` of each step; ``pieces`` of
        tables, by table and first row; ``bytes``: of each step those sent, and those that the
        tables claim to send; ``dense``: weights of the other layers.
    """
    cardinalities, ranks = spread.cardinalities, spread.ranks
    # The lists have the widths of the layers before and after the tables' rows are joined.
    dense: nn.Module = build_model(
        NUMERICAL, DIM, len(cardinalities), [16, DIM], [16, 1], seed=SEED
    )
    # ``start`` begins a lookup, which on several ranks exchanges rows while the dense layers run.
    if ranks == 1:
        tables = start = FusedTables(cardinalities, DIM, seed=SEED)
    else:
        dense = DistributedDataParallel(dense, process_group=group)
        tables = HybridTables(
            spread.placement,
            rank=rank,
            seed=SEED,
            exchange_dtype=spread.dtype,
            group=group,
        )
        start = tables.start
    optimizer = torch.optim.SGD(dense.parameters(), lr=RATE)
    # Tables take their own SGD step in the backward pass.
    tables.learning_rate, tables.grad_scale = RATE, spread.loss_scale
    columns = list(spread.placement.list_tables(rank))
    losses, logits, bytes_sent = [], [], []
    for numerical, labels, ids in make_batches(cardinalities):
        size, before = len(labels), sent.total if sent else 0
        rows_of_rank = slice(size * rank // ranks, size * (rank + 1) // ranks)
        # Lookups in this rank's tables are those of all samples; the other layers get its share.
        dense_logits = dense(numerical[rows_of_rank], start(ids[columns]))
        loss = nn.functional.binary_cross_entropy_with_logits(
            dense_logits, labels[rows_of_rank], reduction="sum"
        )
        # As the stepper weighs a loss: ``size`` makes the sum a mean over the batch, and ``ranks``
        # makes up for DDP, which takes the mean of the ranks' gradients instead of their sum.
        (loss * (spread.loss_scale * ranks / size)).backward()
        for parameter in dense.parameters():
            assert parameter.grad is not None
            parameter.grad /= spread.loss_scale
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        logits.append(dense_logits.detach())
        if sent:
            bytes_sent.append((sent.total - before, tables.count_exchanged_bytes(size)))
    if ranks == 1:
        weights = tables.weight.detach().split(cardinalities)
        pieces = {(table, 0): weight.clone() for table, weight in enumerate(weights)}
    else:
        pieces = {
            (part.table, part.first_row): part_weight.clone()
            for part, part_weight in tables.iterate_parts()
        }
    return {
        "losses": losses,
        "logits": logits,
        "pieces": pieces,
        "bytes": bytes_sent,
        "dense": [part.detach().clone() for part in dense.parameters()],
    }


def write_log(
    folder: Path, cardinalities: tuple[int, ...], splits: Mapping[str, tuple[Any, Any, Any]]
) -> FeatureSpec:
    """Write a data set of clicks into ``folder``; return what describes its files.

    Args:
        cardinalities: rows of each table, which is how many categories a feature has.
        splits: by name, ``train`` among them, of each split the numerical features (rows, N), the
            labels (rows,) and the categories (tables, rows).
    """
    num_numerical = splits["train"][0].shape[1]
    spec = write_spec(folder, cardinalities, num_numerical=num_numerical)
    for split, (numerical, labels, categories) in splits.items():
        files = spec.files[split]
        files.label.parent.mkdir(parents=True)
        np.asarray(numerical, "<f2").tofile(files.numerical)
        np.asarray(labels, bool).tofile(files.label)
        for file, column in zip(files.categories, categories, strict=True):
            np.asarray(column, spec.get_row_types(split)[file]).tofile(file)
    return spec


def write_clicks(folder: Path) -> None:
    """Write the batches of ``make_batches`` as training rows and the same as test rows.

    They are 9 batches of 24 samples and one of 3. ``CARDINALITIES``: the rows of each table, whose
    numbers the samples have as their categories.
    """
    numerical, labels, ids = zip(*make_batches(CARDINALITIES), strict=True)
    rows = (torch.cat(numerical), torch.cat(labels), torch.cat(ids, dim=1))
    write_log(folder, CARDINALITIES, {"train": rows, "test": rows})


def train_job(folder: Path, *, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Run the steps of the job over an epoch of ``write_clicks``, then score its test rows.

    ``BATCH`` is the samples of a step over all ranks, ``DIM`` the numbers of a table's row.

    Returns:
        ``losses`` of the steps; ``samples`` of this rank's batches; ``quality``: the AUC, and how
        many test rows it is of; ``facts`` of the job; ``dense``: weights of the model without its
        tables; ``trained``: rows of each trained parameter by its name.
    """
    from trainmark.cases.dlrm_criteo.case import DlrmRecipe
    from trainmark.cases.dlrm_criteo.job import build, load_data

    recipe = DlrmRecipe(
        embedding_dim=DIM,
        bottom_layers=f"16,{DIM}",
        top_layers="16,1",
        micro_batch_size=BATCH // ranks,
        learning_rate=RATE,
        warmup_lr_steps=2,
        shuffle_batches=True,
    )
    context = JobContext(
        recipe=recipe, data_dir=folder, rank=rank, world_size=ranks, device=CpuDevice(threads=1)
    )
    job = build(context, load_data(context))
    batches = list(job.batches(0))
    losses, stream = [], iter(batches)
    loss = job.step(stream)
    while loss is not None:  # None: the epoch has ended
        losses.append(loss.item())
        loss = job.step(stream)
    quality = job.evaluate()
    return {
        "losses": losses,
        "samples": [batch.counts.samples for batch in batches],
        "quality": (quality.value, quality.samples),
        "facts": dict(job.facts()),
        "dense": [parameter.detach().clone() for parameter in job.model.parameters()],
        # Rows of each table, or of the part of it that this rank has, and of each dense parameter.
        "trained": {name: len(item) for name, item in job.trained_parameters().items()},
    }


def train_rank(rank: int, clicks: Path, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train with each of ``SPREADS`` that has this rank, then the job; return both results.

    ``SPREADS`` has, by name, how a training is spread: on two or four ranks, with tables that are
    whole or cut by rows, with any scale of the loss and any dtype of the exchanged numbers.

    One start of the ranks serves all trainings, because it takes longer than they do. Ranks that a
    spread does not need, such as two of four, skip it.

    Args:
        clicks: folder of the data of ``write_clicks``, on which the job trains.
        ranks: number of all ranks, on which the job is spread.

    Returns:
        what ``train`` returned, by the spread's name; what ``train_job`` returned.
    """
    groups = {size: dist.new_group(list(range(size))) for size in (2, 4)}
    sent = SentBytes(rank)
    trainings = {
        name: train(spread, rank=rank, group=groups[spread.ranks], sent=sent)
        for name, spread in SPREADS.items()
        if rank < spread.ranks
    }
    return trainings, train_job(clicks, rank=rank, ranks=ranks)
