"""Podman and docker for a user without rights, with an image of this machine's own files.

No registry is asked: the image is empty, and the machine's programs are mounted. As root, the tests
run as ``nobody``, who needs no line in ``/etc/subuid``: a container then has one user.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trainmark

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "localhost/trainmark-test:1"
SOURCES = Path(trainmark.__file__).parents[1]
_PROGRAMS = {
    "podman": ("podman", "runc", "setpriv", "/usr/libexec/podman/catatonit"),
    "docker": ("docker", "dockerd", "containerd", "runc", "setpriv"),
}
_START_S = 30.0  # how long docker's service may take to start
_FOLDERS = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/etc") if Path(path).exists()]
_IMPORTS = "import torch, trainmark.rank.worker"


@dataclass
class Rootless:
    """A user, where its files are, and the interpreter that it may run.

    Args:
        folder: for the files of the user and of the runtime.
        runtime: "podman" or "docker".
        python: path of an interpreter with torch, for the user and in the container.
        variables: of the environment, with which the runtime works.
    """

    folder: Path
    runtime: str = "podman"
    python: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command prefix that runs a command as the user."""
        if os.getuid() != 0:  # the tests do not run as root: they are the user
            return ()
        user = pwd.getpwnam("nobody")
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        return ("setpriv", *ids)

    def run_command(
        self, *words: str, input_bytes: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as the user."""
        return subprocess.run(
            [*self.prefix, *words],
            env=os.environ | self.variables,
            cwd="/",
            input=input_bytes,
            capture_output=True,
            check=False,
        )

    def give_to_user(self, path: Path) -> Path:
        """Give a file to the user.

        The user is "nobody" if the tests run as root, and else the user of the tests.
        """
        if os.getuid() == 0:  # any other user already owns what it writes
            user = pwd.getpwnam("nobody")
            os.chown(path, user.pw_uid, user.pw_gid)
        return path

    def make_folder(self, name: str) -> Path:
        """Return a new folder of the user."""
        path = self.folder / name
        path.mkdir()
        return self.give_to_user(path)

    def write_cluster_file(
        self, path: Path, *, environment: dict[str, str], mounts: list[str], **container: object
    ) -> Path:
        """Write a cluster file for a container that has the machine's programs; return ``path``.

        ``IMAGE`` is the name of an image of empty folders: all programs are mounted.

        Args:
            path: of the file.
            environment: further variables of the ranks.
            mounts: further mounts, as the cluster file has them.
            container: replace or add keys of the part ``container``.
        """
        settings = {
            "image": IMAGE,
            "runtime": self.runtime,
            "python": self.python,
            "shared_memory": "1g",
            "mounts": [*mounts, *self.list_program_mounts()],
        }
        all_variables = {"PYTHONPATH": self.variables["PYTHONPATH"], **environment}
        with socket.socket() as free:  # containers have the host's network
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path.write_text(
            json.dumps(
                {
                    "environment": all_variables,
                    "master_port": port,
                    "container": settings | container,
                }
            )
        )
        return path

    def list_program_mounts(self) -> list[str]:
        """Return the mounts with this machine's programs, as far as the user may read them."""
        # ``_FOLDERS`` are those of the system, such as /usr and /etc; ``SOURCES`` has the package
        # trainmark. The prefixes are the folders of Python and of its virtual environment.
        folders = sorted({*_FOLDERS, str(SOURCES.parent), sys.prefix, sys.base_prefix})
        readable = [
            folder for folder in folders if self.run_command("test", "-r", folder).returncode == 0
        ]
        return [f"{folder}:{folder}:ro" for folder in readable]


def explain_absence(name: str) -> str | None:
    """Return why podman or docker cannot be tried here; None: it can."""
    # ``_PROGRAMS`` are the programs that each of the two needs, such as dockerd and runc.
    lacking = [program for program in _PROGRAMS[name] if not shutil.which(program)]
    if lacking:
        return f"{', '.join(lacking)} missing (make test-engines)"
    return "docker's service needs root" if name == "docker" and os.getuid() else None


@contextmanager
def _start_daemon(folder: Path) -> Iterator[None]:
    """Start docker's service without a network, for a socket in ``folder``."""
    with (folder / "dockerd.log").open("wb") as log:
        service = subprocess.Popen(
            [
                "dockerd",
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
                "--storage-driver=vfs",
                f"--data-root={folder}/docker",
                f"--exec-root={folder}/dockerd",
                f"--pidfile={folder}/dockerd.pid",
                f"--host=unix://{folder}/docker.sock",
                "--group=nogroup",  # of ``nobody``, who must be able to use the socket
            ],
            stdout=log,
            stderr=log,
        )
    try:
        # ``_START_S`` is 30 s: how long the service may take to start.
        until_s = time.monotonic() + _START_S
        while not (folder / "docker.sock").exists() and service.poll() is None:
            if time.monotonic() > until_s:
                break
            time.sleep(0.1)
        yield  # also if it did not start: ``_set_up_image`` then returns what its client says
    finally:
        service.terminate()
        service.wait()
        # It leaves the host's network mounted there.
        subprocess.run(["umount", f"{folder}/dockerd/netns/default"], check=False)


@contextmanager
def set_up_runtime(name: str) -> Iterator[Rootless | str]:
    """Set podman or docker up and take it down.

    Yield the user who runs containers, or a text that says why none runs here.

    ``_build_environment`` writes podman's settings and returns the user's variables,
    ``_start_daemon`` starts docker's service. ``_set_up_image`` makes the image and starts a
    container; it returns why that failed, or None.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"trainmark-{name}-", dir="/tmp"))
    user = Rootless(folder, name)
    try:
        for path in (folder, folder / "run"):
            path.mkdir(exist_ok=True)
            user.give_to_user(path).chmod(0o700)
        user.variables = _build_environment(folder)
        with _start_daemon(folder) if name == "docker" else nullcontext():
            fault = _set_up_image(user)
            yield user if fault is None else fault
    finally:
        with suppress(OSError, ValueError):  # podman's pause process
            os.kill(int((folder / "run/libpod/tmp/pause.pid").read_text()), signal.SIGKILL)
        shutil.rmtree(folder)


def _build_environment(folder: Path) -> dict[str, str]:
    """Write the settings of podman below a folder; return the variables of the user.

    ``SOURCES`` is the folder of the package trainmark, "purelib" that of installed packages:
    containers import both by PYTHONPATH. The driver "vfs" and "ignore_chown_errors" need no rights
    of root.
    """
    storage, containers = folder / "storage.conf", folder / "containers.conf"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run/store"\n'
        f'rootless_storage_path = "{folder}/store"\n'
        '[storage.options.vfs]\nignore_chown_errors = "true"\n'
    )
    # A user who may not raise limits cannot start containers with podman's default limits.
    containers.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    return {
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "CONTAINERS_CONF": str(containers),
        "CONTAINERS_STORAGE_CONF": str(storage),
        "TRAINMARK_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join((str(SOURCES), sysconfig.get_path("purelib"))),
    }


def _set_up_image(user: Rootless) -> str | None:
    """Make the image, and set the interpreter of ``user``; return why no container runs here.

    ``IMAGE`` is the name of the image; its folders of programs are empty, and those of this machine
    are mounted there.

    Returns:
        None: containers run.
    """
    imported = user.run_command(user.runtime, "import", "-", IMAGE, input_bytes=_build_image())
    if imported.returncode:
        return f"import: {imported.stderr.decode().strip()}"
    mounts = [f"--volume={mount}" for mount in user.list_program_mounts()]
    start = (user.runtime, "run", "--rm", "--network=host", "--env=PYTHONPATH", *mounts, IMAGE)
    ran = user.run_command(*start, "/usr/bin/true")
    if ran.returncode:
        return f"run: {ran.stderr.decode().strip()}"
    # ``_IMPORTS`` is a statement that imports torch and the program's worker of a rank. The
    # interpreter of the tests may lie where the user may not read.
    for python in (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info[:2])):
        # By the user itself, which starts the launcher, and in a container, for the ranks.
        probes = [(*prefix, python, "-c", _IMPORTS) for prefix in ((), start)]
        if all(user.run_command(*words).returncode == 0 for words in probes):
            user.python = python
            return None
    return "no interpreter with torch that a user without rights may start"


def _build_image() -> bytes:
    """Return an archive with the folders that a container must have."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        # ``_FOLDERS`` are this machine's folders of programs, such as /usr and /etc. They are empty
        # in the image, and those of the machine are mounted there.
        for name in (
            "tmp",
            "dev",
            "proc",
            "sys",
            "run",
            *(folder.lstrip("/") for folder in _FOLDERS),
        ):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if name == "tmp" else 0o755  # all may write into /tmp
            archive.addfile(entry)
    return content.getvalue()
