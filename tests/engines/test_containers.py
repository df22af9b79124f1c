"""Runs in a container: rootless podman, and docker for a user without rights."""

from __future__ import annotations

import os
import shlex

import pytest

from engines.container_runtimes import IMAGE, explain_absence, set_up_runtime
from support.real_runs import (
    interrupt_and_check_run,
    read_checked_record,
    read_job_states,
    wait_for_end,
    wait_for_fault,
)
from support.run_fixtures import CASES

DOCKER = pytest.param("docker", marks=pytest.mark.nightly)
# Tests without it use podman alone.
BOTH_RUNTIMES = pytest.mark.parametrize("user", ["podman", DOCKER], indirect=True)


@pytest.fixture(scope="module", params=["podman"])
def user(request):
    """Return a user who runs containers by the runtime that the test names.

    The runtime is podman or, at night only, docker; without a name it is podman. The test is
    skipped if the runtime is not here or starts no container.
    """
    name = request.param
    if explain_absence(name):
        pytest.skip(f"no {name} here: {explain_absence(name)}")
    with set_up_runtime(name) as user_or_reason:
        if isinstance(user_or_reason, str):
            pytest.skip(f"{name} runs no container here: {user_or_reason}")
        yield user_or_reason


@pytest.fixture
def work(user, request):
    """A folder of the user that is the same in the container, with the pipe of a faulty rank.

    A rank of the case ``faulty`` writes to ``fifo`` when it reaches its fault.
    """
    folder = user.make_folder(request.node.name.partition("[")[0])
    os.mkfifo(folder / "fifo")
    user.give_to_user(folder / "fifo")
    return folder


@pytest.fixture
def run(user, work, start_run):
    """Return a function that starts ``trainmark run`` as the user; ranks are in a container.

    It returns the process and the run's folder; ``container``: keys of this part of the cluster
    file.
    """

    def start(*args, case="faulty", **container):
        faulty = {"TRAINMARK_CASE_PATH": str(CASES), "FAULT_FIFO": str(work / "fifo")}
        mounts = [f"{work}:{work}"]
        site = user.write_cluster_file(
            work / "cluster.yaml", environment=faulty, mounts=mounts, **container
        )
        # ``RUN_DIR`` replaces the usual folder, which the user may not write.
        process, _ = start_run(
            *args,
            *shlex.split("--device cpu --launcher local"),
            *("--cluster", str(site)),
            case=case,
            prefix=user.prefix,
            program=(user.python, "-m", "trainmark"),
            cwd=work,
            RUN_DIR=str(work / "run"),
            **user.variables,
            **faulty,
        )
        return process, work / "run"

    return start


def list_containers(user):
    """Return the ids of the containers that run, as bytes."""
    return user.run_command(user.runtime, "ps", "--quiet").stdout.split()


@BOTH_RUNTIMES
def test_distilbert_trains_in_a_container(run, user):
    """A run with two ranks passes, and its record names the runtime and the image as they do.

    ``BOTH_RUNTIMES`` runs the test with podman and with docker (nightly). ``user`` is a user
    without rights who runs containers, ``IMAGE`` the name of the image. ``run`` starts the program
    as this user, ``list_containers`` lists the containers that still run. A file's owner shows that
    no rank wrote as another user.
    """
    args = ("max_epochs=1", "target=none", "--nproc", "2")
    process, run_dir = run(*args, case="distilbert_sst2")
    code, out, err = wait_for_end(process)
    assert code == 0, out + err
    record = read_checked_record(run_dir)
    assert (record.status, len(record.ranks), record.plan.launcher) == ("passed", 2, "container")
    recorded = record.environment
    assert (recorded["container"], recorded["container_image"]) == (user.runtime, IMAGE)
    # Docker has no digest of an image that was never in a registry, but its id. Its containers are
    # run by a server, whose version counts; podman has none. A recorded digest may have the image's
    # name and an "@" before it.
    digest, part = ("{{.Digest}}", "Client") if user.runtime == "podman" else ("{{.Id}}", "Server")
    known = user.run_command(user.runtime, "image", "inspect", "--format", digest, IMAGE).stdout
    assert recorded["container_digest"].rpartition("@")[2] == known.decode().strip()
    version = user.run_command(
        user.runtime, "version", "--format", f"{{{{.{part}.Version}}}}"
    ).stdout
    assert recorded["container_version"] == version.decode().strip()
    assert list_containers(user) == []
    assert [state["phase"] for state in read_job_states(run_dir)] == ["running", "ended"]
    assert {path.owner() for path in run_dir.rglob("*")} == {run_dir.owner()}


@pytest.mark.nightly
@BOTH_RUNTIMES
def test_ctrl_c_ends_the_container(run, user, work):
    """SIGINT to the program ends the container, too.

    ``run`` starts the case ``faulty`` in a container, with podman and with docker
    (``BOTH_RUNTIMES``). With ``fault=wait`` a rank writes to ``fifo`` and waits to be killed.
    ``interrupt_and_check_run`` then sends SIGINT and checks that the record's status is
    "interrupted".
    """
    process, run_dir = run("fault=wait")
    interrupt_and_check_run(process, run_dir, work / "fifo")
    assert list_containers(user) == []


@pytest.mark.nightly
@BOTH_RUNTIMES
def test_container_ends_if_its_launcher_is_killed(run, user, work):
    # With ``fault=wait`` a rank of the case ``faulty`` writes to the pipe ``fifo``, which is in the
    # folder ``work``, and waits to be killed. The runtimes are podman and docker
    # (``BOTH_RUNTIMES``). ``run`` starts the program as ``user``, who runs the containers;
    # ``list_containers`` lists the ids of those that still run.
    process, run_dir = run("fault=wait")
    wait_for_fault(work / "fifo")
    (container,) = list_containers(user)
    process.kill()
    user.run_command(user.runtime, "wait", container.decode())
    assert list_containers(user) == []
    # Another process writes the record of what was left.
    attached = user.run_command(user.python, "-m", "trainmark", "run", "--attach", str(run_dir))
    assert attached.returncode == 1, attached.stderr
    # ``failed``: the node in the container ended without reporting its end, and counts as lost.
    assert read_checked_record(run_dir).status in ("interrupted", "failed")
