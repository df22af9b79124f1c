"""Predict a rank's peak memory from the model's sizes; no torch.

Owns the estimate of the bytes alive at the peak of a training step, and the refusal of a
recipe that does not fit. The prediction covers tensors only; the refusal also counts the
process itself (interpreter, libraries, device context).
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

SCORES_AT_ONCE = 1 << 23  # of the LM head: 32 MiB in float32, less than a wide layer's activations
PROCESS_BYTES = 600 << 20  # interpreter and libraries, or a device's context
_FULL, _HALF = 4, 2  # bytes of a number
_ADAM_MOMENTS = 2
_GATHERED_BLOCKS = 2  # unsharded at a time under FSDP2: the current one and the next one


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of a rank's tensors at the peak of a step.

    Args:
        weights: frozen ones in their stored type, and adapters.
        gradients: of adapters alone.
        optimizer: two moments of adapters.
        activations: tensors saved for the backward pass, and the largest temporary ones.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """Sum of all."""
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
    """Return the bytes of frozen weights that a rank holds unsharded: tables and two blocks."""
    block = sum(out * into for out, into in linear_shapes(config).values())
    tables = (1 if config.tie_embeddings else 2) * config.vocab_size * config.hidden_size
    return (tables + min(_GATHERED_BLOCKS, config.num_layers) * block) * held


def _activation_bytes(config: ModelConfig, recipe: LlamaRecipe) -> int:
    tokens = recipe.micro_batch_size * recipe.seq_length
    number = _HALF if recipe.precision in ("bf16", "fp16") else _FULL  # in matmuls
    stream = _FULL if recipe.weights_dtype == "fp32" else _HALF  # between blocks
    row = tokens * config.hidden_size
    whole = recipe.kernels == "library"
    head = _head_bytes(config, tokens, whole=whole, number=number, stream=stream)
    block = _block_bytes(config, recipe, tokens, number=number)
    # Temporary in the backward pass of a feed-forward layer: gradients of gate and up, of
    # their elementwise product, and of the input.
    feed_forward = tokens * (
        3 * config.intermediate_size * number + 2 * config.hidden_size * stream
    )
    saved = row * _FULL  # by the last norm
    if recipe.cross_document == "separate":  # the boolean mask, and the one added to scores
        saved += recipe.micro_batch_size * recipe.seq_length**2 * (1 + number)
    if recipe.checkpoint_activations:  # blocks are recomputed after the head's backward pass
        saved += config.num_layers * row * stream
        return saved + max(head, block + feed_forward)
    return saved + config.num_layers * block + max(head, feed_forward)


def _block_bytes(config: ModelConfig, recipe: LlamaRecipe, tokens: int, *, number: int) -> int:
    """Return the bytes that one block saves for the backward pass, as the libraries compute it."""
    hidden, wide, keys = config.hidden_size, config.intermediate_size, config.kv_size
    norms = 2 * (hidden + 1) * _FULL  # the input in float32, and one number per token
    attention = 2 * (hidden + keys) * number + config.num_heads * _FULL  # q, k, v, result
    feed_forward = 3 * wide * number  # gate, its activation, up
    shapes, chosen = linear_shapes(config), targets(recipe)
    adapters = 0
    for name in chosen:
        into = shapes[name][1]
        dropped = into * _FULL if recipe.lora_dropout else 0  # the mask; float32 on a CPU
        adapters += dropped + (into + recipe.lora_rank) * number
    weights = 0
    if number == _HALF and recipe.weights_dtype == "fp32":  # autocast's copies
        weights = sum(out * into for out, into in shapes.values()) * number
    return tokens * (norms + attention + feed_forward + adapters) + weights


def _head_bytes(config: ModelConfig, tokens: int, *, whole: bool, number: int, stream: int) -> int:
    """Return the bytes of the LM head's temporary tensors, held while all blocks' are saved.

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
    """Refuse a recipe that needs more than ``memory_bytes`` on a rank.

    Raises:
        EnvironmentFault: it names the memory needed and the nearest recipe that fits.
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
    least = predict_peak_bytes(config, recipe, world_size).total
    for changes in _smaller(recipe, world_size):
        total = predict_peak_bytes(config, replace(recipe, **changes), world_size).total
        if total + PROCESS_BYTES <= memory_bytes:
            return "add " + " ".join(f"{name}={_text(value)}" for name, value in changes.items())
        least = min(least, total)
    return (
        f"no recipe fits, the smallest needs {_gib(least + PROCESS_BYTES)} a rank: "
        "take more or larger devices, or a smaller model"
    )


def _smaller(recipe: LlamaRecipe, world_size: int) -> Iterator[dict[str, Any]]:
    """Yield changes that need less memory, the smallest changes first.

    The samples of a step stay the same; 16-bit types come last because they change results.
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
    divisor = 2
    while recipe.micro_batch_size % divisor == 0:
        yield {
            "micro_batch_size": recipe.micro_batch_size // divisor,
            "grad_accum_steps": recipe.grad_accum_steps * divisor,
        }
        divisor *= 2


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
