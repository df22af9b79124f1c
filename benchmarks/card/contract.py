"""The device contract, `tests/device`, on the card: what the program promises of any device.

Whole runs are a section of their own, ``contract_runs``, so that each ends in time.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from xml.etree import ElementTree

from benchmarks.card.running import ROOT
from benchmarks.card.section import Findings
from benchmarks.harness import Bar
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.card.section import Card

TITLE = "The device contract"
TESTS = ROOT / "tests" / "device"
RUNS = "test_runs.py"
# What figures depend on most, so that a budget is spent on it.
FIRST = ("test_time.py", "test_precision.py", "test_windows.py", "test_losses.py")
TINY = ("test_precision.py", "test_memory.py")  # `make test` runs all on the CPU itself


class Case(NamedTuple):
    """One test: its name, what became of it, and the first line of the reason."""

    name: str
    verdict: str
    reason: str


def run(card: Card) -> Findings:
    """Return how many tests passed, failed and were skipped, but for whole runs."""
    if card.size == "tiny":
        return run_contract(card, TINY)
    names = {path.name for path in TESTS.glob("test_*.py")} - {RUNS}
    return run_contract(card, [*FIRST, *sorted(names.difference(FIRST))])


def run_contract(card: Card, files: Sequence[str]) -> Findings:
    """Run test files of the contract in this process with the card's device.

    Raises:
        EnvironmentFault: pytest is not installed.
    """
    try:
        import pytest
    except ImportError:
        raise EnvironmentFault(
            "pytest is not installed",
            rule="the device contract is a set of tests",
            fix="install pytest, or `make gpu`, which does",
        ) from None
    report = card.scratch / "contract.xml"
    report.unlink(missing_ok=True)
    deadline = Deadline(card.seconds_left)
    with deadline.interrupts() if card.seconds_left() < math.inf else nullcontext():
        code = pytest.main(
            [
                *(str(TESTS / name) for name in files),
                "--device",
                card.device,
                "--rootdir",
                str(ROOT),
                "-c",
                str(ROOT / "pyproject.toml"),
                "--junitxml",
                str(report),
                "-p",
                "no:cacheprovider",
                "-p",
                "no:faulthandler",  # this process has its own, for a hang
                "-p",
                "no:unraisableexception",  # it collects garbage for many seconds at the end
            ],
            plugins=[deadline],
        )
    return collect_findings(read(report), exit_code=int(code), not_run=deadline.not_run)


class Deadline:
    """A plugin of pytest that skips the tests for which there is no time.

    Args:
        seconds_left: how long tests may go on.
        not_run: how many tests were skipped.
    """

    def __init__(self, seconds_left: Callable[[], float]) -> None:
        self.seconds_left = seconds_left
        self.not_run = 0
        self._in_test = False

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Skip the test that runs when the time is over; a report of the others remains."""
        before = signal.signal(signal.SIGUSR2, self._interrupt)
        timer = threading.Timer(
            max(0.0, self.seconds_left()), os.kill, (os.getpid(), signal.SIGUSR2)
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            signal.signal(signal.SIGUSR2, before)

    def _interrupt(self, *_: object) -> None:
        if self._in_test:
            self._in_test = False
            self._skip()

    def _skip(self) -> NoReturn:
        import pytest

        self.not_run += 1
        pytest.skip("no time")

    def pytest_runtest_setup(self) -> None:
        """Skip a test that begins when the time is over."""
        if self.seconds_left() <= 0:
            self._skip()

    def pytest_runtest_call(self) -> None:
        """Note that a test begins, which may be interrupted."""
        self._in_test = True

    def pytest_runtest_teardown(self) -> None:
        """Note that a test has ended."""
        self._in_test = False


def read(report: Path) -> list[Case]:
    """Return the tests of a JUnit report; none where pytest wrote no report."""
    if not report.exists():
        return []
    cases = []
    # Written by the process that reads it: no stranger's entities.
    for item in ElementTree.parse(report).iter("testcase"):
        name = f"{item.get('classname', '').rpartition('.')[2]}::{item.get('name')}"
        ended = next((part for part in item if part.tag in ("failure", "error", "skipped")), None)
        if ended is None:
            cases.append(Case(name, "passed", ""))
            continue
        verdict = "skipped" if ended.tag == "skipped" else "failed"
        lines = (ended.get("message") or "").strip().splitlines()
        cases.append(Case(name, verdict, lines[0] if lines else "no message"))
    return cases


def collect_findings(cases: Sequence[Case], *, exit_code: int, not_run: int = 0) -> Findings:
    """Return counts, and each test that did not pass with its reason.

    Args:
        not_run: tests that were skipped for lack of time: without them nothing is judged, unless
            another test failed.
    """
    verdicts = [case.verdict for case in cases]
    counts = {verdict: verdicts.count(verdict) for verdict in ("passed", "failed", "skipped")}
    measured = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    # A report without failures is no proof: pytest may have ended before its tests.
    met: bool | None = exit_code == 0 and counts["passed"] > 0 and not counts["failed"]
    if not_run:
        measured += f", of these {not_run} for lack of time"
        met = None if met else False
    bar = Bar("tests/device", f"{measured}; exit code {exit_code}", "none fails", met)
    rows = [
        f"| {case.name} | {case.verdict} | {case.reason.replace('|', chr(92) + '|')} |"
        for case in sorted(cases, key=lambda case: (case.verdict, case.name))
        if case.verdict != "passed"
    ]
    table = "\n".join(["| test | | reason |", "|---|---|---|", *rows]) if rows else ""
    return Findings([bar], {f"tests_{name}": float(x) for name, x in counts.items()}, table)
