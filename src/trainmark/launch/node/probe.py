"""Tell what a node has and lacks, for a launcher that asks before it submits.

Started as ``python -m trainmark.launch.node.probe`` on the node, where it prints a line of JSON.
After that it answers each line on standard input with the node's clock. Imports neither torch nor
a case.
"""

from __future__ import annotations

import argparse
import errno
import json
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from trainmark import __version__, devices
from trainmark.record.environment import package_versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.protocols import Vendor

Fault = tuple[str, str]  # what is wrong, and the way out
MODULE = "trainmark.launch.node.probe"
_PATIENCE_S = 60.0  # a file system that hangs must not hang who asks
_MOST_SKEW_S = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe told.

    Args:
        versions: of packages; empty if it did not run.
        printed: on standard error.
    """

    versions: dict[str, str]
    faults: list[Fault]
    exit_code: int
    printed: str


def ask(argv: Sequence[str]) -> Answer:
    """Run a probe by a command for its node, and compare its clock with this machine's.

    The time that its reading took counts for the clock.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        limit = Timer(_PATIENCE_S, process.kill)
        limit.start()
        assert process.stdout is not None
        # A shell's start-up files may print before.
        line = next((one for one in process.stdout if one.startswith('{"versions"')), None)
        sent = time.time_ns()
        clock, printed = process.communicate("\n")
        now = time.time_ns()
        limit.cancel()
    if process.returncode or line is None:
        return Answer({}, [], process.returncode, printed)
    told = json.loads(line)
    ahead_s = (int(clock) - (now + sent) / 2) / 1e9
    if abs(ahead_s) - (now - sent) / 2e9 > _MOST_SKEW_S:
        what = f"its clock is {ahead_s:+.1f} s from this machine's"
        told["faults"].append((what, "let both follow a time server, with chrony for instance"))
    return Answer(told["versions"], told["faults"], 0, printed)


def differences(told: dict[str, Answer], here: str) -> list[tuple[str, str, str]]:
    """Return a fault for each package that is not the same everywhere: package, what, remedy.

    Args:
        told: by host.
        here: version of this program that made the plan.
    """
    versions = {host: answer.versions for host, answer in told.items() if answer.versions}
    faults = []
    for name in sorted(set().union(*versions.values())):
        hosts = defaultdict(list, {here: ["this machine"]} if name == "trainmark" else {})
        for host, found in versions.items():
            hosts[found.get(name, "none")].append(host)
        if len(hosts) > 1:
            each = "; ".join(f"{version} on {', '.join(on)}" for version, on in hosts.items())
            faults.append((name, f"different versions: {each}", "install the same on all hosts"))
    return faults


def folder_faults(folder: Path, shared: str | None) -> Iterator[Fault]:
    """Look into the folder in which the run writes, which is made if it is not there.

    Args:
        shared: a file in it that was made on another machine; None: it is this node's own.
    """
    try:
        if shared is None:
            folder.mkdir(parents=True, exist_ok=True)
        elif not (folder / shared).exists():
            remedy = "name a `run_root` in the site file, a folder of each host"
            yield f"{folder} is not the folder that the submitting machine has there", remedy
            return
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        remedy = "make it writable there, or name another `run_root` in the site file"
        yield f"{folder} cannot be written: {error.strerror}", remedy


def device_faults(vendor: Vendor, nproc: int) -> Iterator[Fault]:
    """Count the devices of a vendor; ranks may share cores."""
    found = vendor.count()
    if found < nproc and not vendor.counts_cores:
        what = f"{nproc} {vendor.name} devices needed, {found} there"
        yield what, "use a smaller --nproc, or hosts with more devices"


def network_faults(master: str, port: int) -> Iterator[Fault]:
    """Look up the first node, where ranks meet, and its port; 0 where this is another one."""
    try:
        socket.getaddrinfo(master, None)
    except OSError as error:
        remedy = "write the first host as an address that all hosts can reach"
        yield f"the first host, {master}, is unknown there: {error.strerror}", remedy
    try:
        socket.create_server(("", port)).close()  # with SO_REUSEADDR, as torch's store listens
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        remedy = "end what uses it, or name another `master_port` in the site file"
        yield f"port {port}, where ranks would meet, is in use", remedy


def main(words: Sequence[str] | None = None) -> int:
    """Print what is here and what is wrong with it, then the clock for each line that comes."""
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("--vendor", required=True)
    parser.add_argument("--nproc", required=True, type=int)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--shared")
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", required=True, type=int)
    asked = parser.parse_args(words)
    faults = [
        *folder_faults(asked.folder, asked.shared),
        *device_faults(devices.all_vendors()[asked.vendor], asked.nproc),
        *network_faults(asked.master, asked.port),
    ]
    versions = {"trainmark": __version__, "python": platform.python_version()} | package_versions()
    print(json.dumps({"versions": versions, "faults": faults}), flush=True)
    for _ in sys.stdin:
        print(time.time_ns(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
