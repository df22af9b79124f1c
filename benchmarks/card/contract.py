"""The device contract, `tests/device`, on the card: what the program promises of any device.

Whole runs are a section of their own, ``contract_runs``, so that each ends in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree

from benchmarks.card.running import ROOT
from benchmarks.card.section import Findings
from benchmarks.harness import Bar
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.card.section import Card

TITLE = "The device contract"
TESTS = ROOT / "tests" / "device"
RUNS = "test_runs.py"
TINY = ("test_precision.py", "test_memory.py")  # `make test` runs all on the CPU itself


class Case(NamedTuple):
    """One test: its name, what became of it, and the first line of the reason."""

    name: str
    verdict: str
    reason: str


def run(card: Card) -> Findings:
    """Return how many tests passed, failed and were skipped, but for whole runs."""
    files = sorted(path.name for path in TESTS.glob("test_*.py") if path.name != RUNS)
    return held(card, TINY if card.size == "tiny" else files)


def held(card: Card, files: Sequence[str]) -> Findings:
    """Run test files of the contract in this process with the card's device.

    Raises:
        EnvironmentFault: pytest is not installed.
    """
    try:
        import pytest
    except ImportError:
        raise EnvironmentFault(
            "pytest is not installed", rule="the device contract is a set of tests",
            remedy="install pytest, or `make gpu`, which does",
        ) from None  # fmt: skip
    report = card.scratch / "contract.xml"
    report.unlink(missing_ok=True)
    code = pytest.main([
        *(str(TESTS / name) for name in files), "--device", card.device,
        "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
        "--junitxml", str(report), "-p", "no:cacheprovider",
        "-p", "no:faulthandler",  # this process has its own, for a hang
    ])  # fmt: skip
    return findings(read(report), exit_code=int(code))


def read(report: Path) -> list[Case]:
    """Return the tests of a JUnit report; none where pytest wrote no report."""
    if not report.exists():
        return []
    found = []
    # Written by the process that reads it: no stranger's entities.
    for item in ElementTree.parse(report).iter("testcase"):
        name = f"{item.get('classname', '').rpartition('.')[2]}::{item.get('name')}"
        ended = next((part for part in item if part.tag in ("failure", "error", "skipped")), None)
        if ended is None:
            found.append(Case(name, "passed", ""))
            continue
        verdict = "skipped" if ended.tag == "skipped" else "failed"
        lines = (ended.get("message") or "").strip().splitlines()
        found.append(Case(name, verdict, lines[0] if lines else "no message"))
    return found


def findings(found: Sequence[Case], *, exit_code: int) -> Findings:
    """Return counts, and each test that did not pass with its reason."""
    verdicts = [case.verdict for case in found]
    counts = {verdict: verdicts.count(verdict) for verdict in ("passed", "failed", "skipped")}
    measured = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    # A report without failures is no proof: pytest may have ended before its tests.
    met = exit_code == 0 and counts["passed"] > 0 and not counts["failed"]
    bar = Bar("tests/device", f"{measured}; exit code {exit_code}", "none fails", met)
    rows = [
        f"| {case.name} | {case.verdict} | {case.reason.replace('|', chr(92) + '|')} |"
        for case in sorted(found, key=lambda case: (case.verdict, case.name))
        if case.verdict != "passed"
    ]
    table = "\n".join(["| test | | reason |", "|---|---|---|", *rows]) if rows else ""
    return Findings([bar], {f"tests_{name}": float(x) for name, x in counts.items()}, table)
