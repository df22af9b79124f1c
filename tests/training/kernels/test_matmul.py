"""Products with a weight: the same numbers in whichever order they are computed."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.training.kernels import matmul
from trainmark.training.kernels.matmul import (
    add_product_back,
    lies_by_columns,
    passing,
    product,
    product_back,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

SIZES = st.integers(1, 20)


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@settings(max_examples=30, deadline=None)
@given(rows=SIZES, into=SIZES, out=SIZES, columns=st.booleans(), any_order=st.booleans())
def test_both_products_are_the_plain_ones(
    rows: int, into: int, out: int, columns: bool, any_order: bool
) -> None:
    torch.manual_seed(rows)
    x, weight, grad = torch.randn(rows, into), torch.randn(out, into), torch.randn(rows, out)
    given_x, given_grad = (by_columns(part) if columns else part for part in (x, grad))
    forward = product(given_x, weight, any_order=any_order)
    back = product_back(given_grad, weight, any_order=any_order)
    torch.testing.assert_close(forward, x @ weight.t())
    torch.testing.assert_close(back, grad @ weight)
    total = add_product_back(torch.ones(rows, into), given_grad, weight)
    torch.testing.assert_close(total, 1 + grad @ weight)
    if not any_order:
        assert forward.is_contiguous()
        assert back.is_contiguous()


def test_weights_go_first_in_float32_on_a_host_only() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert lies_by_columns(product(x, weight, any_order=True))
    assert not lies_by_columns(product(x, weight))
    assert not lies_by_columns(product(x.bfloat16(), weight.bfloat16(), any_order=True))
    assert not lies_by_columns(product(x.to("meta"), weight.to("meta"), any_order=True))


@pytest.mark.parametrize("rows", [1, 6])
def test_a_result_by_rows_is_not_on_passing_memory(rows: int) -> None:
    x, weight = torch.randn(rows, 4), torch.randn(5, 4)
    first = product(x, weight)
    kept = first.clone()
    product(10 * x, weight)
    passing(x.shape, x).fill_(7.0)
    assert torch.equal(first, kept)


def test_passing_memory_is_one_thread_s_and_of_the_asked_shape_and_type() -> None:
    like = torch.randn(2, 3)
    large = passing((8, 4), like)
    assert passing((5,), like).data_ptr() == large.data_ptr()
    found: list[torch.Tensor] = []
    other = threading.Thread(target=lambda: found.append(passing((8, 4), like)))
    other.start()
    other.join()
    assert found[0].data_ptr() != large.data_ptr()
    half = passing((8, 4), like.bfloat16())
    assert (half.dtype, half.shape) == (torch.bfloat16, (8, 4))
    assert half.data_ptr() != large.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_the_plain_product(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(3, 4, dtype=dtype), torch.randn(5, 4, dtype=dtype)
    torch.testing.assert_close(product(x, weight), x @ weight.t())
    grad, total = torch.randn(3, 5, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    torch.testing.assert_close(product_back(grad, weight), grad @ weight)
    expected = total + grad @ weight
    torch.testing.assert_close(add_product_back(total, grad, weight), expected)


@pytest.mark.parametrize("lacks", [False, True])
def test_sixteen_bits_are_alike_with_units_for_them_and_without(
    monkeypatch: pytest.MonkeyPatch, lacks: bool
) -> None:
    monkeypatch.setattr(matmul, "_lacks_units", lambda _dtype: lacks)
    torch.manual_seed(5)
    held, grad = torch.randn(50, 40), torch.randn(30, 50).bfloat16()
    found = product_back(grad, held)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, grad @ held.bfloat16())


@pytest.mark.parametrize("first", ["inference", "dtype", "device"])
def test_passing_memory_serves_whoever_asked_first_and_everyone_after(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(matmul, "_buffer", matmul._Buffer())
    torch.manual_seed(1)
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    contexts: dict[str, AbstractContextManager[Any]] = {
        "inference": torch.inference_mode(),
        "dtype": default_dtype(torch.float64),
        "device": torch.device("meta"),
    }
    with contexts[first]:
        inside = product(x, weight)
    torch.testing.assert_close(inside, x @ weight.t())
    torch.testing.assert_close(product(2 * x, weight), 2 * x @ weight.t())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
