"""A GPT-2 shaped language model on Megatron's indexed tokens; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import UsageError
from trainmark.recipe import (
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Precision,
    Recipe,
    recipe_field,
)
from trainmark.spec import Case, Mission, PrepareOption, Text
from trainmark.train.language_recipe import Division

VOCAB_MULTIPLE = 128  # of the rows of the token table on each rank, as in Megatron


@dataclass(frozen=True, kw_only=True)
class GptRecipe(Recipe):
    """The model's sizes, how it is trained and how it is divided over ranks."""

    num_layers: Annotated[int, Gt(0), Le(10_000)] = recipe_field(12, "transformer blocks")
    hidden_size: PositiveInt = recipe_field(768, "width of the residual stream")
    num_heads: PositiveInt = recipe_field(12, "attention heads")
    seq_length: PositiveInt = recipe_field(1024, "tokens per sample")
    vocab_size: PositiveInt = recipe_field(
        50257,
        (
            "vocabulary size of the data; the embedding table is padded to a multiple of "
            "128 x tensor_parallel"
        ),
    )
    dropout: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.1, "dropout probability of embeddings, attention weights and residuals"
    )
    split: str = recipe_field("949,50,1", "proportions of training, validation and test documents")
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.999, "decay rate of Adam's second-moment estimate"
    )
    max_grad_norm: PositiveFloat | None = recipe_field(
        1.0, "maximum gradient norm; none: no clipping"
    )
    min_learning_rate: NonNegativeFloat = recipe_field(
        1e-5, "learning rate at the end of the cosine decay"
    )
    lr_decay_steps: PositiveInt = recipe_field(
        320_000, "total number of warm-up and cosine decay steps"
    )
    lr_warmup_fraction: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.01, "fraction of lr_decay_steps over which the learning rate rises linearly"
    )
    tensor_parallel: PositiveInt = recipe_field(
        1,
        (
            "number of ranks that share one model replica (tensor parallelism); the remaining "
            "ranks train additional replicas"
        ),
        rule="closed",
    )
    fsdp: bool = recipe_field(
        False,
        "shard parameters, gradients and optimizer state across replicas (FSDP2)",
        rule="closed",
    )
    checkpoint_activations: bool = recipe_field(
        False, "recompute blocks in the backward pass to save memory", rule="closed"
    )

    checkpoint_every_steps: PositiveInt | None = recipe_field(
        None,
        "optimizer steps between two checkpoints; none: no checkpoints",
        rule="closed",
    )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token table: a multiple of ``128 x tensor_parallel``, as in Megatron."""
        # Each of the ``tensor_parallel`` ranks then has a multiple of 128 rows.
        return round_up(self.vocab_size, VOCAB_MULTIPLE * self.tensor_parallel)

    @property
    def matmul_weights(self) -> int:
        """Number of weights that take part in matrix products: those of the blocks and the head.

        Embedding tables are only looked up, so they do not count. The head counts with the padding
        that it has for ``tensor_parallel=1``, so the FLOPs do not depend on how the model is
        divided.
        """
        # A block has 12 times hidden_size x hidden_size weights: 1 each for query, key, value and
        # output, and 4 for each of the two feed-forward layers.
        blocks = 12 * self.num_layers * self.hidden_size**2
        head = self.hidden_size * round_up(self.vocab_size, VOCAB_MULTIPLE)
        return blocks + head

    def check(self, world_size: int) -> None:
        """Refuse sizes that do not divide each other, and contradicting fields.

        Raises:
            UsageError: a field is invalid; the error says how to correct it.
        """
        degree = self.tensor_parallel
        heads = self.num_heads
        # Of each: a field and its value, then the name and the value of what it must divide.
        divisions = (
            Division("num_heads", heads, "hidden_size", self.hidden_size),
            Division("tensor_parallel", degree, "num_heads", heads),
            Division("tensor_parallel", degree, "the number of ranks", world_size),
        )
        for division in divisions:
            if division.dividend % division.divisor:
                raise self._make_division_error(division, world_size)
        # Fewer ranks in a replica than ranks in total: there are several replicas.
        if 1 < degree < world_size and not self.fsdp:
            raise UsageError(
                f"{world_size // degree} replicas with tensor_parallel={degree} need fsdp=true",
                where="recipe field fsdp",
                rule="only FSDP2 averages the gradients of tensor-parallel replicas",
                fix="add fsdp=true",
            )
        if self.min_learning_rate > self.learning_rate:
            raise UsageError(
                f"min_learning_rate={self.min_learning_rate:g} is greater than "
                f"learning_rate={self.learning_rate:g}",
                where="recipe field min_learning_rate",
                rule="the cosine schedule must fall from learning_rate to min_learning_rate",
                fix="lower min_learning_rate to the value of learning_rate or below",
            )

    def _make_division_error(self, division: Division, world_size: int) -> UsageError:
        """Return the error for a field whose value does not divide the number that it must divide.

        The error lists the values of the field that do.
        """
        if division.field == "num_heads":
            dividend = self.hidden_size
        else:
            # tensor_parallel must divide both num_heads and the number of ranks. The numbers that
            # divide both are the divisors of their greatest common divisor.
            dividend = gcd(self.num_heads, world_size)
        valid_values = [str(number) for number in range(1, dividend + 1) if dividend % number == 0]
        return UsageError(
            f"{division.field}={division.divisor} does not divide {division.dividend_name} "
            f"({division.dividend})",
            where=f"recipe field {division.field}",
            rule="num_heads must divide hidden_size; tensor_parallel must divide "
            "num_heads and the number of ranks",
            fix=f"use one of {', '.join(valid_values)}",
        )


def round_up(number: int, multiple: int) -> int:
    """Return ``number``, rounded up to a multiple of ``multiple``."""
    num_multiples = -(-number // multiple)  # rounded up
    return num_multiples * multiple


SEED = 1234  # of the published runs


def _make_reproduction_recipe(micro_batch_size: int, precision: Precision, world: str) -> GptRecipe:
    """Return a recipe with the settings of a published speed measurement, which ran on V100 cards.

    It takes 200 steps, of which 20 are warm-up, and does not evaluate.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
    """
    return GptRecipe(
        seed=SEED,
        micro_batch_size=micro_batch_size,
        precision=precision,
        world=world,
        learning_rate=1.5e-4,
        weight_decay=0.01,
        max_epochs=1_000_000,  # more than any run reaches: ``max_steps`` ends it
        max_steps=200,
        warmup_steps=20,
        eval_every_epochs=None,  # no evaluation
        timeout_s=900.0,
        data="generated",  # enough to measure speed; ``--data`` replaces it
    )


def _make_standard_recipe(world: str) -> GptRecipe:
    """Return the published training: 320,000 steps on the user's corpus.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
    """
    return GptRecipe(
        seed=SEED,
        micro_batch_size=8,
        world=world,
        learning_rate=1.5e-4,
        weight_decay=0.01,
        max_epochs=1_000_000,  # more than any run reaches: ``max_steps`` ends it
        max_steps=320_000,
        timeout_s=30 * 86_400.0,
    )


CASE = Case(
    name="gpt_megatron",
    title=Text("GPT-2 pre-training, Megatron style", "GPT-2 预训练（Megatron）"),
    task=Text("Language Modelling", "语言模型"),
    model="gpt2",
    dataset="Megatron indexed tokens",
    metric="val_loss",
    metric_note=Text("validation cross-entropy in nats per token", "验证集交叉熵（nat/token）"),
    higher_is_better=False,
    sample_note=Text(
        "one contiguous sequence of seq_length tokens", "一段连续文本，长度为 seq_length 个 token"
    ),
    work_unit="tokens",
    mission=Mission("nlp", "gpt", "语义表示", 1),
    recipe_type=GptRecipe,
    can_replay=True,
    recipes={
        "tiny": GptRecipe(
            data="generated",
            num_layers=2,
            hidden_size=64,
            num_heads=2,
            seq_length=64,
            vocab_size=64,  # symbols of the generated language
            dropout=0.0,
            micro_batch_size=32,
            learning_rate=1e-2,
            min_learning_rate=1e-4,
            lr_decay_steps=1_400,
            lr_warmup_fraction=0.05,
            weight_decay=0.01,
            adam_beta2=0.95,
            max_epochs=6,
            target_value=1.77,
            timeout_s=1_800.0,
        ),
        "sp-bs8-fp32": _make_reproduction_recipe(8, "fp32", "1x1"),
        "sp-bs16-fp16": _make_reproduction_recipe(16, "fp16", "1x1"),
        "sp-bs16-bf16": _make_reproduction_recipe(16, "bf16", "1x1"),
        "mp-bs8-fp32": _make_reproduction_recipe(8, "fp32", "1x8"),
        "mp-bs16-fp16": _make_reproduction_recipe(16, "fp16", "1x8"),
        "mp-bs16-bf16": _make_reproduction_recipe(16, "bf16", "1x8"),
        "standard-1x1": _make_standard_recipe("1x1"),
        "standard-1x8": _make_standard_recipe("1x8"),
    },
    data_fields=frozenset({"seed", "vocab_size"}),
    prepare_options=(
        PrepareOption("tokenizer", Path, "folder of the tokenizer; required", required=True),
        PrepareOption("text_key", str, "key of the text in each line; default: text"),
        PrepareOption(
            "workers", int, "number of processes; default: one per usable core", range(1, 513)
        ),
    ),
    aliases=("gpt",),
)
