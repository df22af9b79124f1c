"""The command of `make gpu`: every section at its smallest size, and what ends one early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from benchmarks.card import SECTIONS
from benchmarks.card import __main__ as command
from benchmarks.card.running import ROOT, run
from benchmarks.card.section import Card

from trainmark.launch.processes import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEVER_S = 3600.0
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
# Without torch, so that a test takes no longer than it must.
FACTS = """
def run(card):
    return Facts({"name": "Some (R) Card", "vendor": "cpu"}, {"sm_clock_mhz": None}, {
        "driver": None, "python": "3", "packages": {"torch": "2"}, "cpu": "a processor",
        "cpu_cores": 2, "os": "an os", "kernel": "6", "variables": {}, "commit": None,
    })
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
# A child in a session of its own, as the ranks of a launch are; then it hangs.
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
    modules: dict[str, str]

    def add(self, name: str, body: str) -> None:
        (self.folder / f"injected_{name}.py").write_text(HEAD + body, encoding="utf-8")
        self.modules[name] = f"injected_{name}"

    def words(self, *more: str, size: str = "tiny") -> list[str]:
        return ["--device", "cpu", "--size", size, "--results", str(self.folder / "results"),
                "--scratch", str(self.folder / "scratch"), *more]  # fmt: skip

    def measure(self, *more: str, size: str = "tiny") -> int:
        return command.main(self.words(*more, size=size), self.modules, limit_s=NEVER_S)

    def calls(self, name: str) -> int:
        path = self.folder / "scratch" / f"injected_{name}.calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def document(self, name: str = "some-card-tiny") -> dict[str, Any]:
        return json.loads((self.folder / "results" / f"{name}.json").read_text())


@pytest.fixture
def sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sections:
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    monkeypatch.setenv("PYTHONPATH", path)
    made = Sections(tmp_path, {})
    made.add("facts", FACTS)
    monkeypatch.setattr(command, "FACTS", made.modules.pop("facts"))
    return made


@pytest.mark.nightly
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_ends_with_findings_on_the_cpu(name: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    words = ["--device", "cpu", "--size", "tiny", "--sections", name,
             "--results", str(tmp_path), "--scratch", str(tmp_path / "scratch")]  # fmt: skip

    # One thread: the tests beside this one need the other cores.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.card", *words], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
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
        assert isinstance(bar["met"], bool) or (
            bar["met"] is None and ("MFU" in bar["what"] or "fp8" in bar["what"])
        )
    page = file.with_suffix(".md").read_text()
    assert f"## {section['title']}\n" in page
    assert str(ROOT) not in page + file.read_text()


def test_findings_are_kept_and_shown(sections: Sections) -> None:
    sections.add("good", GOOD)

    assert sections.measure(size="full") == 0

    section = sections.document("some-card")["sections"]["good"]
    assert section["bars"] == [{"what": "speed", "measured": "2", "bar": "at least 1", "met": True}]
    assert section["figures"] == {"speed_per_s": 2.0, "no": None}
    page = (sections.folder / "results" / "some-card.md").read_text()
    assert "| speed | 2 | at least 1 | met |" in page
    assert "| no | unknown |" in page


def test_what_fails_fails_the_call_and_only_it_runs_again(sections: Sections) -> None:
    sections.add("bad", FAILS)
    sections.add("nan", NAN)
    sections.add("good", GOOD)

    assert sections.measure("--sections", "good") == 0
    assert sections.measure() == 1
    assert (sections.calls("good"), sections.calls("bad")) == (1, 1)
    assert sections.measure() == 1
    assert (sections.calls("good"), sections.calls("bad")) == (1, 2)
    assert sections.measure("--sections", "good", "--restart") == 0
    assert (sections.calls("good"), sections.calls("bad")) == (2, 2)
    found = sections.document()["sections"]
    assert {name: section["state"] for name, section in found.items()} == {
        "good": "finished", "bad": "failed", "nan": "failed",
    }  # fmt: skip
    assert all("Error" in found[name]["output"] for name in ("bad", "nan"))


def alive(pids: list[int]) -> list[int]:
    return [
        pid for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]  # fmt: skip


def jumps_when(path: Path) -> Callable[[], float]:
    """Return a clock that stands still until ``path`` exists, then is past any limit."""
    return lambda: 2 * NEVER_S if path.exists() else 0.0


def test_a_section_that_hangs_is_ended_with_all_its_processes(
    sections: Sections, tmp_path: Path
) -> None:
    sections.add("hangs", HANGS)
    pids = tmp_path / "pids"
    ended = run("injected_hangs", Card("cpu", "tiny", tmp_path), limit_s=NEVER_S,
                stop=StopRequest(), clock=jumps_when(pids))  # fmt: skip
    assert ended.state == "timed out"
    assert ended.document is None
    assert alive([int(pid) for pid in pids.read_text().split()]) == []
