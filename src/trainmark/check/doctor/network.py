"""The network as ranks of one machine use it: ports, the loopback address, the host's name."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import psutil

from trainmark.check.doctor.subject import Conditions, Subject, judged

_TIMEOUT_S = 5.0
_PORTS_PER_RANK = 64  # one for each connection to another rank, and those of the libraries


def ports(subject: Subject) -> Conditions:
    """Connect to a port as ranks do, and count those that the kernel gives out."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_TIMEOUT_S).close()
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


def host_name(_: Subject) -> Conditions:
    """Look this host's own name up, as collective libraries do to choose an address."""
    remedy = "give the name its address in /etc/hosts; ranks may fall back to 127.0.0.1 until then"
    try:
        addresses = socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        yield judged(f"this host's own name does not resolve: {error}", remedy, unknown=True)
        return
    found = sorted({str(address[4][0]) for address in addresses})
    ours = {one.address for some in psutil.net_if_addrs().values() for one in some}
    foreign = [one for one in found if one not in ours and not ip_address(one).is_loopback]
    what = f"this host's own name is {', '.join(found)}"
    if foreign:
        what += f", of no interface here: {', '.join(foreign)}"
    yield judged(what, remedy, unknown=bool(foreign))
