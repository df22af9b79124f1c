"""Hosts for tests: namespaces of this machine's kernel with an sshd each, and a login machine.

Nothing outside the namespaces is changed. Each namespace lives as long as its first process, which
ends with the pipe to its standard input: also if the tests are killed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = ("ssh", "ssh-keygen", "sshd", "ip", "unshare", "nsenter")
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_PATIENCE_S = 20.0


def find_program(name: str) -> str | None:
    """Return a program's path, also in /usr/sbin and /sbin; None: it is not installed."""
    return shutil.which(name, path=_PATH)


def explain_absence() -> str | None:
    """Return why such hosts cannot be made here; None: they can."""
    missing = [name for name in PROGRAMS if find_program(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    args = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(args, capture_output=True, text=True, check=False)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else None


def run(*args: str, **options: object) -> str:
    """Run a program that must end without an error; return its output.

    ``find_program`` also looks in /usr/sbin and /sbin; the caller knows that the program is there.

    Args:
        args: name and arguments of the program.
        options: of ``subprocess.run``.
    """
    path = find_program(args[0])
    assert path is not None
    return subprocess.run(
        [path, *args[1:]], check=True, capture_output=True, text=True, **options
    ).stdout


@dataclass
class Namespace:
    """Processes that share a network, and other namespaces on request.

    Args:
        options: of the program unshare, for the other namespaces.
        script: commands of the shell that prepare it.

    Attributes:
        process: unshare, whose input and output are those of the first process.
    """

    options: tuple[str, ...] = ()
    script: str = ":"
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        # The first process brings the loopback up, prepares the namespace and reports that. Then it
        # reads its input, and so ends with this process at the latest.
        script = f"ip link set lo up; {self.script}; echo ready; exec cat"
        self.process = subprocess.Popen(
            ["unshare", "--net", *self.options, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PATH": _PATH},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        """Return the id of its first process, whose end ends all processes of its namespace."""
        # With a namespace of process ids, unshare is only the parent of its first process.
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int((path.read_text().split() or [self.process.pid])[0])

    def enter_namespace(self, *args: str) -> list[str]:
        """Return the command that runs another one in this network."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *args]

    def end(self) -> None:
        """Close the input of the first process: it ends, and with it all others.

        ``_PATIENCE_S`` is 20 s: how long that may take.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(_PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass
class Hosts:
    """A login machine at 10.0.0.1 and nodes from 10.0.0.2 on, each with its own disk.

    Args:
        folder: for the nodes' disks, keys and settings.
        count: number of nodes, which are numbered from 0.

    Attributes:
        login: the network of the login machine, where commands for all nodes start.
        nodes: the namespaces of the nodes, by number.
    """

    folder: Path
    count: int = 2
    login: Namespace = field(init=False)
    nodes: list[Namespace] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.chmod(0o700)  # it has private keys
        (self.folder / "root").mkdir()  # where each node mounts its own disk
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key"))
        # ``hub`` is a bridge, to which ``_make_node`` connects each node. A ``Namespace`` runs
        # these commands in a network of its own. The key without a password opens all nodes.
        hub = "ip link add hub type bridge; ip addr add 10.0.0.1/24 dev hub; ip link set hub up"
        self.login = Namespace(script=hub)
        self.nodes = [self._make_node(number) for number in range(self.count)]
        self.write_known_hosts()

    def get_address(self, number: int) -> str:
        """Return a node's address; that of the login machine is 10.0.0.1."""
        return f"10.0.0.{number + 2}"

    def get_disk(self, number: int) -> Path:
        """Return where this machine sees a node's disk, which the node sees as ``root``."""
        return self.folder / f"disk{number}"

    def _make_node(self, number: int) -> Namespace:
        """Start a node with an sshd, and connect it to the bridge of the login machine."""
        self.get_disk(number).mkdir(exist_ok=True)
        key = self.folder / f"host{number}"
        if not key.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        settings = self.folder / f"sshd{number}.conf"
        # StrictModes would refuse a key below a folder to which everybody may write, such as /tmp.
        # MaxStartups: connections not logged in yet; from the usual 10 on, sshd drops some.
        settings.write_text(
            f"HostKey {key}\nAuthorizedKeysFile {self.folder / 'key.pub'}\nListenAddress 0.0.0.0\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f"PidFile none\nMaxStartups 64\n"
        )
        disk, root = shlex.quote(str(self.get_disk(number))), shlex.quote(str(self.folder / "root"))
        sshd = shlex.join([str(find_program("sshd")), "-f", str(settings), "-E", f"{settings}.log"])
        # sshd needs a folder /run/sshd: it is made on a tmpfs that only the node sees.
        node = Namespace(
            options=("--mount", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child"),
            script=f"hostname node{number}; mount --bind {disk} {root}; "
            f"mount -t tmpfs tmpfs /run; mkdir -m 755 /run/sshd; {sshd}",
        )
        # A cable with two ends: one at the bridge, the other is the node's eth0.
        name = f"port{number}"
        cable = ("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns")
        subprocess.run(self.login.enter_namespace(*cable, str(node.pid)), check=True)
        subprocess.run(
            self.login.enter_namespace("ip", "link", "set", name, "master", "hub", "up"), check=True
        )
        address = ("ip", "addr", "add", f"{self.get_address(number)}/24", "dev", "eth0")
        subprocess.run(node.enter_namespace(*address), check=True)
        subprocess.run(node.enter_namespace("ip", "link", "set", "eth0", "up"), check=True)
        return node

    def write_known_hosts(self) -> None:
        """Write the file by which ssh accepts the nodes' keys.

        ``host0.pub`` and so on are the public keys of the nodes' sshd.
        """
        lines = [
            f"{self.get_address(number)} {(self.folder / f'host{number}.pub').read_text()}"
            for number in range(self.count)
        ]
        (self.folder / "known_hosts").write_text("".join(lines))

    def set_link(self, number: int, state: str) -> None:
        """Set a node's link ``up`` or ``down``.

        ``port0`` and so on are the ends of the nodes' cables at the login machine's bridge.
        """
        subprocess.run(
            self.login.enter_namespace("ip", "link", "set", f"port{number}", state), check=True
        )

    def is_reachable(self, number: int) -> bool:
        """Return whether the login machine reaches a node's sshd.

        A Python in the login machine's network opens a connection to port 22, for 2 s at most.
        """
        text = f"import socket; socket.create_connection(('{self.get_address(number)}', 22), 2)"
        args = self.login.enter_namespace(sys.executable, "-c", text)
        return subprocess.run(args, capture_output=True, check=False).returncode == 0

    def build_settings(self, *hosts: str, **more: object) -> dict[str, object]:
        """Return the settings of a cluster file.

        ``key`` is the private key that opens all nodes, ``root`` the folder where each node mounts
        its own disk. The other options keep ssh from using files and keys of this machine's user.

        Args:
            hosts: addresses; none: those of all nodes.
            more: replace or add keys of the part ``ssh``.
        """
        addresses = hosts or [self.get_address(number) for number in range(self.count)]
        options = {
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
            "GlobalKnownHostsFile": "/dev/null",
            "IdentityFile": str(self.folder / "key"),
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
        }
        # ``eth0`` is a node's end of the cable to the other hosts.
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return {
            "python": sys.executable,
            "environment": environment,
            "ssh": {
                "hosts": addresses,
                "options": options,
                "run_root": str(self.folder / "root"),
                **more,
            },
        }

    def end(self) -> None:
        """End all processes of the nodes, then those of the login machine, which connects them."""
        for namespace in (*self.nodes, self.login):
            namespace.end()


def wait_until(done: Callable[[], object], what: str, patience_s: float = 60.0) -> None:
    """Wait for something that other processes do.

    Args:
        done: called again and again, until it returns a true value.
        what: what is waited for; a failure's message names it.
    """
    end_s = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end_s, f"not in {patience_s:g} s: {what}"
        time.sleep(0.05)
