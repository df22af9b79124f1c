"""Real runs that pass, from the command line to the page."""

from __future__ import annotations

import json
import sys

import jsonschema
import pytest

from trainmark import devices
from trainmark.cli.app import main
from trainmark.protocols import Occupant
from trainmark.record.record import describe_schema, read_record


def test_distilbert_on_two_ranks_from_command_to_page(trainmark, tmp_path):
    """A run of DistilBERT, with 8 rows a step and rank (``bs``), and all that it leaves.

    A record has counts of all ranks, times of named spans, and figures: ``p_whole`` is the
    throughput of the whole training, ``p_train`` without the time of evaluations, ``p_core``
    without that of waiting for data either. The pages say whether the result may be quoted;
    generated data may not.
    """
    process = trainmark("run", "distilbert_sst2", "--nproc", "2", "bs=8", "--out", "run")
    assert process.returncode == 0, process.stdout + process.stderr
    record = read_record(tmp_path / "run")
    jsonschema.validate(
        json.loads((tmp_path / "run/record.json").read_text()), json.loads(describe_schema())
    )
    assert record.status == "passed"
    assert record.cause is None
    assert record.plan.fix_hp == {"micro_batch_size": 8}

    # Every row once an epoch, on whichever rank, and every validation row once.
    rows = record.plan.data.train_samples
    assert record.counts.samples == rows * record.counts.epochs
    # Two ranks with 8 rows each; the last step of an epoch may have fewer.
    assert record.counts.steps == -(-rows // 16) * record.counts.epochs
    assert sum(rank.counts.samples for rank in record.ranks) == record.counts.samples
    assert record.quality.eval_samples == record.plan.data.eval_samples
    assert record.quality.value >= record.quality.target
    assert record.counts.tokens < record.counts.tokens_padded
    assert sum(record.steps.samples) == record.counts.samples

    # Every part of the run was timed, and the spans add up to the wall time. No checkpoint was
    # written, and the run was not cut off.
    by_name_ns = record.spans.by_name_ns
    assert {name for name, span_ns in by_name_ns.items() if span_ns == 0} == {
        "checkpoint",
        "unfinished",
    }
    assert sum(by_name_ns.values()) == record.spans.wall_ns
    figures = record.figures
    assert figures["p_core"].value >= figures["p_train"].value >= figures["p_whole"].value
    assert record.environment["collective"] == "gloo"
    assert record.environment["precision_flags"]["tf32"] is False

    # People see it too, in both languages, and no page names this machine's folders.
    assert "passed, do not quote, verified" in process.stdout
    for name in ("page.en.md", "page.zh.md", "page.html"):
        page = (tmp_path / "run" / name).read_text()
        assert "p_core" in page
        assert str(tmp_path) not in page
    exported = trainmark("export", "run", "--to", "csv")
    assert exported.stdout.splitlines()[1].split(",")[0] == record.run_id


def test_repeated_windows_of_a_real_run_have_no_difference(trainmark, tmp_path):
    """A window is five steps; every second one is trained twice, and both passes are compared."""
    args = ("replay_every_windows=2", "max_steps=50", "target_value=none", "window_steps=5")
    process = trainmark("run", "toy", "--nproc", "2", *args, "--out", "run", "--quiet")
    assert process.returncode == 0, process.stdout + process.stderr
    record = read_record(tmp_path / "run")

    # Every second one of (50 - 10) / 5 windows; the first ten steps are the warm-up.
    assert record.figures["replayed_windows"].value == 4
    assert record.replays.model_dump() == {
        "windows": 4,
        "not_deterministic": 0,
        "different": 0,
        "differences": [],
    }
    for rank in record.ranks:
        assert rank.spans_ns["replay"] > 0
        assert sum(rank.spans_ns.values()) == rank.wall_ns


@pytest.mark.nightly
def test_another_process_on_the_device_is_named_before_and_in_the_record(
    tmp_path, monkeypatch, capsys
):
    """Two processes are pretended to use the device: the run warns of the one that computes.

    3 << 30 bytes are 3 GiB, and 4 << 20 are 4 MiB. A finding is a remark in the record; a reason of
    its trust lowers how far the result may be quoted.
    """
    # One process may compute on the card, the other only draws the screen.
    users = [
        Occupant("Fake Card", "python (process 42)", used_bytes=3 << 30, computes=True),
        Occupant("Fake Card", "Xorg (process 9)", used_bytes=4 << 20, computes=False),
    ]
    monkeypatch.setattr(devices, "list_occupants", lambda name, nproc: users)
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    words = ["run", "toy", "max_epochs=1", "target_value=none", "--out", "run", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["trainmark", *words])
    with pytest.raises(SystemExit) as ending:
        main()
    assert not ending.value.code
    err = capsys.readouterr().err
    assert "Fake Card: used by python (process 42), 3.0 GiB" in err
    assert "Xorg" not in err
    record = read_record(tmp_path / "run")
    note = next(finding for finding in record.findings if finding.code == "device_shared")
    assert note.args == {"device": "Fake Card", "process": "python (process 42)", "gib": 3.0}
    assert "device_shared" in [reason.code for reason in record.trust.reasons]
    assert [user["computes"] for user in record.environment["device_users"]] == [True, False]


def test_repeats_are_separate_launches(trainmark, tmp_path):
    """``--repeat 2``: two launches, in the folders r1 and r2; ``--json`` prints both records."""
    process = trainmark("run", "toy", "--repeat", "2", "--out", "runs", "--json", "--quiet")
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    first, second = json.loads(process.stdout)
    assert first["run_id"] != second["run_id"]
    assert [first["plan"]["repeat_index"], second["plan"]["repeat_index"]] == [1, 2]
    assert "2 of 2 launches passed" in (tmp_path / "runs" / "page.en.md").read_text()
    # Same seed, same data: the same work, sample for sample.
    assert first["steps"]["loss"] == second["steps"]["loss"]
    assert read_record(tmp_path / "runs" / "r2").run_id == second["run_id"]
