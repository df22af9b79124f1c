"""Real programs under the witness: what is counted, timed and noted of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from statistics import fmean

import pytest

from support.witnessed_programs import PROGRAMS, WORK, list_grave_finding_codes, measure
from trainmark.record.advice import advise


def test_plain_loop_is_measured_in_full(tmp_path):
    # ``WORK``, the file of ``--witness``, states 8 samples a step and 5 steps of warm-up. Here a
    # step has two micro-batches of 8.
    work = WORK.replace("samples = 8", "samples = 16")
    # ``unverified``: ``measure`` only reads the record; nothing compared it with its events.
    record = measure(tmp_path, "plain.py", "--steps", "30", "--accumulate", "2", work=work)
    assert (record.status, record.verification, list_grave_finding_codes(record)) == (
        "passed",
        "unverified",
        set(),
    )
    assert "witnessed" in record.labels
    assert (record.counts.steps, record.counts.samples) == (30, 480)  # 30 x 16
    assert record.counts.micro_batches == 60
    assert record.steps.warmup == 5
    # The loss is the value on which ``backward`` is called. The program divides it by its two
    # micro-batches, so that the first step has half of about ln(2), the loss of guessing a class.
    assert all(loss is not None for loss in record.steps.loss)
    assert record.steps.loss[0] == pytest.approx(math.log(2) / 2, rel=0.2)
    # Two layers of 16 x 64 and 64 x 2, 8 rows, 2 micro-batches. Each matmul (forward, gradients of
    # the weights and of the input) has 2 FLOPs a weight; the first layer has no input gradient.
    flops = 2 * 8 * (4 * 16 * 64 + 6 * 64 * 2)
    assert record.ranks[0].phases["train"].model_flops == 25 * flops  # without the 5 of the warm-up
    job = record.environment["job"]
    assert job is not None
    assert (job["parameters"], job["optimizer_steps"]) == (16 * 64 + 64 + 64 * 2 + 2, [30])
    assert (job["seen_samples"], job["matmul_type"]) == (16, "float32")


def test_batch_that_contradicts_the_file_is_found(tmp_path):
    # The program's batches have 8 samples. ``WORK``, the file of ``--witness``, says so, but is
    # changed here to say 16.
    work = WORK.replace("samples = 8", "samples = 16")
    record = measure(tmp_path, "plain.py", "--steps", "20", work=work)
    assert list_grave_finding_codes(record) == {"witness_batch"}
    finding = next(x for x in record.findings if x.code == "witness_batch")
    # ``share``: the stated number over the seen one.
    assert finding.args == {"stated": 16, "seen": 8, "share": 2}
    assert record.trust.grade == "do_not_quote"


def test_batches_are_counted_as_the_file_declares(tmp_path):
    # ``WORK`` is the file of ``--witness``. Here dimension 0 of each batch counts its samples; the
    # file does not say how many a step has. The program's batches have 8 samples, and a step has 3
    # batches.
    work = WORK.replace("[step]\nsamples = 8", "[batch]\nsamples = 0")
    record = measure(tmp_path, "plain.py", "--steps", "20", "--accumulate", "3", work=work)
    assert (record.status, list_grave_finding_codes(record)) == ("passed", set())
    assert (record.counts.samples, record.counts.steps) == (20 * 3 * 8, 20)


def test_speed_in_a_known_form_needs_no_pattern(tmp_path):
    # ``plain.py`` prints ``step_ms`` in each of its 20 steps, a known form; it is read in seconds.
    # ``WORK`` is the file of ``--witness``; here without ``speed_line``, the pattern of such lines.
    work = "\n".join(line for line in WORK.splitlines() if "speed_line" not in line)
    record = measure(tmp_path, "plain.py", "--steps", "20", work=work)
    assert [(speed.quantity, speed.lines) for speed in record.printed] == [("step_s", 20)]


def test_output_without_a_speed_is_named(tmp_path):
    # ``ddp.py`` prints no speed. ``WORK`` is the file of ``--witness``; without ``speed_line``,
    # known forms of lines are searched.
    work = "\n".join(line for line in WORK.splitlines() if "speed_line" not in line)
    record = measure(tmp_path, "ddp.py", work=work)
    assert (record.status, record.printed) == ("passed", [])
    assert "printed_unknown" in {finding.code for finding in record.findings}


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [(100.0, "passed", None), (1e-9, "target_missed", "target_missed")],
)
def test_mean_loss_of_the_last_window_is_compared_with_its_target(tmp_path, target, status, code):
    # ``WORK`` is the file of ``--witness``, to which a target of the loss is added: 100 is above
    # any loss here, so it is reached; 1e-9 is not. ``code`` is the cause of a missed target.
    # The 20 steps are in four windows of 5 steps each, the first of which is the warm-up.
    work = WORK.replace("[step]", f"target_loss = {target}\nwindow_steps = 5\n[step]")
    record = measure(tmp_path, "plain.py", "--steps", "20", work=work)
    assert record.status == status
    assert (record.quality.target, record.quality.reached) == (target, code is None)
    assert record.quality.value == pytest.approx(fmean(record.steps.loss[-5:]), rel=1e-9)
    assert (None if record.cause is None else record.cause.message.code) == code
    assert [advice.code for advice in advise(record)] == ([f"fix_program.{code}"] if code else [])


@pytest.mark.parametrize(
    ("words", "work", "exit_code"),
    [
        (["bad.py", "raises"], WORK, 1),
        (["bad.py", "never_steps"], WORK, 1),
        # A target that is not reached.
        (["plain.py", "--steps", "20"], WORK.replace("[step]", "target_loss = 1e-9\n[step]"), 1),
        (["plain.py"], WORK.replace("precision", "precisions"), 2),  # an unknown key
    ],
)
def test_exit_code_says_how_the_run_ended(tmp_path, words, work, exit_code):
    # ``words``: a program of ``PROGRAMS`` and its arguments; ``bad.py`` raises an exception, or its
    # optimizer never steps. ``work``: the file of ``--witness``. Exit code 1: the run failed; 2:
    # the command was refused.
    (tmp_path / "work.toml").write_text(work)
    options = ["--witness", str(tmp_path / "work.toml"), "--out", str(tmp_path / "run")]
    program = [sys.executable, str(PROGRAMS / words[0]), *words[1:]]
    process = subprocess.run(
        [sys.executable, "-m", "trainmark", "run", *options, "--device", "cpu", "--", *program],
        capture_output=True,
        check=False,
    )
    assert process.returncode == exit_code
    assert (tmp_path / "run").exists() == (exit_code == 1)  # a refused file leaves no folder


def test_command_line_runs_a_program_and_prints_its_record(tmp_path):
    # ``WORK`` is a file of ``--witness`` for the programs in the folder ``PROGRAMS``. With
    # ``--json`` the record is printed; what follows ``--`` is the program's command.
    work, out = tmp_path / "work.toml", tmp_path / "run"
    work.write_text(WORK)
    args = ["run", "--witness", str(work), "--out", str(out), "--device", "cpu", "--json"]
    program = [sys.executable, str(PROGRAMS / "plain.py"), "--steps", "10"]
    process = subprocess.run(
        [sys.executable, "-m", "trainmark", *args, "--", *program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert document["status"] == "passed"
    assert document["plan"]["witness"]["command"] == program
    assert "witnessed" in (out / "page.en.md").read_text()


@pytest.mark.parametrize("launcher", ["torchrun", "ranks"])
def test_ranks_are_measured_with_any_launcher(tmp_path, launcher):
    # Either the plan names two ranks, or the command does. Each takes 20 steps of 4 samples.
    args = (sys.executable,)
    fields = {"nproc": 2}
    if launcher == "torchrun":
        args = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
        fields = {}
    record = measure(tmp_path, "ddp.py", launcher=args, **fields)
    assert (record.status, list_grave_finding_codes(record)) == ("passed", set())
    assert record.plan.world_size == 2
    assert [rank.steps for rank in record.ranks] == [20, 20]
    assert [rank.counts.samples for rank in record.ranks] == [80, 80]  # 4 a step
    assert record.environment["collective"] == "gloo"


def test_unplanned_ranks_are_refused(tmp_path):
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    work = WORK.replace("[step]", "starts_ranks = true\n[step]")
    # ``WORK``, the file of ``--witness``, says here that the command starts its ranks itself.
    # Behind ``env``, planning does not see that torchrun starts two of them.
    record = measure(tmp_path, "ddp.py", launcher=("env", *words), work=work)
    assert record.cause is not None
    assert record.cause.message.code == "witness_world"
    assert record.cause.message.args == {"ranks": 2, "planned": 1}
