"""The files beside a record: redacted when the run is over, before their digests are taken."""

from __future__ import annotations

import getpass
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN, event, launch_event, window, write_run
from trainmark.plan.plan import Plan
from trainmark.record import building, evidence, record
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
ERROR = "alice on node17 could not read /srv/secret/x: token=hush, [n2.cluster.local]:29500"
CLEAN = "<user> on <host> could not read <path>: token=<secret> [<host>]:29500"
LEAKS = ("alice", "node17", "/srv", "hush", "n2.cluster", "bob@", "10.9.8.7", "/home/")


@pytest.fixture
def dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run whose every file holds what must not leave."""
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "node17")
    data = "/home/alice/secret data/sst2"
    device = {"driver": "10.1.2.3", "library": "/opt/v/libcuda.so.1", "peer": "10.9.8.7"}
    said = message("exception", text=ERROR).as_dict()
    error = {"kind": "error", "type": "OSError", "message": said, "place": "train",
             "traceback": ERROR}  # fmt: skip
    ended = [{"rank": 0, "exit_code": 1, "time_s": 1e9, "report": error}]
    folder = write_run(
        tmp_path / "run",
        [
            launch_event(
                argv=["trainmark", "run", "toy", "--data", "/home/alice/x"],
                environment={"network": "eth0 10.9.8.7", "cpu": "Fake CPU"},
            ),
            event("agent_exit", 11 * S, exit_code=1, failures=ended),
        ],
        [
            event("start", S, rank=0, pid=4711, unix_ns=1),
            event("facts", 6 * S, device=device, memory_scope="process", precision_flags={},
                  matmul_flops_per_second=5e10, steps_per_epoch=64, collective=None),
            event("result", 9 * S, job={"checkpoint": f"{data}/w.bin"}, used_bytes=2_500_000,
                  allocator_peak_bytes=None, total_bytes=8_000_000, memory_scope="process"),
            event("error", 10 * S, time_s=1e9, **error),
        ],
    )  # fmt: skip
    (folder / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    plan = Plan.read(folder)
    found = plan.data.model_copy(update={"folder": data})
    plan.model_copy(update={"run_dir": str(folder), "data": found}).save(folder)
    (folder / "log.rank0.txt").write_bytes(f"{ERROR}\nbob@x.org \xff\n".encode("latin-1"))
    (folder / "node.sh").write_text(
        f"# {ERROR}\nexport PIP_INDEX_URL=https://a:hush@pypi.org/simple\n"
    )
    (folder / "site.json").write_text(json.dumps({"data": data, "container": ERROR}, indent=2))
    (folder / "stacks.rank0.txt").write_text('  File "/home/bob/train.py", line 3 in f\n')
    return folder


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_bytes().decode("latin-1")
            for path in folder.iterdir() if path.is_file()}  # fmt: skip


def test_nothing_that_leaves_names_a_person_a_host_a_place_or_a_secret(dirty):
    evidence.redact(dirty)
    built = building.build(dirty)
    record.write(built, dirty)
    texts = _texts(dirty)
    assert {"plan.json", "record.json", "events.rank0.jsonl", "log.rank0.txt"} <= texts.keys()
    for name, text in texts.items():
        assert [leak for leak in (*LEAKS, str(dirty)) if leak in text] == [], name
    assert built.cause.message.args["text"] == built.cause.traceback == CLEAN
    device = built.environment["devices"][0]
    assert (device["driver"], device["library"]) == ("10.1.2.3", "<path>/libcuda.so.1")
    assert built.environment["job"]["checkpoint"] == "<data>/w.bin"
    assert texts["log.rank0.txt"] == f"{CLEAN}\n<email> \xff\n"
    assert texts["stacks.rank0.txt"] == '  File "<path>/train.py", line 3 in f\n'


def test_files_stay_valid_line_by_line_and_a_torn_line_is_redacted_too(dirty):
    path = dirty / "events.rank0.jsonl"
    count = len(path.read_text().splitlines())
    with path.open("a") as file:
        file.write('not JSON from bob@x.org\n{"event":"error","message":"/srv/secret/y')
    evidence.redact(dirty)
    *whole, malformed, torn = path.read_text().split("\n")
    assert len([json.loads(line) for line in whole]) == count
    assert malformed == "not JSON from <email>"
    assert torn == '{"event":"error","message":"<path>'


def test_files_without_anything_to_redact_are_not_written(dirty):
    evidence.redact(dirty)
    path = dirty / "events.rank0.jsonl"
    before = path.stat().st_mtime_ns, path.stat().st_ino
    evidence.redact(dirty)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


@pytest.mark.parametrize("more", [
    {}, {"parts_ns": {"forward": 3, "backward": 4}}, {"token": "hush"}, {"host": "train"},
    {"paths": ["/srv/secret/x"]}, {"parts_ns": {"said": "/srv/secret/x"}}, {"phase": "alice@x.org"},
    {"loss": [None, -1.5e-07]}, {"note": 'a "quoted" /srv/secret/x'},
])  # fmt: skip
def test_windows_are_redacted_as_all_events_are(tmp_path: Path, more: dict[str, Any]) -> None:
    (tmp_path / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    redactor = evidence.redactor_of(Plan.read(tmp_path), tmp_path)
    told = window(1, 2, step_ns=[1, 1], samples=[4, 4]) | more
    write_run(tmp_path, [launch_event()], [told])
    evidence.redact(tmp_path)
    line = (tmp_path / "events.rank0.jsonl").read_text(encoding="utf-8")
    assert json.loads(line) == redactor.document(told)
    assert "/srv" not in line
    assert "hush" not in line
