"""The vendor's collectives and FSDP2 give the right numbers, with one rank and with two."""

from __future__ import annotations

import pytest
import torch

from contract_ranks import rank_main


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_exchange_and_shard(vendor, world, tmp_path):
    if vendor.count() < world:
        pytest.skip(f"{vendor.count()} device here")
    torch.multiprocessing.spawn(
        rank_main, args=(vendor.name, world, str(tmp_path / "rendezvous")), nprocs=world
    )
