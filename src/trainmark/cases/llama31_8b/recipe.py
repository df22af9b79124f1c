"""The fields of the Llama 3.1 recipes and their rules; no torch here.

Defaults are those of the public reference of MLCommons, repository ``training``, commit aa344c7,
folder ``small_llm_pretraining/nemo``; a comment names file and line.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.recipe import NonNegativeFloat, PositiveFloat, PositiveInt, Recipe, recipe_field

# Llama 3.1: https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json, 2026-11-23.
ROPE_THETA = 500_000.0
RMS_NORM_EPS = 1e-5
ROPE_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE_TRAINED_LENGTH, MAX_LENGTH = 8192, 131_072


@dataclass(frozen=True, kw_only=True)
class Llama31Recipe(Recipe):
    """The model's sizes, how it is trained and how it is cut over ranks."""

    has_fp8: ClassVar[bool] = True

    num_layers: Annotated[int, Gt(0), Le(10_000)] = recipe_field(
        32, "transformer blocks; other numbers are other models", rule="scope"
    )
    hidden_size: PositiveInt = recipe_field(4096, "width of the residual stream")
    num_heads: PositiveInt = recipe_field(32, "attention heads")
    num_kv_heads: PositiveInt = recipe_field(8, "heads of keys and values")
    ffn_size: PositiveInt = recipe_field(14_336, "width of the feed-forward layers")
    seq_length: PositiveInt = recipe_field(8192, "tokens of a sample")  # pretrain_llama31.py:145
    vocab_size: PositiveInt = recipe_field(128_256, "rows of the token table")
    eval_samples: PositiveInt = recipe_field(  # README.md, test data order
        1024, "sequences that an evaluation scores, the first of the validation data", rule="scope"
    )
    shuffled_together: PositiveInt = recipe_field(
        1, "as many epochs as hold so many samples are shuffled together", rule="scope"
    )
    # The next three: NeMo 2.1, llm/recipes/optim/adam.py, which pretrain_llama31.py:154 calls.
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = recipe_field(0.95, "second moment's decay")
    adam_eps: PositiveFloat = recipe_field(1e-5, "added to the second moment's root")
    max_grad_norm: PositiveFloat | None = recipe_field(1.0, "clip gradients to it; none: no clip")
    min_lr_fraction: NonNegativeFloat = recipe_field(  # pretrain_llama31.py:157
        0.1, "where the cosine ends, of the peak rate"
    )
    lr_warmup_steps: PositiveInt = recipe_field(  # config_H200_1x8x1_8b.sh:75
        512, "steps with a linearly rising learning rate"
    )
    lr_decay_steps: PositiveInt = recipe_field(  # pretrain_llama31.py:310
        1_200_000, "steps of warm-up and cosine together"
    )
    tensor_parallel: PositiveInt = recipe_field(
        1, "ranks that hold one replica together; the other ranks train replicas", rule="closed"
    )
    sequence_parallel: bool = recipe_field(
        False, "between attention and feed-forward layers, each of these ranks holds a part of the "
        "sequence", rule="closed",
    )  # fmt: skip
    fsdp: bool = recipe_field(
        True, "shard parameters, gradients and optimizer over replicas (FSDP2)", rule="closed"
    )
    checkpoint_activations: Literal["none", "selective", "full"] = recipe_field(
        "none",
        "recompute in the backward pass: full blocks, or all of a block but matmuls and attention",
        rule="closed",
    )

    checkpoint_every_steps: PositiveInt | None = recipe_field(
        None, "optimizer steps between two checkpoints of the training; none: none is saved",
        rule="closed",
    )  # fmt: skip

    @property
    def matmul_weights(self) -> int:
        """Weights that take part in matrix products: blocks and head, not the token table."""
        kv_size = self.hidden_size // self.num_heads * self.num_kv_heads
        attention = 2 * self.hidden_size * (self.hidden_size + kv_size)
        block = attention + 3 * self.hidden_size * self.ffn_size
        return self.num_layers * block + self.hidden_size * self.vocab_size

    def check(self, world_size: int) -> None:
        """Refuse shapes that do not divide.

        Raises:
            UsageError: naming the field and what it must divide.
            EnvironmentFault: fp8 without its extra.
        """
        for field, value, of, whole in (
            ("num_heads", self.num_heads, "hidden_size", self.hidden_size),
            ("num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads),
            ("tensor_parallel", self.tensor_parallel, "num_kv_heads", self.num_kv_heads),
            ("tensor_parallel", self.tensor_parallel, "ffn_size", self.ffn_size),
            ("tensor_parallel", self.tensor_parallel, "vocab_size", self.vocab_size),
            ("tensor_parallel", self.tensor_parallel if self.sequence_parallel else 1,
             "seq_length", self.seq_length),
            ("tensor_parallel", self.tensor_parallel, "the number of ranks", world_size),
        ):  # fmt: skip
            if whole % value:
                raise UsageError(
                    f"{field}={value} does not divide {of} {whole}",
                    where=f"recipe field {field}",
                    rule="every rank of a replica holds the same heads, columns and classes",
                    remedy=f"use a divisor of {whole}",
                )
        if self.sequence_parallel and not self.fsdp:
            raise UsageError(
                "sequence_parallel=true with fsdp=false",
                where="recipe field sequence_parallel",
                rule="with torch 2.11 losses of such replicas are 7e-5 off after twelve steps",
                remedy="leave out fsdp=false",
            )
        if self.precision == "fp8":
            self._check_fp8()

    def _check_fp8(self) -> None:
        """Refuse matmuls that units of fp8 do not do, and a missing extra."""
        cut, width = self.tensor_parallel, self.hidden_size // self.num_heads
        for what, size in (
            ("hidden_size / tensor_parallel", self.hidden_size // cut),
            ("ffn_size / tensor_parallel", self.ffn_size // cut),
            ("keys' width / tensor_parallel", self.num_kv_heads * width // cut),
            ("micro_batch_size x seq_length", self.micro_batch_size * self.seq_length),
        ):
            if size % 16:
                raise UsageError(
                    f"{what} is {size}, with precision=fp8", where="recipe field precision",
                    rule="fp8 multiplies matrices whose sides are multiples of 16",
                    remedy="use such sizes, or precision=bf16",
                )  # fmt: skip
        if find_spec("torchao") is None:
            raise EnvironmentFault(
                "precision=fp8 needs torchao, which is not installed",
                where="recipe field precision",
                remedy="pip install 'trainmark[fp8]'",
            )
