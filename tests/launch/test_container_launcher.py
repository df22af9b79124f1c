"""This machine's own container: when it is taken, and what is told of how it ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN
from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import Command, JobState, absent, start
from trainmark.launch.launchers.container import Container
from trainmark.launch.site import Site
from trainmark.plan.choosing import Elsewhere
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

DOCKER = {"image": "trainmark:1", "runtime": "docker"}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    found = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    return found.model_copy(update={"run_dir": str(tmp_path)})


def site(**keys: Any) -> Site:
    return Site.model_validate(keys)


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_a_local_run_of_a_site_with_a_runtime_is_in_its_container(runtime: str) -> None:
    told = site(container=DOCKER | {"runtime": runtime}, device="cpu")
    expected = Elsewhere(launcher="container", device="cpu", nodes=1)
    assert told.elsewhere(None) == told.elsewhere("local") == expected


@pytest.mark.parametrize("container", [None, {"image": "a"}, {"image": "a", "runtime": "pyxis"}])
def test_a_local_run_is_not_in_the_container_of_an_engine(container: Any) -> None:
    assert site(container=container).elsewhere("local") is None
    assert "docker" in (absent("container", site(container=container)) or "")


def test_an_image_that_is_not_here_is_told_before_a_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "docker").write_text(
        '#!/bin/sh\n[ "$3" = trainmark:1 ] || { echo "no such image: $3" >&2; exit 1; }\n'
    )
    (tmp_path / "docker").chmod(0o755)
    Container().check(plan, site(container=DOCKER))
    with pytest.raises(EnvironmentFault, match="no such image: other:2"):
        Container().check(plan, site(container=DOCKER | {"image": "other:2"}))


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("true", JobState(phase="ended", exit_code=0)),
        ("echo 1; echo no such image >&2; echo; echo see --help; exit 125",
         JobState(phase="ended", said="no such image; see --help", exit_code=125)),
    ],
)  # fmt: skip
def test_its_end_is_told_in_the_words_of_the_runtime(
    script: str, state: JobState, plan: Plan
) -> None:
    command = Command(argv=("sh", "-c", script), files={})
    job = start(command, plan.model_copy(update={"launcher": "container"}), site(container=DOCKER))
    job.process.wait()
    assert job.state() == state
    assert Container().job(plan, site(), None).state().exit_code is None
