"""The matmul rate before training is checked against the published peak."""

from __future__ import annotations

import pytest

from support.fakes import FakeClock, SyncDevice
from trainmark.errors import ContradictionError
from trainmark.protocols import MatmulRate
from trainmark.rank.preflight import measure_matmul


class Card(SyncDevice):
    """A card with a product name and a steady rate of matmuls (``swing`` 0) in TFLOP/s."""

    def __init__(self, product: str, tflops: float) -> None:
        super().__init__(FakeClock())
        self.describe = lambda: {"name": product}  # type: ignore[method-assign]
        self.matmul_rate = lambda _: MatmulRate(  # type: ignore[method-assign]
            flops_per_second=tflops * 1e12, swing=0.0
        )


def test_rate_above_the_published_peak_fails_the_run() -> None:
    with pytest.raises(ContradictionError) as failure:
        measure_matmul(Card("NVIDIA H200", tflops=990.0), "bf16")
    assert (failure.value.kind, failure.value.code) == ("impossible_figure", "matmul_above_peak")
    assert failure.value.details == {
        "tflops": 990.0,
        "precision": "bf16",
        "peak": 989.0,  # the published one of this product in bf16, without sparsity
        "product": "NVIDIA H200",
    }


@pytest.mark.parametrize("product", ["NVIDIA H200", "a product without a published peak"])
def test_rate_up_to_the_published_peak_passes(product: str) -> None:
    assert measure_matmul(Card(product, 989.0), "bf16").flops_per_second == 989e12
