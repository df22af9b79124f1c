"""Hooks do the program's call, whatever happens to the probe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainmark.witness import hooks


class FailingDevice:
    """A device whose marks fail, from the call ``first_failure`` on, counted from 0."""

    def __init__(self, first_failure: int) -> None:
        self.first_failure = first_failure
        self.calls = 0

    def mark(self) -> int:
        """Return the number of the call, or fail."""
        self.calls += 1  # so it is 1 in the first call, whose number is 0 in ``first_failure``
        if self.calls > self.first_failure:
            raise RuntimeError("the device is lost")
        return self.calls


class WatchedProcess:
    """A process that is a rank, and stops watching at the first error of the probe."""

    def __init__(self, device: FailingDevice) -> None:
        self.is_watching = True
        self.batches: list[Any] = []
        self.errors: list[BaseException] = []
        # What the hooks use of a rank: its device, and where it counts batches.
        self.rank = SimpleNamespace(device=device, batches=SimpleNamespace(add=self.add_batch))

    def add_batch(self, _dataset: int, batch: Any, _marks: Any, *, iterator_id: int) -> None:
        """Keep a batch that was reported."""
        assert iterator_id
        self.batches.append(batch.tolist())

    def report_probe_error(self, error: BaseException) -> None:
        """Keep the error, and stop watching."""
        self.errors.append(error)
        self.is_watching = False


@pytest.mark.parametrize(
    ("first_failure", "reported"),
    [
        # The device is marked before and after each fetch of a batch.
        (0, []),  # fails before the first fetch
        (1, []),  # fails after it
        (2, [[0, 1]]),  # fails before the second fetch
    ],
)
def test_program_gets_all_batches_if_the_device_fails(
    monkeypatch: pytest.MonkeyPatch, first_failure: int, reported: list[list[int]]
) -> None:
    # The hooks report each batch with the device's marks. At the first error they stop, so
    # ``reported`` are the batches before it. The program must get all three batches of two numbers
    # in any case. ``monkeypatch`` puts back what the hooks replace.
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
    hooks._hook_loaders()
    watched = WatchedProcess(FailingDevice(first_failure))
    monkeypatch.setattr(hooks, "process", watched)
    batches = [batch.tolist() for batch in DataLoader(torch.arange(6), batch_size=2)]
    assert batches == [[0, 1], [2, 3], [4, 5]]
    assert watched.batches == reported
    assert [str(error) for error in watched.errors] == ["the device is lost"]


def test_checkpoint_that_fails_ends_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may catch the error and train on: its training must not count as a pause."""

    def fail_to_save(_value: object, _file: object) -> None:
        raise OSError("the disk is full")

    # ``monkeypatch`` puts back what the hooks replace.
    monkeypatch.setattr(torch, "save", fail_to_save)
    for name in ("train", "load_state_dict"):
        monkeypatch.setattr(torch.nn.Module, name, getattr(torch.nn.Module, name))
    hooks._hook_pauses(torch)
    calls: list[str] = []  # what the hooks report: that a pause began, and that it ended
    rank = SimpleNamespace(
        pause=lambda name: calls.append(f"pause {name}"),
        resume_after=lambda name: calls.append(f"resume after {name}"),
    )
    monkeypatch.setattr(hooks, "process", SimpleNamespace(is_watching=True, rank=rank))
    with pytest.raises(OSError, match="the disk is full"):
        torch.save({}, "checkpoint")
    assert calls == ["pause checkpoint", "resume after checkpoint"]
