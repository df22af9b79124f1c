"""Real processes of ``trainmark serve``, which tests ask, kill and start again."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Server:
    """A server of the store ``folder/runs``; after ``kill``, ``start`` takes the same port.

    Args:
        options: of the command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options, self.port = folder, options, "0"
        (folder / "runs").mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it and return when it listens."""
        command = [sys.executable, "-m", "trainmark", "serve", "--port", self.port, *self.options]
        pipe, out = subprocess.PIPE, subprocess.STDOUT
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=pipe, stderr=out, text=True
        )
        self.said = []
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:([0-9]+)/", line):
                self.address, self.port = found[0], found[1]
                break
        else:
            raise AssertionError("".join(self.said))
        self._reader = threading.Thread(target=self.said.extend, args=(self.process.stdout,))
        self._reader.start()  # or a full pipe would stop the server

    def kill(self) -> None:
        """End it as a machine that loses power ends it, but for what the kernel holds."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
