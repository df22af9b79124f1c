"""The network as ranks of one machine use it: ports, the loopback address, the host's name."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from trainmark.doctor.subject import judged
from trainmark.launch.local import held_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.doctor.subject import Subject
    from trainmark.protocols import Condition

_TIMEOUT_S = 5.0
_PORTS_PER_RANK = 64  # one for each connection to another rank, and those of the libraries


def ports(subject: Subject) -> Iterator[Condition]:
    """Connect to a port as ranks do, and count those that the kernel gives out."""
    try:
        with held_port() as port, socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
            socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S).close()
    except OSError as error:
        remedy = "see `ip address show lo` and the firewall's rules; end what holds all ports"
        yield judged(f"127.0.0.1 cannot be reached: {error}", remedy, stops=True)
        return
    text = (subject.root / "proc/sys/net/ipv4/ip_local_port_range").read_text()
    low, high = (int(word) for word in text.split())
    yield judged(
        f"127.0.0.1 reached; the kernel gives out {low} to {high}",
        f"allow {_PORTS_PER_RANK} ports a rank: `sysctl net.ipv4.ip_local_port_range`",
        stops=high - low + 1 < _PORTS_PER_RANK * subject.nproc,
    )


def host_name(subject: Subject) -> Iterator[Condition]:
    """Look this host's own name up, as collective libraries do to choose an address."""
    try:
        found = sorted(subject.addresses())
        foreign = [address for address in found if not _is_ours(address)]
        what = f"this host's own name is {', '.join(found)}, of no interface here: {foreign}"
    except OSError as error:
        found, foreign = [], ["none"]
        what = f"this host's own name does not resolve: {error}"
    yield judged(
        f"this host's own name is {', '.join(found)}" if not foreign else what,
        "give the name its address in /etc/hosts; ranks may fall back to 127.0.0.1 until then",
        unknown=bool(foreign),
    )


def _is_ours(address: str) -> bool:
    """Tell whether a socket can be bound to an address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True
