"""Hooks do the program's call, whatever happens to the probe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
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
        self.epoch_numbers: list[int] = []  # for each batch, the number of its epoch
        self.errors: list[BaseException] = []
        # What the hooks use of a rank: its device, and where it counts batches.
        self.rank = SimpleNamespace(device=device, batches=SimpleNamespace(add=self.add_batch))

    def add_batch(self, _dataset: int, batch: Any, _marks: Any, *, epoch_number: int) -> None:
        """Keep a batch that was reported, and the number of its epoch."""
        self.batches.append(batch.tolist())
        self.epoch_numbers.append(epoch_number)

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


@pytest.mark.parametrize(
    "options",
    [
        # Each epoch has an iterator of its own, which may get the id of the one before it.
        {},
        # One iterator is used for all epochs.
        {"num_workers": 1, "persistent_workers": True},
    ],
)
def test_each_epoch_has_its_own_number(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    # ``monkeypatch`` puts back what the hooks replace.
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
    hooks._hook_loaders()
    watched = WatchedProcess(FailingDevice(first_failure=100))  # more calls than it gets
    monkeypatch.setattr(hooks, "process", watched)
    loader = DataLoader(torch.arange(4), batch_size=2, **options)
    for _ in range(3):
        for _ in loader:
            pass
    first, second, third = sorted(set(watched.epoch_numbers))
    assert watched.epoch_numbers == [first, first, second, second, third, third]
    assert not watched.errors


def test_epoch_that_is_left_early_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # The program reads one batch of two in each of two epochs. 100: more calls of the device than
    # there are. ``monkeypatch`` puts back what the hooks replace.
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
    hooks._hook_loaders()
    watched = WatchedProcess(FailingDevice(first_failure=100))
    monkeypatch.setattr(hooks, "process", watched)
    loader = DataLoader(torch.arange(4), batch_size=2)
    for _ in range(2):
        next(iter(loader))
    assert len(set(watched.epoch_numbers)) == 2


def test_backward_pass_within_another_one_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpointed block calls ``torch.autograd.backward`` within the pass, for its own part."""
    # ``monkeypatch`` puts back what the hooks replace.
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    hooks._hook_backward(torch)
    losses: list[Any] = []  # of the backward passes that the hooks report
    rank = SimpleNamespace(note_backward=losses.append)
    monkeypatch.setattr(hooks, "process", SimpleNamespace(is_watching=True, rank=rank))
    layer = torch.nn.Linear(2, 2)
    values = torch.ones(1, 2, requires_grad=True)
    for _ in range(3):
        values = checkpoint(layer, values, use_reentrant=True)
    loss = values.sum()
    loss.backward()
    assert losses == [loss]
    loss.detach().requires_grad_().backward()  # a further pass after this one counts again
    assert losses == [loss, loss]  # another tensor, of the same value


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
