"""Errors in the code of a case: the run leaves a record that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainmark
from support.real_runs import read_checked_record, wait_for_end
from support.run_fixtures import CASES
from trainmark.errors import CaseError, EnvironmentFault
from trainmark.plan.resolving import UnplannableError
from trainmark.record.record import read_record
from trainmark.record.verify import verify_evidence


@pytest.fixture
def run_broken_case(cli, monkeypatch):
    """Return a function that runs the case ``broken`` in this process, and starts no rank.

    Its arguments are the name of the case's function that raises, and words of the command line.
    It returns the exit code, standard output and standard error.
    """
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(CASES))

    def run(name: str, *args: str):
        """Run the case whose function ``name`` raises; return exit code, output and errors."""
        return cli("run", "broken", f"broken={name}", "--device", "cpu", "--out", "run", *args)

    return run


@pytest.mark.parametrize("raised", ["KeyError", "OSError", "SystemExit"])
@pytest.mark.parametrize("place", ["data_check", "data_check_fit"])
def test_error_while_planning_leaves_a_record_that_names_the_place(run_broken_case, place, raised):
    """``place``: the function of the case that raises, which is also the place in the record.

    ``run_broken_case`` runs the case ``broken``, whose function of this name raises; it returns
    the exit code, the output and the errors.
    """
    code, out, err = run_broken_case(place, f"raised={raised}")
    assert (code, out) == (1, "")
    assert f"case broken, {place} ({CASES}/broken/data.py:" in err
    assert "Traceback" not in err
    record = read_record(Path("run"))
    cause = record.cause
    assert (record.status, cause.kind, cause.place) == ("failed", "error", place)
    assert (cause.type, cause.rank) == (raised, None)
    assert f"planted in {place}" in cause.message.args["text"]
    assert "data.py" in cause.traceback
    assert verify_evidence(record, Path("run")) == []
    assert Path("run/page.html").exists()


def test_generator_that_raises_leaves_a_record_and_no_data(run_broken_case, tmp_path):
    """The function of the case ``broken`` that generates its data raises; the exit code is 1.

    The record names this function as its place. Generated data would be below ``cache``.
    ``run_broken_case`` returns the exit code, the output and the errors.
    """
    assert run_broken_case("data_generate")[0] == 1
    assert read_record(Path("run")).cause.place == "data_generate"
    assert list((tmp_path / "cache").iterdir()) == []  # no half-made data


def test_generator_on_a_full_disk_is_no_error_of_the_case(run_broken_case):
    """An ``OSError`` while data is written is taken for a fault of the disk.

    ``run_broken_case`` runs the case ``broken``, whose function of this name raises; it returns
    the exit code, the output and the errors.
    """
    code, _, err = run_broken_case("data_generate", "raised=OSError")
    assert code == EnvironmentFault.exit_code
    assert "cannot write to this folder" in err
    assert not Path("run").exists()


def test_dry_run_of_a_broken_case_leaves_nothing(run_broken_case):
    """The case ``broken`` raises in its function ``data_check``; the exit code is 1.

    Without ``--dry-run`` a record would be in the folder ``run``. ``run_broken_case`` runs the
    case ``broken``, whose function of this name raises; it returns the exit code, the output
    and the errors.
    """
    assert run_broken_case("data_check", "--dry-run")[0] == 1
    assert not Path("run").exists()


def test_error_of_a_case_is_reported_even_if_the_folder_has_a_record(run_broken_case):
    """The case ``broken`` raises in its function ``data_check``, before any rank starts.

    ``run_broken_case`` runs the case ``broken``, whose function of this name raises; it returns
    the exit code, the output and the errors.
    """
    for _ in range(2):  # the second time the folder has the record of the first
        _, _, err = run_broken_case("data_check")
        assert "planted in data_check" in err


def test_broken_case_in_a_plan_file_leaves_a_record_in_each_attempt(cli, monkeypatch):
    """The function ``data_check`` of the case ``broken`` raises before any rank starts.

    The plan file has one run, ``a``, with two launches, r1 and r2. As it did not pass, the second
    command makes a new attempt, in a folder of its own. ``CASES``: a folder of cases for tests.
    """
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(CASES))
    Path("plan.yaml").write_text(
        "runs:\n- {case: broken, name: a, repeat: 2, device: cpu, set: {broken: data_check}}\n"
    )
    for folder in ("a", "a-2"):  # of the first command and of the second one
        code, _, err = cli("run", "plan.yaml")
        assert code == 1
        assert "run a: case broken, data_check" in err
        # Planning fails once for both repeats; the first one gets the record.
        assert read_record(Path(f"runs/plan/{folder}/r1")).cause.place == "data_check"


def test_python_api_raises_the_error_of_the_case(tmp_path, monkeypatch):
    """The function ``data_check`` of the case ``broken`` raises a ``KeyError``."""
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(CASES))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    # The warning says where the record is.
    with pytest.warns(UserWarning, match="record: "), pytest.raises(UnplannableError) as raised:
        trainmark.run("broken", {"broken": "data_check"}, out=tmp_path / "run", device="cpu")
    assert isinstance(raised.value.__cause__, CaseError)
    assert isinstance(raised.value.__cause__.__cause__, KeyError)


NIGHTLY = pytest.mark.nightly
PLACE_BY_METHOD = {  # where each method of a job is called first, as the record names it
    "load_data": "data_build", "build": "model_build", "steps_per_epoch": "model_build",
    "model_flops": "model_build", "trained_parameters": "check", "updates": "check",
    "batches": "train", "step": "train", "evaluate": "evaluate", "facts": "finish",
    "save": "checkpoint",
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "place", "raised"),
    [
        ("check", "job_check", "KeyError"),
        ("evaluate", "evaluate", "SystemExit"),
        ("figures", "figures", "KeyError"),
        *(
            pytest.param(method, place, "KeyError", marks=NIGHTLY)
            for method, place in PLACE_BY_METHOD.items()
        ),
    ],
)
def test_method_of_a_job_that_raises_leaves_a_record_that_names_the_place(
    start_run, method, place, raised, monkeypatch
):
    """``method``: the one that raises; ``place``: the part of the run that the record names.

    ``PLACE_BY_METHOD`` has further methods and their places. ``start_run`` starts a run of the case
    ``broken``; only while ``TRAINMARK_CASE_PATH`` names the folder ``CASES`` is its code found
    here.
    """
    process, run_dir = start_run(f"broken={method}", f"raised={raised}", case="broken")
    code, out, err = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status, record.cause.kind) == (1, "failed", "error"), out + err
    assert record.cause.place == place
    # ``steps_per_epoch`` is no method but an attribute, which the broken job does not have.
    expected = "AttributeError" if method == "steps_per_epoch" else raised
    assert record.cause.type == expected
    assert record.cause.traceback
    # Without the case's own code its figures cannot be computed again, but nothing contradicts.
    assert "evidence_disagrees" not in [
        finding.code for finding in verify_evidence(record, run_dir)
    ]
    # With it they can, and the record agrees with its evidence.
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(CASES))
    assert verify_evidence(record, run_dir) == []
