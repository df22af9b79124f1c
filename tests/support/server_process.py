"""Real processes of ``trainmark serve``, which tests ask and end."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Server:
    """A server of the store ``folder/runs``.

    Args:
        options: of the command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        (folder / "runs").mkdir(exist_ok=True)
        # Port 0: any that is free. The server prints its address, which has the port.
        command = [sys.executable, "-m", "trainmark", "serve", "--port", "0", *options]
        pipe, out = subprocess.PIPE, subprocess.STDOUT
        self.process = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=out, text=True)
        self.lines: list[str] = []  # of its output so far
        for line in self.process.stdout:
            self.lines.append(line)
            match = re.search(r"http://127\.0\.0\.1:([0-9]+)/", line)
            if match is not None:
                self.address, self.port = match[0], match[1]
                break
        else:  # the output ended without an address
            raise AssertionError("".join(self.lines))
        self._reader = threading.Thread(target=self.lines.extend, args=(self.process.stdout,))
        self._reader.start()  # or a full pipe would stop the server

    def kill(self) -> None:
        """End it at once, and read the last of its output."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
