"""What a run prints at its end: complete, within 80 columns, harmless."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from trainmark.errors import UsageError
from trainmark.pages.terminal import Screen, repeats_table, run_table
from trainmark.record.record import Cause, Record
from trainmark.spec import message

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = Screen()


def record(**changes):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    return Record.model_validate_json(text).model_copy(update=changes)


def hostile():
    made = record()
    name = "[bold red]X[/]\x1b[2J" + "|wide 宽" * 30
    return record(
        environment=made.environment | {"devices": [{"name": name}]},
        status="failed",
        cause=Cause(
            kind="error",
            message=message("exception", text="[/nope]\x1b]0;title\x07 " + "m" * 200),
            rank=3,
        ),
        notes=[message("note " * 40)],
        fix_hp={f"field_{n}": "x" * 30 for n in range(5)},
    )


def test_a_passed_run():
    lines = run_table(record(), run_dir=Path("runs/one"), screen=PLAIN).splitlines()
    assert lines[0] == "PASSED distilbert_sst2 · NVIDIA A100-SXM4-40GB 1 node x 2 (1x2)"
    assert lines[1] == "trust: noisy, unverified: fewer than 5 launches (1)"
    assert lines[2] == "acc 0.9117 reached the target 0.91"
    assert lines[4].split() == [
        "precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", "acc", "mem",
    ]  # fmt: skip
    assert lines[6].split() == [
        "tf32", "bs=96,", "46.1", "412.9", "457.2", "464.6", "0.9117/0.91", "33.4/40.0",
    ]  # fmt: skip
    assert lines[7].split() == ["lr=0.00015"]
    assert lines[-1] == "record: runs/one/record.json"
    text = "\n".join(lines)
    assert re.search(r"^MFU +31.6 +% +dense tf32 peak 156 TFLOP/s \(A\)$", text, re.MULTILINE)
    (line,) = [line for line in lines if line.startswith("train   ")]
    assert line.split()[:5] == ["train", "measured", "steps", "22.970", "20.125"]
    assert line.endswith(" ▐███████▋")
    assert "labels: self-reported (measured by its publisher)" in text


def test_a_failed_run_says_why_and_what_to_do():
    made = record(
        status="oom",
        cause=Cause(
            kind="oom",
            message=message("exception", text="no memory left"),
            rank=1,
            place="model_build",
        ),
        notes=[message("oversubscribed")],
    )
    text = run_table(made, screen=PLAIN)
    assert text.startswith("OUT OF MEMORY distilbert_sst2 · NVIDIA")
    assert "\noom, rank 1, model_build: no memory left\nWay out: lower bs, with gas raised" in text
    assert "\nnote: more ranks than cores" in text


@pytest.mark.parametrize("make", [record, hostile])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_80(make, unicode):
    text = run_table(make(), screen=Screen(width=80, unicode=unicode))
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_text_of_a_record_is_neither_markup_nor_control():
    text = run_table(hostile(), screen=PLAIN)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold red]X[/]" in text
    assert "[/nope]" in text


def test_a_figure_that_is_missing_shows_its_reason_and_no_unit():
    made = record()
    gone = made.figures["token/p/s"].model_copy(
        update={"value": None, "reason": message("no_tokens")}
    )
    made = record(figures=made.figures | {"token/p/s": gone})
    lines = run_table(made, screen=PLAIN).splitlines()
    line = next(line for line in lines if line.startswith("token/p/s"))
    assert line.split(maxsplit=2) == ["token/p/s", "–", "this case has no tokens"]
    ascii_only = run_table(made, screen=Screen(unicode=False)).splitlines()
    assert re.search(r"^token/p/s *\| *-", "\n".join(ascii_only), re.MULTILINE)


def test_changes_fold_at_commas_only():
    changes = {
        "micro_batch_size": 2097152, "learning_rate": 0.00000125, "grad_accum_steps": 8,
        "eval_every_epochs": None,
    }  # fmt: skip
    lines = run_table(record(fix_hp=changes), screen=PLAIN).splitlines()
    assert [line.split()[-1 if row else 1] for row, line in enumerate(lines[6:11])] == [
        "bs=2097152,", "lr=0.00000125,", "gas=8,", "eval_every_epochs=", "none",
    ]  # fmt: skip


def test_without_utf8_all_is_ascii():
    assert run_table(record(), screen=Screen(unicode=False)).isascii()


def test_colour_is_there_only_when_asked(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32mPASSED" in run_table(record(), screen=Screen(colour=True))
    assert "\x1b" not in run_table(record(), screen=PLAIN)


def test_repeats():
    launches = [record(run_id=f"r{n}") for n in range(3)]
    launches.append(record(run_id="r3", status="timed_out"))
    lines = repeats_table(launches, screen=PLAIN).splitlines()
    assert lines[0] == "Repeated launches: distilbert_sst2:pytorch_2.13:nvidia:1:2:1"
    assert lines[1] == "trust: noisy, unverified: fewer than 5 launches (3)"
    assert lines[3].split() == ["figure", "median", "unit", "range", "CV", "launches"]
    assert lines[5].split() == ["e2e_time", "46.1", "s", "46.1", "–", "46.1", "0.00%", "3"]
    assert "3 of 4 launches passed" in lines
    assert "excluded from every figure: r3 (timed out)" in lines
    assert max(map(len, lines)) <= 80
    with pytest.raises(UsageError, match="twice"):
        repeats_table([launches[0], launches[0]], screen=PLAIN)
