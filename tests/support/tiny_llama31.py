"""A Llama 3.1 small enough to train in a test; apart from it because spawned ranks import it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch.autograd.graph import saved_tensors_hooks

from support.tiny_gpt import Split
from trainmark.cases.llama31_8b.case import Llama31Recipe
from trainmark.cases.llama31_8b.job import Llama31Job, build
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

if TYPE_CHECKING:
    import torch

SAMPLES = 160  # 20 steps


def make_recipe(**changes: Any) -> Llama31Recipe:
    """Return the recipe of a small model with changes of its fields."""
    fields = {
        "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 48,
        "seq_length": 12, "vocab_size": 100, "micro_batch_size": 8, "learning_rate": 1e-2,
        "lr_warmup_steps": 3, "lr_decay_steps": 20, "weight_decay": 0.1, "data": "generated",
        "kernels": "own",
    }  # fmt: skip
    return Llama31Recipe(**{**fields, **changes})


def new_job(*, rank: int = 0, world_size: int = 1, **changes: Any) -> Llama31Job:
    """Return the job of a rank on random tokens; ``changes``: of fields of the recipe.

    ``SAMPLES``, 160, are trained in an epoch: on one rank 20 steps of 8. ``Split`` makes random
    tokens of so many samples.
    """
    context = JobContext(
        recipe=make_recipe(**changes),
        data_dir=Path(),
        rank=rank,
        world_size=world_size,
        device=CpuDevice(threads=1),
    )
    # Seven samples for validation are fewer than a usual micro-batch.
    return build(context, SimpleNamespace(train=Split(SAMPLES), validation=Split(7)))


def measure_saved_bytes(rank: int, world_size: int, changes: list[dict[str, Any]]) -> list[int]:
    """Return the bytes that a forward pass on this rank saves for the backward pass.

    All saved tensors count. Measure in bf16, where autocast's copies of weights are saved, which
    take memory of their own. In fp32 some weights themselves are saved; they take no further
    memory, but would count too.

    Args:
        changes: of the recipe; the result has one number for each.
    """
    return [_measure_saved_bytes(rank, world_size, fields) for fields in changes]


def _measure_saved_bytes(rank: int, world_size: int, fields: dict[str, Any]) -> int:
    """Return the bytes saved for the backward pass if the recipe has these ``fields``.

    Tensors that share a storage count once.
    """
    job = new_job(rank=rank, world_size=world_size, **fields)
    saved_sizes: dict[int, int] = {}  # bytes of each storage, by its address
    kept_tensors = []  # so that no address is used again

    def record(tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that is saved; return what is to be saved: the tensor itself."""
        storage = _get_storage(tensor)
        kept_tensors.append(tensor)
        saved_sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = next(iter(job.batches(0)))
    with saved_tensors_hooks(record, lambda tensor: tensor), job.stepper.autocast():
        job._compute_loss_sum(batch)
    return sum(saved_sizes.values())


def _get_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the storage of this rank's part of a tensor, which may be a DTensor."""
    # A tensor that wraps others, such as a DTensor, says in which attributes they are.
    while hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        tensor = getattr(tensor, names[0])
    return tensor.untyped_storage()
