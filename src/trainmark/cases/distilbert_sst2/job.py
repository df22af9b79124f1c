"""The torch side of DistilBERT on SST-2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

# From the submodules: the package's top level imports far more.
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.train.attention import choose_attention_kernels
from trainmark.train.checkpoints import describe_tensors, read_state
from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.parameters import trained
from trainmark.train.read_ahead import read_ahead
from trainmark.train.shards import Sharding, evaluation_batches, training_batches
from trainmark.train.stepper import Stepper, add_over_ranks

from . import data as sst2_data
from .data.model_files import NUM_LABELS, find_weights_file, make_model_error, match_weights
from .sizes import compute_model_flops

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainmark.protocols import JobContext

    from .case import DistilbertRecipe
    from .data import DistilbertData
    from .data.model_files import ModelConfig

# Of the published setup: names that end in these get no weight decay.
NO_DECAY = ("bias", "LayerNorm.weight", "layer_norm.weight")


def build_model(
    config: ModelConfig, *, seed: int, weights: Path | None = None, attention: str = "sdpa"
) -> nn.Module:
    """Return the classifier on the host, in train mode.

    Args:
        seed: seed of the random initial values; the parameters in ``weights`` replace them.
        weights: the file of the weights; None: all parameters keep their random values.
        attention: the name that ``transformers`` gives the implementation of attention to use.

    Raises:
        DataError: the weights cannot be read or do not fit ``config``.
    """
    # ``raw`` has the keys that config.json sets, except ``id2label`` and ``label2id``, the names of
    # the labels. Training does not use the names, but the number of labels is the head's width.
    hf_config = DistilBertConfig.from_dict({**config.raw, "num_labels": NUM_LABELS})
    hf_config._attn_implementation = attention
    torch.manual_seed(seed)
    model: nn.Module = DistilBertForSequenceClassification(hf_config)
    if weights is not None:
        state = read_state(weights, make_model_error)
        parameters = dict(model.named_parameters())
        stored_tensors = match_weights(describe_tensors(weights, state), config, weights)
        with torch.no_grad():
            for name, tensor in stored_tensors.items():
                # ``key`` is the tensor's name in the file: it may lack the prefix ``distilbert.``.
                parameters[name].copy_(state[tensor.key])
    return model.train()


def group_parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's two groups: weights with decay, and biases and LayerNorms without."""
    with_decay: list[nn.Parameter] = []
    without_decay: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.endswith(NO_DECAY):
            without_decay.append(parameter)
        else:
            with_decay.append(parameter)
    return [
        {"params": with_decay, "weight_decay": weight_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]


# Keys of the model's config that a record contains.
SIZES = ("n_layers", "n_heads", "dim", "hidden_dim", "vocab_size", "max_position_embeddings")


def load_data(context: JobContext) -> DistilbertData:
    """Return both splits as token rows, and the model's sizes."""
    return sst2_data.load(context.data_dir, context.recipe)


def count_planned_steps(recipe: DistilbertRecipe, steps_per_epoch: int) -> int:
    """Return the number of optimizer steps of a run that does not reach its target."""
    steps = recipe.max_epochs * steps_per_epoch
    return steps if recipe.max_steps is None else min(steps, recipe.max_steps)


class DistilbertJob:
    """The training of DistilBERT on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: DistilbertData) -> None:
        recipe: DistilbertRecipe = context.recipe
        self.context = context
        self.data = data
        self.recipe = recipe
        pretrained = recipe.init == "pretrained"
        weights = find_weights_file(context.data_dir / "model") if pretrained else None
        self.model = build_model(data.config, seed=recipe.seed, weights=weights)
        context.device.place(self.model)  # moves the module in place
        # Some attention kernels round the dropout probability; they are used only if they can
        # represent this one exactly.
        choose_attention_kernels(context.device, dropout=data.config.attention_dropout)
        # Which rows this rank trains in each step.
        self.sharding = Sharding.of(context, num_rows=len(data.train))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        num_steps = count_planned_steps(recipe, self.steps_per_epoch)
        groups = group_parameters(self.model, recipe.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
        self.stepper = Stepper(
            context,
            self.model,
            optimizer,
            self._compute_loss_sum,
            # Factor of the learning rate after so many steps: it falls linearly and would be 0
            # after ``num_steps``. A run never takes more steps, so it is never negative.
            schedule_lr=lambda steps: 1.0 - steps / num_steps,
        )
        # These methods of a job, which the protocol ``Job`` requires, are the stepper's.
        self.step = self.stepper.step
        self.check = self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of an epoch, in the order of training."""
        return training_batches(self.data.train, self.sharding, epoch)

    @staticmethod
    def compute_logits(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits (B, 2) of a batch of ids and mask (B, T).

        The mask is passed as (B, 1, 1, T), which the library uses unchanged. With (B, T), it would
        first ask the device whether anything is padded, which synchronizes.
        """
        logits: Tensor = model(input_ids=ids, attention_mask=mask[:, None, None, :]).logits
        return logits

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of a micro-batch's rows.

        The stepper divides it by the number of rows of the whole step.
        """
        ids, mask, labels = batch.tensors
        logits = self.compute_logits(self.stepper.model, ids, mask)
        return nn.functional.cross_entropy(logits.float(), labels, reduction="sum")

    def trained_parameters(self) -> Mapping[str, Tensor]:
        """Return the parameters that training changes, by name."""
        return trained(self.model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the accuracy over all ranks: the share of validation rows classified right."""
        world_size = self.context.world_size
        split = self.data.validation
        # Without a backward pass no activations are kept, so twice the training batch fits.
        size = 2 * self.recipe.micro_batch_size
        host_batches = evaluation_batches(
            split, size=size, rank=self.context.rank, world_size=world_size
        )
        evaluation_sum = EvaluationSum()
        self.model.eval()
        depth = self.recipe.read_ahead_batches
        # Each batch is on the device. Its ``ScoredRows`` have the number of its first rows that are
        # scored (the rest only fill the batch) and a key of each of them. The harness counts the
        # distinct keys: if there are fewer than rows, a row was scored twice.
        batches = read_ahead(scored_rows(host_batches), self.context.device, depth=depth)
        for (ids, mask, labels), counted_rows in batches:
            with self.stepper.autocast():
                logits = self.compute_logits(self.model, ids, mask)
            is_right = logits.argmax(1) == labels
            evaluation_sum.add(counted_rows, total=is_right[: counted_rows.count].sum())
        self.model.train()
        num_right, num_rows = add_over_ranks(
            int(evaluation_sum.total),  # of this rank: rows classified right
            evaluation_sum.rows,  # and rows in all
            world_size=world_size,
            device=self.stepper.device,
        )
        assert num_rows == len(split), f"{num_rows} of {len(split)} validation rows were scored"
        return Evaluation(
            value=num_right / num_rows,
            samples=num_rows,
            detail={"correct": float(num_right)},  # the record lists it beside the accuracy
            # Of this rank: the total, the number of rows and their keys. The harness computes the
            # accuracy again from those of all ranks, and compares.
            scores=evaluation_sum.scores(),
        )

    def model_flops(self, counts: Counts) -> float:
        """Return the model FLOPs of training on so many samples and tokens as ``counts`` has."""
        config = self.data.config
        return compute_model_flops(
            layers=config.n_layers,
            dim=config.dim,
            hidden_dim=config.hidden_dim,
            seq_length=self.recipe.seq_length,
            counts=counts,
        )

    def facts(self) -> Mapping[str, Any]:
        """Return the facts that the job adds to the record."""
        parameters = sum(item.numel() for item in self.model.parameters())  # all are trained
        return {
            "parameters": parameters,
            "trainable_parameters": parameters,
            "flops_formula": "palm-appendix-b",
            # Sizes of the model, from which ``find_sizes`` computes the expected parameters.
            "model_config": {name: getattr(self.data.config, name) for name in SIZES},
            "init": self.recipe.init,
            "truncated_rows": self.data.train.num_truncated + self.data.validation.num_truncated,
            # Steps without an update, because the fp16 loss scaler found an overflow.
            "skipped_steps": self.stepper.skipped_steps(),
        }


build = DistilbertJob
