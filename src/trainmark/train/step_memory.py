"""Estimate the memory and the FLOPs of a training step, without torch.

Has the estimate for transformers all of whose parameters AdamW trains, and the check against a
rank's memory that all estimates share. An estimate counts the tensors that exist together at the
peak and, on an accelerator, the freed memory that torch's allocator keeps because no later tensor
fits. It leaves out tensors of attention without a fused kernel, and workspaces of libraries.
Estimates of the published recipes are within 10% of the memory that torch's allocator reserves on a
simulated card.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from trainmark.errors import EnvironmentFault
from trainmark.recipe import AUTOCAST
from trainmark.spec import Figure, OwnFigures, RankMemory, Sizes, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.protocols import Counts, Device, RankWork
    from trainmark.recipe import Recipe

    R = TypeVar("R", bound=Recipe)

PROCESS_BYTES = 300 << 20  # minimum of interpreter and libraries, or of a device's context
SCORES_AT_ONCE = 1 << 26  # scores of a head that is computed in blocks
FULL, HALF = 4, 2  # bytes of a number in full and in half precision
ADAM_MOMENTS = 2
_MIN_SHOWN_BYTES = 1 << 16  # of a part of a rank's memory that an error lists
_GATHERED_BLOCKS = 2  # blocks that FSDP2 holds unsharded: the current one and the next one


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of a rank's tensors at the peak of a step.

    Args:
        weights: weights in their stored type; under FSDP2 the rank's shard and gathered blocks.
        gradients: gradients that exist at the peak.
        optimizer: the two moments of AdamW.
        activations: tensors saved for the backward pass, and the largest temporary tensors.
        cached: freed memory that the allocator of an accelerator keeps in addition.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cached: int = 0

    @property
    def total(self) -> int:
        """Return the bytes of all tensors."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def reserved(self) -> int:
        """Return the bytes that the allocator of an accelerator holds."""
        return self.total + self.cached

    def compute_needed(self, memory: RankMemory) -> int:
        """Return the bytes that a rank needs of ``memory``, without those of its process."""
        return self.reserved if memory.machine_bytes is None else self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Sizes of a transformer and of its micro-batch.

    Args:
        parameters: number of all parameters, with tables; all are trained.
        wide: width of the feed-forward layers.
        vocab_size: rows of the token table, with padding.
        tied_head: the head uses the token table, whose gradient is then computed twice.
        tokens: tokens of a micro-batch, with padding.
        scores: scores of a micro-batch: positions times classes; 0: there is no head.
        saved_inputs: copies of a block's input that its attention saves under autocast: one, or one
            each for query, key and value.
        tensor_parallel: ranks over which matrices are cut.
        shards: ranks over which FSDP2 shards all parameters.
        keeps_gradients: gradients exist together with activations, because they are accumulated.
        replicas: ranks that each train a whole replica with DDP, which keeps gradients in buckets.
    """

    parameters: int
    num_layers: int
    hidden_size: int
    num_heads: int
    wide: int
    vocab_size: int
    tokens: int
    scores: int
    tied_head: bool
    dropout: bool
    checkpoint_activations: bool = False
    saved_inputs: int = 1
    tensor_parallel: int = 1
    shards: int = 1
    keeps_gradients: bool = False
    replicas: int = 1

    @property
    def block_matmul_weights(self) -> int:
        """Return the number of weights in a block's matrices."""
        return 4 * self.hidden_size**2 + 2 * self.hidden_size * self.wide

    @property
    def table(self) -> int:
        """Return the number of weights in the token table."""
        return self.vocab_size * self.hidden_size


def predict_peak_bytes(sizes: Transformer, recipe: Recipe) -> Prediction:
    """Return the memory of a rank at the peak of a step, from the second step on.

    The peak is at the end of the forward pass, with all saved activations, or at the end of the
    backward pass, with all gradients.
    """
    number = HALF if recipe.precision in AUTOCAST else FULL  # in matmuls
    cut = sizes.tensor_parallel
    held = -(-sizes.parameters // (cut * sizes.shards))
    gathered = 0
    if sizes.shards > 1:
        blocks = min(_GATHERED_BLOCKS, sizes.num_layers) * sizes.block_matmul_weights
        gathered = (sizes.table + blocks) // cut
    block = _estimate_block_bytes(sizes, number=number, compiled=bool(recipe.compile))
    stream = sizes.tokens * sizes.hidden_size * FULL
    copies = 0  # of weights, by autocast
    if number == HALF and not recipe.compile:
        copies = (sizes.num_layers * sizes.block_matmul_weights) * HALF // (cut * sizes.shards)
    if sizes.checkpoint_activations:  # blocks are recomputed after the head's backward pass
        saved = sizes.num_layers * stream
        backward = block + sizes.tokens * sizes.wide * number // cut
    else:
        saved = sizes.num_layers * block
        backward = sizes.tokens * (sizes.wide * number // cut + sizes.hidden_size * FULL)
    if sizes.scores:  # the last norm and the head each save their input
        head = sizes.scores * number if recipe.compile else _estimate_head_bytes(sizes, recipe)
        backward = max(backward, 2 * stream + copies + head)
    at_forward_end = saved + backward
    gradients = held * FULL
    # The gradient of the table from the head is kept until that of the look-up is computed.
    second_table = sizes.table * FULL // cut if sizes.tied_head and recipe.kernels != "own" else 0
    at_backward_end = stream + second_table
    early = gradients if sizes.keeps_gradients or sizes.replicas > 1 else 0
    cached = _estimate_cached_bytes(sizes, recipe, gathered=gathered * FULL, gradients=gradients)
    if sizes.checkpoint_activations:
        cached += block // 3  # holes of blocks that are computed again
    if early + at_forward_end >= gradients + at_backward_end:
        gradients, activations = early, at_forward_end
    else:
        activations = at_backward_end
    return Prediction(
        weights=(held + gathered) * FULL,
        gradients=gradients,
        optimizer=held * FULL * ADAM_MOMENTS,
        activations=activations,
        cached=cached,
    )


def _estimate_cached_bytes(
    sizes: Transformer, recipe: Recipe, *, gathered: int, gradients: int
) -> int:
    """Return the freed memory that an allocator keeps because no later tensor fits into it.

    FSDP2 gathers weights and reduces gradients in separate streams, which do not share freed
    memory; the gradient of a tied table is computed twice. DDP allocates its buckets again after
    the first step. Otherwise gradients and moments are allocated in the freed memory of the first
    step's scores, whose rest is then too small for the scores of the next step.
    """
    if sizes.shards > 1:
        return 2 * gathered + (sizes.table * FULL if sizes.tied_head else 0)
    if sizes.replicas > 1:
        return gradients
    if recipe.kernels != "library":
        return 0
    kept = estimate_cached_scores(sizes.scores)
    return kept // 3 if sizes.checkpoint_activations else kept  # little else is saved with scores


def estimate_cached_scores(scores: int) -> int:
    """Return the memory of a head's freed scores that is lost because gradients use parts of it.

    It is about three quarters of one tensor in fp32, as observed on a simulated card.
    """
    return scores * FULL * 3 // 4


def _estimate_block_bytes(sizes: Transformer, *, number: int, compiled: bool) -> int:
    """Return the bytes that one block saves for the backward pass, with fused attention.

    A compiled block may recompute all but the results of matmuls and of attention.
    """
    hidden, wide, cut = sizes.hidden_size, sizes.wide, sizes.tensor_parallel
    attention = 4 * hidden * number // cut + sizes.num_heads * FULL // cut  # q, k, v, result
    if compiled:
        return sizes.tokens * (hidden * number + attention + wide * number // cut)
    norms = 2 * (hidden + 2) * FULL  # the input, and two numbers per token
    copies = sizes.saved_inputs if number == HALF else 1
    inputs = (copies + 1) * hidden * number  # of attention and of the feed-forward layers
    feed_forward = 2 * wide * number // cut  # before and after the activation function
    masks = 2 * hidden if sizes.dropout else 0
    return sizes.tokens * (norms + inputs + attention + feed_forward + masks)


def _estimate_head_bytes(sizes: Transformer, recipe: Recipe) -> int:
    """Return the bytes of the head's temporary tensors, at the end of the forward pass."""
    if recipe.kernels == "own":
        kept = sizes.table if sizes.tied_head else 0  # the table's gradient
        held = min(sizes.scores // sizes.tensor_parallel, SCORES_AT_ONCE)
        return (held + kept // sizes.tensor_parallel) * FULL
    # Log-probabilities, their gradient and that of the scores.
    return 3 * sizes.scores * FULL


def read_rank_memory(device: Device, world_size: int) -> RankMemory | None:
    """Return the memory that a rank can use, as its device reports it; None if it is unknown.

    Memory of a device that other processes hold is not available. The ranks of a host share its
    memory equally.
    """
    use = device.memory()
    if use.total_bytes is None:
        return None
    if use.scope == "process":
        return RankMemory(use.total_bytes // world_size, machine_bytes=use.total_bytes)
    free_bytes = use.total_bytes - (use.used_bytes or 0)
    # The context of this process is in use already.
    return RankMemory(min(use.total_bytes, free_bytes + PROCESS_BYTES))


def refuse_too_little(predict: Callable[[R], Prediction], recipe: R, memory: RankMemory) -> int:
    """Return the minimum of bytes that a rank needs; refuse a recipe that does not fit.

    Args:
        predict: returns the prediction for a recipe.
        memory: the memory that a rank can use.

    Raises:
        EnvironmentFault: with the memory needed, and the batch and layers that fit.
    """
    if recipe.kernels is None:  # apply the default of ``train.kernels``
        recipe = replace(recipe, kernels="own" if memory.machine_bytes else "library")
    prediction = predict(recipe)
    needed = prediction.compute_needed(memory)
    if needed + PROCESS_BYTES <= memory.rank_bytes:
        return needed + PROCESS_BYTES
    fits = " or ".join(_iterate_fitting_settings(predict, recipe, memory))
    parts = {
        "weights": prediction.weights,
        "gradients and optimizer": prediction.gradients + prediction.optimizer,
        "activations": prediction.activations,
        "kept by the allocator": needed - prediction.total,
        "the process": PROCESS_BYTES,
    }
    raise EnvironmentFault(
        f"a rank needs about {_format_bytes(needed + PROCESS_BYTES)}, but has "
        f"{_format_bytes(memory.rank_bytes)}",
        where="memory",
        rule=", ".join(
            f"{name} {_format_bytes(size)}"
            for name, size in parts.items()
            if size >= _MIN_SHOWN_BYTES
        ),
        fix=(f"{fits} fits; else " if fits else "")
        + (
            "use checkpoint_activations or fsdp if the case has them, more or larger devices, or "
            "a smaller model; `trainmark doctor` lists other users of the devices"
        ),
    )


def make_fit_check(
    predict: Callable[[R, int], Prediction],
) -> Callable[[Path, R, int, RankMemory], int]:
    """Return the function ``check_fit`` of a case; see ``refuse_too_little``.

    Args:
        predict: returns the prediction for a recipe and a number of ranks.
    """

    def check_fit(folder: Path, recipe: R, world_size: int, memory: RankMemory) -> int:
        del folder  # the recipe has all sizes

        def predict_here(variant: R) -> Prediction:
            return predict(variant, world_size)

        return refuse_too_little(predict_here, recipe, memory)

    return check_fit


def _iterate_fitting_settings(
    predict: Callable[[R], Prediction], recipe: R, memory: RankMemory
) -> Iterator[str]:
    """Yield the largest micro-batch and number of layers that fit if the rest stays."""
    max_bytes = memory.rank_bytes - PROCESS_BYTES
    for name in ("micro_batch_size", "num_layers"):
        smaller_values = range(1, getattr(recipe, name, 1))

        def compute_needed_bytes(value: int, name: str = name) -> int:
            changed: dict[str, Any] = {name: value}
            return predict(replace(recipe, **changed)).compute_needed(memory)

        max_value = bisect_right(smaller_values, max_bytes, key=compute_needed_bytes)
        if max_value:
            yield f"{name}={max_value}"


def _format_bytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 // 10 else f"{size / 2**20:.1f} MiB"


SHARE = "attention_flops_share"  # fact of a job: share of attention in its model FLOPs


def compute_next_token_flops(recipe: Any) -> tuple[float, float]:
    """Return the model FLOPs of training a token, and the part of attention in them.

    The formula is that of PaLM, appendix B: 6 N + 12 L D T, over all pairs of positions. N is the
    number of weights in matrices, with those of the head.
    """
    attention = 12.0 * recipe.num_layers * recipe.hidden_size * recipe.seq_length
    return 6.0 * recipe.matmul_weights + attention, attention


def compute_next_token_sizes(parameters: int, flops_per_token: tuple[float, float]) -> Sizes:
    """Return the sizes of a language model with so many parameters.

    Args:
        flops_per_token: model FLOPs of training a token, and the part of attention in them.
    """
    per_token, attention = flops_per_token

    def compute_flops(counts: Counts) -> float:
        return per_token * counts.tokens_padded

    facts = {
        "parameters": parameters,
        "trainable_parameters": parameters,
        SHARE: attention / per_token,
    }
    return Sizes(facts, compute_flops)


def compute_causal_mfu(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return ``MFU_causal``: the MFU without half of the FLOPs of attention.

    The figure ``MFU`` follows PaLM, appendix B, and counts attention over all pairs of positions.
    Other authors count only the half of the pairs that a causal mask leaves.
    """
    whole = known["MFU"]
    share = ranks[0].facts.get(SHARE)
    if whole.value is None or share is None:
        return OwnFigures({"MFU_causal": Figure(None, whole.reason or message("no_train_time"))})
    return OwnFigures({"MFU_causal": Figure(whole.value * (1 - share / 2), note=whole.note)})
