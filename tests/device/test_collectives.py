"""The vendor's collectives and FSDP2 give the right numbers, with one rank and with two."""

from __future__ import annotations

import pytest
import torch

from support.contract_ranks import run_task
from support.old_torch import find_missing_feature
from trainmark.cases.gpt_megatron.case import GptRecipe


def spawn_ranks(task, vendor, world, tmp_path):
    """Do a task of ``contract_ranks`` on so many ranks; an error of any rank fails the test.

    Each rank is a process that calls ``run_task`` of ``support/contract_ranks.py``, which raises an
    error where a number is wrong. The ranks find each other by the file ``rendezvous``.

    Args:
        task: the name of the task, such as "shard".
        vendor: of the devices; each rank has one.
        world: number of ranks.
    """
    if vendor.count() < world:
        pytest.skip(f"{vendor.count()} device here")
    torch.multiprocessing.spawn(
        run_task, args=(task, vendor.name, world, str(tmp_path / "rendezvous")), nprocs=world
    )


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_exchange_numbers(vendor, world, tmp_path):
    spawn_ranks("exchange", vendor, world, tmp_path)


@pytest.mark.parametrize("world", [1, 2])
def test_sharded_model_equals_the_unsharded_one(vendor, device, world, tmp_path):
    """The task ``shard`` compares loss and gradients of a model with FSDP2 and without."""
    if not hasattr(torch.get_device_module(device.torch_type), "Stream"):
        pytest.skip("torch's module of this device has no streams, which FSDP2 needs")
    missing = find_missing_feature(GptRecipe(fsdp=True), vendor, world)
    if missing is not None:
        pytest.skip(f"planning refuses it: {missing}")
    spawn_ranks("shard", vendor, world, tmp_path)
