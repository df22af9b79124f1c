"""The command of `make gpu`: every section at its smallest size, and what ends one early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from benchmarks.card import SECTIONS, results
from benchmarks.card import __main__ as command
from benchmarks.card.running import ROOT, run
from benchmarks.card.section import Card

from fake_nvml import H100, FakeCard, put_cards
from trainmark.launch.stopping import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)  # processes that import torch, on a busy machine
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
MISSED = """
def run(card):
    return Findings([Bar("speed", "0", "at least 1", False)])
"""
UNJUDGED = """
def run(card):
    return Findings([Bar("share", "unknown: no peak", "at least 1", None)])
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
        assert isinstance(bar["met"], bool) or (bar["met"] is None and "MFU" in bar["what"])
    page = file.with_suffix(".md").read_text()
    assert f"## {section['title']}\n" in page
    assert str(ROOT) not in page + file.read_text()


def test_every_section_is_listed_in_order_and_once() -> None:
    assert len(set(SECTIONS)) == len(SECTIONS)
    for name in SECTIONS:
        assert (ROOT / "benchmarks" / "card" / f"{name}.py").exists()


def test_findings_are_kept_and_shown(sections: Sections) -> None:
    sections.add("good", GOOD)

    assert sections.measure(size="full") == 0

    section = sections.document("some-card")["sections"]["good"]
    assert section["bars"] == [{"what": "speed", "measured": "2", "bar": "at least 1", "met": True}]
    assert section["figures"] == {"speed_per_s": 2.0, "no": None}
    page = (sections.folder / "results" / "some-card.md").read_text()
    assert "| speed | 2 | at least 1 | met |" in page
    assert "| no | unknown |" in page


@pytest.mark.parametrize("body", [FAILS, NAN])
def test_a_failing_section_fails_the_call_and_the_rest_go_on(sections: Sections, body: str) -> None:
    sections.add("bad", body)
    sections.add("good", GOOD)

    assert sections.measure() == 1

    found = sections.document()["sections"]
    assert found["bad"]["state"] == "failed"
    assert "Error" in found["bad"]["output"]
    assert found["good"]["state"] == "finished"


def test_a_missed_bar_fails_the_call_at_full_size_only(sections: Sections) -> None:
    sections.add("missed", MISSED)

    assert sections.measure(size="tiny") == 0
    assert sections.measure(size="full") == 1


def test_only_what_is_not_finished_runs_again(sections: Sections) -> None:
    sections.add("good", GOOD)
    sections.add("bad", FAILS)

    assert sections.measure("--sections", "good") == 0
    assert sections.measure() == 1
    assert (sections.calls("good"), sections.calls("bad")) == (1, 1)
    assert sections.measure() == 1
    assert (sections.calls("good"), sections.calls("bad")) == (1, 2)
    assert sections.measure("--sections", "good", "--restart") == 0
    assert (sections.calls("good"), sections.calls("bad")) == (2, 2)
    assert set(sections.document()["sections"]) == {"good", "bad"}


def test_a_bar_that_nothing_can_judge_is_named_and_does_not_fail(
    sections: Sections, capfd: pytest.CaptureFixture[str]
) -> None:
    sections.add("open", UNJUDGED)
    assert sections.measure(size="full") == 0
    assert "open: share: not judged, unknown: no peak" in capfd.readouterr().out.splitlines()
    (bar,) = sections.document("some-card")["sections"]["open"]["bars"]
    assert bar["met"] is None


@pytest.mark.parametrize(
    "change",
    [{"sections": []}, {"measured": []}, {"sections": {"good": "x"}}, {"date": "a/../b"}],
)
def test_results_of_another_form_are_refused(sections: Sections, change: dict[str, Any]) -> None:
    sections.add("good", GOOD)
    assert sections.measure() == 0
    (file,) = (sections.folder / "results").glob("*.json")
    changed = json.dumps(sections.document() | change)
    file.write_text(changed)

    assert sections.measure() == 2

    assert file.read_text() == changed
    assert sections.calls("good") == 1


def test_results_of_another_source_are_moved_aside(
    sections: Sections, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections.add("good", GOOD)
    assert sections.measure() == 0
    before = sections.document()

    monkeypatch.setattr(results, "source_digest", lambda: "another")
    assert sections.measure() == 0

    assert sections.calls("good") == 2
    (aside,) = (sections.folder / "results").glob("some-card-tiny.*T*.json")
    assert json.loads(aside.read_text()) == before


@pytest.mark.parametrize("text", ["{", "[]", '{"sections": {}}'])
def test_a_foreign_file_is_left_as_it_is(sections: Sections, text: str) -> None:
    sections.add("good", GOOD)
    file = sections.folder / "results" / "some-card-tiny.json"
    file.parent.mkdir()
    file.write_text(text)

    assert sections.measure() == 2

    assert file.read_text() == text
    assert sections.calls("good") == 0


def test_an_unknown_section_and_device_are_refused(sections: Sections) -> None:
    sections.add("good", GOOD)

    with pytest.raises(SystemExit) as refused:
        sections.measure("--sections", "good no_such_section")
    assert refused.value.code == 2
    assert command.main(["--device", "no_such_device"], sections.modules) == 2
    assert sections.calls("good") == 0


def test_a_device_that_cannot_be_opened_is_refused(
    sections: Sections, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections.add("good", GOOD)
    sections.add("broken", FAILS)
    monkeypatch.setattr(command, "FACTS", sections.modules.pop("broken"))

    assert sections.measure() == 2
    assert sections.calls("good") == 0


def test_a_card_that_cannot_be_used_and_one_that_others_use_are_named(
    sections: Sections, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainmark import devices
    from trainmark.devices.torch_build import TorchBuild
    from trainmark.devices.vendors import nvidia
    from trainmark.protocols import Occupant

    sections.add("good", GOOD)
    build = TorchBuild("2.13.0+cpu", None)
    monkeypatch.setattr(nvidia, "torch_build", lambda: build)
    put_cards(monkeypatch, FakeCard())
    assert command.main([], sections.modules) == 2
    assert f"{H100} is here, but torch 2.13.0+cpu has no CUDA" in capsys.readouterr().err
    user = Occupant("Some Card", "python (process 42)", 3 << 30, True)
    monkeypatch.setattr(devices, "occupants", lambda name, nproc: [user])
    assert sections.measure() == 0
    assert "Some Card: used by python (process 42), 3.0 GiB" in capsys.readouterr().err


def alive(pids: list[int]) -> list[int]:
    return [
        pid for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]  # fmt: skip


def jumps_when(path: Path) -> Callable[[], float]:
    """Return a clock that stands still until ``path`` exists, then is past any limit."""
    return lambda: 2 * NEVER_S if path.exists() else 0.0


class StopOnce(StopRequest):
    """A stop that arrives when ``path`` exists."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def signal_name(self) -> str | None:  # type: ignore[override]
        return "SIGTERM" if self.path.exists() else None


@pytest.mark.parametrize("ending", ["timed out", "interrupted"])
def test_a_section_that_hangs_is_ended_with_all_its_processes(
    sections: Sections, tmp_path: Path, ending: str
) -> None:
    sections.add("hangs", HANGS)
    pids = tmp_path / "pids"
    stop = StopOnce(pids) if ending == "interrupted" else StopRequest()
    clock = jumps_when(pids) if ending == "timed out" else lambda: 0.0

    ended = run("injected_hangs", Card("cpu", "tiny", tmp_path), limit_s=NEVER_S, stop=stop,
                clock=clock)  # fmt: skip

    assert ended.state == ending
    assert ended.document is None
    assert alive([int(pid) for pid in pids.read_text().split()]) == []


@pytest.fixture
def started(sections: Sections) -> Iterator[subprocess.Popen[str]]:
    """A call whose first section is finished and whose second one hangs."""
    sections.add("good", GOOD)
    sections.add("hangs", HANGS)
    program = (
        "import sys; from benchmarks.card import __main__ as c; c.FACTS = 'injected_facts'; "
        f"sys.exit(c.main(sys.argv[1:], {sections.modules}, limit_s={NEVER_S}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *sections.words()], cwd=ROOT, text=True
    ) as process:
        pids = sections.folder / "scratch" / "pids"
        while not pids.exists():
            assert process.poll() is None
            psutil.wait_procs([psutil.Process(process.pid)], timeout=0.05)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interruption_loses_the_running_section_alone(
    sections: Sections, started: subprocess.Popen[str], number: signal.Signals
) -> None:
    pids = [int(pid) for pid in (sections.folder / "scratch" / "pids").read_text().split()]
    started.send_signal(number)

    assert started.wait(timeout=120) == (-number if number == signal.SIGKILL else 128 + number)
    if number == signal.SIGKILL:
        psutil.wait_procs([psutil.Process(pid) for pid in alive(pids[:1])], timeout=60)
        assert alive(pids[:1]) == []
    else:
        assert alive(pids) == []
    sections.add("hangs", GOOD)
    assert sections.measure() == 0
    assert alive(pids) == []  # a child of the section that outlived both, after SIGKILL
    assert sections.calls("good") == 1
