"""What is known of a training step without torch: the memory it needs on a rank, and its MFU.

Owns the estimate for transformers whose every parameter AdamW trains, and the refusal that all
estimates share. An estimate counts the tensors that must exist together at the peak, and on an
accelerator what torch's allocator keeps of freed ones that no later tensor fits. What attention
saves where no fused kernel runs, and workspaces of libraries come on top. Estimates of the
published recipes are within 10% of what torch's allocator reserves on a simulated card.
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

PROCESS_BYTES = 300 << 20  # interpreter and libraries, or a device's context: at least this
SCORES_AT_ONCE = 1 << 26  # of a head that is computed in blocks
FULL, HALF = 4, 2  # bytes of a number
ADAM_MOMENTS = 2
_SHOWN_BYTES = 1 << 16  # of a part of what a recipe needs
_GATHERED_BLOCKS = 2  # unsharded at a time under FSDP2: the current one and the next one


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of a rank's tensors at the peak of a step.

    Args:
        weights: in their stored type; under FSDP2 the rank's shard and what is gathered.
        gradients: those that exist at the peak.
        optimizer: two moments of what is trained.
        activations: tensors saved for the backward pass, and the largest temporary ones.
        cached: freed memory that an accelerator's allocator keeps beside them.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    cached: int = 0

    @property
    def total(self) -> int:
        """Sum of all tensors."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def reserved(self) -> int:
        """What the allocator of an accelerator holds."""
        return self.total + self.cached

    def needed(self, memory: RankMemory) -> int:
        """Return what a rank needs of ``memory``, without its process."""
        return self.reserved if memory.machine_bytes is None else self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Sizes of a transformer and of its micro-batch.

    Args:
        parameters: all, tables included; each is trained.
        wide: width of the feed-forward layers.
        vocab_size: rows of the token table, padding included.
        tied_head: the head scores with the token table, whose gradient is then made twice.
        tokens: of a micro-batch, padding included.
        scores: that the head computes for a micro-batch: positions times classes; 0: no head.
        saved_inputs: copies of a block's input that its attention saves under autocast: one, or
            one each for query, key and value.
        tensor_parallel, shards: ranks over which matrices are cut, and all parameters (FSDP2).
        keeps_gradients: they exist while activations do, because they are accumulated.
        replicas: ranks that train a whole replica each (DDP), whose gradients are buckets.
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
        """Weights of a block's matrix products."""
        return 4 * self.hidden_size**2 + 2 * self.hidden_size * self.wide

    @property
    def table(self) -> int:
        """Numbers of the token table."""
        return self.vocab_size * self.hidden_size


def predict_peak_bytes(sizes: Transformer, recipe: Recipe) -> Prediction:
    """Return what one rank holds at the peak of a step, from the second step on.

    The peak is where the forward pass ends, with all that is saved, or where the backward pass
    ends, with all gradients.
    """
    number = HALF if recipe.precision in AUTOCAST else FULL  # in matmuls
    cut = sizes.tensor_parallel
    held = -(-sizes.parameters // (cut * sizes.shards))
    gathered = 0
    if sizes.shards > 1:
        blocks = min(_GATHERED_BLOCKS, sizes.num_layers) * sizes.block_matmul_weights
        gathered = (sizes.table + blocks) // cut
    block = _block_bytes(sizes, number=number, compiled=bool(recipe.compile))
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
        head = sizes.scores * number if recipe.compile else _head_bytes(sizes, recipe)
        backward = max(backward, 2 * stream + copies + head)
    at_forward_end = saved + backward
    gradients = held * FULL
    # The table's gradient of the head waits until that of the look-up is made.
    second_table = sizes.table * FULL // cut if sizes.tied_head and recipe.kernels != "own" else 0
    at_backward_end = stream + second_table
    early = gradients if sizes.keeps_gradients or sizes.replicas > 1 else 0
    cached = _cached_bytes(sizes, recipe, gathered=gathered * FULL, gradients=gradients)
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


def _cached_bytes(sizes: Transformer, recipe: Recipe, *, gathered: int, gradients: int) -> int:
    """Return what an allocator keeps of freed tensors that fit no later one.

    FSDP2 gathers weights and reduces gradients in streams of their own, and no stream gets the
    memory of another; the gradient of a tied table is made twice. DDP makes its buckets anew
    after the first step. Otherwise gradients and moments are cut from the memory of the first
    step's scores, which is then too small for those of the next step.
    """
    if sizes.shards > 1:
        return 2 * gathered + (sizes.table * FULL if sizes.tied_head else 0)
    if sizes.replicas > 1:
        return gradients
    if recipe.kernels != "library":
        return 0
    kept = cached_scores(sizes.scores)
    return kept // 3 if sizes.checkpoint_activations else kept  # little else is saved with scores


def cached_scores(scores: int) -> int:
    """Return what an allocator keeps of a head's freed scores that gradients were cut from.

    About three quarters of one tensor of fp32, as seen on a simulated card.
    """
    return scores * FULL * 3 // 4


def _block_bytes(sizes: Transformer, *, number: int, compiled: bool) -> int:
    """Return the bytes that one block saves for the backward pass, attention fused.

    A compiler may recompute all but the results of matmuls and of attention.
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


def _head_bytes(sizes: Transformer, recipe: Recipe) -> int:
    """Return the bytes of the head's temporary tensors, held while all blocks' are saved."""
    if recipe.kernels == "own":
        kept = sizes.table if sizes.tied_head else 0  # the table's gradient
        held = min(sizes.scores // sizes.tensor_parallel, SCORES_AT_ONCE)
        return (held + kept // sizes.tensor_parallel) * FULL
    # Log-probabilities, their gradient and that of the scores.
    return 3 * sizes.scores * FULL


def memory_of_rank(device: Device, world_size: int) -> RankMemory | None:
    """Return the memory that a rank can have, as its open device tells; None if it does not.

    What others hold on a device does not count. Ranks of a host share its memory equally.
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
    """Return the bytes that a rank needs at least; refuse a recipe that needs more than ``memory``.

    Args:
        predict: from a recipe to what a rank of it needs.

    Raises:
        EnvironmentFault: it names the memory needed, and the batch and layers that fit.
    """
    if recipe.kernels is None:  # the default; see ``train.kernels``
        recipe = replace(recipe, kernels="own" if memory.machine_bytes else "library")
    prediction = predict(recipe)
    needed = prediction.needed(memory)
    if needed + PROCESS_BYTES <= memory.rank_bytes:
        return needed + PROCESS_BYTES
    fits = " or ".join(_fitting(predict, recipe, memory))
    parts = {
        "weights": prediction.weights,
        "gradients and optimizer": prediction.gradients + prediction.optimizer,
        "activations": prediction.activations,
        "kept by the allocator": needed - prediction.total,
        "the process": PROCESS_BYTES,
    }
    raise EnvironmentFault(
        f"a rank needs about {_gib(needed + PROCESS_BYTES)} and has {_gib(memory.rank_bytes)}",
        where="memory",
        rule=", ".join(
            f"{name} {_gib(size)}" for name, size in parts.items() if size >= _SHOWN_BYTES
        ),
        fix=(f"{fits} fits; else " if fits else "")
        + "use checkpoint_activations or fsdp where the case has them, more or larger devices, or "
        "a smaller model; `trainmark doctor` names who else uses the devices",
    )


def make_fit_check(
    predict: Callable[[R, int], Prediction],
) -> Callable[[Path, R, int, RankMemory], int]:
    """Return ``check_fit`` of a case whose recipe has all sizes; see ``refuse_too_little``.

    Args:
        predict: from a recipe and the number of ranks to what one rank needs.
    """

    def check_fit(folder: Path, recipe: R, world_size: int, memory: RankMemory) -> int:
        del folder  # the recipe has all sizes
        return refuse_too_little(lambda other: predict(other, world_size), recipe, memory)

    return check_fit


def _fitting(predict: Callable[[R], Prediction], recipe: R, memory: RankMemory) -> Iterator[str]:
    """Yield the largest micro-batch that fits as the recipe is, and the most layers."""
    most_bytes = memory.rank_bytes - PROCESS_BYTES
    for name in ("micro_batch_size", "num_layers"):
        smaller = range(1, getattr(recipe, name, 1))

        def needed(value: int, name: str = name) -> int:
            changed: dict[str, Any] = {name: value}
            return predict(replace(recipe, **changed)).needed(memory)

        fitting = bisect_right(smaller, most_bytes, key=needed)
        if fitting:
            yield f"{name}={fitting}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 // 10 else f"{size / 2**20:.1f} MiB"


SHARE = "attention_flops_share"  # of all model FLOPs, among a job's facts


def next_token_flops(recipe: Any) -> tuple[float, float]:
    """Return the model FLOPs of training a token, and those of attention among them.

    PaLM, appendix B: 6 N + 12 L D T, over all pairs of positions. N counts the weights of matrix
    products, those of the head included.
    """
    attention = 12.0 * recipe.num_layers * recipe.hidden_size * recipe.seq_length
    return 6.0 * recipe.matmul_weights + attention, attention


def next_token_sizes(parameters: int, flops_per_token: tuple[float, float]) -> Sizes:
    """Return the sizes of a language model with so many parameters.

    Args:
        flops_per_token: of training, and those of attention among them.
    """
    per_token, attention = flops_per_token

    def flops(counts: Counts) -> float:
        return per_token * counts.tokens_padded

    facts = {
        "parameters": parameters,
        "trainable_parameters": parameters,
        SHARE: attention / per_token,
    }
    return Sizes(facts, flops)


def causal_mfu(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return ``MFU_causal``: the MFU without half of the FLOPs of attention.

    PaLM, appendix B, counts attention over all pairs of positions: that is the figure ``MFU``.
    Others count only the half that a causal mask leaves.
    """
    whole = known["MFU"]
    share = ranks[0].facts.get(SHARE)
    if whole.value is None or share is None:
        return OwnFigures({"MFU_causal": Figure(None, whole.reason or message("no_train_time"))})
    return OwnFigures({"MFU_causal": Figure(whole.value * (1 - share / 2), note=whole.note)})
