"""Every benchmark runs to its end at its smallest size; what it measures there means nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[2]
# Modules that benchmarks use.
NO_BENCHMARK = {"__init__", "accept_groups", "__main__", "harness", "jobs", "peers"}


def run_benchmark(*args: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m benchmarks`` with these arguments."""
    # One thread: the tests beside this one need the other cores.
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *args],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def list_result_tables() -> dict[str, bytes]:
    """Return the content of each published result page by its file name."""
    return {path.name: path.read_bytes() for path in (ROOT / "benchmarks/results").glob("*.md")}


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_ends_with_a_table_of_numbers(name: str, tmp_path: Path) -> None:
    tables = list_result_tables()

    process = run_benchmark(name, "--size", "tiny", "--results", str(tmp_path))

    assert process.returncode == 0, process.stderr
    rows = re.findall(
        r"^\| (.+) \| (.+) \| (.*) \| (met|missed|not judged) \|$", process.stdout, re.MULTILINE
    )
    # A row ends with whether its bar (a requirement) is met. Of these benchmarks no bar is judged:
    # at the smallest size two have no meaningful one, and the third needs quiet cores.
    unjudged = name in {"site_pages", "site_server", "threads_per_rank"}
    assert rows
    assert unjudged or any(met != "not judged" for *_, met in rows)
    # What is written is also printed, with one more line end.
    assert (tmp_path / f"{name}.md").read_text() == process.stdout[: -len("\n")]
    for what, measured, _bar, _met in rows:
        # A number, except in the row that has the names of imported modules.
        assert re.search(r"\d", measured) or what.startswith("heavy imports"), (what, measured)
        assert not re.search(r"\b(nan|inf)\b", measured), (what, measured)
    assert list_result_tables() == tables  # the published results are as they were


def test_every_module_with_bars_is_listed_and_every_table_has_a_module() -> None:
    # ``NAMES`` are all benchmarks: modules with bars that their figures must meet, for which they
    # call ``conclude``. ``NO_BENCHMARK`` are modules that they use; one of these defines it.
    modules = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if path.stem not in NO_BENCHMARK and "conclude(" in path.read_text()
    }
    assert modules == set(NAMES)
    # The page of a card has a JSON file next to it, and no module of its own.
    card_pages = {path.stem for path in (ROOT / "benchmarks/results").glob("*.json")}
    tables = {Path(name).stem for name in list_result_tables()}
    # The published tables ``hollow`` and ``accept_faults`` are written by programs below ``tests``.
    assert tables - card_pages - {"hollow", "accept_faults"} <= modules


def test_an_unknown_benchmark_is_refused() -> None:
    """2 is the exit code for a wrong command line."""
    assert run_benchmark("no_such_benchmark").returncode == 2
