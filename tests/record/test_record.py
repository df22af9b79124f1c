"""The record: golden for a run written by hand, schema-valid, immutable, and without names."""

from __future__ import annotations

import getpass
import json
import os
import socket
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.version import Version

from support.fakes import (
    GOLDEN,
    FakeVendor,
    S,
    check_golden,
    launch_event,
    make_event,
    rank_events,
    write_run,
)
from trainmark.errors import RecordError
from trainmark.judge.comparison import sides
from trainmark.launch import environment
from trainmark.plan.plan import Plan
from trainmark.record import record, reduce
from trainmark.spec import message


@pytest.fixture(autouse=True)
def _fake_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a home, a user name, a host name and a version of Trainmark that are always the same.

    So a record depends on no machine and no release, and those names can be searched in it.
    """
    home = tmp_path / "home" / "somebody"
    home.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(socket, "gethostname", lambda: "node-07.cluster.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "somebody")
    monkeypatch.setattr(reduce, "__version__", "0.0.0")
    monkeypatch.chdir(home)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a finished run of the toy case, whose devices were not sampled.

    It has the plan of the toy case and the event files of a launcher and of one rank, no record.
    """
    # ``S`` is a second in nanoseconds. The command line is copied into the record; its folder is
    # any. ``sample_every_s`` of 0.0: the devices are never read.
    folder = write_run(
        tmp_path / "run",
        [
            launch_event(argv=["trainmark", "run", "toy", "--out", "/somewhere/run"]),
            make_event("ranks_ended", 11 * S, failures=[]),
            make_event("finished", 11 * S),
        ],
        rank_events(),
    )
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    (folder / "plan.json").write_text(json.dumps(plan | {"sample_every_s": 0.0}), encoding="utf-8")
    return folder


def change_events(run_dir: Path, name: str, **fields: Any) -> None:
    """Change fields of every event of that name in the events of rank 0.

    Args:
        run_dir: the run's folder.
        name: of the events, such as ``window``.
        fields: the new values.
    """
    path = run_dir / "events.rank0.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [event | (fields if event["event"] == name else {}) for event in events]
    path.write_text("".join(json.dumps(item) + "\n" for item in changed))


def test_record_of_a_run_matches_its_golden_file(run_dir: Path) -> None:
    # ``run_dir`` is the folder of a finished run; ``reduce`` makes the record of its events.
    path = record.write_record(reduce.reduce(run_dir), run_dir)
    assert path == run_dir / "record.json"
    check_golden("record_toy.json", path.read_text())


def test_rebuilt_record_is_equal_and_read_back(run_dir: Path) -> None:
    first = reduce.reduce(run_dir)
    record.write_record(first, run_dir)
    assert reduce.reduce(run_dir) == first
    assert record.read_record(run_dir) == record.read_record(run_dir / "record.json") == first
    assert first.passed
    assert first.figure("train_time") == 5.0  # from 6 s to 11 s
    assert first.figure("MFU") is None  # no peak of a fake CPU is known


def test_record_satisfies_the_schema(run_dir: Path) -> None:
    document = json.loads(record.write_record(reduce.reduce(run_dir), run_dir).read_text())
    schema = json.loads(record.describe_schema())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        # A key that is not in the schema.
        jsonschema.validate(document | {"surprise": 1}, schema)


@pytest.mark.skipif(
    Version(version("pydantic")) < Version("2.14"), reason="older ones describe dataclasses less"
)
def test_shipped_schema_matches_the_record_type() -> None:
    # To renew it: trainmark list schema > src/trainmark/record/record.schema.json
    shipped = files("trainmark.record").joinpath("record.schema.json").read_text("utf-8")
    assert shipped == record.describe_schema()


def test_attention_that_ran_is_a_fact_that_comparisons_see(run_dir: Path) -> None:
    # ``change_events`` changes fields of the rank's events "facts" and "result".
    # ``read_environment`` gives the facts that a comparison of two runs looks at.
    # Kernels that torch allowed, and those that ran.
    change_events(run_dir, "facts", attention_flags={"flash": True, "cudnn": False})
    change_events(run_dir, "result", attention=["efficient", "flash"])
    built = reduce.reduce(run_dir)
    assert built.environment["attention"] == "efficient, flash"
    assert built.environment["attention_flags"] == {"flash": True, "cudnn": False}
    assert sides.read_environment(built)["attention"] == "efficient, flash"


def test_a_record_is_never_replaced(run_dir: Path) -> None:
    # ``write_record`` writes the record into the run's folder and returns the path of the file.
    path = record.write_record(reduce.reduce(run_dir), run_dir)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="the record already exists"):
        record.write_record(reduce.reduce(run_dir), run_dir)
    assert path.read_bytes() == before


@pytest.mark.parametrize("file", ["plan.json", "events.launcher.jsonl"])
def test_folder_that_is_not_a_run_is_named(run_dir: Path, file: str) -> None:
    # ``reduce`` makes a record of the plan and the events of a run; one of them is missing.
    (run_dir / file).unlink()
    with pytest.raises(RecordError, match=f"{file}: not a run directory"):
        reduce.reduce(run_dir)


def test_events_without_a_launch_are_no_run_directory(run_dir: Path) -> None:
    # The first event of a launcher is "launch"; here there is only the one of the run's end.
    (run_dir / "events.launcher.jsonl").write_text('{"event":"finished","t_ns":1}\n')
    with pytest.raises(RecordError, match=r"events\.launcher\.jsonl: not a run directory"):
        reduce.reduce(run_dir)


def test_file_that_is_not_a_record_is_named(tmp_path: Path) -> None:
    # A document without the keys of a record.
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(RecordError, match="not a record of this schema"):
        record.read_record(tmp_path)


def test_file_that_was_cut_off_is_not_blamed_on_another_version(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"schema_version": ')
    with pytest.raises(RecordError) as caught:
        record.read_record(tmp_path)
    assert caught.value.what.startswith("not a record: it must be JSON")
    assert "version" not in caught.value.rule


def test_altered_value_is_named_if_this_version_wrote_the_record(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``_fake_machine`` sets the version of the record that is written to 0.0.0. The version that
    # reads it, ``record.__version__``, is the real one first and then 0.0.0, too.
    document = json.loads(record.serialize_record(reduce.reduce(run_dir)))
    file = tmp_path / "record.json"
    file.write_text(json.dumps(document | {"status": "great"}))
    with pytest.raises(RecordError, match="not a record of this schema"):
        record.read_record(file)
    monkeypatch.setattr(record, "__version__", "0.0.0")
    with pytest.raises(RecordError) as caught:
        record.read_record(file)
    assert caught.value.where == f"{file}:status"
    assert caught.value.what.startswith("not a valid record: 'great' is not valid; it must be one")
    assert caught.value.rule == "the record must be unchanged since Trainmark 0.0.0 wrote it"
    assert caught.value.fix == "restore the file, or measure again"


def list_finding_codes(run_dir: Path) -> list[str]:
    """Return the codes of what the record of a run doubts, made anew from its events."""
    return [note.code for note in reduce.reduce(run_dir).findings]


def test_an_impossible_mfu_fails_the_run(run_dir: Path) -> None:
    # ``change_events`` changes fields of the rank's events of a name: of "facts", which names the
    # device, and of the "window"s, which report steps.
    change_events(run_dir, "facts", device={"name": "NVIDIA H100 80GB HBM3"}, matmul_swing=0.5)
    built = reduce.reduce(run_dir)
    # The few FLOPs of this run are possible, and a swing of the matmul rate fails no run.
    assert (built.status, built.ranks[0].matmul_swing) == ("passed", 0.5)
    # The measured steps are 13 of 0.125 s, so 1.625 s. 3.25e15 FLOP in this time are 2e15 FLOP/s,
    # but the fp32 peak of that product is 67e12: the MFU would be 29.85, not at most 1.
    change_events(run_dir, "window", model_flops=3.25e15)
    built = reduce.reduce(run_dir)
    assert built.status == "failed"
    assert built.cause is not None
    assert built.cause.kind == "impossible_figure"
    assert built.cause.message.code == "mfu_above_one"
    assert built.cause.message.args["share"] == pytest.approx(29.85, abs=0.01)


def test_a_quality_above_the_best_possible_is_noted(run_dir: Path) -> None:
    # ``change_events`` changes the event of the run's only evaluation. The run reached an accuracy
    # of 0.9375 over 1,000 rows. The best possible one of the toy's data, which are generated, is
    # 0.9332. Chance explains three standard errors: up to 0.957.
    assert "quality_above_best" not in list_finding_codes(run_dir)
    change_events(run_dir, "evaluate", value=0.99)  # the accuracy, more than chance explains
    best = reduce.reduce(run_dir).quality.best_possible
    assert message("quality_above_best", metric="acc", value=0.99, best=best) in (
        reduce.reduce(run_dir).findings
    )


def test_quality_is_not_checked_against_a_best_quality_above_one(run_dir: Path) -> None:
    plan_file = run_dir / "plan.json"
    plan = json.loads(plan_file.read_text())
    # A BLEU score, for example. The check needs a share of correct samples, from 0 to 1, to know
    # by how much chance can exceed it. So 28.0, above the best quality of 27.3, is not found.
    plan["data"]["best_quality"] = 27.3
    plan_file.write_text(json.dumps(plan))
    change_events(run_dir, "evaluate", value=28.0)
    assert "quality_above_best" not in list_finding_codes(run_dir)


def test_a_quality_that_is_null_has_a_reason(run_dir: Path) -> None:
    # ``change_events`` changes the event of the run's only evaluation.
    assert reduce.reduce(run_dir).quality.reason is None
    change_events(run_dir, "evaluate", value=None)
    assert reduce.reduce(run_dir).quality.reason == message("evaluation_not_finite")
    # A reason that the job gives itself comes first.
    change_events(run_dir, "evaluate", reason=message("nobody_asked").as_dict())
    quality = reduce.reduce(run_dir).quality
    assert (quality.value, quality.reason) == (None, message("nobody_asked"))


@pytest.mark.parametrize("required", [True, False])
def test_missed_target_is_a_failure_if_required(run_dir: Path, required: bool) -> None:
    # The target is an accuracy of 0.9. ``target_required`` says whether a run must reach it. The
    # event of the run's only evaluation gets a lower value.
    plan = Plan.read(run_dir)
    recipe = plan.recipe | {"target_required": required}
    plan.model_copy(update={"recipe": recipe}).save(run_dir)
    change_events(run_dir, "evaluate", value=0.875, target_reached=False)
    built = reduce.reduce(run_dir)
    assert built.quality.reached is False
    assert built.status == ("target_missed" if required else "passed")
    assert (built.cause is None) != required


def test_the_environment_names_no_variable_outside_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "read_trainmark_commit", lambda: None)  # without calling git
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.setenv("FAKE_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("FCCL_DEBUG", "INFO")
    monkeypatch.setenv("XFCCL_DEBUG", "INFO")
    # The vendor's list of variables. FCCL_* matches all names that begin with FCCL_ alone.
    vendor = FakeVendor(recorded_variables=("FAKE_VISIBLE_DEVICES", "FAKE_UNSET", "FCCL_*"))
    collected = environment.describe_environment(os.environ, vendor)
    assert collected["variables"]["OMP_NUM_THREADS"] == "3"
    assert collected["variables"]["FAKE_VISIBLE_DEVICES"] == "0,1"
    assert collected["variables"]["FCCL_DEBUG"] == "INFO"
    assert not {"FAKE_UNSET", "XFCCL_DEBUG"} & collected["variables"].keys()
    assert collected["driver"] == "1.2"  # as ``FakeVendor`` reports it
    assert "hush" not in json.dumps(collected)
    # Also the packages that read data.
    assert {"torch", "pyarrow", "numpy"} <= collected["packages"].keys()
