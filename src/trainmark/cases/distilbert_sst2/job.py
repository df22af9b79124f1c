"""The torch side of DistilBERT on SST-2."""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

# The narrow path: the package's own lazy top level resolves far more.
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from trainmark.data.checkpoint_shapes import StoredTensor, weights_in
from trainmark.errors import DataError
from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.training.kernels.attention import use_cpu_attention
from trainmark.training.kernels.dropout import use_fast_dropout
from trainmark.training.parameters import trained
from trainmark.training.shards import Sharding, evaluation_rows
from trainmark.training.stepper import Stepper, add_over_ranks

from . import data as rows_of
from .model_files import MODEL_REMEDY, MODEL_RULE, NUM_LABELS
from .weights import match_weights, weights_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.protocols import JobContext

    from .case import DistilbertRecipe
    from .data import Loaded
    from .model_files import ModelConfig
    from .tokens import TokenRows

NO_DECAY = ("bias", "LayerNorm.weight", "layer_norm.weight")  # as the published setup names them


def load_data(context: JobContext) -> Loaded:
    """Return both splits as token rows, and the model's sizes."""
    return rows_of.load(context.data_dir, context.recipe)


def build(context: JobContext, data: Loaded) -> DistilbertJob:
    """Build the model, its weights and its optimizer."""
    return DistilbertJob(context, data)


def build_model(
    config: ModelConfig, *, seed: int, weights: Path | None = None, attention: str = "sdpa"
) -> nn.Module:
    """Return the classifier on the host, in train mode.

    The one place a model comes from. What ``weights`` does not hold starts from ``seed``.

    Raises:
        DataError: weights that cannot be read or do not fit ``config``.
    """
    hf_config = DistilBertConfig.from_dict({**config.raw, "num_labels": NUM_LABELS})
    hf_config._attn_implementation = attention
    torch.manual_seed(seed)
    model: nn.Module = DistilBertForSequenceClassification(hf_config)
    if weights is not None:
        _load_weights(model, weights, config)
    return model.train()


def _load_weights(model: nn.Module, file: Path, config: ModelConfig) -> None:
    """Copy a checkpoint's numbers into ``model``; never executes code from the file."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise DataError(
            f"not readable as weights: {str(error).splitlines()[0]}",
            where=str(file),
            remedy=MODEL_REMEDY,
        ) from None
    state = weights_in(state, file, rule=MODEL_RULE, remedy=MODEL_REMEDY)
    if strange := [key for key, item in state.items() if not isinstance(item, Tensor)]:
        raise DataError(
            f"{strange[0]} is no tensor",
            where=f"{file}, {strange[0]}",
            rule="a checkpoint is a state_dict",
            remedy=MODEL_REMEDY,
        )
    stored = [
        StoredTensor(file, key, str(item.dtype).removeprefix("torch."), tuple(item.shape))
        for key, item in state.items()
    ]
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in match_weights(stored, config, file).items():
            parameters[name].copy_(state[tensor.key])


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's two groups: decayed weights, and biases and LayerNorms without decay."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (plain if name.endswith(NO_DECAY) else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def planned_steps(recipe: DistilbertRecipe, steps_per_epoch: int) -> int:
    """Return the optimizer steps of a run that never meets its target."""
    steps = recipe.max_epochs * steps_per_epoch
    return steps if recipe.max_steps is None else min(steps, recipe.max_steps)


class DistilbertJob:
    """See ``trainmark.protocols.Job``."""

    def __init__(self, context: JobContext, data: Loaded) -> None:
        recipe: DistilbertRecipe = context.recipe
        self.context, self.data, self.recipe = context, data, recipe
        pretrained = recipe.init == "pretrained"
        weights = weights_file(context.data_dir / "model") if pretrained else None
        self.model = build_model(data.config, seed=recipe.seed, weights=weights)
        context.device.place(self.model)
        self._use_fast_cpu_parts()
        self.sharding = Sharding.of(context, num_rows=len(data.train))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        planned = planned_steps(recipe, self.steps_per_epoch)
        groups = parameter_groups(self.model, recipe.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
        self.stepper = Stepper.of(
            context, self.model, optimizer, self._loss_sum,
            schedule_lr=lambda steps: max(0.0, 1.0 - steps / planned),
        )  # fmt: skip
        self.step, self.check = self.stepper.step, self.stepper.check
        self.updates = self.stepper.updates

    def _use_fast_cpu_parts(self) -> None:
        """On a CPU in fp32, compute dropout and attention faster; the mathematics stay.

        A compiled model has its own fused dropout; lower precisions keep the library's.
        """
        fp32_cpu = self.context.device.torch_type == "cpu" and self.recipe.precision == "fp32"
        if fp32_cpu and not self.recipe.compile:
            use_fast_dropout(self.model)
            use_cpu_attention(self.model)

    def batches(self, epoch: int) -> Iterator[Batch]:
        split = self.data.train
        for part in self.sharding.micro_batches(epoch):
            counts = Counts()
            if not part.weightless:
                tokens = int((split.starts[part.rows + 1] - split.starts[part.rows]).sum())
                samples = len(part.rows)
                counts = Counts(samples, samples, tokens, samples * self.recipe.seq_length)
            yield Batch(
                self._tensors(split, part.rows), counts, part.step_samples, part.closes_step
            )

    def _tensors(self, split: TokenRows, rows: NDArray[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids and mask, both (B, T), and labels (B,), on the device."""
        ids, mask = split.padded(
            rows, seq_length=self.recipe.seq_length, pad_token_id=self.data.config.pad_token_id
        )
        place = self.context.device.place
        host = (torch.from_numpy(item) for item in (ids, mask, split.labels[rows]))
        first, second, third = (place(item) for item in host)
        return first, second, third

    @staticmethod
    def logits(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the scores (B, 2) of a batch of ids and mask (B, T).

        The mask goes in as (B, 1, 1, T), which the library takes as it is; from (B, T) it
        would first ask the device whether anything is padded, and wait for the answer.
        """
        scores: Tensor = model(input_ids=ids, attention_mask=mask[:, None, None, :]).logits
        return scores

    def _loss_sum(self, batch: Batch) -> Tensor:
        ids, mask, labels = batch.tensors
        scores = self.logits(self.stepper.model, ids, mask)
        return nn.functional.cross_entropy(scores.float(), labels, reduction="sum")

    def trained_parameters(self) -> Mapping[str, Tensor]:
        return trained(self.model)

    def evaluate(self) -> Evaluation:
        rank, world_size = self.context.rank, self.context.world_size
        total = len(self.data.validation)
        rows = evaluation_rows(total, rank=rank, world_size=world_size)
        device = next(self.model.parameters()).device
        correct, scored = add_over_ranks(
            self.count_correct(rows), len(rows), world_size=world_size, device=device
        )
        assert scored == total, f"{scored} of {total} validation rows were scored"
        return Evaluation(correct / scored, scored, {"correct": float(correct)})

    @torch.no_grad()
    def count_correct(self, rows: Sequence[int]) -> int:
        """Return how many of the validation rows the model gets right, in eval mode."""
        import numpy as np

        # A forward pass alone keeps no activations: twice the training batch fits.
        size = 2 * self.recipe.micro_batch_size
        numbers = np.asarray(rows, np.int64)
        correct: list[Tensor] = []
        self.model.eval()
        for first in range(0, len(numbers), size):
            ids, mask, labels = self._tensors(self.data.validation, numbers[first : first + size])
            with self.stepper.autocast():
                scores = self.logits(self.model, ids, mask)
            correct.append((scores.argmax(1) == labels).sum())
        self.model.train()
        return int(torch.stack(correct).sum()) if correct else 0

    def model_flops(self, counts: Counts) -> float:
        config, length = self.data.config, self.recipe.seq_length
        attention = 12.0 * config.n_layers * config.dim * length  # H x Q is dim
        per_token = 6.0 * config.encoder_matmul_weights + attention
        head = 6.0 * config.head_matmul_weights  # sees the first token only
        return per_token * counts.tokens_padded + head * counts.samples

    def facts(self) -> Mapping[str, Any]:
        config = self.data.config
        parameters = list(self.model.parameters())
        return {
            "parameters": sum(item.numel() for item in parameters),
            "trainable_parameters": sum(x.numel() for x in parameters if x.requires_grad),
            "flops_formula": "palm-appendix-b",
            "model_config": {
                name: getattr(config, name) for name in ("n_layers", "n_heads", "dim",
                "hidden_dim", "vocab_size", "max_position_embeddings")
            },
            "init": self.recipe.init,
            "truncated_rows": self.data.train.truncated + self.data.validation.truncated,
            "attention": self.model.config._attn_implementation,  # type: ignore[union-attr]
            "skipped_steps": self.stepper.skipped_steps(),
        }  # fmt: skip
