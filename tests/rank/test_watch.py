"""The watch of a step on sharded tensors."""

from typing import get_args

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.attention import SDPBackend

from trainmark.rank.watch import StepWatch
from trainmark.recipe import Precision


def test_matmuls_of_sharded_parameters_are_counted_and_their_gradients_clipped(tmp_path):
    """The watch sees sharded tensors, for which a group of one rank is enough."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        weights = [
            torch.nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
            for _ in range(2)
        ]
        with StepWatch(flags=dict) as watch:  # ``dict``: there are no flags to note
            for weight in weights:
                (weight @ weight.T).sum().backward()
            # Within the watch, as in a step: the watch sees its operations on sharded tensors too.
            norm = torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        assert norm > 1.0  # the norm before clipping: so it did clip
        # 2 weights, 3 matmuls (one forward, two backward), 2 FLOPs, sizes 8 x 4 x 8.
        assert watch.flops["float32"] == 2 * 3 * 2 * 8 * 4 * 8
    finally:
        torch.distributed.destroy_process_group()


def test_attention_kernel_that_ran_is_recorded():
    # One sequence of 8 tokens, with 2 heads of 16 numbers. ``attention`` names the kernels that
    # torch chose within the watch.
    query = torch.randn(1, 2, 8, 16, requires_grad=True)
    with StepWatch(flags=dict) as fused:  # ``dict``: there are no flags to note
        attention = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        attention.sum().backward()
    with StepWatch(flags=dict) as plain:  # a CPU's fused kernel has no dropout
        torch.nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1)
    with StepWatch(flags=dict) as none:  # written out as matmuls
        (query @ query.transpose(-1, -2)).softmax(-1)
    assert (fused.attention, plain.attention, none.attention) == ({"flash"}, {"math"}, set())


@pytest.mark.parametrize(
    ("dtype", "precisions"),
    [
        (torch.float32, {"fp32", "tf32"}),
        (torch.bfloat16, {"bf16", "fp8"}),  # with fp8, some layers compute in bf16
        (torch.float16, {"fp16"}),
    ],
)
def test_matmul_in_the_types_of_a_precision_is_no_change_from_it(dtype, precisions):
    # ``list_changes`` compares what a step computed in with what a precision allows; the settings
    # before the step ({}) are not compared here.
    matrix = torch.ones(16, 16, dtype=dtype)
    with StepWatch(flags=dict) as watch:  # ``dict``: there are no flags to note
        matrix @ matrix
    unchanged = {name for name in get_args(Precision) if not watch.list_changes({}, name)}
    assert unchanged == precisions


def test_flops_of_grouped_query_attention_count_query_heads():
    # One sequence of 8 tokens, with 4 heads of queries but only 2 heads of keys (and values), each
    # of 16 numbers.
    query = torch.randn(1, 4, 8, 16, requires_grad=True)
    key = torch.randn(1, 2, 8, 16, requires_grad=True)
    with StepWatch(flags=dict) as watch:  # ``dict``: there are no flags to note
        attention = torch.nn.functional.scaled_dot_product_attention(
            query, key, key, enable_gqa=True
        )
        attention.sum().backward()
    # Torch 2.7.1 has no fused attention of shared keys for a CPU.
    choice = torch._fused_sdp_choice(query, key, key, enable_gqa=True)
    is_fused = choice == SDPBackend.FLASH_ATTENTION.value
    assert watch.attention == {"flash" if is_fused else "math"}
    pairs = 4 * 8 * 8  # of heads, queries and keys
    backward_products = 5 if is_fused else 4  # a fused one computes the scores again
    # 2 products forward, of 16 numbers in each head.
    assert watch.flops == {"float32": 2 * pairs * (2 + backward_products) * 16}
