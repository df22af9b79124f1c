"""The watch of a step on sharded tensors."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainmark.rank.watch import StepWatch


def test_shards_of_parameters_are_counted_and_clipped(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        weights = [
            torch.nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
            for _ in range(2)
        ]
        with StepWatch(dict) as watch:
            for weight in weights:
                (weight @ weight.T).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        assert norm > 1.0
        assert watch.flops["float32"] >= 2 * 3 * 2 * 8 * 4 * 8
    finally:
        torch.distributed.destroy_process_group()
