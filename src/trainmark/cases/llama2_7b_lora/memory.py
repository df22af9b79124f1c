"""How much memory a rank will need at most, from sizes alone; no torch.

Owns the count of what lives at the peak of a training step, and the refusal of a recipe
that cannot fit. The process itself (interpreter, libraries, device context) is not in the
prediction, which is about tensors; the refusal leaves room for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault

from .model_files import linear_shapes, lora_parameters, parameters
from .recipe import targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .model_files import ModelConfig
    from .recipe import LlamaRecipe

SCORES_AT_ONCE = 1 << 23  # of the head: 32 MiB in float32, less than what a wide layer keeps
PROCESS_BYTES = 600 << 20  # interpreter and libraries, or a device's context
_FULL, _HALF = 4, 2  # bytes of a number
_ADAM_MOMENTS = 2
_GATHERED_BLOCKS = 2  # whole at once under FSDP2: the one at work and the next one


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of a rank's tensors at the peak of a step.

    Args:
        weights: frozen ones as they are held, and adapters.
        gradients: of adapters alone.
        optimizer: two moments of adapters.
        activations: what forward keeps for backward, and the largest passing tensors.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations


def predict_peak_bytes(config: ModelConfig, recipe: LlamaRecipe, world_size: int) -> Prediction:
    """Return what one rank of ``world_size`` holds at the peak of a training step."""
    held = _FULL if recipe.weights_dtype == "fp32" else _HALF
    frozen, trained = parameters(config), lora_parameters(config, recipe.lora_rank, targets(recipe))
    weights = frozen * held + trained * _FULL
    if recipe.fsdp and world_size > 1:
        trained = -(-trained // world_size)
        weights = -(-weights // world_size) + _gathered_bytes(config, held)
    return Prediction(
        weights=weights,
        gradients=trained * _FULL,
        optimizer=trained * _FULL * _ADAM_MOMENTS,
        activations=_activation_bytes(config, recipe),
    )


def _gathered_bytes(config: ModelConfig, held: int) -> int:
    """Return the frozen weights that a sharded rank has whole: tables, and two blocks."""
    block = sum(out * into for out, into in linear_shapes(config).values())
    tables = (1 if config.tie_embeddings else 2) * config.vocab_size * config.hidden_size
    return (tables + min(_GATHERED_BLOCKS, config.num_layers) * block) * held


def _activation_bytes(config: ModelConfig, recipe: LlamaRecipe) -> int:
    tokens = recipe.micro_batch_size * recipe.seq_length
    number = _HALF if recipe.precision in ("bf16", "fp16") else _FULL  # in products
    stream = _FULL if recipe.weights_dtype == "fp32" else _HALF  # between blocks
    row = tokens * config.hidden_size
    whole = recipe.kernels == "library"
    head = _head_bytes(config, tokens, whole=whole, number=number, stream=stream)
    block = _block_bytes(config, recipe, tokens, number=number)
    # Passes in the backward pass of a feed-forward layer: gradients of its two halves, of
    # their product, and of what comes in.
    feed_forward = tokens * (
        3 * config.intermediate_size * number + 2 * config.hidden_size * stream
    )
    kept = row * _FULL  # by the last norm
    if recipe.cross_document == "separate":  # one mask, and its form that is added to scores
        kept += recipe.micro_batch_size * recipe.seq_length**2 * (1 + number)
    if recipe.checkpoint_activations:  # a block is there again only when the head is through
        kept += config.num_layers * row * stream
        return kept + max(head, block + feed_forward)
    return kept + config.num_layers * block + max(head, feed_forward)


def _block_bytes(config: ModelConfig, recipe: LlamaRecipe, tokens: int, *, number: int) -> int:
    """Return what one block keeps for the backward pass, as the libraries compute it."""
    hidden, wide, keys = config.hidden_size, config.intermediate_size, config.kv_size
    norms = 2 * (hidden + 1) * _FULL  # what comes in, in float32, and one number a token
    attention = 2 * (hidden + keys) * number + config.num_heads * _FULL  # q, k, v, result
    feed_forward = 3 * wide * number  # gate, its activation, up
    shapes, chosen = linear_shapes(config), targets(recipe)
    adapters = 0
    for name in chosen:
        into = shapes[name][1]
        dropped = into * _FULL if recipe.lora_dropout else 0  # the mask, as it is on a CPU
        adapters += dropped + (into + recipe.lora_rank) * number
    weights = 0
    if number == _HALF and recipe.weights_dtype == "fp32":  # autocast's copies
        weights = sum(out * into for out, into in shapes.values()) * number
    return tokens * (norms + attention + feed_forward + adapters) + weights


def _head_bytes(config: ModelConfig, tokens: int, *, whole: bool, number: int, stream: int) -> int:
    """Return what passes through the head at once, with all activations still there.

    Args:
        whole: the scores of all tokens are held, with their softmax and its gradient.
    """
    rows = tokens if whole else min(tokens, max(1, SCORES_AT_ONCE // config.vocab_size))
    of_a_score = (3 if whole else 1) * _FULL + (0 if number == _FULL else _HALF)
    scores = rows * config.vocab_size * of_a_score
    states = 2 * tokens * config.hidden_size * stream  # last hidden states, their gradient
    if number != stream:
        states += (tokens + config.vocab_size) * config.hidden_size * number
    return scores + states + rows * config.hidden_size * number


def refuse_too_little(
    config: ModelConfig, recipe: LlamaRecipe, world_size: int, memory_bytes: int
) -> None:
    """Refuse a recipe that ranks of ``memory_bytes`` each cannot hold.

    Raises:
        EnvironmentFault: with what it would need, and the nearest recipe that fits.
    """
    needed = predict_peak_bytes(config, recipe, world_size)
    if needed.total + PROCESS_BYTES <= memory_bytes:
        return
    raise EnvironmentFault(
        f"a rank needs about {_gib(needed.total + PROCESS_BYTES)} and has {_gib(memory_bytes)}",
        where="memory",
        rule=f"weights {_gib(needed.weights)}, gradients and optimizer "
        f"{_gib(needed.gradients + needed.optimizer)}, activations {_gib(needed.activations)}, "
        f"the process {_gib(PROCESS_BYTES)}",
        remedy=_way_out(config, recipe, world_size, memory_bytes),
    )


def _way_out(config: ModelConfig, recipe: LlamaRecipe, world_size: int, memory_bytes: int) -> str:
    least = None
    for changes in _smaller(recipe, world_size):
        total = predict_peak_bytes(config, replace(recipe, **changes), world_size).total
        if total + PROCESS_BYTES <= memory_bytes:
            return "add " + " ".join(f"{name}={_word(value)}" for name, value in changes.items())
        least = total if least is None else min(least, total)
    assert least is not None  # half of the weights' bytes is always tried
    return (
        f"no recipe fits, the smallest needs {_gib(least + PROCESS_BYTES)} a rank: "
        "take more or larger devices, or a smaller model"
    )


def _smaller(recipe: LlamaRecipe, world_size: int) -> Iterator[dict[str, Any]]:
    """Yield changes that need less memory, those that change least first.

    The samples of a step stay as they are; 16 bits come last, since they change numbers.
    """
    unchanged: dict[str, Any] = {}
    dtypes, shards, recomputing = [unchanged], [unchanged], [unchanged]
    if recipe.weights_dtype == "fp32":
        dtype = recipe.precision if recipe.precision in ("bf16", "fp16") else "bf16"
        dtypes.append({"precision": dtype, "weights_dtype": dtype})
    if world_size > 1 and not recipe.fsdp:
        shards.append({"fsdp": True})
    if not recipe.checkpoint_activations:
        recomputing.append({"checkpoint_activations": True})
    batches = [unchanged, *_smaller_batches(recipe)]
    for dtype_of, shard, recompute, batch in product(dtypes, shards, recomputing, batches):
        if changes := {**batch, **recompute, **shard, **dtype_of}:
            yield changes


def _smaller_batches(recipe: LlamaRecipe) -> Iterator[dict[str, Any]]:
    parts = 2
    while recipe.micro_batch_size % parts == 0:
        yield {
            "micro_batch_size": recipe.micro_batch_size // parts,
            "grad_accum_steps": recipe.grad_accum_steps * parts,
        }
        parts *= 2


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
