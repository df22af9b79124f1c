"""Ports that ranks cannot reach, and names that lead elsewhere."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from machines import machine, only
from trainmark.doctor import network

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
    @contextmanager
    def held():
        raise OSError(98, "Address already in use")
        yield 0

    monkeypatch.setattr(network, "held_port", held)
    found = only(network.ports(machine(tmp_path)))
    assert (found.severity, "Address already in use" in found.what) == ("stops", True)


def test_a_port_that_nobody_answers_at_stops_a_run(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(network.socket, "create_connection", refuse)
    assert only(network.ports(machine(tmp_path))).severity == "stops"


def test_the_name_of_this_host_is_looked_up(tmp_path):
    here = only(network.host_name(machine(tmp_path)))
    assert (here.severity, "127.0.0.1" in here.what) == ("fine", True)
    # of the block for documentation, RFC 5737: of no interface here
    far = machine(tmp_path, addresses=lambda: frozenset({"192.0.2.7"}))
    found = only(network.host_name(far))
    assert (found.severity, "192.0.2.7" in found.what) == ("unknown", True)
    assert "/etc/hosts" in found.remedy


def test_a_name_that_does_not_resolve_is_told(tmp_path):
    def none():
        raise OSError("Name or service not known")

    found = only(network.host_name(machine(tmp_path, addresses=none)))
    assert (found.severity, "not known" in found.what) == ("unknown", True)
