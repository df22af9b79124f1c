"""Collectives of a rank run on the rank's own device."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.machine.ceilings_work import RankGroup
from trainmark.rank.process_group import join_ranks, leave_ranks

Calls = list[dict[str, Any]]


class FakeGroup:
    """A process group that is bound to a device, and its only backend."""

    def __init__(self, *, supports_splitting: bool) -> None:
        self.supports_splitting = supports_splitting
        self.bound_device_id: torch.device | None = torch.device("cuda", 1)

    def _get_backend(self, _device: torch.device) -> FakeGroup:
        return self


@pytest.fixture
def group_arguments(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return the arguments of each call of a fake ``init_process_group``.

    The list is empty at first; each call adds its arguments by name.
    """
    arguments: Calls = []

    def init_process_group(backend: str, **options: Any) -> None:
        arguments.append({"backend": backend, **options})

    # The other functions do nothing; the world is a group that can be split.
    for name in ("new_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda **_: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", init_process_group)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    world = SimpleNamespace(WORLD=FakeGroup(supports_splitting=True))
    monkeypatch.setattr(torch.distributed, "group", world)
    return arguments


@pytest.fixture
def second_card(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return device 1 of two that torch knows."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    # All that a test needs of a tensor that was put on the device.
    placed_tensor = SimpleNamespace(device=torch.device("cuda", 1))
    return SimpleNamespace(place=lambda _value: placed_tensor)


def test_rank_binds_its_own_device(group_arguments: Calls, second_card: Any) -> None:
    # ``second_card`` is the second of two devices, ``group_arguments`` has the arguments with which
    # ``join_ranks`` called torch's ``init_process_group``.
    join_ranks("nccl", second_card, timeout_s=60.0)
    assert group_arguments == [
        {
            "backend": "nccl",
            "timeout": timedelta(seconds=60),
            "device_id": torch.device("cuda", 1),
        }
    ]


def test_rank_of_ceilings_binds_its_own_device(group_arguments: Calls, second_card: Any) -> None:
    with RankGroup.join("nccl", second_card, rank=3, count=4):
        assert [call["device_id"] for call in group_arguments] == [torch.device("cuda", 1)]


def test_device_that_torch_does_not_count_is_not_bound(
    group_arguments: Calls, second_card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``second_card`` is the second of two devices, ``group_arguments`` has the arguments of each
    # call of ``init_process_group``. Torch counts accelerators only, no CPU.
    join_ranks("gloo", CpuDevice(threads=torch.get_num_threads()))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)  # so there is no device 1
    join_ranks("nccl", second_card)
    assert [call["device_id"] for call in group_arguments] == [None, None]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:gloo"])
def test_device_that_gloo_serves_is_not_bound(
    backend: str, group_arguments: Calls, second_card: Any
) -> None:
    # ``second_card`` is an accelerator, ``group_arguments`` has the arguments of each call of
    # ``init_process_group``. Torch cannot split a group of gloo that is bound to a device.
    join_ranks(backend, second_card)
    assert group_arguments[0]["device_id"] is None


@pytest.mark.usefixtures("group_arguments")
@pytest.mark.parametrize("supports_splitting", [True, False])
def test_only_group_that_can_be_split_stays_bound(
    supports_splitting: bool, second_card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fake group, which stands for the one of all ranks, begins as bound to a device.
    group = FakeGroup(supports_splitting=supports_splitting)
    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD=group))
    join_ranks("nccl", second_card)
    # A group that is bound to a device makes others by splitting itself, which fails if its backend
    # cannot do so; ``join_ranks`` then undoes the binding.
    assert (group.bound_device_id is not None) == supports_splitting


@pytest.mark.parametrize(
    ("backend", "num_destroyed"), [("gloo", 0), ("cpu:gloo,cuda:gloo", 0), ("nccl", 1)]
)
def test_groups_of_gloo_are_left_to_the_end_of_the_process(
    backend: str, num_destroyed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their destructor may wait for ever for a thread that waits for Python's lock."""
    calls: list[None] = []
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append(None))
    leave_ranks()
    assert len(calls) == num_destroyed


def test_timeout_is_below_the_overflow_limit(group_arguments: Calls, second_card: Any) -> None:
    join_ranks("nccl", second_card, timeout_s=1e300)
    assert group_arguments[0]["timeout"] == timedelta(days=30)
