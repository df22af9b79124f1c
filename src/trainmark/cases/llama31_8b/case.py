"""Llama 3.1 8B, pre-trained from random weights as MLPerf's small-LLM benchmark; no torch here.

Defaults are those of the public reference of MLCommons, repository ``training``, commit aa344c7,
folder ``small_llm_pretraining/nemo``. Comments name file and line.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.recipe import PositiveInt, recipe_field
from trainmark.spec import Mission, Text
from trainmark.torch_version import require_torch
from trainmark.train.language_recipe import (
    TINY_TRAINING,
    Division,
    LanguageRecipe,
    list_mlperf_keys,
    make_case,
    make_throughput_recipe,
    refuse_undivided,
)

# Llama 3.1: https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json, 2026-11-23.
ROPE_THETA = 500_000.0
RMS_NORM_EPS = 1e-5
ROPE_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE_TRAINED_LENGTH = 8192  # before the rotary angles were scaled
MAX_LENGTH = 131_072
# torchao 0.18 imports torch.nn.functional.ScalingType, which torch 2.11 has and 2.7 lacks.
_OLDEST_TORCH_FOR_FP8 = "2.11"


@dataclass(frozen=True, kw_only=True)
class Llama31Recipe(LanguageRecipe):
    """The model's sizes, how it is trained and how it is divided over ranks.

    Sources of the defaults in ``LanguageRecipe``, as file and line of MLCommons' reference:
    ``seq_length``: pretrain_llama31.py:145; ``lr_warmup_steps``: config_H200_1x8x1_8b.sh:75;
    ``min_lr_fraction`` and ``lr_decay_steps``: pretrain_llama31.py:157 and :310; ``eval_samples``:
    README.md, test data order; the optimizer: NeMo 2.1, llm/recipes/optim/adam.py, which
    pretrain_llama31.py:154 calls.
    """

    has_fp8: ClassVar[bool] = True

    ffn_size: PositiveInt = recipe_field(14_336, "width of the feed-forward layers")
    tensor_parallel: PositiveInt = recipe_field(
        1,
        (
            "number of ranks that share one model replica (tensor parallelism); the remaining "
            "ranks train additional replicas"
        ),
        rule="closed",
    )
    sequence_parallel: bool = recipe_field(
        False,
        "outside the attention and feed-forward layers, split the sequence across the "
        "tensor-parallel ranks",
        rule="closed",
    )

    @property
    def matmul_weights(self) -> int:
        """Weights of matrix products: blocks and head, without the token table."""
        kv_size = self.hidden_size // self.num_heads * self.num_kv_heads
        # Query and result have the hidden size, key and value ``kv_size``.
        attention = 2 * self.hidden_size * (self.hidden_size + kv_size)
        feed_forward = 3 * self.hidden_size * self.ffn_size  # gate, up and down
        block = attention + feed_forward
        return self.num_layers * block + self.hidden_size * self.vocab_size

    def check(self, world_size: int) -> None:
        """Refuse sizes that do not divide each other, and contradicting fields.

        Raises:
            UsageError: a field is invalid.
            EnvironmentFault: fp8 is not possible, because torchao is missing or torch is too old.
        """
        divisions = [  # the first number must divide the second
            Division("num_heads", self.num_heads, "hidden_size", self.hidden_size),
            Division("num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads),
        ]
        # Numbers that ``tensor_parallel`` must divide.
        divided_numbers = {
            "num_kv_heads": self.num_kv_heads,
            "ffn_size": self.ffn_size,
            "vocab_size": self.vocab_size,
        }
        if self.sequence_parallel:
            divided_numbers["seq_length"] = self.seq_length
        divided_numbers["the number of ranks"] = world_size
        for name, number in divided_numbers.items():
            divisions.append(Division("tensor_parallel", self.tensor_parallel, name, number))
        refuse_undivided(
            divisions,
            "heads, columns and classes must be split evenly among the ranks of a replica",
        )
        # ``fsdp=false`` uses DDP if there are several replicas. DDP does not accept DTensors, which
        # the weights of a divided replica are. With a divided sequence, the losses of two replicas
        # without FSDP2 were 7e-5 off after twelve steps (torch 2.11). The cause is not known; a
        # single replica is refused too.
        has_several_divided_replicas = 1 < self.tensor_parallel < world_size
        if not self.fsdp and (self.sequence_parallel or has_several_divided_replicas):
            raise UsageError(
                "fsdp=false cannot be used with sequence_parallel=true or several replicas",
                where="recipe field fsdp",
                rule="only FSDP2 averages the gradients of tensor-parallel replicas; without "
                "FSDP2, the loss of a sequence that is split across ranks is inexact",
                fix="remove fsdp=false",
            )
        if self.precision == "fp8":
            self._check_fp8()

    def _check_fp8(self) -> None:
        """Refuse matmul sizes that fp8 does not support, a missing torchao, and too old a torch."""
        ranks = self.tensor_parallel
        head_width = self.hidden_size // self.num_heads
        matmul_sizes = {
            "hidden_size / tensor_parallel": self.hidden_size // ranks,
            "ffn_size / tensor_parallel": self.ffn_size // ranks,
            "key width / tensor_parallel": self.num_kv_heads * head_width // ranks,
            "micro_batch_size x seq_length": self.micro_batch_size * self.seq_length,
        }
        for formula, size in matmul_sizes.items():
            if size % 16:
                raise UsageError(
                    f"precision=fp8 cannot be used: {formula} is {size}",
                    where="recipe field precision",
                    rule="fp8 matmuls need sizes that are multiples of 16",
                    fix="choose sizes that are multiples of 16, or use precision=bf16",
                )
        if find_spec("torchao") is None:
            raise EnvironmentFault(
                "precision=fp8 needs torchao, which is not installed",
                where="recipe field precision",
                fix="pip install 'trainmark[fp8]'",
            )
        require_torch(
            _OLDEST_TORCH_FOR_FP8,
            "precision=fp8",
            where="recipe field precision",
            fix="use precision=bf16",
        )


def _make_standard_recipe(world: str) -> Llama31Recipe:
    """Return the published training: a global batch of 32 sequences to a perplexity of e^3.3.

    Comments name file and line of MLCommons' reference.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``; the micro-batches of all ranks
            must divide the global batch.
    """
    nodes, ranks_per_node = (int(number) for number in world.split("x"))
    global_batch_size = 32  # config_H200_1x8x1_8b.sh:67
    micro_batch_size = 2  # config_H200_1x8x1_8b.sh:69
    samples_at_once = micro_batch_size * nodes * ranks_per_node  # on all ranks
    assert global_batch_size % samples_at_once == 0
    max_steps = 1_200_000  # config_H200_1x8x1_8b.sh:74
    return Llama31Recipe(
        world=world,
        precision="bf16",
        micro_batch_size=micro_batch_size,
        grad_accum_steps=global_batch_size // samples_at_once,
        learning_rate=5e-4,  # config_H200_1x8x1_8b.sh:70
        weight_decay=0.1,  # NeMo, optim/adam.py
        kernels="own",
        checkpoint_activations="selective",
        max_epochs=100,  # more than ``max_steps`` allows with the published data
        max_steps=max_steps,
        eval_every_epochs=None,
        eval_every_samples=12_288,  # config_H200_1x8x1_8b.sh:76
        target_value=3.3,  # logarithm of the perplexity; README.md
        # The number of samples in one shuffle: all samples of the training, as
        # pretrain_llama31.py:436 has it.
        shuffled_together=max_steps * global_batch_size,
        timeout_s=3 * 86_400.0,
    )


CASE = make_case(
    "llama31_8b",
    title=Text("Llama 3.1 8B pre-training", "Llama 3.1 8B 预训练"),
    model="llama3.1_8b",
    mission=Mission("nlp", "llama3.1-8b", "语义表示", 1),
    can_replay=True,
    recipes={
        "tiny": Llama31Recipe(
            num_layers=2,
            hidden_size=64,
            num_heads=4,
            num_kv_heads=2,
            ffn_size=256,
            **TINY_TRAINING,
        ),
        "standard-1x8": _make_standard_recipe("1x8"),
        "standard-2x8": _make_standard_recipe("2x8"),
        # Another model, with as many layers as fit on a card of 80 GB with their fp32 optimizer.
        "throughput-1x1-8-layers": make_throughput_recipe(
            _make_standard_recipe("1x1"), num_layers=8, grad_accum_steps=4
        ),
        "throughput-1x8": make_throughput_recipe(_make_standard_recipe("1x8")),
        "throughput-2x8": make_throughput_recipe(_make_standard_recipe("2x8")),
    },
    aliases=("llama3",),
    mlperf=list_mlperf_keys,  # closed_llama31_8b.yaml of mlperf-logging
)
