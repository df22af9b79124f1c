"""A plan file that is stopped, killed and taken up again, with real ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from real_runs import ended
from trainmark.results.record import read

FAULTY = Path(__file__).parent / "cases"
# The faulty case with a mission, so that it leaves JSON records.
CASE = """\
from dataclasses import replace
from trainmark.cases import load
from trainmark.spec import Mission
CASE = replace(load("faulty"), name="filed", mission=Mission("nlp", "filed", "语言模型", 1))
"""
JOB = """\
from trainmark.cases import part
build, load_data = part("faulty", "job").build, part("faulty", "job").load_data
"""
DATA = "from trainmark.cases.toy.data import check, generate\n"
PLAN = """\
device: cpu
runs:
- {name: a, case: filed, set: {FIELDS}}
- {name: b, case: toy, set: {target_value: none}}
- {name: eight, case: toy, nproc: 1000, set: {target_value: none}}
"""


@pytest.fixture
def start(tmp_path):
    """Start ``trainmark run plan.yaml`` and end it with the test, whatever happens."""
    (tmp_path / "cases/filed").mkdir(parents=True)
    (tmp_path / "cases/filed/case.py").write_text(CASE, encoding="utf-8")
    (tmp_path / "cases/filed/job.py").write_text(JOB)
    (tmp_path / "cases/filed/data.py").write_text(DATA)
    os.mkfifo(tmp_path / "fifo")
    env = os.environ | {
        "TRAINMARK_CASE_PATH": f"{FAULTY}{os.pathsep}{tmp_path / 'cases'}",
        "TRAINMARK_CACHE": str(tmp_path / "cache"),
        "FAULT_FIFO": str(tmp_path / "fifo"),
        "OMP_NUM_THREADS": "1",
    }
    processes = []

    def call(fields, *words):
        (tmp_path / "plan.yaml").write_text(PLAN.replace("FIELDS", fields))
        command = [sys.executable, "-m", "trainmark", "run", "plan.yaml", *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()


def flags(run_dir):
    return {
        path.name.rpartition("_")[2]: json.loads(path.read_text(encoding="utf-8"))["JOB_FAIL_FLAG"]
        for path in (run_dir / "index").iterdir()
    }


def attempts(runs):
    return sorted(path.name for path in runs.iterdir() if not path.name.startswith("."))


def test_a_series_is_stopped_then_killed_then_finished_then_kept(start, tmp_path):
    runs = tmp_path / "runs/plan"

    process = start("fault: wait")
    (tmp_path / "fifo").read_text()  # blocks until the rank has reached its step
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 1, err
    assert read(runs / "a").status == "interrupted"
    assert flags(runs / "a") == {"speed": 1, "mem": 1}
    assert "b: left: stopped before its turn" in out
    assert attempts(runs) == ["a"]

    process = start("fault: wait")
    (tmp_path / "fifo").read_text()
    process.kill()
    code, _, _ = ended(process)
    assert code == -signal.SIGKILL
    record = read(runs / "a-2")
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")
    assert flags(runs / "a-2") == {"speed": 1, "mem": 1}
    assert attempts(runs) == ["a", "a-2"]

    code, out, err = ended(start("", "--json"))
    assert code == 0, err
    done = {run["name"]: run for run in json.loads(out)["runs"]}
    states = {name: run["status"] for name, run in done.items()}
    assert states == {"a": "passed", "b": "passed", "eight": "skipped"}
    assert (done["a"]["run_dir"], done["b"]["run_dir"]) == ("runs/plan/a-3", "runs/plan/b")
    assert "a-2 did not pass: interrupted; this attempt goes to a-3" in err
    names = {path.name.rpartition("_")[0] for path in (runs / "a-2" / "index").iterdir()}
    assert names == {"nlp_filed-tiny-open_sp_bs64_fp32_1"}  # fault: is an open field
    assert flags(runs / "a-3") == {"speed": 0, "mem": 0}

    code, again, _ = ended(start("", "--json"))
    assert code == 0
    kept = {run["name"]: run for run in json.loads(again)["runs"]}
    assert kept["a"] == done["a"] | {"status": "kept"}
    assert kept["b"] == done["b"] | {"status": "kept"}
