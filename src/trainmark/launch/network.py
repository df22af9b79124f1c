"""Find what would keep ranks from reaching one another, before they are started.

A collective library that is told of an interface that is not there fails after the ranks have
started, or waits until the time limit of the run. Knows no vendor: which library a variable
configures follows from the vendor's backend and from the variables that it records.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import psutil

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.environment import is_recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import Vendor

LOOPBACK = "127.0.0.1"
_INTERFACES = re.compile(r"_(SOCKET_IFNAME|KVS_IFACE)$")
_ADDRESS = re.compile(r"_IF_IP$")
_EXACT = ("GLOO_", "CCL_")  # libraries that take whole names alone, no beginnings of names
_PATIENCE_S = 10.0  # with the kernel's own answer


def refuse_unusable_network(
    variables: Mapping[str, str], vendor: Vendor, *, world_size: int, master: str
) -> None:
    """Refuse ranks that could not reach one another from this machine.

    Args:
        variables: the environment of the ranks.
        master: host where they meet.

    Raises:
        UsageError: a variable names an interface or an address that this machine does not have.
        EnvironmentFault: the ranks meet on the loopback interface, which does not work.
    """
    if world_size == 1:
        return
    for name, value in sorted(variables.items()):
        if not value or not _is_of_backend(name, vendor):
            continue
        if _INTERFACES.search(name):
            _refuse_absent_interfaces(name, value)
        elif _ADDRESS.search(name):
            _refuse_absent_address(name, value)
    if master == LOOPBACK:
        _refuse_without_loopback()


def _is_of_backend(name: str, vendor: Vendor) -> bool:
    """Tell whether a variable configures the library through which the ranks communicate."""
    is_of_library = name.startswith(f"{vendor.collective_backend.upper()}_")
    return is_of_library or any(is_recorded(name, x) for x in vendor.recorded_variables)


def _refuse_absent_interfaces(name: str, value: str) -> None:
    """Refuse a list of interfaces of which one is not there or not up.

    As libraries document it (2026-11): names are the beginnings of names, after ``=``
    whole ones, after ``^`` those to leave out. Gloo and oneCCL take whole names.
    """
    states = {interface: state.isup for interface, state in psutil.net_if_stats().items()}
    up = [interface for interface, is_up in states.items() if is_up]
    is_exact = name.startswith(_EXACT) or value.removeprefix("^").startswith("=")
    wanted = [
        name_part for name_part in value.removeprefix("^").removeprefix("=").split(",") if name_part
    ]

    def matching(beginning: str) -> list[str]:
        return [x for x in up if x == beginning or (x.startswith(beginning) and not is_exact)]

    if value.startswith("^"):
        excluded = {interface for name_part in wanted for interface in matching(name_part)}
        if set(up) > excluded:
            return
        what = "leaves out every interface that is up"
    elif name.startswith(_EXACT):  # each is used
        missing = [name_part for name_part in wanted if not matching(name_part)]
        if wanted and not missing:
            return
        what = f"{', '.join(missing) or repr(value)}: no such interface, or it is down"
    else:
        if any(matching(name_part) for name_part in wanted):
            return
        what = f"{', '.join(wanted) or repr(value)}: no such interface, or it is down"
    down = sorted(states.keys() - set(up))
    rule = f"interfaces of this machine: {', '.join(sorted(up)) or 'none is up'}"
    raise UsageError(
        what,
        where=f"environment variable {name}={value}",
        rule=f"{rule}; down: {', '.join(down)}" if down else rule,
        fix=f"name one that is up, or unset {name}",
    )


def _refuse_absent_address(name: str, value: str) -> None:
    addresses = sorted(
        address.address.partition("%")[0]
        for of_interface in psutil.net_if_addrs().values()
        for address in of_interface
        if address.family in (socket.AF_INET, socket.AF_INET6)
    )
    if value not in addresses:
        raise UsageError(
            "no interface has this address",
            where=f"environment variable {name}={value}",
            rule=f"addresses of this machine: {', '.join(addresses) or 'none'}",
            fix=f"name one of them, or unset {name}",
        )


def _refuse_without_loopback() -> None:
    """Refuse a machine on which a process cannot reach another one of the same machine."""
    try:
        with socket.create_server((LOOPBACK, 0)) as listening:
            socket.create_connection(listening.getsockname(), timeout=_PATIENCE_S).close()
    except OSError as error:
        raise EnvironmentFault(
            f"{LOOPBACK} cannot be reached: {error.strerror or error}",
            where="loopback interface lo",
            rule="ranks of one machine meet there",
            fix="`ip link set lo up` switches it on, as root; or run with --nproc 1",
        ) from None
