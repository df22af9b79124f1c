"""A rank of the device contract's collectives; apart from the test because it is spawned."""

from __future__ import annotations

import os

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from trainmark import devices
from trainmark.cases.gpt_megatron.case import GptRecipe
from trainmark.cases.gpt_megatron.model import build_model
from trainmark.rank.process_group import find_collective_device, leave_ranks
from trainmark.train.parallel import Ranks, open_micro_batch, parallelize


def run_task(rank: int, task: str, vendor_name: str, world: int, rendezvous: str) -> None:
    """Do one of ``TASKS`` as rank ``rank`` of ``world``; it raises where a number is wrong.

    The tasks: ``exchange`` checks collectives, ``shard`` a sharded model against the whole one. A
    vendor is a kind of devices, with the library (backend) that their ranks exchange tensors by.

    Args:
        task: ``exchange`` or ``shard``.
        vendor_name: as the option ``--device`` takes it.
        rendezvous: path of a file that does not exist yet, through which the ranks meet.
    """
    vendor = devices.choose_vendor(vendor_name)
    device = vendor.open(rank, world)
    device.set_precision("fp32")
    dist.init_process_group(
        vendor.collective_backend,
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        device_id=find_collective_device(vendor.collective_backend, device),
    )
    assert vendor.collective_library()  # the library is loaded now, and must have a name
    TASKS[task](device, rank, world)
    dist.barrier()
    leave_ranks()
    # As a worker ends: in Python's usual exit, a thread of torch 2.11 that asks for Python's lock
    # aborts the process.
    os._exit(0)


def check_exchange(device, rank, world):
    """Send numbers that identify sender and receiver, and check those that arrive."""
    # The rank r has the numbers 10 r, 10 r + 1 and 10 r + 2, so that each sum, and each list that
    # arrives, tells whose numbers it has.
    ranks = range(world)
    numbers_of_rank = device.place(torch.arange(3.0)) + 10 * rank  # 10 r, 10 r + 1, 10 r + 2
    total = numbers_of_rank.clone()
    dist.all_reduce(total)
    assert total.tolist() == [sum(number + 10 * other for other in ranks) for number in range(3)]
    parts = [torch.empty_like(numbers_of_rank) for _ in ranks]
    dist.all_gather(parts, numbers_of_rank)
    assert [part.tolist() for part in parts] == [[10 * x, 10 * x + 1, 10 * x + 2] for x in ranks]
    # Rank r sends s + 1 numbers to rank s, each of them 100 r + s + 1.
    sizes = [other + 1 for other in ranks]
    outgoing = device.place(torch.cat([torch.full((size,), 100.0 * rank + size) for size in sizes]))
    received = outgoing.new_empty(world * (rank + 1))
    work = dist.all_to_all_single(received, outgoing, [rank + 1] * world, sizes, async_op=True)
    work.wait()
    assert received.tolist() == [100.0 * x + rank + 1 for x in ranks for _ in range(rank + 1)]


def check_sharding(device, rank, world):
    """Compare loss and gradients of a model sharded with FSDP2 with those of the whole one."""
    # A tiny model without dropout, which would be random. Both copies have the same weights, as
    # their seed is the same. 4 samples of 17 tokens: 16 inputs, and their 16 next tokens as
    # targets.
    recipe = GptRecipe(
        num_layers=2, hidden_size=32, num_heads=2, seq_length=16, vocab_size=64, dropout=0.0
    )
    ids = device.place(torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(2)))
    whole_model, sharded_model = (device.place(build_model(recipe, seed=1)) for _ in range(2))
    expected_loss = whole_model(ids[:, :-1], ids[:, 1:])
    expected_loss.backward()
    # The model is sharded over all ranks, each block of it as a unit. 1: no tensor parallelism,
    # which would split single layers.
    mesh = init_device_mesh(device.torch_type, (world, 1), mesh_dim_names=("data", "tensor"))
    trained_model = parallelize(
        sharded_model, Ranks(rank, world, mesh=mesh), shards=sharded_model.blocks
    )
    # All ranks have the same samples: the mean of their gradients is that of the whole model.
    with open_micro_batch(trained_model, last=True):
        loss = trained_model(ids[:, :-1], ids[:, 1:])
        loss.backward()
    torch.testing.assert_close(loss, expected_loss)
    sharded_gradients = {name: weight.grad for name, weight in sharded_model.named_parameters()}
    assert all(isinstance(gradient, DTensor) for gradient in sharded_gradients.values())
    gradients = {name: sharded.full_tensor() for name, sharded in sharded_gradients.items()}
    expected_gradients = {name: weight.grad for name, weight in whole_model.named_parameters()}
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-4)


TASKS = {"exchange": check_exchange, "shard": check_sharding}
