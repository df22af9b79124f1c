"""Networks through which ranks could not reach one another are refused before they start."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from support.fakes import FakeVendor
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.network import LOOPBACK, refuse_unusable_network

NO_LOOPBACK = ("unshare", "--net", "--map-root-user")  # a network whose loopback is down
INTERFACES = ("lo", "eth0", "ib0", "ib1")


@pytest.fixture
def machine(monkeypatch):
    """Imitate a machine with the interfaces lo, eth0, ib0 and ib1, of which ``ib1`` is down.

    Its addresses, both of eth0, are an IPv4 and an IPv6 one; "%eth0" is the latter's scope.
    """
    states = {name: SimpleNamespace(isup=name != "ib1") for name in INTERFACES}
    addresses = [
        SimpleNamespace(family=socket.AF_INET, address="10.0.0.7"),
        SimpleNamespace(family=socket.AF_INET6, address="fe80::7%eth0"),
    ]
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": addresses})


def check_network(
    backend: str = "gloo", recorded: tuple[str, ...] = (), nproc: int = 2, **variables: str
):
    """Check the network of ranks with these environment variables.

    The ranks would meet at the host ``node0``; it is not asked for.

    Args:
        backend: library through which ranks exchange data, as torch names it.
        recorded: patterns of further variables that the vendor's library reads.
        nproc: number of ranks.
        variables: environment variables by name.
    """
    vendor = FakeVendor(collective_backend=backend, recorded_variables=recorded)
    refuse_unusable_network(variables, vendor, world_size=nproc, master="node0")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("backend", "name", "value"),
    [
        ("gloo", "GLOO_SOCKET_IFNAME", "eth9"),
        ("gloo", "GLOO_SOCKET_IFNAME", "eth0,eth9"),
        ("gloo", "GLOO_SOCKET_IFNAME", "eth"),  # Gloo takes whole names only
        ("gloo", "GLOO_SOCKET_IFNAME", "ib1"),
        ("nccl", "NCCL_SOCKET_IFNAME", "bond"),
        ("nccl", "NCCL_SOCKET_IFNAME", "=eth"),  # "=": whole names, not beginnings
        ("nccl", "NCCL_SOCKET_IFNAME", "^lo,eth,ib"),  # "^": all others
        ("nccl", "NCCL_SOCKET_IFNAME", "ib1"),
        ("hccl", "HCCL_SOCKET_IFNAME", "enp"),
        ("hccl", "HCCL_IF_IP", "10.0.0.8"),
        ("hccl", "HCCL_IF_IP", "node0"),  # a host name is no address
        ("cncl", "CNCL_SOCKET_IFNAME", ","),  # a list without a name
    ],
)
def test_variable_that_names_no_interface_is_refused(backend, name, value):
    """``machine`` has eth0, ib0, lo, an ib1 that is down, and two addresses.

    ``backend`` is the library through which ranks exchange data, which reads the variable ``name``.
    Most take the beginning of an interface's name. The error lists what could be named instead.
    """
    with pytest.raises(UsageError) as refused:
        check_network(backend, **{name: value})
    assert refused.value.where == f"environment variable {name}={value}"
    if name == "HCCL_IF_IP":
        usable = "10.0.0.7, fe80::7"
    else:
        usable = "eth0, ib0, lo; interfaces that are down: ib1"
    assert refused.value.rule.endswith(usable)
    assert name in refused.value.fix


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("backend", "name", "value"),
    [
        ("gloo", "GLOO_SOCKET_IFNAME", "eth0"),
        ("gloo", "GLOO_SOCKET_IFNAME", "eth0,ib0"),
        ("gloo", "GLOO_SOCKET_IFNAME", ""),  # empty is the same as unset
        ("nccl", "NCCL_SOCKET_IFNAME", "ib"),
        ("nccl", "NCCL_SOCKET_IFNAME", "bond,eth"),
        ("nccl", "NCCL_SOCKET_IFNAME", "=ib0"),
        ("nccl", "NCCL_SOCKET_IFNAME", "^lo,docker"),
        ("hccl", "HCCL_IF_IP", "10.0.0.7"),
        ("hccl", "HCCL_IF_IP", "fe80::7"),
        ("hccl", "HCCL_IF_IP", "FE80:0::0007%eth0"),  # the same address, written otherwise
        # Of a library that these ranks do not use.
        ("gloo", "NCCL_SOCKET_IFNAME", "bond"),
        ("nccl", "GLOO_SOCKET_IFNAME", "bond"),
        ("nccl", "NCCL_DEBUG", "INFO"),
    ],
)
def test_variable_that_names_an_interface_is_accepted(backend, name, value):
    check_network(backend, **{name: value})


@pytest.mark.usefixtures("machine")
def test_variable_that_the_vendor_records_is_checked_whatever_its_prefix():
    """The library is ``nccl`` to torch, but its own variables begin with ``BKCL_``.

    The fixture ``machine`` has no interface whose name begins with ``bond``.

    ``recorded``: names of the variables that the vendor's library reads.
    """
    with pytest.raises(UsageError):
        check_network("nccl", recorded=("BKCL_*",), BKCL_SOCKET_IFNAME="bond")


@pytest.mark.usefixtures("machine")
def test_single_rank_needs_no_network():
    check_network("nccl", nproc=1, NCCL_SOCKET_IFNAME="bond")


def test_loopback_that_does_not_work_is_refused(monkeypatch):
    """``LOOPBACK`` is the address at which ranks of a single machine meet.

    No variable names an interface (``{}``). 101 is the number of the error that the kernel gives.
    """

    def raise_unreachable(*_, **__):
        raise OSError(101, "Network is unreachable")

    vendor = FakeVendor()
    refuse_unusable_network({}, vendor, world_size=2, master=LOOPBACK)  # this machine's works
    monkeypatch.setattr(socket, "create_connection", raise_unreachable)
    with pytest.raises(EnvironmentFault, match="Network is unreachable"):
        refuse_unusable_network({}, vendor, world_size=2, master=LOOPBACK)
    # Not refused: a single rank, and ranks that connect through another interface.
    refuse_unusable_network({}, vendor, world_size=1, master=LOOPBACK)
    refuse_unusable_network({}, vendor, world_size=2, master="node0")


@pytest.mark.parametrize(
    # One run, and several launches of one: both are refused as a whole.
    ("words", "variables"),
    [((), {"GLOO_SOCKET_IFNAME": "eth9"}), (("--repeat", "2"), {})],
)
def test_run_is_refused_before_anything_starts(tmp_path, words, variables):
    """A variable names no interface, or, if there are no ``variables``, the loopback is down.

    ``NO_LOOPBACK`` is the beginning of a command line: it runs the words after it in a network
    whose loopback is down. The exit code of a run that is refused is 2.
    """
    prefix = () if variables else NO_LOOPBACK
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel gives a test no network of its own")
    process = subprocess.run(
        [
            *prefix,
            sys.executable,
            *shlex.split("-m trainmark run toy --device cpu --nproc 2 --out run"),
            *words,
        ],
        env=os.environ | variables | {"TRAINMARK_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout) == (2, "")
    refused = "loopback interface lo"
    if variables:
        refused = "environment variable GLOO_SOCKET_IFNAME=eth9"
    assert process.stderr.startswith(f"trainmark: {refused}")
    assert not (tmp_path / "run").exists()
