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
SCORES_AT_ONCE = 1 << 26  # scores (logits) of a head that is computed in blocks
FP32_BYTES = 4  # of a number in full precision
HALF_BYTES = 2  # of a number in half precision
ADAM_MOMENTS = 2  # numbers that Adam keeps for each parameter
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
        """Return the bytes that the allocator of an accelerator holds: tensors and freed memory."""
        return self.total + self.cached

    def compute_needed(self, memory: RankMemory) -> int:
        """Return the bytes that a rank needs of ``memory``.

        They leave out what its process takes without any tensor (``PROCESS_BYTES``). On an
        accelerator (``machine_bytes`` is None) they include the freed memory that the allocator
        keeps, as ``reserved`` does; ``total`` has only the tensors.
        """
        return self.reserved if memory.machine_bytes is None else self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Sizes of a transformer and of its micro-batch.

    Args:
        parameters: number of all parameters, with tables; all are trained.
        ffn_width: width of the feed-forward layers.
        vocab_size: rows of the token table, with padding.
        tied_head: the head uses the token table, whose gradient is then computed twice.
        tokens: tokens of a micro-batch, with padding.
        scores: logits of the head in a micro-batch: positions times classes; 0: there is no head.
        saved_inputs: copies of a block's input that its attention saves under autocast: one, or one
            each for query, key and value.
        tensor_parallel: ranks over which matrices are cut.
        shards: ranks over which FSDP2 shards all parameters; 1: it is not used.
        keeps_gradients: gradients exist together with activations, because they are accumulated.
        replicas: ranks that each train a whole replica with DDP, which keeps gradients in buckets.
    """

    parameters: int
    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_width: int
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
        # Query, key, value and result of attention, and the two feed-forward layers.
        return 4 * self.hidden_size**2 + 2 * self.hidden_size * self.ffn_width

    @property
    def table_weights(self) -> int:
        """Return the number of weights in the token table."""
        return self.vocab_size * self.hidden_size


def predict_peak_bytes(sizes: Transformer, recipe: Recipe) -> Prediction:
    """Return the memory of a rank at the peak of a step, from the second step on.

    The peak is at the end of the forward pass, with all saved activations, or at the end of the
    backward pass, with all gradients. The prediction has the rank's tensors at the peak and, as
    ``cached``, the freed memory that the allocator of an accelerator keeps.

    Args:
        recipe: its ``kernels`` is not None; ``refuse_too_little_memory`` has set the default.
    """
    assert recipe.kernels is not None, "the default depends on the device"
    num_parts = sizes.tensor_parallel * sizes.shards
    local_parameters = -(-sizes.parameters // num_parts)  # of this rank; rounded up
    # Weights that FSDP2 holds unsharded, in addition to the rank's own shard.
    num_gathered = _count_gathered_weights(sizes)
    # Bytes of a number in matmuls.
    number_bytes = HALF_BYTES if recipe.precision in AUTOCAST else FP32_BYTES
    # Bytes that one block saves for the backward pass.
    block_bytes = _estimate_block_bytes(
        sizes, number_bytes=number_bytes, compiled=bool(recipe.compile)
    )
    # Bytes of activations at the two times at which the peak may be.
    at_forward_end = _estimate_forward_bytes(sizes, recipe, block_bytes, number_bytes=number_bytes)
    at_backward_end = _estimate_backward_bytes(sizes, recipe)
    all_gradients = local_parameters * FP32_BYTES
    # Gradients exist in the forward pass if they are accumulated, or if there are several replicas:
    # DDP keeps the gradients in its buckets.
    keeps_gradients = sizes.keeps_gradients or sizes.replicas > 1
    early_gradients = all_gradients if keeps_gradients else 0
    # The peak is at the time at which gradients and activations together take more.
    if early_gradients + at_forward_end >= all_gradients + at_backward_end:
        gradients = early_gradients
        activations = at_forward_end
    else:
        gradients = all_gradients
        activations = at_backward_end
    # Freed memory that the allocator keeps. It depends on the gathered weights with FSDP2, on all
    # gradients with DDP.
    cached = _estimate_cached_bytes(
        sizes, recipe, gathered=num_gathered * FP32_BYTES, gradients=all_gradients
    )
    if sizes.checkpoint_activations:
        # Holes that recomputed blocks leave in the allocator's memory: a share of what one block
        # saves. The share is empirical: it brings estimates within 10% of what an allocator
        # reserved.
        cached += block_bytes // 3
    return Prediction(
        weights=(local_parameters + num_gathered) * FP32_BYTES,
        gradients=gradients,
        optimizer=local_parameters * FP32_BYTES * ADAM_MOMENTS,
        activations=activations,
        cached=cached,
    )


def _count_gathered_weights(sizes: Transformer) -> int:
    """Return the number of weights that FSDP2 holds unsharded, beside the rank's own shard.

    These are the weights of the token table and of a few blocks. Without FSDP2 there are none.
    """
    if sizes.shards == 1:
        return 0
    block_weights = min(_GATHERED_BLOCKS, sizes.num_layers) * sizes.block_matmul_weights
    return (sizes.table_weights + block_weights) // sizes.tensor_parallel


def _estimate_forward_bytes(
    sizes: Transformer, recipe: Recipe, block_bytes: int, *, number_bytes: int
) -> int:
    """Return the bytes of activations at the end of the forward pass.

    These are the tensors that all blocks have saved and, of the tensors that come next, the larger
    ones: those of the head, or those of the backward pass of the last block.

    Args:
        block_bytes: what one block saves for its backward pass.
        number_bytes: bytes of a number in matmuls.
    """
    tensor_parallel = sizes.tensor_parallel
    stream_bytes = sizes.tokens * sizes.hidden_size * FP32_BYTES  # the residual stream
    # A tensor of the width of the feed-forward layers.
    ffn_bytes = sizes.tokens * sizes.ffn_width * number_bytes // tensor_parallel
    if sizes.checkpoint_activations:
        saved_bytes = sizes.num_layers * stream_bytes  # each block saves only its input
        # The backward pass recomputes the last block, then needs a gradient of its feed-forward
        # layers.
        temporary_bytes = block_bytes + ffn_bytes
    else:
        saved_bytes = sizes.num_layers * block_bytes
        # Gradients of the feed-forward layers and of the block's result.
        temporary_bytes = ffn_bytes + stream_bytes
    # Copies of the weights in half precision, which autocast keeps until the forward pass ends; a
    # compiled model keeps none. With FSDP2 too, every rank keeps copies of whole weights, because
    # they are made of the gathered ones.
    copied_bytes = 0
    if number_bytes == HALF_BYTES and not recipe.compile:
        num_weights = sizes.num_layers * sizes.block_matmul_weights
        copied_bytes = num_weights * HALF_BYTES // tensor_parallel
    temporary_bytes = max(temporary_bytes, copied_bytes)
    if sizes.scores:  # the number of logits of the head; 0: there is no head
        if recipe.compile:
            head_bytes = sizes.scores * number_bytes  # one tensor of scores, in the matmuls' type
        else:
            head_bytes = _estimate_head_bytes(sizes, recipe)
        input_bytes = 2 * stream_bytes  # the last norm and the head each save their input
        temporary_bytes = max(temporary_bytes, input_bytes + copied_bytes + head_bytes)
    return saved_bytes + temporary_bytes


def _estimate_backward_bytes(sizes: Transformer, recipe: Recipe) -> int:
    """Return the bytes of activations at the end of the backward pass.

    Only a gradient of the residual stream is left of them and, if the head uses the token table,
    perhaps a gradient of the table.

    Args:
        recipe: its ``kernels`` is ``library`` or ``own``, not None.
    """
    stream_bytes = sizes.tokens * sizes.hidden_size * FP32_BYTES
    if sizes.tied_head and recipe.kernels == "library":
        # The gradient of the table from the head is kept until that of the look-up is computed.
        # Trainmark's own kernels compute it with the loss, at the end of the forward pass.
        return stream_bytes + sizes.table_weights * FP32_BYTES // sizes.tensor_parallel
    return stream_bytes


def _estimate_cached_bytes(
    sizes: Transformer, recipe: Recipe, *, gathered: int, gradients: int
) -> int:
    """Return the freed bytes that torch's allocator keeps because no later tensor fits into them.

    One cause is counted: FSDP2 if it shards the model; else DDP, if there are several replicas; on
    a single rank or with tensor parallelism alone, the logits of the head.

    Args:
        recipe: its ``kernels`` is ``library`` or ``own``, not None.
        gathered: bytes of the weights that FSDP2 holds unsharded.
        gradients: bytes of all gradients of the rank.
    """
    if sizes.shards > 1:
        # FSDP2 gathers weights in streams of its own, and no other stream can use the memory that
        # is freed there. The factor 2 is empirical: it brings estimates near to what an allocator
        # reserved.
        cached = 2 * gathered
        if sizes.tied_head:
            # The gradient of the table is computed twice, by the head and by the look-up. This
            # leaves freed memory of the table's size.
            cached += sizes.table_weights * FP32_BYTES
        return cached
    if sizes.replicas > 1:
        # DDP keeps gradients in buckets. After the first step it allocates new buckets; the freed
        # ones have the size of all gradients.
        return gradients
    # Trainmark's own kernels compute the logits in blocks, so no large tensor is freed.
    if recipe.kernels == "own":
        return 0
    lost = estimate_cached_scores(sizes.scores)
    if sizes.checkpoint_activations:
        # With checkpointing, blocks save little beside the logits, and less memory is lost. The
        # share is empirical: it brings estimates within 10% of what an allocator reserved.
        return lost // 3
    return lost


def estimate_cached_scores(scores: int) -> int:
    """Return the bytes that a head's logits leave unusable for the allocator after they are freed.

    Gradients are allocated in a part of the freed memory; the rest is too small for the logits of
    the next step. The rest is about three quarters of the logits in fp32, as observed with torch's
    allocator of GPU memory on a simulated card, which allocates but computes nothing.

    Args:
        scores: number of logits.
    """
    return scores * FP32_BYTES * 3 // 4


def _estimate_block_bytes(sizes: Transformer, *, number_bytes: int, compiled: bool) -> int:
    """Return the bytes that one block saves for the backward pass, with fused attention.

    A compiled block may recompute all but the results of matmuls and of attention.

    Args:
        number_bytes: bytes of a number in matmuls.
        compiled: whether ``torch.compile`` compiles the block.
    """
    hidden = sizes.hidden_size
    ffn_width = sizes.ffn_width  # of the feed-forward layers
    tensor_parallel = sizes.tensor_parallel
    # All sizes below are bytes per token.
    # Query, key, value and result, and for each head the sum of its softmax.
    attention = (
        4 * hidden * number_bytes // tensor_parallel
        + sizes.num_heads * FP32_BYTES // tensor_parallel
    )
    if compiled:  # besides attention, a tensor of the hidden size and one of ``ffn_width``
        return sizes.tokens * (
            hidden * number_bytes + attention + ffn_width * number_bytes // tensor_parallel
        )
    # Each of the two norms saves its input, and two numbers per token: its statistics.
    norms = 2 * (hidden + 2) * FP32_BYTES
    # Attention saves its input once. Under autocast each layer that reads it may save a copy of its
    # own: ``saved_inputs`` is their number.
    num_copies = sizes.saved_inputs if number_bytes == HALF_BYTES else 1
    # The copies of attention's input, and the input of the feed-forward layers.
    inputs = (num_copies + 1) * hidden * number_bytes
    # A tensor before the activation function, and one after it.
    feed_forward = 2 * ffn_width * number_bytes // tensor_parallel
    # A block has two dropouts. The mask of each has a byte for each number.
    masks = 2 * hidden if sizes.dropout else 0
    return sizes.tokens * (norms + inputs + attention + feed_forward + masks)


def _estimate_head_bytes(sizes: Transformer, recipe: Recipe) -> int:
    """Return the bytes of the temporary tensors of head and loss, at the end of the forward pass.

    Scores are the logits: one for each position and class.

    Args:
        recipe: its ``kernels`` is ``library`` or ``own``, not None.
    """
    if recipe.kernels == "own":  # Trainmark's loss, computed in blocks of rows
        # The scores of a block of rows; and, if the head uses the token table, the table's gradient
        # from the head, which is computed with the loss.
        scores_at_once = min(sizes.scores // sizes.tensor_parallel, SCORES_AT_ONCE)
        table_gradient = sizes.table_weights if sizes.tied_head else 0
        return (scores_at_once + table_gradient // sizes.tensor_parallel) * FP32_BYTES
    # Torch's loss has three tensors with a number for each score: log-probabilities, their gradient
    # and the gradient of the scores. It needs all scores on every rank, so tensor parallelism does
    # not divide them.
    return 3 * sizes.scores * FP32_BYTES


def read_rank_memory(device: Device, ranks_here: int) -> RankMemory | None:
    """Return the memory that a rank can use, as its device reports it; None if it is unknown.

    What other processes use of an accelerator's memory is not available to the rank.

    Args:
        ranks_here: number of ranks on this machine, which share its memory equally on a CPU.
    """
    reading = device.memory()
    if reading.total_bytes is None:
        return None
    # On a CPU, ``used_bytes`` are those of this process alone, so the free memory of the host is
    # unknown: the ranks share its total. Apple's device has this scope too, but only one rank.
    if reading.scope == "process" and device.torch_type == "cpu":
        return RankMemory(reading.total_bytes // ranks_here, machine_bytes=reading.total_bytes)
    free_bytes = reading.total_bytes - (reading.used_bytes or 0)  # None: use is not reported
    # The used bytes include the device context of this process itself. It is part of what a rank
    # needs, so it counts as available.
    return RankMemory(min(reading.total_bytes, free_bytes + PROCESS_BYTES))


def refuse_too_little_memory(
    predict: Callable[[R], Prediction], recipe: R, memory: RankMemory
) -> int:
    """Return the bytes that a rank needs at least; raise an error if it has less memory.

    Args:
        predict: returns the prediction for a recipe.
        memory: the memory that a rank can use.

    Raises:
        EnvironmentFault: with the memory needed, its parts, and the batch and layers that fit.
    """
    # Apply the default of ``train.kernels``: ``own`` on a CPU. Only there ranks share the machine's
    # memory, so that ``machine_bytes`` is not None.
    if recipe.kernels is None:
        recipe = replace(recipe, kernels="own" if memory.machine_bytes else "library")
    prediction = predict(recipe)
    bytes_without_process = prediction.compute_needed(memory)
    needed_bytes = bytes_without_process + PROCESS_BYTES
    if needed_bytes <= memory.rank_bytes:
        return needed_bytes
    parts = {
        "weights": prediction.weights,
        "gradients and optimizer": prediction.gradients + prediction.optimizer,
        "activations": prediction.activations,
        "kept by the allocator": bytes_without_process - prediction.total,
        "the process": PROCESS_BYTES,
    }
    shown_parts = [
        f"{name} {_format_bytes(size)}" for name, size in parts.items() if size >= _MIN_SHOWN_BYTES
    ]
    fix = (
        "use checkpoint_activations or fsdp if the case has them, more or larger devices, or "
        "a smaller model; `trainmark doctor` lists other processes that use the devices"
    )
    fitting_settings = list(_iterate_fitting_settings(predict, recipe, memory))
    if fitting_settings:
        fix = f"use {' or '.join(fitting_settings)} to fit into memory; otherwise, {fix}"
    raise EnvironmentFault(
        f"a rank needs about {_format_bytes(needed_bytes)} of memory, but only "
        f"{_format_bytes(memory.rank_bytes)} is available",
        where="memory",
        # The error prints this after the memory that is needed: what it consists of.
        rule=", ".join(shown_parts),
        fix=fix,
    )


def make_fit_check(
    predict: Callable[[R, int], Prediction],
) -> Callable[[Path, R, int, RankMemory], int]:
    """Return the function ``check_fit`` of a case, which raises an error if memory is too small.

    Args:
        predict: returns the prediction for a recipe and a number of ranks.
    """

    def check_fit(folder: Path, recipe: R, world_size: int, memory: RankMemory) -> int:
        """Return the bytes that a rank needs; raise an error if ``memory`` has less.

        Args:
            folder: the data folder. Other cases read sizes from it; here the recipe has all.
        """
        del folder

        # The error names settings that would fit. They are found by predictions for variants of the
        # recipe.
        def predict_here(variant: R) -> Prediction:
            return predict(variant, world_size)

        return refuse_too_little_memory(predict_here, recipe, memory)

    return check_fit


def _iterate_fitting_settings(
    predict: Callable[[R], Prediction], recipe: R, memory: RankMemory
) -> Iterator[str]:
    """Yield settings that fit, as text: the largest micro-batch, then the most layers.

    Each changes only one field of the recipe. A field of which no value fits is left out.
    """
    # The needs below leave out the bytes of the process itself.
    max_bytes = memory.rank_bytes - PROCESS_BYTES
    for name in ("micro_batch_size", "num_layers"):
        # 1, 2, … below the recipe's value; none for a case without such a field.
        smaller_values = range(1, getattr(recipe, name, 1))

        def compute_needed_bytes(value: int, name: str = name) -> int:
            changed: dict[str, Any] = {name: value}
            return predict(replace(recipe, **changed)).compute_needed(memory)

        # Needs grow with the value, so the number of values that fit is the largest one.
        max_value = bisect_right(smaller_values, max_bytes, key=compute_needed_bytes)
        if max_value:  # else not even 1 fits
            yield f"{name}={max_value}"


def _format_bytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 // 10 else f"{size / 2**20:.1f} MiB"


ATTENTION_SHARE = "attention_flops_share"  # fact of a job: share of attention in its model FLOPs


def compute_next_token_flops(recipe: Any) -> tuple[float, float]:
    """Return the model FLOPs of training a token, and the part of attention in them.

    The formula is that of PaLM, appendix B: 6 N + 12 L D T. Attention counts over all pairs of
    positions, although a causal mask leaves half of them. N is the number of weights in matrices,
    with those of the head, L that of layers, D the hidden size and T the length of a sequence.
    """
    attention = 12.0 * recipe.num_layers * recipe.hidden_size * recipe.seq_length
    return 6.0 * recipe.matmul_weights + attention, attention


def compute_next_token_sizes(parameters: int, flops_per_token: tuple[float, float]) -> Sizes:
    """Return what a run of a model that predicts the next token must report: facts and FLOPs.

    Args:
        parameters: number of parameters; all are trained.
        flops_per_token: model FLOPs of training a token, and how many of them are in attention.
    """
    token_flops, attention_flops = flops_per_token

    def compute_flops(counts: Counts) -> float:
        return token_flops * counts.tokens_padded  # the model also computes the padding

    facts = {
        "parameters": parameters,
        "trainable_parameters": parameters,
        ATTENTION_SHARE: attention_flops / token_flops,
    }
    return Sizes(facts, compute_flops)


def compute_causal_mfu(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return ``MFU_causal``: the MFU without half of the FLOPs of attention.

    The figure ``MFU`` follows PaLM, appendix B, and counts attention over all pairs of positions.
    Other authors count only the half of the pairs that a causal mask leaves.

    Args:
        ranks: the work of each rank; its facts have the share of attention in the FLOPs.
        known: the common figures of the run, by name.
    """
    mfu = known["MFU"]
    if mfu.value is None:
        return OwnFigures({"MFU_causal": Figure(None, mfu.reason)})
    attention_share = ranks[0].facts.get(ATTENTION_SHARE)  # the same on all ranks
    if attention_share is None:  # jobs report it at the end of the run, later than FLOPs and times
        return OwnFigures({"MFU_causal": Figure(None, message("rank_unfinished", rank=0))})
    causal_mfu = mfu.value * (1 - attention_share / 2)
    return OwnFigures({"MFU_causal": Figure(causal_mfu, note=mfu.note)})
