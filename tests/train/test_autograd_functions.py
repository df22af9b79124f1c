"""Every autograd function of the project has the same gradients compiled as in eager mode.

Each is called the way the cases call it. A new one needs an entry in ``CALLS``: the source is
searched for them.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import trainmark
from trainmark.train.kernels.attention import Prefix, attention, attention_forward
from trainmark.train.kernels.linear_cross_entropy import linear_cross_entropy_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Computes something, and what its gradients are taken for.
    Call = tuple[Callable[[], Tensor], list[Tensor]]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # The compiler makes an instance of each autograd function that it meets.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # It looks for one wherever a graph begins with what another has computed.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def trained(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def whole_loss() -> Call:
    inputs = trained((9, 8), (11, 8))
    targets = torch.arange(9)
    # Times one: what is scored was computed in the same graph.
    return lambda: linear_cross_entropy_sum(*(x * 1 for x in inputs), targets), inputs


def loss_in_blocks() -> Call:
    inputs = trained((9, 8), (12, 8))
    targets = torch.tensor([0, 3, -100, 2, 10, -100, 4, 4, 1])

    def call() -> Tensor:
        return linear_cross_entropy_sum(
            *inputs, targets, classes=11, ignored=-100, scores_at_once=40
        )

    return call, inputs


def loss_of_a_frozen_head() -> Call:
    hidden, weight = trained((9, 8), (11, 8))
    weight.requires_grad_(False)
    return lambda: linear_cross_entropy_sum(hidden, weight, torch.arange(9)), [hidden]


def sixteen_bit_loss() -> Call:
    inputs = trained((9, 8), (11, 8))

    def call() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return linear_cross_entropy_sum(*inputs, torch.arange(9))

    return call, inputs


def attention_of(rows: int, heads: int, length: int, **seen: Any) -> Call:
    inputs = trained(*[(rows, heads, length, 4)] * 3)
    return lambda: attention(*inputs, dropout=0.3, **seen), inputs


def library_attention(heads: int, length: int) -> Call:
    inputs = trained(*[(2, heads, length, 4)] * 3)
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool)
    mask[1, ..., 4:] = False
    return lambda: attention_forward(nn.Module(), *inputs, mask)[0], inputs


PREFIX = Prefix(torch.tensor([3, 0]), 5)
CALLS: dict[str, list[Callable[[], Call]]] = {
    "_LinearCrossEntropy": [whole_loss, loss_in_blocks, loss_of_a_frozen_head, sixteen_bit_loss],
    "_Attention": [
        lambda: library_attention(3, 6),
        lambda: library_attention(1, 6),  # a result that lies as it should is not copied
        lambda: attention_of(2, 3, 5),
        lambda: attention_of(2, 1, 5, is_causal=True),
        lambda: attention_of(2, 3, 1),
        lambda: attention_of(2, 3, 5, prefix=PREFIX),
    ],
}


# Recipes of this case refuse compile=true.
NEVER_COMPILED = Path("cases/dlrm_criteo")


def in_source() -> Iterator[str]:
    """Yield the name of every class that derives from torch's ``Function``."""
    root = Path(trainmark.__file__).parent
    for file in root.rglob("*.py"):
        if file.parent == root / NEVER_COMPILED:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                if "Function" in bases:
                    yield node.name


def nodes(result: Tensor) -> set[str]:
    """Return the names of the functions in the graph of ``result``."""
    found, waiting = set(), [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return {type(node).__name__ for node in found}


def test_every_autograd_function_is_called_here() -> None:
    assert sorted(in_source()) == sorted(CALLS)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, calls in CALLS.items() for n in range(len(calls))]
)
def test_compiled_gradients_are_those_of_eager_mode(name: str, number: int, backend: str) -> None:
    call, inputs = CALLS[name][number]()
    torch.manual_seed(8)  # what is dropped
    result = call()
    assert f"{name}Backward" in nodes(result)
    grad = torch.randn_like(result)
    expected = torch.autograd.grad(result, inputs, grad)
    assert all(item.any() for item in expected)
    torch.compiler.reset()
    compiled = torch.compile(call, backend=backend)
    for _ in range(2):  # what one call leaves behind must not reach into the next one's graph
        torch.manual_seed(8)
        again = compiled()
        torch.testing.assert_close(again, result, rtol=1e-4, atol=1e-5)
        found = torch.autograd.grad(again, inputs, grad)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
