"""Programs that the probe cannot measure, or only in part: one message or finding each."""

from __future__ import annotations

import sys

import pytest

from support.witnessed_programs import WORK, list_grave_finding_codes, measure
from trainmark.errors import EnvironmentFault, UsageError

WORK = WORK.replace("warmup_steps = 5", "warmup_steps = 3")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("no_torch", "witness_no_torch"),  # it never imports torch
        ("never_trains", "witness_no_backward"),  # it only runs a forward pass
        ("never_steps", "witness_no_step"),  # its optimizer takes no step
        ("both_train", "witness_rank_twice"),  # two processes, parent and child, are one rank
    ],
)
def test_program_that_cannot_be_measured_fails_with_its_reason(tmp_path, kind, code):
    # ``bad.py`` makes the mistake ``kind``. ``WORK``, the file of ``--witness``, states its work: 8
    # samples a step.
    record = measure(tmp_path, "bad.py", kind, work=WORK)
    assert record.status == "failed"
    assert record.cause is not None
    assert (record.cause.kind, record.cause.message.code) == ("witness", code)


@pytest.mark.parametrize("kind", ["forks", "os_exit", "looks_first"])
def test_program_that_starts_or_ends_in_an_unusual_way_is_measured_in_full(tmp_path, kind):
    # ``forks``: a child process trains; ``os_exit``: the program ends without Python's own cleanup;
    # ``looks_first``: it asks for torch's spec before it imports torch. Each trains 20 steps, and
    # no finding lowers the trust in the record for good. ``WORK``, the file of ``--witness``,
    # states its work.
    record = measure(tmp_path, "bad.py", kind, work=WORK)
    assert (record.status, record.counts.steps, list_grave_finding_codes(record)) == (
        "passed",
        20,
        set(),
    )


@pytest.mark.parametrize("starter", [(), ("-m", "torch.distributed.run", "--nproc-per-node=1")])
def test_exception_of_the_program_is_the_cause(tmp_path, starter):
    # ``bad.py`` raises a ValueError after 8 steps. It is started by Python, or by torchrun with one
    # rank. ``WORK``, the file of ``--witness``, states its work.
    launcher = (sys.executable, *starter)
    record = measure(tmp_path, "bad.py", "raises", work=WORK, launcher=launcher)
    assert record.status == "failed"
    assert record.cause is not None
    assert (record.cause.kind, record.cause.type) == ("error", "ValueError")
    assert "the data set is empty" in str(record.cause.message.args["text"])
    assert "in <module>" in str(record.cause.traceback)
    assert record.cause.exit_code == 1


def test_exception_before_training_is_the_cause_with_torchrun_too(tmp_path):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1")
    # Without its argument, the program fails at ``sys.argv[1]``, before it imports torch. ``WORK``
    # is the file of ``--witness``.
    record = measure(tmp_path, "bad.py", work=WORK, launcher=launcher)
    assert record.cause is not None
    assert (record.cause.kind, record.cause.type) == ("error", "IndexError")


def test_exit_code_of_a_program_that_fails_before_training_is_the_cause(tmp_path):
    # The program exits with 4 before it imports torch. ``WORK`` is the file of ``--witness``.
    record = measure(tmp_path, "bad.py", "fails_first", work=WORK)
    assert record.cause is not None
    assert (record.cause.kind, record.cause.message.code) == ("exit", "rank_exited")
    assert record.cause.exit_code == 4


def test_signal_that_kills_the_program_is_the_cause(tmp_path):
    # The program sends SIGKILL to itself after 8 steps. ``WORK`` is the file of ``--witness``.
    record = measure(tmp_path, "bad.py", "killed", work=WORK)
    assert record.cause is not None
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGKILL")


def test_missing_output_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The program writes its steps to a file. ``WORK``, the file of ``--witness``, does not name it.
    record = measure(tmp_path, "bad.py", "redirects", work=WORK)
    assert record.status == "passed"
    assert "printed_nothing" in {finding.code for finding in record.findings}


def test_file_that_the_program_writes_instead_is_read(tmp_path, monkeypatch):
    # The program writes its 20 lines with ``step_ms`` to ``own.log`` instead of its output.
    # ``WORK`` is the file of ``--witness``, to which the name is added here.
    monkeypatch.chdir(tmp_path)
    work = WORK.replace("[step]", 'log = "own.log"\n[step]')
    record = measure(tmp_path, "bad.py", "redirects", work=work)
    assert [(speed.quantity, speed.lines) for speed in record.printed] == [("step_ms", 20)]


def test_second_optimizer_withholds_figures_with_the_reason(tmp_path):
    # ``WORK``, the file of ``--witness``, states one optimizer, but the program steps two: what one
    # step is cannot be told.
    record = measure(tmp_path, "bad.py", "two_optimizers", work=WORK)
    assert record.status == "passed"
    for name in ("final_result", "p_train", "step_time_p50", "model_flops_per_device"):
        entry = record.figures[name]
        assert entry.value is None
        assert entry.reason is not None
        assert (entry.reason.code, entry.reason.args["optimizers"]) == ("witness_optimizers", 2)


def test_two_declared_optimizers_form_one_step(tmp_path):
    # ``WORK``, the file of ``--witness``, declares one optimizer, the default, unless it is
    # changed. The program steps two models' optimizers in each of its 20 steps.
    work = WORK.replace("[step]", "optimizers = 2\n[step]")
    record = measure(tmp_path, "bad.py", "two_optimizers", work=work)
    assert (record.status, record.counts.steps) == ("passed", 20)
    assert record.figures["final_result"].value is not None


def test_unevenly_stepping_optimizers_withhold_figures(tmp_path):
    # The second optimizer takes a step only in every fourth step of the first. ``WORK`` is the file
    # of ``--witness``, to which their number is added.
    work = WORK.replace("[step]", "optimizers = 2\n[step]")
    record = measure(tmp_path, "bad.py", "alternating", work=work)
    reason = record.figures["final_result"].reason
    assert reason is not None
    assert reason.code == "witness_optimizers_uneven"


def test_batches_without_a_loader_cannot_be_counted(tmp_path):
    # ``WORK``, the file of ``--witness``, states 8 samples a step. Here they are to be counted in
    # the first dimension, number 0, of a loader's batches, but this program has no loader.
    work = WORK.replace("[step]\nsamples = 8", "[batch]\nsamples = 0")
    record = measure(tmp_path, "bad.py", "plain", work=work)
    reason = record.figures["final_result"].reason
    assert reason is not None
    assert reason.code == "witness_uncountable"
    assert record.figures["step_time_p50"].value is not None


def test_compiled_steps_give_no_counted_flops(tmp_path):
    # FLOPs are counted by torch's operations; those of compiled steps are other ones. ``WORK``, the
    # file of ``--witness``, does not state them.
    record = measure(tmp_path, "bad.py", "compiled", work=WORK)
    assert record.status == "passed"
    reason = record.figures["model_flops_per_device"].reason
    assert reason is not None
    # The second one if the probe did not see that graphs were compiled.
    assert reason.code in ("witness_flops_compiled", "witness_flops_unseen")


def test_missing_program_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UsageError) as fault:
        measure(tmp_path, "bad.py", launcher=("no-such-program",))
    assert "no-such-program" in fault.value.what
    assert not (tmp_path / "run").exists()


def test_python_without_the_probe_is_refused(tmp_path):
    script = tmp_path / "train"
    # The command is a script in place of a Python. Before a run, the Python that its first line
    # names is asked whether it can import the probe, which watches the program. With ``-S``, it has
    # no installed packages.
    script.write_text(f"#!{sys.executable} -S\n")
    script.chmod(0o755)
    with pytest.raises(EnvironmentFault) as fault:
        measure(tmp_path, "bad.py", launcher=(str(script),))
    assert "cannot import Trainmark's probe" in fault.value.what


def test_script_whose_python_does_not_exist_is_refused(tmp_path):
    # The command is a script in place of a Python. Before a run, the Python that its first line
    # names is asked whether it can import the probe, which watches the program.
    script = tmp_path / "train"
    script.write_text(f"#!{tmp_path}/python3\n")
    script.chmod(0o755)
    with pytest.raises(EnvironmentFault) as fault:
        measure(tmp_path, "bad.py", launcher=(str(script),))
    assert fault.value.what.endswith("cannot import Trainmark's probe: No such file or directory")
    assert not (tmp_path / "run").exists()
