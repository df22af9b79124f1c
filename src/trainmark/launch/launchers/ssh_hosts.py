"""Bare hosts: the file that names them, ssh's options, and what each host must have.

Every fault of every host is told before anything is submitted. Keys and the agent are the only
ways in: ssh never asks, and nothing here needs to be root.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import DEVNULL, run
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.data.json_documents import read_bytes
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.node import probe
from trainmark.launch.node.command import module_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainmark.launch.site import Site, SshSite
    from trainmark.plan.plan import Plan

    Fault = tuple[str, str, str]  # host, what is wrong, the way out

_LARGEST_BYTES = 1 << 20  # of a hosts file
LOST = 255  # ssh's own exit code; also if a signal ended the remote command (ssh(1))
_HOST = re.compile(
    r"(?:(?P<user>\w[\w.-]*)@)?(?P<name>\w[\w.-]*|\[[\w:.%]+\])(?::(?P<port>\d{1,5}))?", re.ASCII
)
_FIXED = ("BatchMode=yes", "PreferredAuthentications=publickey", "RequestTTY=no")
_UNCHECKED = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
# A cut link is noticed after 15 s; a connection is not shared, and ends with its process.
_ALIVE = ("ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=10", "ControlPath=none")
_REMEDIES = {  # by what ssh prints
    "IDENTIFICATION HAS CHANGED": "find out why; `ssh-keygen -R {0}`, for a port other than 22 "
    "`-R [{0}]:PORT`, then connect by hand once",
    "Host key verification failed": "connect by hand once, and compare the fingerprint",
    "are too open": "chmod 600 on the key: ssh does not use one that others may read",
    "Permission denied": "load the key with ssh-add, or add it to ~/.ssh/authorized_keys there",
    "": "try ssh by hand, and see the hosts file",
}


class Host(NamedTuple):
    """One line of a hosts file."""

    name: str
    user: str | None
    port: int | None


def read_hosts(site: SshSite, *, nnodes: int) -> list[Host]:
    """Return the first ``nnodes`` hosts of the file: ``[user@]host[:port]`` a line, ``#`` comments.

    Raises:
        UsageError: no file, a line of another form, a host twice, fewer hosts than nodes.
    """
    if site.hosts is None:
        raise UsageError("missing", where="--hosts", remedy="give --hosts FILE, one host a line")
    try:
        lines = read_bytes(site.hosts, max_bytes=_LARGEST_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", where="--hosts") from None
    seen: dict[str, int] = {}
    hosts = []
    for number, text in enumerate((line.partition("#")[0].strip() for line in lines), 1):
        if not text:
            continue
        found, where = _HOST.fullmatch(text), f"{site.hosts}, line {number}"
        if found is None or not 0 < int(found["port"] or 22) < 65_536:
            remedy = "write [user@]host[:port], an IPv6 address in brackets; the rest belongs into "
            raise UsageError(f"no host: {text!r}", where=where, remedy=remedy + "~/.ssh/config")
        port = int(found["port"]) if found["port"] else site.port
        host = Host(found["name"].strip("[]"), found["user"] or site.user, port)
        first = seen.setdefault(host.name.lower(), number)
        if first != number:
            remedy = "remove one of them; --nproc is the number of ranks on each host"
            raise UsageError(f"{host.name} is in line {first} too", where=where, remedy=remedy)
        hosts.append(host)
    if len(hosts) < nnodes:
        what = f"{nnodes} nodes need as many hosts, {len(hosts)} in the file"
        raise UsageError(what, where=str(site.hosts), remedy="add hosts, or use fewer --nnodes")
    return hosts[:nnodes]


def options(host: Host, site: SshSite) -> list[str]:
    """Return the options of ssh and sftp for a host. Of one given twice, they take the first."""
    own = (("User", host.user), ("Port", host.port), *site.options.items())
    keys = ("StrictHostKeyChecking=yes",) if site.check_host_keys else _UNCHECKED
    given = [f"{name}={value}" for name, value in own if value]
    return [f"-o{option}" for option in (*_FIXED, *keys, *given, *_ALIVE)]


def in_parallel(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return ``work`` of each item, done for many at once."""
    with ThreadPoolExecutor(64) as pool:
        return list(pool.map(work, items))


def refuse(faults: Iterable[Fault | None]) -> None:
    """Raise all faults as one error, each with all its hosts; None is no fault.

    Raises:
        EnvironmentFault: there are any.
    """
    hosts = defaultdict(list)
    for host, what, remedy in filter(None, faults):
        hosts[what, remedy].append(host)
    told = [f"{', '.join(on)}: {what}\n  way out: {out}" for (what, out), on in hosts.items()]
    if told:
        raise EnvironmentFault("\n".join(told))


def connection_fault(host: str, printed: str) -> Fault:
    """Return what ssh said of a connection that failed, and the way out."""
    lines = [line.strip("@ \r") for line in printed.splitlines() if line.strip("@ \r")]
    mark = next(mark for mark in _REMEDIES if mark in printed)
    said = [line for line in lines if mark and mark in line] or lines or ["ssh said nothing"]
    return host, f"ssh: {said[-1].removeprefix('ssh: ')}", _REMEDIES[mark].format(host)


def check_hosts(hosts: Sequence[Host], plan: Plan, site: Site) -> None:
    """Bring the environment to the hosts, then ask each what it has.

    Raises:
        EnvironmentFault: what is wrong with which host, all of it.
    """
    if (sync := site.ssh.sync) is not None:
        refuse(in_parallel(lambda host: _synchronized(sync, host), hosts))
    folder = site.run_root or next(one for one in Path(plan.run_dir).parents if one.is_dir())
    words = ["--vendor", plan.device.vendor, "--nproc", str(plan.nproc), "--master", hosts[0].name]
    words += ["--folder", str(folder)]
    with ExitStack() as stack:
        if site.run_root is None:
            with suppress(OSError):  # not writable: whoever makes the run directory tells
                seen = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder))
                words += ["--shared", Path(seen.name).name]
        asked = []
        for number, host in enumerate(hosts):
            asks = [*words, "--port", str(0 if number else site.master_port)]  # 0: any
            script = module_script(plan, site, probe.MODULE, asks, folder=folder)
            shell = shlex.join(["sh", "-c", script])
            asked.append(["ssh", *options(host, site.ssh), host.name, shell])
        answers = in_parallel(probe.ask, asked)
    told = dict(zip([host.name for host in hosts], answers, strict=True))
    faults = [fault for host, answer in told.items() for fault in _faults(host, answer, site)]
    refuse(faults + probe.differences(told, plan.suite_version))


def _synchronized(command: str, host: Host) -> Fault | None:
    """Run the user's command for a host; return what went wrong."""
    destination = f"{host.user}@{host.name}" if host.user else host.name
    text = command.replace("{host}", shlex.quote(destination))
    ended = run(["sh", "-c", text], stdin=DEVNULL, capture_output=True, text=True, check=False)
    said = (ended.stderr.splitlines() or ["it printed nothing"])[-1]
    return (host.name, f"ssh.sync failed: {said}", f"try: {text}") if ended.returncode else None


def _faults(host: str, told: probe.Answer, site: Site) -> Iterator[Fault]:
    if told.exit_code == LOST:
        yield connection_fault(host, told.printed)
    elif not told.versions:
        said = (told.printed.splitlines() or ["no answer"])[-1]
        remedy = "name its `python` in the site file, with its `setup`, or bring it: `ssh.sync`"
        yield host, f"{site.python} does not run this program there: {said}", remedy
    yield from ((host, what, remedy) for what, remedy in told.faults)
