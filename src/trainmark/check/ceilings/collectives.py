"""Collectives between ranks as work to time, and what ranks agree on meanwhile.

What ranks tell each other goes through a store, because the collectives that are measured may be
wrong.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from trainmark.devices import rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Device

_STEP = 1024.0  # between the numbers that two ranks send, larger than any of the pattern's


class Ranks:
    """All ranks of a measurement on one machine, as one of them sees them.

    Args:
        store: of ``torch.distributed``; None for a single rank.
    """

    def __init__(self, store: Any, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self._store = store
        self._turn = 0

    @classmethod
    @contextmanager
    def joined(cls, backend: str, rank: int, count: int) -> Iterator[Ranks]:
        """Join the other ranks at the address that the environment names."""
        import torch.distributed

        if count == 1:
            yield cls(None, rank, count)
            return
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            address, port, count, is_master=rank == 0
        )
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=count)
        own = torch.distributed.PrefixStore("trainmark", store)  # type: ignore[attr-defined]
        yield cls(own, rank, count)
        torch.distributed.destroy_process_group()
        own.set(f"ended/{rank}", "")
        if rank == 0:  # the store ends with this process
            own.wait([f"ended/{other}" for other in range(count)])

    def most(self, value: float) -> float:
        """Return the largest ``value`` of all ranks; waits for all of them."""
        if self.count == 1:
            return value
        self._turn += 1
        self._store.set(f"{self._turn}/{self.rank}", repr(float(value)))
        values = (self._store.get(f"{self._turn}/{rank}") for rank in range(self.count))
        return max(float(one) for one in values)

    def clock(self) -> int:
        """Return the latest rank's time: on one machine all have one clock."""
        return int(self.most(perf_counter_ns()))

    def elapsed_ns(self, device: Device, run: Callable[[], object]) -> int:
        """Return the time of the slowest rank; all begin together."""
        import torch.distributed

        torch.distributed.barrier()
        return int(self.most(rates.elapsed_ns(device, run)))

    def fault(self, found: Any, expected: Any) -> str | None:
        """Tell what is wrong with this rank's result, or that another one's is."""
        mine = rates.difference(found, expected)
        anywhere = self.most(float(mine is not None))
        return mine or ("wrong on another rank" if anywhere else None)


def _all_reduce(device: Device, ranks: Ranks, size_bytes: int) -> rates.Work:
    """Return the sum over ranks of ``size_bytes`` of fp32 numbers, in place."""
    import torch.distributed

    # Of up to 4096 ranks every partial sum is below 2**24, and so exact.
    value = device.place(rates.pattern(size_bytes) + ranks.rank)
    count = ranks.count
    expected = device.place(rates.pattern(size_bytes) * count + count * (count - 1) // 2)
    return rates.Work(
        partial(torch.distributed.all_reduce, value), lambda: ranks.fault(value, expected)
    )


def _all_to_all(device: Device, ranks: Ranks, size_bytes: int) -> rates.Work:
    """Return an exchange of an even part of ``size_bytes`` of fp32 numbers with every rank."""
    import torch
    import torch.distributed

    size_bytes -= size_bytes % (4 * ranks.count)
    numbers = rates.pattern(size_bytes)
    sent = device.place(numbers + _STEP * ranks.rank)
    mine = numbers.chunk(ranks.count)[ranks.rank]
    expected = device.place(torch.cat([mine + _STEP * rank for rank in range(ranks.count)]))
    received = torch.zeros_like(sent)
    return rates.Work(
        partial(torch.distributed.all_to_all_single, received, sent),
        lambda: ranks.fault(received, expected),
    )


COLLECTIVES = {"all_reduce": _all_reduce, "all_to_all": _all_to_all}
