"""The torch side of DLRM: tables, dense replicas, batches, AUC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist

from trainmark.errors import DivergedError
from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.parameters import trained
from trainmark.train.read_ahead import read_ahead
from trainmark.train.step_memory import read_rank_memory
from trainmark.train.stepper import AUTOCAST_DTYPES, Stepper, add_over_ranks

from . import data as click_log
from .case import parse_layer_widths
from .data import SplitReader
from .embeddings import FusedTables
from .hybrid import HybridTables
from .model import build_model
from .placement import FLOAT_BYTES, place_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from trainmark.protocols import JobContext

    from .case import DlrmRecipe
    from .data import DlrmData, RawBatch
    from .model import Dlrm


def compute_roc_auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the area under the ROC curve.

    It is the share of pairs of a positive and a negative row in which the positive row scores
    higher; ties count half.

    Args:
        scores: (rows,); only their order matters, so infinite ones are valid.
        labels: (rows,), 1 for positive rows, 0 for negative rows; at least one of each.

    Raises:
        DivergedError: a score is NaN, so that there is no order.
    """
    if np.isnan(scores).any():
        num_nan = int(np.isnan(scores).sum())
        raise DivergedError("dlrm_criteo.scores_not_finite", found=num_nan, scores=len(scores))
    positive = np.sort(scores[labels == 1])
    negative = np.sort(scores[labels != 1])
    # Pairs in which the negative row scores lower, and those in which it does not score higher. A
    # tied pair is only in the second number: half of the sum counts it half.
    num_below = int(np.searchsorted(negative, positive, side="left").sum(dtype=np.int64))
    num_not_above = int(np.searchsorted(negative, positive, side="right").sum(dtype=np.int64))
    return (num_below + num_not_above) / (2 * len(positive) * len(negative))


def gather_scores(scores: Tensor, labels: Tensor, *, world_size: int) -> tuple[Tensor, Tensor]:
    """Return the scores and labels of all ranks, both (rows,), on every rank.

    Ranks may have different numbers of rows, also 0.
    """
    if world_size == 1:
        return scores, labels
    counts = [torch.zeros(1, dtype=torch.int64, device=scores.device) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor([len(scores)], device=scores.device))
    num_rows = [int(count) for count in counts]  # of each rank
    # Collectives need the same shape on every rank: pad to the maximum.
    local = scores.new_zeros(2, max(num_rows))
    local[0, : len(scores)] = scores
    local[1, : len(labels)] = labels
    padded_parts = [torch.empty_like(local) for _ in range(world_size)]
    dist.all_gather(padded_parts, local)
    parts = [part[:, :count] for part, count in zip(padded_parts, num_rows, strict=True)]
    all_scores, all_labels = torch.cat(parts, 1)
    return all_scores, all_labels


def load_data(context: JobContext) -> DlrmData:
    """Return the description of the files; rows are read while training."""
    return click_log.load(context.data_dir, context.recipe)


def compute_lr_factor(recipe: DlrmRecipe, finished_steps: int) -> float:
    """Return the next step's learning rate, divided by that of the plateau.

    It rises linearly, stays on the plateau, and decays quadratically to 0.
    """
    if finished_steps < recipe.warmup_lr_steps:
        return (finished_steps + 1) / recipe.warmup_lr_steps
    # 0 in the last step of the decay already, not only after it.
    remaining_steps = recipe.decay_start_step + recipe.decay_steps - finished_steps - 1
    # Above 1 before the decay starts, below 0 after its end.
    remaining_share = remaining_steps / recipe.decay_steps
    return float(min(1.0, max(0.0, remaining_share)) ** 2)


class DlrmJob:
    """The training of DLRM on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: DlrmData) -> None:
        recipe: DlrmRecipe = context.recipe
        self.context = context
        self.recipe = recipe
        spec = data.spec
        self.num_numerical = spec.num_numerical
        # All ranks must place tables alike, so ``context.memory`` is the smallest of all ranks. It
        # is None if a test creates the job alone; then its device is asked.
        memory = context.memory or read_rank_memory(context.device, context.world_size)
        assert memory is not None, "every supported device reports its memory"
        self.placement = place_tables(
            memory, spec.cardinalities, recipe.embedding_dim, context.world_size
        )
        # A rank reads the category ids only of the tables of which it holds rows.
        tables = self.placement.list_tables(context.rank)
        self.readers = {
            split: SplitReader(spec, split, tables=tables) for split in ("train", "test")
        }
        # Given the name of a part of the step, returns a context manager that times it.
        self._time_part = lambda name: context.stages.stage(name, context.device)
        # Build the tables on the device: the host may have less memory. A ``torch.device`` as a
        # context is where new tensors are made; the empty tensor is only asked for its device.
        with context.device.place(torch.empty(0)).device:
            self.tables: Any = self._build_tables()
        self.model = self._build_dense_model(num_tables=len(spec.cardinalities))
        context.device.place(self.model)  # moves the module in place
        self.dense_parameters = sum(item.numel() for item in self.model.parameters())
        # Fused SGD drops an overflowed fp16 step on the device, without synchronization.
        optimizer = torch.optim.SGD(self.model.parameters(), lr=recipe.learning_rate, fused=True)
        self.stepper = Stepper(
            context,
            self.model,
            optimizer,
            self._compute_loss_sum,
            schedule_lr=lambda steps: compute_lr_factor(recipe, steps),
            # Number of steps without overflow after which fp16's loss scale doubles: as in the
            # published runs, it never does.
            loss_scale_window=1_000_000_000,
        )
        # The stepper implements two methods of ``Job``, the protocol that this class follows.
        self.check = self.stepper.check
        self.updates = self.stepper.updates
        self.global_batch_size = recipe.micro_batch_size * context.world_size
        num_rows = self.readers["train"].num_rows
        self.steps_per_epoch = -(-num_rows // self.global_batch_size)  # rounded up

    def _build_dense_model(self, *, num_tables: int) -> Dlrm:
        """Return the part of the model that has no tables, on the host."""
        bottom_widths, top_widths = parse_layer_widths(self.recipe)
        return build_model(
            self.num_numerical,
            self.recipe.embedding_dim,
            num_tables,
            bottom_widths,
            top_widths,
            seed=self.recipe.seed,
        )

    def _build_tables(self) -> nn.Module:
        """Return the tables of this rank; a single rank has all of them."""
        dim, seed = self.recipe.embedding_dim, self.recipe.seed
        if self.context.world_size == 1:
            return FusedTables(
                self.placement.cardinalities, dim, seed=seed, time_part=self._time_part
            )
        # Ranks exchange embeddings in the type of the matmuls: fp32 without autocast.
        exchange_dtype = AUTOCAST_DTYPES.get(self.recipe.precision, torch.float32)
        return HybridTables(
            self.placement,
            rank=self.context.rank,
            seed=seed,
            exchange_dtype=exchange_dtype,
            time_part=self._time_part,
        )

    def step(self, batches: Iterator[Batch]) -> Tensor | None:
        """Take one step; return the mean loss of this rank's samples, None if no batch is left.

        The tables are updated in the step's backward pass, not by the optimizer. So they must have
        the step's learning rate and loss scale before it starts.
        """
        lr_factor = compute_lr_factor(self.recipe, self.stepper.steps)
        self.tables.learning_rate = self.recipe.learning_rate * lr_factor
        self.tables.grad_scale = self.stepper.loss_scale()
        return self.stepper.step(batches)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's part of each global batch of an epoch; each is a step."""
        order = None  # ascending
        if self.recipe.shuffle_batches:
            rng = np.random.default_rng([self.recipe.seed, epoch])
            order = rng.permutation(self.steps_per_epoch)
        for raw in self._read_batches("train", order):
            samples = len(raw.labels)  # of this rank; ``step_samples`` are those of all ranks
            # Without tokens, each sample counts as one sequence.
            counts = Counts(samples=samples, sequences=samples)
            # Gradients are not accumulated: every micro-batch is a step.
            yield Batch(_make_tensors(raw), counts, raw.step_samples, closes_step=True)

    def _read_batches(
        self, split: str, order: NDArray[np.int64] | None = None
    ) -> Iterator[RawBatch]:
        """Yield this rank's part of each global batch of a split.

        Args:
            order: batch numbers in the order of reading; None: ascending.
        """
        return self.readers[split].read_batches(
            self.global_batch_size,
            rank=self.context.rank,
            world_size=self.context.world_size,
            order=order,
        )

    def _compute_logits(self, model: nn.Module, numerical: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (B_local,) of this rank's samples.

        Args:
            model: the dense part, maybe wrapped by DDP.
            numerical: of this rank's samples (B_local, num_numerical).
            ids: of the global batch, for the tables that this rank holds (tables, B_global).
        """
        # A single rank looks up the embeddings at once. With several ranks, ``start`` begins their
        # exchange, and the model waits for them after its bottom MLP.
        look_up = self.tables if self.context.world_size == 1 else self.tables.start
        logits: Tensor = model(numerical.float(), look_up(ids))
        return logits.float()

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of this rank's samples; the stepper makes it a mean."""
        numerical, labels, ids = batch.tensors
        logits = self._compute_logits(self.stepper.model, numerical, ids)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")

    def trained_parameters(self) -> Mapping[str, Tensor]:
        """Return this rank's tables, or parts of them, and the dense parameters, by name."""
        tables: Iterable[tuple[int, Tensor]]
        if self.context.world_size == 1:
            tables = enumerate(self.tables.split_tables())
        else:
            # A rank has at most one part of a table, so no name occurs twice.
            tables = ((part.table, rows) for part, rows in self.tables.iterate_parts())
        return {f"table {table}": rows for table, rows in tables} | trained(self.model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the AUC of the test rows.

        Every rank takes part in all forward passes, because each pass needs the tables of all
        ranks.
        """
        world_size = self.context.world_size
        scores: list[Tensor] = []  # of each batch
        labels: list[Tensor] = []
        # Collects the number of scored rows and a key of each row; equal rows have equal keys. From
        # the keys, Trainmark's core detects rows that were scored twice or trained on. No scores
        # are summed, because the AUC is not their mean.
        evaluation_sum = EvaluationSum()
        # The model stays in train mode: it has no layer that depends on the mode.
        host_batches = ((_make_tensors(raw), len(raw.labels)) for raw in self._read_batches("test"))
        # ``scored_rows`` adds ``rows`` to each batch: the number of its rows, and their keys.
        for (numerical, batch_labels, ids), rows in read_ahead(
            scored_rows(host_batches), self.context.device, depth=self.recipe.read_ahead_batches
        ):
            with self.stepper.autocast():
                scores.append(self._compute_logits(self.model, numerical, ids))
            labels.append(batch_labels)
            evaluation_sum.add(rows)
        all_scores, all_labels = gather_scores(
            torch.cat(scores), torch.cat(labels), world_size=world_size
        )
        auc = 0.0
        if self.context.rank == 0:
            # If this raises, the other ranks do not wait for long in the sum below: the launcher
            # ends all ranks when one fails.
            auc = compute_roc_auc(all_scores.cpu().numpy(), all_labels.cpu().numpy())
        # Only rank 0 sorts all scores. The others add 0, so every rank gets the AUC of rank 0.
        (auc,) = add_over_ranks(auc, world_size=world_size, device=self.stepper.device)
        total = self.readers["test"].num_rows
        assert len(all_scores) == total, f"{len(all_scores)} of {total} test rows were scored"
        # Without any sum, ``scores`` returns this rank's number of rows and their keys.
        return Evaluation(auc, total, scores=evaluation_sum.scores())

    def model_flops(self, counts: Counts) -> float:
        """Return the model FLOPs of training the samples of ``counts``."""
        return float(self.model.flops_per_sample * counts.samples)

    def facts(self) -> Mapping[str, Any]:
        """Return what the job reports for the record: sizes, traffic and measured rates."""
        cardinalities = self.placement.cardinalities
        dim = self.recipe.embedding_dim
        parameters = self.dense_parameters + sum(cardinalities) * dim
        exchanged_bytes = 0
        if self.context.world_size > 1:
            exchanged_bytes = self.tables.count_exchanged_bytes(self.global_batch_size)
        return {
            "parameters": parameters,
            "trainable_parameters": parameters,
            "dense_parameters": self.dense_parameters,
            "numerical_features": self.num_numerical,
            "tables": len(cardinalities),
            # 6 for each weight: 2 in the forward pass, 2 for its gradient and 2 for the gradient of
            # its input. The first layer's input is data, so it needs no gradient.
            "flops_formula": "6 x (weights of linear layers + vectors^2 x dim) "
            "- 2 x weights of the first layer, per sample, without padding",
            "placement": self.placement.describe(),
            # A look-up reads a row of each table. The update reads the row's gradient and the row,
            # and writes the row. All four have the same size.
            "embedding_bytes_per_sample": 4 * len(cardinalities) * dim * FLOAT_BYTES,
            "exchanged_bytes_per_sample": exchanged_bytes / self.global_batch_size,
            "copy_bytes_per_second": self.context.device.copy_bytes_per_second(),  # measured now
            "skipped_steps": self.stepper.skipped_steps(),
        }


def _make_tensors(raw: RawBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return numerical values, labels and category ids of a batch as tensors on the host.

    Their shapes are (B_local, num_numerical), (B_local,) and (tables, B_global). A rank looks up
    its own tables for the samples of all ranks, so it has the ids of these tables alone.
    """
    return (
        torch.from_numpy(raw.numerical),
        torch.from_numpy(raw.labels),
        torch.from_numpy(raw.categories),
    )


build = DlrmJob
