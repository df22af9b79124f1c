"""Values of ``--follow`` and ``--to``, and the packages they need."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.export.followers import targets
from trainmark.export.followers.backends import mlflow
from trainmark.export.followers.targets import FollowTarget, parse_targets, require_backends
from trainmark.plan.plan_file import read_plan_file
from trainmark.plan.request import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
BACKENDS = ("tensorboard", "wandb", "mlflow", "openmetrics")


def test_target_is_a_backend_with_an_optional_destination() -> None:
    """The first = ends the backend's name; a destination may have further ones."""
    words = ["tensorboard", "wandb=team/project", "mlflow=sqlite:///a.db?x=1"]
    assert parse_targets(words) == [
        FollowTarget("tensorboard"),
        FollowTarget("wandb", "team/project"),
        FollowTarget("mlflow", "sqlite:///a.db?x=1"),
    ]
    assert [str(target) for target in parse_targets(words)] == words


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tensorbord"], "unknown backend 'tensorbord'.*\n.*did you mean tensorboard"),
        (["wandb="], "wandb= has an empty destination"),
        ([""], "unknown backend ''"),
        (["mlflow", "mlflow"], "mlflow is given twice"),
    ],
)
def test_invalid_target_is_refused(words: list[str], error: str) -> None:
    """``words``: all targets of a command; ``error``: a pattern of the message."""
    with pytest.raises(UsageError, match=error):
        parse_targets(words)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_package_is_refused_with_its_extra(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``BACKENDS`` are all that a follower can export to; ``PROJECT`` is pyproject.toml.

    An extra is a set of optional packages of the project. ``find_spec`` is what looks for an
    installed package; here it finds none.
    """
    monkeypatch.setattr(targets, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault) as raised:
        require_backends(parse_targets([backend]))
    assert raised.value.fix == f"pip install 'trainmark[{backend}]'"
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras[backend]  # the extra that the fix names exists


def test_mlflow_database_needs_the_full_mlflow_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only the small package is installed, which can send to a server. alembic comes with the full
    # one, and is what a database needs.
    monkeypatch.setattr(targets, "find_spec", lambda name: name if name == "mlflow" else None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    require_backends(parse_targets(["mlflow=http://host:5000"]))
    for word in ("mlflow", "mlflow=sqlite:///a.db"):
        with pytest.raises(EnvironmentFault, match="mlflow needs alembic"):
            require_backends(parse_targets([word]))
    # The variable names the default destination.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://host")
    require_backends(parse_targets(["mlflow"]))
    with pytest.raises(EnvironmentFault, match="mlflow needs alembic"):
        require_backends(parse_targets(["mlflow=sqlite:///a.db"]))


@pytest.mark.parametrize(
    ("destination", "variable", "is_allowed"),
    [
        ("file:runs", None, True),
        (None, "file:runs", True),
        ("/data/runs", None, True),
        (None, "./runs", True),
        ("sqlite:///runs.db", "./runs", False),
        ("databricks", None, False),  # a server, although it has no scheme
        (None, "http://host", False),
        ("http://host", "file:runs", False),
        (None, None, False),
    ],
)
def test_mlflow_is_allowed_to_keep_runs_in_a_folder_of_files(
    destination: str | None,
    variable: str | None,
    is_allowed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLflow 3 refuses a folder, a path or a URI with ``file:``, unless a variable allows it.

    ``variable`` is the value of MLflow's own one for the default destination; None: not set.
    """
    # In place of the package, which need not be installed: a client that does nothing.
    monkeypatch.setitem(sys.modules, "mlflow", Mock())
    monkeypatch.setattr(
        os, "environ", {} if variable is None else {"MLFLOW_TRACKING_URI": variable}
    )
    mlflow.prepare(destination)
    assert ("MLFLOW_ALLOW_FILE_STORE" in os.environ) == is_allowed


def test_run_refuses_a_missing_package_before_anything_starts(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "find_spec", lambda _: None)  # finds no installed package
    code, _, err = cli("run", "toy", "--out", "run", "--follow", "openmetrics")
    assert code == 2
    assert "openmetrics needs prometheus_client, which is not installed" in err
    assert not (tmp_path / "run").exists()
    # In a plan file, the first run does not start either.
    plan = "device: cpu\nruns:\n- {case: toy}\n- {case: toy, name: b, follow: [wandb]}\n"
    (tmp_path / "plan.yaml").write_text(plan)
    code, _, err = cli("run", "plan.yaml")
    assert code == 2
    assert "plan.yaml, runs[2]: follow: wandb needs wandb, which is not installed" in err
    assert not (tmp_path / "runs").exists()


def test_follow_option_applies_to_all_runs_of_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    text = "runs:\n- {case: toy, set: {bs: [8, 16]}, follow: [wandb, tensorboard]}\n"
    path.write_text(text + "- {case: toy, name: b, follow: mlflow}\n")
    # The first entry of the file is two runs, with batch sizes 8 and 16.
    entries = read_plan_file(RunRequest.build(case=str(path))).entries
    assert [entry.follow for entry in entries] == [["wandb", "tensorboard"]] * 2 + [["mlflow"]]
    # The option of the command line replaces what the file says.
    planned_request = RunRequest.build(case=str(path), follow=["openmetrics"])
    assert [entry.follow for entry in read_plan_file(planned_request).entries] == [
        ["openmetrics"]
    ] * 3


def test_detached_job_has_no_follower(cli: Callable[..., Any], tmp_path: Path) -> None:
    # The backend openmetrics needs this package, and a missing one is refused first.
    pytest.importorskip("prometheus_client", reason="no prometheus_client (make test-nightly)")
    # The launcher, which would start the follower, does not wait for the job.
    code, _, err = cli("run", "toy", "--detach", "--follow", "openmetrics", "--out", "run")
    assert code == 2
    assert "--follow cannot be used with --detach" in err
    assert not (tmp_path / "run").exists()
