"""Check, before ranks are started, that they can reach one another over the network.

If a variable names an interface that does not exist, a collective library fails after the ranks
have started, or waits until the time limit of the run. This module knows no vendor: which variables
matter follows from the vendor's collective backend and from the variables that it records.
"""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

import psutil

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.environment import is_recorded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Address, IPv6Address

    from trainmark.protocols import Vendor

LOOPBACK = "127.0.0.1"
# Ends of the names of variables that name interfaces, and of those that name an address.
_INTERFACES = re.compile(r"_(SOCKET_IFNAME|KVS_IFACE)$")
_ADDRESS = re.compile(r"_IF_IP$")
# Variables of Gloo and of oneCCL begin with these. Both match whole names of interfaces only.
_GLOO_OR_ONECCL = ("GLOO_", "CCL_")
_TIMEOUT_S = 10.0  # of a connection to this machine itself


def refuse_unusable_network(
    variables: Mapping[str, str], vendor: Vendor, *, world_size: int, master: str
) -> None:
    """Raise an error if the ranks of this machine could not reach the others of the run.

    Args:
        variables: the environment of the ranks.
        world_size: number of ranks of the run, on all machines.
        master: host where they meet.

    Raises:
        UsageError: a variable names an interface or an address that this machine does not have.
        EnvironmentFault: the ranks meet on the loopback interface, which does not work.
    """
    if world_size == 1:  # a single rank uses no network
        return
    for name, value in sorted(variables.items()):
        if not value or not _is_collective_variable(name, vendor):
            continue
        # The end of a variable's name tells whether its value names interfaces or an address.
        if _INTERFACES.search(name):
            _refuse_absent_interfaces(name, value)
        elif _ADDRESS.search(name):
            _refuse_absent_address(name, value)
    if master == LOOPBACK:
        _refuse_without_loopback()


def _is_collective_variable(name: str, vendor: Vendor) -> bool:
    """Tell whether a variable may configure the library through which the ranks communicate."""
    # The backend is the library's name in torch. Its variables begin with it in capital letters.
    if name.startswith(f"{vendor.collective_backend.upper()}_"):
        return True
    # Some of the library's variables begin otherwise. They are among those that the vendor records.
    return any(is_recorded(name, pattern) for pattern in vendor.recorded_variables)


def _refuse_absent_interfaces(name: str, value: str) -> None:
    """Refuse the value of a variable if a rank could use no interface with it.

    Args:
        name: the variable's name.
        value: the list of interfaces that the rank may use, or must not use.

    Raises:
        UsageError: the value leaves the rank no interface that is up; or it lists one for Gloo or
            oneCCL that is absent or down.
    """
    states = psutil.net_if_stats()
    up = [interface for interface, state in states.items() if state.isup]
    problem = _find_interface_problem(name, value, up)
    if problem is None:
        return
    down = sorted(interface for interface, state in states.items() if not state.isup)
    rule = f"only interfaces that are up can be used: {', '.join(sorted(up)) or 'none'}"
    raise UsageError(
        problem,
        where=f"environment variable {name}={value}",
        rule=f"{rule}; interfaces that are down: {', '.join(down)}" if down else rule,
        fix=f"choose an interface that is up, or unset {name}",
    )


def _find_interface_problem(name: str, value: str, up: list[str]) -> str | None:
    """Return what is wrong with a list of interfaces; None if a rank can use it.

    Args:
        name: the variable's name.
        value: a comma-separated list, as the libraries document it (2026-11). An item matches each
            interface whose name begins with it. If the list begins with ``=``, or if the variable
            is one of Gloo or oneCCL, an item matches only the interface with exactly that name. If
            the list begins with ``^`` or ``^=``, the rank uses the interfaces that do not match.
        up: names of the interfaces that are up.
    """
    excludes = value.startswith("^")
    text = value.removeprefix("^")
    is_gloo_or_oneccl = name.startswith(_GLOO_OR_ONECCL)
    matches_whole_names = is_gloo_or_oneccl or text.startswith("=")
    patterns = [pattern for pattern in text.removeprefix("=").split(",") if pattern]
    matches: dict[str, list[str]] = {}  # interfaces that are up, by pattern
    for pattern in patterns:
        if matches_whole_names:
            matches[pattern] = [interface for interface in up if interface == pattern]
        else:
            matches[pattern] = [interface for interface in up if interface.startswith(pattern)]
    if excludes:
        excluded = {interface for interfaces in matches.values() for interface in interfaces}
        return None if set(up) - excluded else "the value excludes every interface that is up"
    absent = [pattern for pattern in patterns if not matches[pattern]]
    has_all = bool(patterns) and not absent
    has_any = len(absent) < len(patterns)
    # Gloo and oneCCL use every interface of the list; other libraries use the first that matches.
    is_usable = has_all if is_gloo_or_oneccl else has_any
    if is_usable:
        return None
    return f"no interface that is up matches {', '.join(absent) or repr(value)}"


def _refuse_absent_address(name: str, value: str) -> None:
    """Refuse the value of a variable if it is an address that no interface of this machine has.

    Raises:
        UsageError: with the variable's name, its value and the addresses of this machine.
    """
    addresses = []  # as texts; an IPv6 address has several, such as ``fe80::1`` and ``FE80:0::1``
    for interface_addresses in psutil.net_if_addrs().values():
        for address in interface_addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                addresses.append(address.address.partition("%")[0])  # without the zone of IPv6
    addresses.sort()
    if _parse_address(value) not in map(_parse_address, addresses):
        raise UsageError(
            f"no interface has the address {value}",
            where=f"environment variable {name}={value}",
            rule=(
                "the variable must be set to an address of this machine: "
                f"{', '.join(addresses) or 'none'}"
            ),
            fix=f"choose one of these addresses, or unset {name}",
        )


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address without the zone that an IPv6 address may have; None: it is none."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _refuse_without_loopback() -> None:
    """Check that processes of this machine can connect through its loopback interface.

    Raises:
        EnvironmentFault: they cannot.
    """
    try:
        with socket.create_server((LOOPBACK, 0)) as listening:
            socket.create_connection(listening.getsockname(), timeout=_TIMEOUT_S).close()
    except OSError as error:
        raise EnvironmentFault(
            f"{LOOPBACK} cannot be reached: {error.strerror or error}",
            where="loopback interface lo",
            rule="the ranks of one machine connect through this interface",
            fix="run `ip link set lo up` as root to bring it up, or use --nproc 1",
        ) from None
