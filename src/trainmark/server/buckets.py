"""How often an address may ask: a token bucket each, in bounded memory."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS_AT_ONCE = 10  # of the rate, that may be used up in one moment: a page asks for its parts
_MOST = 10_000  # addresses; the one that asked the longest ago is forgotten first


class Buckets:
    """Token buckets by address.

    Args:
        rate: requests a second over a longer time; 0: any number.
        clock: seconds that only grow.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._full = max(1.0, rate * _SECONDS_AT_ONCE)
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, address: str) -> float:
        """Take one request; return 0, or the seconds until there is one to take."""
        if not self._rate:
            return 0.0
        now, key = self._clock(), _network(address)
        held, at = self._held.pop(key, (self._full, now))
        held = min(self._full, held + (now - at) * self._rate)
        enough = held >= 1.0
        self._held[key] = (held - enough, now)
        if len(self._held) > _MOST:
            self._held.popitem(last=False)
        return 0.0 if enough else (1.0 - held) / self._rate


def _network(address: str) -> str:
    """Return whose address it is: of IPv6 a customer has 2**64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # of a socket without addresses
        return address
    return str(found) if found.version == 4 else str(int(found) >> 64)
