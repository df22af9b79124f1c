"""GPT-OSS 20B, pre-trained from random weights as MLPerf's small mixture of experts; no torch here.

Defaults are those of the public reference of MLCommons, repository ``training``, commit aa344c7,
folder ``small_llm_moe_pretraining/primus``. Comments name file and line; ``yaml`` is the file
``conf/gpt_oss_20B-pretrain-nvidia.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import UsageError
from trainmark.recipe import PositiveInt, recipe_field
from trainmark.spec import Mission, Text
from trainmark.train.language_recipe import (
    TINY_TRAINING,
    Division,
    LanguageRecipe,
    list_mlperf_keys,
    make_case,
    make_throughput_recipe,
    refuse_undivided,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ROPE_THETA = 150_000.0  # yaml:30
RMS_NORM_EPS = 1e-5  # yaml:73
MAX_LENGTH = 131_072  # yaml:57
INIT_STD = 0.008  # yaml:71


@dataclass(frozen=True, kw_only=True)
class GptOssRecipe(LanguageRecipe):
    """The model's sizes, how it is trained and how experts are divided over ranks.

    The optimizer's defaults are those of MLCommons' reference: of its configuration file, lines 64
    to 69. ``eval_samples`` is from its README.md, evaluation thoroughness.
    """

    num_layers: PositiveInt = recipe_field(  # yaml:20
        24, "number of transformer blocks; another number makes a different model", rule="scope"
    )
    hidden_size: PositiveInt = recipe_field(2880, "width of the residual stream")  # yaml:21
    num_heads: PositiveInt = recipe_field(64, "attention heads")  # yaml:23
    num_kv_heads: PositiveInt = recipe_field(8, "number of key and value heads")  # yaml:24
    head_dim: PositiveInt = recipe_field(64, "width of each head")  # the library's GptOssConfig
    sliding_window: PositiveInt = recipe_field(  # yaml:106
        128, "sliding-window size in tokens, for every other layer starting with the first"
    )
    num_experts: PositiveInt = recipe_field(32, "experts per layer")  # yaml:25
    top_k: PositiveInt = recipe_field(4, "experts per token")  # yaml:138
    ffn_size: PositiveInt = recipe_field(2880, "feed-forward width of an expert")  # yaml:116
    routing: Literal["trained", "balanced"] = recipe_field(
        "trained",
        "trained: the router assigns tokens to experts; balanced: every expert gets the same "
        "number of tokens, to measure the maximum speed (the router is not trained)",
    )
    expert_parallel: PositiveInt = recipe_field(
        1,
        "number of neighbouring ranks across which the experts of each layer are distributed; "
        "each rank trains on its own samples",
        rule="closed",
    )
    lr_warmup_steps: PositiveInt = recipe_field(  # yaml:61
        128, "steps over which the learning rate rises linearly"
    )
    lr_decay_steps: PositiveInt = recipe_field(  # yaml:62
        1_199_872, "total number of warm-up and cosine decay steps"
    )

    @property
    def is_upper_bound(self) -> bool:
        """Whether a run measures an upper bound on the speed instead of a training.

        With balanced routing all experts get equal loads, whatever the router would choose.
        """
        return self.routing == "balanced"

    @property
    def attention_weights(self) -> int:
        """Number of weights of the matrix products in a block's attention."""
        # Query and result have ``num_heads`` heads, key and value ``num_kv_heads``.
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_weights(self) -> int:
        """Number of weights of one expert's matrix products: gate, up and down."""
        return 3 * self.hidden_size * self.ffn_size

    @property
    def expert_parameters(self) -> int:
        """Number of all parameters of one expert: its weights and biases."""
        biases = 2 * self.ffn_size + self.hidden_size  # of gate and up, and of down
        return self.expert_weights + biases

    @property
    def matmul_weights(self) -> int:
        """Number of weights in the matrix products of a token, which uses ``top_k`` experts."""
        router = self.hidden_size * self.num_experts
        block = self.attention_weights + router + self.top_k * self.expert_weights
        head = self.hidden_size * self.vocab_size
        return self.num_layers * block + head

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        hidden = self.hidden_size
        # Of queries, of keys and values, and of the output projection.
        attention_biases = self.head_dim * (self.num_heads + 2 * self.num_kv_heads) + hidden
        router = self.num_experts * (hidden + 1)  # with biases
        norms_and_sinks = 2 * hidden + self.num_heads  # two norms, and a sink for each head
        block = self.attention_weights + attention_biases + norms_and_sinks
        block += router + self.num_experts * self.expert_parameters
        table_and_head = 2 * self.vocab_size * hidden
        last_norm = hidden
        return self.num_layers * block + table_and_head + last_norm

    @property
    def active_parameters(self) -> int:
        """Number of parameters that are used for a token."""
        num_unused_experts = self.num_layers * (self.num_experts - self.top_k)
        return self.parameters - num_unused_experts * self.expert_parameters

    @property
    def flops_per_token(self) -> tuple[float, float]:
        """Model FLOPs of training a token, and the part of them that is full attention.

        Full attention is that of layers without a sliding window. MFU figures that take the causal
        mask into account count only half of this part.

        PaLM, appendix B: 6 for each weight that the token uses, and in each layer 12 x width of all
        heads x number of positions attended to. That is the sequence length, but the window in
        layers with a sliding window.
        """
        flops_per_position = 12.0 * self.num_heads * self.head_dim
        sliding_layers = (self.num_layers + 1) // 2  # every other layer, starting with the first
        full_layers = self.num_layers - sliding_layers
        full_attention = flops_per_position * full_layers * self.seq_length
        window = min(self.sliding_window, self.seq_length)
        window_attention = flops_per_position * sliding_layers * window
        return 6.0 * self.matmul_weights + full_attention + window_attention, full_attention

    def check(self, world_size: int) -> None:
        """Refuse numbers of experts, heads and ranks that do not fit each other.

        Also refuse ranks that share experts without FSDP2.

        Raises:
            UsageError: a field is invalid; the fix names valid values.
        """
        if self.top_k > self.num_experts:
            raise UsageError(
                f"top_k={self.top_k} is greater than num_experts={self.num_experts}",
                where="recipe field top_k",
                rule="a token cannot use more experts than a layer has",
                fix=f"set top_k to at most {self.num_experts}",
            )
        if self.expert_parallel > world_size:
            raise UsageError(
                f"expert_parallel={self.expert_parallel} is greater than the number of ranks "
                f"({world_size})",
                where="recipe field expert_parallel",
                rule="experts cannot be distributed across more ranks than there are",
                fix=(
                    f"set expert_parallel to at most {world_size}, or start more ranks with --nproc"
                ),
            )
        refuse_undivided(
            (  # the first number must divide the second
                Division("num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads),
                Division("expert_parallel", self.expert_parallel, "num_experts", self.num_experts),
                Division(
                    "expert_parallel", self.expert_parallel, "the number of ranks", world_size
                ),
            ),
            "expert_parallel must divide num_experts and the number of ranks; num_kv_heads must "
            "divide num_heads",
        )
        replicas = world_size // self.expert_parallel
        if self.expert_parallel > 1 and (self.hidden_size % replicas or self.ffn_size % replicas):
            raise UsageError(
                f"hidden_size ({self.hidden_size}) and ffn_size ({self.ffn_size}) are not both "
                f"multiples of the number of replicas ({replicas})",
                where="recipe field expert_parallel",
                rule="the columns of each expert are split evenly across its replicas",
                fix="set a larger expert_parallel",
            )
        if self.expert_parallel > 1 and not self.fsdp:
            raise UsageError(
                f"fsdp=false cannot be used with expert_parallel={self.expert_parallel}",
                where="recipe field fsdp",
                rule="only FSDP2 averages gradients across the replicas of each expert",
                fix="remove fsdp=false",
            )


def _make_standard_recipe(world: str) -> GptOssRecipe:
    """Return the published training: a global batch of 16 sequences to a perplexity of e^3.34.

    Comments name file and line of MLCommons' reference; ``yaml`` is its configuration file.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``; the ranks of all nodes must
            divide the global batch.
    """
    nodes, ranks_per_node = (int(number) for number in world.split("x"))
    ranks = nodes * ranks_per_node
    global_batch_size = 16  # yaml:55
    assert global_batch_size % ranks == 0
    max_steps = 1_200_000  # yaml:53
    return GptOssRecipe(
        world=world,
        precision="bf16",
        micro_batch_size=global_batch_size // ranks,
        expert_parallel=8,  # yaml:82
        # yaml:59. MLCommons' reference convergence points (rcps_gpt_oss_20b.json in its repository
        # ``logging``) have the same.
        learning_rate=4e-4,
        weight_decay=0.1,  # yaml:64
        kernels="own",
        checkpoint_activations="selective",
        max_epochs=100,  # more than ``max_steps`` allows with the published data
        max_steps=max_steps,
        eval_every_epochs=None,
        eval_every_samples=12_288,  # README.md:101-113
        target_value=3.34,  # README.md:101-113
        # The number of samples in one shuffle: all samples of the training.
        shuffled_together=max_steps * global_batch_size,
        timeout_s=3 * 86_400.0,
    )


def make_mlperf_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional keys of a log that MLPerf's ruleset requires.

    ``closed_gpt_oss_20b.yaml`` of mlperf-logging defines keys and values. The decay steps include
    those of the warm-up, as in the run logs of the reference (its folder ``rcp_logs``).
    """
    return {**list_mlperf_keys(recipe), "opt_learning_rate_decay_steps": recipe["lr_decay_steps"]}


CASE = make_case(
    "gpt_oss_20b",
    title=Text("GPT-OSS 20B pre-training", "GPT-OSS 20B 预训练"),
    model="gpt_oss_20b",
    mission=Mission("nlp", "gpt-oss-20b", "语义表示", 1),
    recipes={
        "tiny": GptOssRecipe(
            num_layers=4,
            hidden_size=64,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            sliding_window=32,
            num_experts=8,
            top_k=2,
            ffn_size=128,
            **TINY_TRAINING,
        ),
        "standard-1x8": _make_standard_recipe("1x8"),
        "standard-2x8": _make_standard_recipe("2x8"),
        # Another model, with as many layers as fit on a card of 80 GB with their fp32 optimizer.
        "throughput-1x1-3-layers": make_throughput_recipe(
            _make_standard_recipe("1x1"),
            num_layers=3,
            micro_batch_size=2,
            grad_accum_steps=8,
            expert_parallel=1,
        ),
        "throughput-1x8": make_throughput_recipe(_make_standard_recipe("1x8")),
    },
    aliases=("gpt_oss",),
    mlperf=make_mlperf_keys,
)
