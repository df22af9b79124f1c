"""A stand-in for W&B in processes of tests: the name of the project selects its behaviour.

``keep`` writes each call as a line of JSON to ``STAND_IN_CALLS``; ``block`` never returns from a
log call; ``refuse`` has no server; ``die`` ends its process as the kernel would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path


class Settings:
    def __init__(self, **_: object) -> None:
        pass


class _Run:
    """A run in W&B that fails as the name of its project says, and notes the calls of the rest."""

    def __init__(self, project: str) -> None:
        self._project = project
        self.summary: dict[str, object] = {}

    def define_metric(self, name: str, step_metric: str) -> None:
        pass

    def log(self, values: dict[str, float]) -> None:
        """Record the values, as all calls are recorded for the test.

        In a project called ``block`` the call hangs, and in one called ``die`` it ends the process:
        so a test sees what becomes of a run whose backend does so.
        """
        if self._project == "block":
            threading.Event().wait()
        if self._project == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self._record_call(values)

    def finish(self, exit_code: int) -> None:
        self._record_call({"exit_code": exit_code, **self.summary})

    def _record_call(self, document: dict[str, object]) -> None:
        """Append a call to the file that the test reads, and print as real programs do."""
        # ``STAND_IN_CALLS``: the path of that file. What a backend prints goes to the follower's
        # log.
        print("this text of a backend's program stands in the follower's log", flush=True)
        with Path(os.environ["STAND_IN_CALLS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")


def init(project: str, **_: object) -> _Run:
    """Open a run, as W&B does; for the project called ``refuse`` there is no server.

    This module stands in for W&B in a follower, the process that sends a run's values to it.
    """
    if project == "refuse":
        raise ConnectionError("no server at example.org")
    assert "torch" not in sys.modules  # a follower must not load it: it takes a device's memory
    return _Run(project)
