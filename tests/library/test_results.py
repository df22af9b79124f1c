"""``trainmark results``: exact answers on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from store_bodies import document, write


@pytest.fixture
def runs(tmp_path):
    """Three runs of which one is of a plan, one failed, and one is on another device."""
    folder = tmp_path / "runs"
    h100 = {"environment__devices": [{"name": "NVIDIA H100 80GB HBM3"}] * 2}
    write(folder / "a", document("a", started="2026-11-01T08:00:00+00:00"))
    write(
        folder / "plan" / "b",
        document("b", started="2026-11-03T08:00:00+00:00", figures={"p_core": 900.5}, **h100),
    )
    cause = {"kind": "oom", "message": {"code": "oom", "args": {}}}
    failed = document(
        "c", started="2026-11-02T08:00:00+00:00", status="oom", cause=cause,
        figures={"p_core": None}, plan__recipe__precision="bf16", labels=["self-reported", "odd"],
        environment__packages={"torch": "2.11.0"},
    )  # fmt: skip
    write(folder / "c", failed)
    return folder


def listed(cli, *words):
    code, out, err = cli("results", *words, "--json")
    assert code == 0, err
    return [run["run_id"] for run in json.loads(out)["runs"]]


def test_a_folder_of_runs_is_listed_the_newest_first(cli, runs):
    assert listed(cli, "device~a100", "--sort", "p_core") == ["a", "c"]
    code, out, err = cli("results")
    assert (code, err) == (0, "")
    assert [x.split()[-1] for x in out.splitlines() if "runs/" in x] == [
        "runs/plan/b", "runs/c", "runs/a",
    ]  # fmt: skip
    assert (out.count("distilbert_sst2"), out.count("unverified")) == (3, 3)
    code, out, err = cli("results", "--limit", "1", "--columns", "run_id,p_core")
    assert [line.split() for line in out.splitlines()][-1] == ["b", "900.5"]
    assert "1 of 3 runs" in err
    assert cli("results", "cas=toy")[0] == 2


def test_json_has_values_of_the_type_they_are_of(cli, runs):
    document = json.loads(cli("results", "run_id=c", "--json")[1])
    (run,) = document["runs"]
    assert (document["total"], document["unread"]) == (1, [])
    assert (run["p_core"], run["p_train"]) == (None, 457.1609984523195)
    assert (run["nproc"], run["steady"], run["cause_kind"]) == (2, True, "oom")
    words = "run_id=c", "--columns", "path,torch,labels", "--json"
    (run,) = json.loads(cli("results", *words)[1])["runs"]
    assert run == {"path": "runs/c", "torch": "2.11.0", "labels": "self-reported odd"}


def test_a_record_that_cannot_be_read_is_listed(cli, runs):
    (runs / "a" / "record.json").write_text('{"suite": ')
    code, out, err = cli("results")
    assert (code, "runs/c" in out, "runs/a" in out) == (1, True, False)
    assert err.startswith("runs/a: not taken into the index")
    document = json.loads(cli("results", "--json")[1])
    assert [(x["file"], x["reason"]["code"]) for x in document["unread"]] == [
        ("runs/a", "record_unreadable")
    ]


def test_a_store_without_runs_is_listed_as_that(cli, tmp_path):
    (tmp_path / "runs").mkdir()
    code, out, err = cli("results")
    assert (code, out.strip(), "no run in runs" in err) == (0, "", True)
    assert json.loads(cli("results", "--json")[1]) == {"total": 0, "runs": [], "unread": []}


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("markdown_it", ["import", "."], "library"),
        ("starlette", ["serve", "--port", "0"], "server"),
    ],
)
def test_a_verb_whose_extra_is_missing_names_it(package, words, extra, tmp_path):
    script = (
        f"import sys\nsys.modules[{package!r}] = None\nsys.argv[1:] = {words}\n"
        "from trainmark.cli.app import main\nmain()\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert f"pip install 'trainmark[{extra}]'" in ended.stderr
