"""Start the followers of a run, and say at its end what they could not hand over.

A follower is a process that hands a run to another program, such as TensorBoard, while the run is
measured. It reports to the launcher in lines of JSON, on its standard output.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.launch.python_commands import SAFE_PATH_VARIABLES, build_module_command
from trainmark.record.messages import render
from trainmark.spec import MESSAGES_FILE, Message, message, read_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from trainmark.export.followers.targets import FollowTarget
    from trainmark.launch.processes import StopRequest

MESSAGES = read_messages(Path(__file__).with_name(MESSAGES_FILE))
READY_PATIENCE_S = 30.0  # for the import of a backend's program
END_PATIENCE_S = 15.0
_STOP_CHECK_S = 0.2  # the longest time until a stop signal is noticed during a wait
_KILL_PATIENCE_S = 2.0  # after which a follower is killed that did not end by itself
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class FollowerRemark:
    """What a run says of a follower at its end."""

    message: Message

    def render(self, lang: str) -> str:
        """Return the sentence in a language."""
        return render(self.message, lang, MESSAGES)

    def __str__(self) -> str:
        return self.render("en")


@dataclass(slots=True)
class _Follower:
    """A follower, as its launcher sees it: a process that sends the run to a backend.

    A backend is a program such as TensorBoard.

    Attributes:
        target: the backend, and the destination in it.
        process: prints its reports as lines of JSON: one when it is ready, and one at its end.
        has_closed_output: it prints nothing more, because it has ended.
        _output: what it has printed.
        _was_killed: whether it was killed because it did not end by itself.
    """

    target: FollowTarget
    process: subprocess.Popen[bytes]
    has_closed_output: bool = False
    _output: bytes = b""
    _was_killed: bool = False

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Return the lines that the follower has reported."""
        # After the last newline is a line that is not complete yet, or nothing.
        return [json.loads(line) for line in self._output.split(b"\n")[:-1]]

    @property
    def outcome(self) -> dict[str, Any]:
        """Return what the run says of the follower at its end: code and arguments of a sentence.

        Its ``code`` is a key of ``messages.toml``; the other keys are the sentence's arguments.
        Code None: nothing is said, because the follower handed over the whole run.
        """
        for report in self.reports:
            if "code" in report:  # the report of its end; the earlier one, ready, has no code
                return report
        if self._was_killed:
            return {"code": "killed"}
        return {"code": "ended", "text": f"exit code {self.process.returncode}"}

    def read(self, wait_s: float) -> None:
        """Read the follower's next reports, if there are any within ``wait_s`` seconds."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, wait_s))
        if readable:
            data = os.read(self.process.stdout.fileno(), _READ_BYTES)
            self._output += data
            self.has_closed_output = not data

    def end_input(self) -> None:
        """Tell the follower that the run has ended, by closing its standard input."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the follower has ended already
            self.process.stdin.close()

    def wait(self, deadline_s: float) -> None:
        """Wait for the follower's end until ``deadline_s`` on the monotonic clock; then kill it."""
        while True:  # after the deadline too, what it has reported is read once
            self.read(deadline_s - time.monotonic())
            if self.has_closed_output or time.monotonic() >= deadline_s:
                break
        try:
            self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._was_killed = True
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(slots=True)
class Followers:
    """The followers of one run; a context that ends them.

    A follower is a process that sends the run to a backend, a program such as TensorBoard.

    Args:
        run_dir: folder of the run, which may not exist yet.
        targets: the backends, each with a destination; a follower is started for each.
        patience_s: for what is left to hand over when the run has ended.
    """

    run_dir: Path
    targets: Sequence[FollowTarget]
    patience_s: float = END_PATIENCE_S
    _followers: list[_Follower] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        """Start a follower, which is a process of its own, for each target."""
        for target in self.targets:
            process = subprocess.Popen(
                build_module_command(
                    "trainmark.export.followers.process",
                    str(self.run_dir),
                    str(target),
                    str(self.patience_s),
                ),
                # With the variables Python does not import modules from the working directory.
                env=os.environ | SAFE_PATH_VARIABLES,
                stdin=subprocess.PIPE,  # the launcher closes it to say that the run has ended
                stdout=subprocess.PIPE,  # for the reports, such as a fault of the backend
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal reaches only the launcher
            )
            self._followers.append(_Follower(target, process))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell the followers that the run has ended, and wait for their end."""
        self.end_inputs()
        # A follower ends by itself `patience_s` after the run; one that does not is killed.
        deadline_s = time.monotonic() + self.patience_s + _KILL_PATIENCE_S
        for follower in self._followers:
            follower.wait(deadline_s)

    def wait_until_ready(self, stop: StopRequest) -> None:
        """Wait until each follower has imported its program, such as TensorBoard.

        The ranks start after that, so that they do not share the cores with the imports. A program
        whose import takes longer than ``READY_PATIENCE_S`` is not waited for.

        Args:
            stop: names the signal that asks to stop the run, which also ends the wait; its
                ``signal_name`` is None if there was no signal.
        """
        deadline_s = time.monotonic() + READY_PATIENCE_S
        for follower in self._followers:
            # The first report says that it is ready.
            while not follower.reports and not follower.has_closed_output:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or stop.signal_name is not None:
                    break
                # In short waits: a signal does not interrupt one, it is only noted during it.
                follower.read(min(remaining_s, _STOP_CHECK_S))

    def end_inputs(self) -> None:
        """Tell the followers that the run has ended; this does not wait until they have ended."""
        for follower in self._followers:
            follower.end_input()

    def iterate_remarks(self) -> Iterator[FollowerRemark]:
        """Yield a remark on each follower that could not hand over the whole run.

        It is called after all followers have ended.
        """
        for follower in self._followers:
            outcome = dict(follower.outcome)
            code = outcome.pop("code")
            if code is not None:
                outcome |= {"target": str(follower.target), "run": _shorten_path(self.run_dir)}
                yield FollowerRemark(message(code, **outcome))


def _shorten_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies below it, else the whole path."""
    working_directory = Path.cwd()
    if path.is_relative_to(working_directory):
        path = path.relative_to(working_directory)
    return str(path)
