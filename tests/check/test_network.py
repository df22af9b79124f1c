"""Ports that ranks cannot reach, and names that lead elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from machines import machine, only
from trainmark.check.doctor import network

RANGE = "proc/sys/net/ipv4/ip_local_port_range"


@pytest.mark.parametrize(
    ("text", "severity"),
    [("32768 60999", "fine"), ("32768 32895", "fine"), ("32768 32894", "stops")],
)
def test_ports_are_counted_for_the_ranks(tmp_path, text, severity):
    found = only(network.ports(machine(tmp_path, {RANGE: text}, nproc=2)))
    assert found.severity == severity
    assert "32768" in found.what


def test_a_loopback_address_that_cannot_be_bound_stops_a_run(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(network.socket, "create_server", refuse)
    found = only(network.ports(machine(tmp_path)))
    assert (found.severity, "Address already in use" in found.what) == ("stops", True)


def resolves_to(*addresses):
    return lambda *_: [(0, 0, 0, "", (address, 0)) for address in addresses]


def test_the_name_of_this_host_is_looked_up(tmp_path, monkeypatch):
    card = SimpleNamespace(address="198.51.100.3")
    monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: {"eth0": [card]})
    for address, severity in (
        ("127.0.0.1", "fine"), ("127.0.1.1", "fine"), ("::1", "fine"), ("198.51.100.3", "fine"),
        # of the block for documentation, RFC 5737: of no interface here
        ("192.0.2.7", "unknown"),
    ):  # fmt: skip
        monkeypatch.setattr(network.socket, "getaddrinfo", resolves_to(address, address))
        found = only(network.host_name(machine(tmp_path)))
        assert (found.severity, found.what.count(address)) == (severity, 1 + bool(found.remedy))
    assert "/etc/hosts" in found.remedy
