"""What replicas exchange: gradients once each, buffers never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from support.old_torch import needs_fsdp
from support.real_ranks import call_on_ranks
from support.tiny_training import (
    make_rows,
    measure_sharded_gradients,
    new_model,
    read_weights,
    train_step_and_read_buffer,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")


@needs_fsdp
def test_rank_of_sharded_model_holds_only_shards_of_gradients(tmp_path: Path) -> None:
    # Weights of 5 x 6, 5, 1 x 5 and 1 numbers, cut by rows: 3 rows and 2, and 1 row and none.
    first, second = call_on_ranks(2, tmp_path, measure_sharded_gradients)
    assert first["sizes"] == [[18, 3, 5, 1]] * 2  # after each micro-batch
    assert second["sizes"] == [[12, 2, 0, 0]] * 2
    # Both ranks have the weights of one that trains the same 32 rows alone.
    features, targets = make_rows()
    plain_model = new_model()
    loss = ((plain_model(features[:32]) - targets[:32]) ** 2).mean()
    loss.backward()
    torch.optim.SGD(plain_model.parameters(), lr=0.05).step()
    for results in (first, second):
        torch.testing.assert_close(
            results["weights"], read_weights(plain_model), rtol=1e-6, atol=1e-6
        )


def test_buffers_of_replicas_are_not_exchanged(tmp_path: Path) -> None:
    # Each rank keeps its own number.
    assert call_on_ranks(2, tmp_path, train_step_and_read_buffer) == [1.0, 2.0]
