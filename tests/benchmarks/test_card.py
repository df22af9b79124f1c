"""The command of `make gpu`: every section at its smallest size, and what ends one early."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from benchmarks.card import BRIEF_SHARES, SECTIONS, contract, memory
from benchmarks.card import __main__ as command
from benchmarks.card.contract import Deadline
from benchmarks.card.running import ROOT, run
from benchmarks.card.section import Card
from benchmarks.card.training import Measured
from benchmarks.harness import interleave

from trainmark.launch.processes import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEVER_S = 3600.0  # a limit that no section here reaches
# The beginning of each section's module. ``note`` keeps that the section was called.
HEAD = """
import os, sys, time
from pathlib import Path
from benchmarks.card.facts import Facts
from benchmarks.card.section import Findings
from benchmarks.harness import Bar
TITLE = "A section"
def note(card):
    with (card.scratch / (__name__ + ".calls")).open("a") as calls:
        calls.write("called\\n")
"""
# The section that describes the card; without torch, so that a test takes no longer than it must.
FACTS = """
def run(card):
    return Facts({"name": "Some (R) Card", "vendor": "cpu"}, {"sm_clock_mhz": None}, {
        "driver": None, "python": "3", "packages": {"torch": "2"}, "cpu": "a processor",
        "cpu_cores": 2, "os": "an os", "kernel": "6", "variables": {}, "commit": None,
    }, computes=True)
"""
GOOD = """
def run(card):
    note(card)
    return Findings([Bar("speed", "2", "at least 1", True)], {"speed_per_s": 2.0, "no": None}, "t")
"""
FAILS = """
def run(card):
    note(card)
    print("on the way")
    raise RuntimeError("the card is broken")
"""
NAN = """
def run(card):
    return Findings([], {"speed_per_s": float("nan")})
"""
# Starts a child in its own session, as a launch starts ranks, then hangs.
HANGS = """
import subprocess
def run(card):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"],
                             start_new_session=True)
    part = card.scratch / "pids.part"
    part.write_text(f"{os.getpid()} {child.pid}")
    part.rename(card.scratch / "pids")
    time.sleep(3600)
"""


@dataclass
class Sections:
    """Sections written for a test, importable by the processes that run them."""

    folder: Path
    modules: dict[str, str]  # module of each section, by the section's name

    def add(self, name: str, body: str) -> None:
        """Write the module of a section: ``HEAD`` has its imports, ``body`` defines ``run``."""
        (self.folder / f"injected_{name}.py").write_text(HEAD + body, encoding="utf-8")
        self.modules[name] = f"injected_{name}"

    def build_arguments(self, *more: str, size: str = "tiny") -> list[str]:
        """Return the words of the command line.

        Args:
            more: further options, such as ``--restart``.
            size: of the benchmark; ``tiny`` is the smallest.
        """
        return [
            *("--device", "cpu"),
            *("--size", size),
            *("--results", str(self.folder / "results")),
            *("--scratch", str(self.folder / "scratch")),
            *more,
        ]

    def measure(self, *more: str, size: str = "tiny") -> int:
        """Run the sections that have no result yet, as the command does; return its exit code."""
        return command.main(self.build_arguments(*more, size=size), self.modules, limit_s=NEVER_S)

    def count_calls(self, name: str) -> int:
        """Return how often a section was run; it counts only if its ``run`` calls ``note``."""
        path = self.folder / "scratch" / f"injected_{name}.calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def read_document(self, name: str = "some-card-tiny") -> dict[str, Any]:
        """Return the results; ``name``: of the file, from the card's name and the size."""
        return json.loads((self.folder / "results" / f"{name}.json").read_text())


@pytest.fixture
def sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sections:
    """Return a benchmark of a card without sections; only the facts about the card are there."""
    # Sections run in processes of their own, which import the modules from the folder.
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    monkeypatch.setenv("PYTHONPATH", path)
    test_sections = Sections(tmp_path, {})
    test_sections.add("facts", FACTS)
    # The name of the module that reads the facts, which is no section.
    monkeypatch.setattr(command, "FACTS", test_sections.modules.pop("facts"))
    return test_sections


@pytest.mark.nightly
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_ends_with_findings_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Measure one real section at its smallest size, in a process of its own.

    Its findings are bars (requirements, with what was measured) and figures (numbers by name).
    """
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    args = [
        *shlex.split("--device cpu --size tiny"),
        *("--sections", name),
        *("--results", str(tmp_path)),
        *("--scratch", str(tmp_path / "scratch")),
    ]

    # One thread: the tests beside this one need the other cores.
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.card", *args],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout + process.stderr
    (file,) = tmp_path.glob("*.json")
    document = json.loads(file.read_text())
    assert document["size"] == "tiny"
    assert document["device"]["vendor"] == "cpu"
    assert {"torch", "transformers"} <= set(document["measured"]["packages"])
    section = document["sections"][name]
    assert section["state"] == "finished"
    assert section["bars"] or section["figures"]
    for value in section["figures"].values():
        assert value is None or isinstance(value, int | float)
    for bar in section["bars"]:
        assert set(bar) == {"what", "measured", "bar", "met"}
        # None: neither met nor missed. The CPU has no published peak (so no MFU, a share of it), no
        # fp8, and no memory of its own.
        assert isinstance(bar["met"], bool) or (
            bar["met"] is None and any(word in bar["what"] for word in ("MFU", "fp8", "memory"))
        )
    page = file.with_suffix(".md").read_text()
    assert f"## {section['title']}\n" in page
    assert str(ROOT) not in page + file.read_text()  # results are published: no local paths


def test_findings_are_kept_and_shown(sections: Sections) -> None:
    """The section has a bar that is met, and two figures, one of which is not known.

    A bar is a requirement: what is judged, what was measured, what is required, whether it is met.
    ``GOOD`` is the source of the section, in which all of these values are written as they are.
    """
    sections.add("good", GOOD)

    assert sections.measure(size="full") == 0

    # The file has the name of the card, which the facts of the test call "Some (R) Card".
    section = sections.read_document("some-card")["sections"]["good"]
    assert section["bars"] == [{"what": "speed", "measured": "2", "bar": "at least 1", "met": True}]
    assert section["figures"] == {"speed_per_s": 2.0, "no": None}
    page = (sections.folder / "results" / "some-card.md").read_text()
    assert "| speed | 2 | at least 1 | met |" in page
    assert "| no | unknown |" in page


def test_failed_sections_fail_the_command_and_only_they_run_again(sections: Sections) -> None:
    """``bad`` raises an error, ``nan`` has a figure that is not a number, ``good`` finishes."""
    sections.add("bad", FAILS)
    sections.add("nan", NAN)
    sections.add("good", GOOD)

    assert sections.measure("--sections", "good") == 0
    assert sections.measure() == 1  # the good one has its result, and is not run again
    assert (sections.count_calls("good"), sections.count_calls("bad")) == (1, 1)
    assert sections.measure() == 1
    assert (sections.count_calls("good"), sections.count_calls("bad")) == (1, 2)
    # ``--restart``: also sections that have a result.
    assert sections.measure("--sections", "good", "--restart") == 0
    assert (sections.count_calls("good"), sections.count_calls("bad")) == (2, 2)
    section_results = sections.read_document()["sections"]
    assert {name: section["state"] for name, section in section_results.items()} == {
        "good": "finished",
        "bad": "failed",
        "nan": "failed",
    }
    # A section that failed keeps its output, with the error's name.
    assert all("Error" in section_results[name]["output"] for name in ("bad", "nan"))


def list_alive(pids: list[int]) -> list[int]:
    """Return the ids of processes that have not ended, even if nobody has waited for them."""
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def make_clock_that_jumps(path: Path) -> Callable[[], float]:
    """Return a clock that stands still until ``path`` exists, then exceeds any limit.

    ``NEVER_S`` is the limit of the tests, an hour.
    """
    return lambda: 2 * NEVER_S if path.exists() else 0.0


def test_a_section_that_hangs_is_ended_with_all_its_processes(
    sections: Sections, tmp_path: Path
) -> None:
    """The section starts a child in a session of its own, writes both process ids, and sleeps.

    A session of its own: a signal to the process group of the section does not reach the child.
    """
    sections.add("hangs", HANGS)  # the source of such a section, in the module injected_hangs
    pids = tmp_path / "pids"  # of the section's process and of its child, once both run
    process = run(
        "injected_hangs",
        Card(device="cpu", size="tiny", scratch=tmp_path),
        limit_s=NEVER_S,  # an hour by the clock below, which is not the real one
        stop=StopRequest(),  # nobody asks to stop
        clock=make_clock_that_jumps(pids),  # beyond the limit, as soon as the file is there
    )
    assert process.state == "timed out"
    assert process.document is None
    assert list_alive([int(pid) for pid in pids.read_text().split()]) == []


# A section that reports how much time it has.
BRIEF = """
def run(card):
    note(card)
    left_s = card.seconds_left()
    return Findings([], {"is_brief": float(card.is_brief), "left_s": left_s})
"""


def measure_briefly(sections: Sections, *more: str, clock: Callable[[], float]) -> int:
    """Measure the sections of the test within ten minutes of ``clock``, with no other limit.

    Args:
        sections: the benchmark of the test with its sections, each by name.
        more: further options of the command line.
        clock: returns the time in seconds; it decides how much of the budget is left.

    Returns:
        The exit code of the command: 0, or 1 if a section failed or was not run.
    """
    names = " ".join(sections.modules)
    args = sections.build_arguments("--budget", "10m", "--sections", names, *more)
    return command.main(args, sections.modules, limit_s=NEVER_S, clock=clock)


def test_sections_share_the_remaining_budget() -> None:
    """``section_s`` returns the seconds that a section may take.

    Its arguments are the name of the section and the names of all sections after it. The budget of
    600 s begins at 100 s by a fake clock, and no section may have more than 480 s (``limit_s``).
    ``BRIEF_SHARES`` has the share of each section in a budget.
    """
    now_s = 100.0
    budget = command.Budget(seconds=600.0, limit_s=480.0, start_s=100.0, clock=lambda: now_s)

    # Shares 2, 3, 1, 2, 2.5 and 2 of 12.5.
    names = ["contract", "memory", "ceilings", "gpt", "llama", "dlrm"]
    assert [*BRIEF_SHARES] == names
    assert budget.section_s("contract", names[1:]) == 600 * 2 / 12.5
    now_s = 150.0  # it took 50 s, less than its share: the others get more
    assert budget.section_s("memory", names[2:]) == pytest.approx(550 * 3 / 10.5)
    # The last section has all that is left until 700 s, or nothing.
    now_s = 500.0
    assert budget.section_s("dlrm", []) == 200.0
    now_s = 701.0
    assert budget.section_s("dlrm", []) == -1.0

    now_s = 100.0
    assert budget.section_s("dlrm", []) == 480.0  # no section has more than its limit
    unlimited = command.Budget(seconds=math.inf, limit_s=480.0, start_s=100.0, clock=lambda: now_s)
    assert unlimited.section_s("contract", names[1:]) == 480.0


def test_section_with_a_budget_knows_its_remaining_time(sections: Sections) -> None:
    """Two sections are measured in ten minutes by a clock that stands still.

    The figures are those of the sections' own card. The results of a card with a budget have a file
    of their own, whose name ends with ``brief``.
    """
    # A section of ``BRIEF`` reports as figures whether the card is brief and its remaining seconds.
    sections.add("first", BRIEF)
    sections.add("second", BRIEF)

    assert measure_briefly(sections, clock=lambda: 0.0) == 0

    section_results = sections.read_document("some-card-tiny-brief")
    assert section_results["is_brief"] is True
    figures = {name: section["figures"] for name, section in section_results["sections"].items()}
    assert all(figures[name]["is_brief"] == 1.0 for name in ("first", "second"))
    # The sections that still have to run share the time equally. The first one has half of the ten
    # minutes, the second one all: the clock has stood still. A section may measure for 85% of its
    # time, and needs the rest to end and to write.
    assert 0 < figures["first"]["left_s"] <= 300.0 * 0.85
    assert 300.0 < figures["second"]["left_s"] <= 600.0 * 0.85
    assert not (sections.folder / "results" / "some-card-tiny.json").exists()


def test_section_without_a_budget_has_the_time_limit_of_a_section(sections: Sections) -> None:
    # A section that reports as its figures whether the benchmark is brief (has a budget of time for
    # all sections) and the seconds that it may still go on.
    sections.add(
        "first",
        """
def run(card):
    return Findings([], {"is_brief": float(card.is_brief), "left_s": card.seconds_left()})
""",
    )

    assert sections.measure() == 0
    figures = sections.read_document()["sections"]["first"]["figures"]
    assert figures["is_brief"] == 0.0
    # ``NEVER_S``, an hour, is the limit that ``measure`` gives to a section. It has 85% of it to
    # measure: the rest is kept for ending and writing. Loading the section has taken some of it,
    # but certainly not so much that less than half were left.
    assert NEVER_S / 2 < figures["left_s"] <= 0.85 * NEVER_S


def test_start_time_of_a_process_counts_as_time_of_its_section(
    sections: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The section reports as its figure when it must end, as its card says, and does nothing else.

    ``run`` executes it in a process of its own, which may take 100 s (``limit_s``).
    """
    sections.add(
        "first",
        """
def run(card):
    return Findings([], {"ends_at_s": card.ends_at_s})
""",
    )
    # The time at which the section must end is chosen before its process starts. The section
    # gets 85% of its limit to measure; the rest is kept for ending and writing. That time is read
    # from ``time.monotonic``, which is replaced only in this process, not in that of the section.
    # ``clock`` decides when the section is killed: it stands still, so never.
    started_s = 1000.0
    monkeypatch.setattr("benchmarks.card.running.time.monotonic", lambda: started_s)

    process = run(
        "injected_first",
        Card(device="cpu", size="tiny", scratch=tmp_path),
        limit_s=100.0,
        stop=StopRequest(),
        clock=lambda: 0.0,
    )

    assert process.document is not None
    assert process.document["found"]["figures"] == {"ends_at_s": started_s + 0.85 * 100.0}


def test_a_device_that_computes_nothing_fails_every_section(
    sections: Sections, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The section itself meets its bar; the facts about the card say that it does not compute.

    ``GOOD`` and ``FACTS`` are the sources of such a section and of the module that reads the facts.
    """
    sections.add("good", GOOD)
    sections.add("hollow_facts", FACTS.replace("computes=True", "computes=False"))
    monkeypatch.setattr(command, "FACTS", sections.modules.pop("hollow_facts"))

    assert sections.measure() == 1

    assert "good: nothing was computed" in capsys.readouterr().out.splitlines()
    section = sections.read_document()["sections"]["good"]
    assert section["state"] == "finished"
    # A bar that the device computes comes before the section's own; it is missed.
    assert [bar["met"] for bar in section["bars"]] == [False, True]
    page = (sections.folder / "results" / "some-card-tiny.md").read_text()
    assert "**Nothing was computed:**" in page


NOT_TRAINED = """
def run(card):
    from trainmark.errors import NotTrainedError
    raise NotTrainedError(
        "parameters_unchanged_in_window", first=1, last=10, updates=10, parameters=3
    )
"""


def test_section_that_trained_nothing_fails_with_a_sentence(sections: Sections) -> None:
    """The section raises a ``NotTrainedError``: its text is shown without a traceback."""
    sections.add("bad", NOT_TRAINED)

    assert sections.measure() == 1

    output = sections.read_document()["sections"]["bad"]["output"]
    # ``NOT_TRAINED``, the source of the section, raises the error for the steps 1 to 10.
    assert output.startswith("NotTrainedError: steps 1 to 10 did not change any bit")
    assert "Traceback" not in output


def test_sections_skipped_by_a_spent_budget_are_named_and_run_next_time(
    sections: Sections, capsys: pytest.CaptureFixture[str]
) -> None:
    """``BRIEF`` is the source of a section that ends at once and notes that it was called.

    ``measure_briefly`` runs both sections with a budget of 600 seconds of the given clock.
    """
    sections.add("first", BRIEF)
    sections.add("second", BRIEF)
    calls_of_first = sections.folder / "scratch" / "injected_first.calls"  # written when it runs

    # The clock stands at 0 s until the first section has run, then at 597 s: three seconds of the
    # budget are left, too few to run another section. 1 is the exit code of an incomplete result.
    assert measure_briefly(sections, clock=lambda: 597.0 if calls_of_first.exists() else 0.0) == 1

    assert (sections.count_calls("first"), sections.count_calls("second")) == (1, 0)
    assert "second: not run" in capsys.readouterr().out
    stem = "some-card-tiny-brief"
    assert list(sections.read_document(stem)["sections"]) == ["first"]
    assert "second (not run)" in (sections.folder / "results" / f"{stem}.md").read_text()

    # The next call with enough time runs only what is missing.
    assert measure_briefly(sections, clock=lambda: 0.0) == 0
    assert (sections.count_calls("first"), sections.count_calls("second")) == (1, 1)


def test_budget_runs_the_most_important_sections() -> None:
    """``SECTIONS`` has all sections. A budget is too little time for all of them.

    Without ``--sections`` a call with a budget runs those that ``BRIEF_SHARES`` of the benchmark
    lists as the most important ones, in this order.
    """
    arguments = command._parse_arguments(["--budget", "90s"], SECTIONS)

    assert arguments.budget == 90.0
    assert arguments.sections == ["contract", "memory", "ceilings", "gpt", "llama", "dlrm"]
    assert set(arguments.sections) <= set(SECTIONS)


@pytest.mark.parametrize("text", ["8", "0m", "8h", "m", "-8m", "1.5m", ""])
def test_budget_that_is_not_in_minutes_or_seconds_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget is a whole number and a unit, such as 8m or 90s.

    2 is the exit code of ``argparse`` for a wrong command line.
    """
    with pytest.raises(SystemExit) as ended:
        command.main([f"--budget={text}"])
    assert ended.value.code == 2
    assert "write minutes or seconds" in capsys.readouterr().err


def test_tests_of_the_contract_are_skipped_for_lack_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A section runs the tests of device contracts; the plugin ``Deadline`` ends them in time."""
    seconds = iter([60.0, 60.0, -1.0])  # left before each of three tests
    deadline = Deadline(lambda: next(seconds))
    file = tmp_path / "test_three.py"
    file.write_text("\n".join(f"def test_{name}(): pass" for name in ("a", "b", "c")))
    # The pytest of this test loads no plugins and no settings of the project.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    report = tmp_path / "report.xml"
    args = [
        str(file),
        *("--rootdir", str(tmp_path)),
        *("-c", os.devnull),
        *("--junitxml", str(report)),
        *("-p", "no:cacheprovider"),
    ]
    assert pytest.main(args, plugins=[deadline]) == 0

    assert deadline.not_run == 1
    verdicts = [case.verdict for case in contract.read(report)]
    assert verdicts == ["passed", "passed", "skipped"]


@pytest.mark.parametrize(
    ("verdict", "exit_code", "met"), [("passed", 0, None), ("failed", 1, False)]
)
def test_skipped_contract_tests_leave_the_bar_open_unless_another_test_failed(
    verdict: str, exit_code: int, met: bool | None
) -> None:
    """The only bar is that no test fails; ``not_run``: tests skipped for lack of time."""
    cases = [contract.Case("test_a", verdict, ""), contract.Case("test_b", "skipped", "no time")]
    (bar,) = contract.collect_findings(cases, exit_code=exit_code, not_run=1).bars
    assert bar.met is met


def test_the_test_that_runs_when_the_time_is_over_is_skipped_and_a_report_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within ``interrupts`` a timer sends SIGUSR2 when the time of the section is over.

    Here an hour is left (``NEVER_S``), so that the timer does not send it; the second of two tests
    does. ``not_run`` counts the tests that were skipped for lack of time.
    """
    file = tmp_path / "test_two.py"
    # test_b would fail if the signal did not end it.
    file.write_text(
        "import os, signal\n"
        "def test_a(): pass\n"
        "def test_b():\n"
        "    os.kill(os.getpid(), signal.SIGUSR2)  # as the timer does\n"
        "    raise AssertionError\n"
    )
    # The pytest of this test loads no plugins and no settings of the project.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    deadline, report = Deadline(lambda: NEVER_S), tmp_path / "report.xml"
    args = [
        str(file),
        *("--rootdir", str(tmp_path)),
        *("-c", os.devnull),
        *("--junitxml", str(report)),
        *("-p", "no:cacheprovider"),
    ]

    with deadline.interrupts():
        assert pytest.main(args, plugins=[deadline]) == 0

    assert deadline.not_run == 1
    assert [case.verdict for case in contract.read(report)] == ["passed", "skipped"]


def test_rounds_stop_when_time_is_up() -> None:
    """``interleave`` calls each variant once a round, and returns what each round measured."""
    # After the first round there is time for one more, after the second there is none: two of the
    # nine rounds are measured. The warm-up round before them is not in the result.
    answers = iter([True, False])
    timings = interleave(
        {"one": lambda: 1.0, "two": lambda: 2.0},
        rounds=9,
        warmup=1,
        can_go_on=lambda: next(answers),
    )
    assert timings == {"one": [1.0, 1.0], "two": [2.0, 2.0]}


def test_variant_skipped_for_time_neither_fails_nor_passes_its_bar() -> None:
    """A bar compares the speeds of two variants; of these the trainer was not measured.

    ``left_out`` has the variants for which there was no time. The numbers of our own do not matter.
    ``table`` gets the name that the page shows for each variant.
    """
    measured = Measured(
        seconds={"ours": [1.0]},
        peak_bytes={"ours": 1},
        matmul=[1.0],  # FLOP/s of matmuls in each round
        flops=1.0,  # of a step
        units={"tokens": 1},
        peak_flops=None,
        product_name="a card",
        left_out=["trainer"],
    )
    bar = measured.speed_bar("ours", "trainer", "ours / trainer")
    assert bar.met is None
    assert measured.fastest("ours", "trainer") == "ours"  # of those that were measured
    assert "There was no time for Trainer." in measured.table({"ours": "us", "trainer": "Trainer"})


def test_memory_rows_without_time_are_skipped_and_failures_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is a training whose memory is measured and compared with what was predicted.

    The allocator reserves more memory than tensors take (``allocated``). Only the prediction of
    the reserved memory is judged: it may be off by 10%. ``predicted`` and ``allocated`` are shown.
    """
    sizes = {"predicted": 80, "predicted_reserved": 95, "allocated": 90, "reserved": 100}
    # The first row is measured, the second fails, and for the third there is no time (None).
    answers: list[Any] = [sizes, RuntimeError("out of memory"), None]

    def answer(_: Card, number: int) -> dict[str, int] | None:
        """Return or raise the result of the row with this number."""
        if isinstance(answers[number], RuntimeError):
            raise memory.RowFailedError(str(answers[number]))
        return answers[number]

    rows = tuple(memory.Row("a_case", name) for name in ("first", "second", "third"))
    monkeypatch.setattr(memory, "ROWS", rows)
    monkeypatch.setattr(memory, "measure_row", answer)

    card = Card(device="cpu", size="tiny", scratch=tmp_path)
    result = memory.run(card)

    prediction, failures = result.bars
    # Of 100 reserved bytes 95 were predicted.
    assert (prediction.measured, prediction.met) == ("off by 5.0% at most, of 1 recipes", True)
    assert (failures.measured, failures.met) == ("1", False)
    assert result.figures["a_case first: reserved_bytes"] == 100
    assert "- a_case second: out of memory." in result.text
    assert "There was no time for a_case third." in result.text

    sizes["predicted_reserved"] = 80  # 20% off is too much
    prediction, _failures = memory.run(card).bars
    assert prediction.met is False
