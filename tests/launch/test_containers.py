"""The container of a node: its options, and errors before a run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import GOLDEN, check_golden
from trainmark import devices
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.cluster import TESTED, Cluster
from trainmark.launch.launchers import (
    EngineCommand,
    EngineJob,
    JobState,
    explain_unusable_launcher,
    start_job,
)
from trainmark.launch.launchers.container import Container
from trainmark.launch.node_script import Mount, list_mounts, render_node_script
from trainmark.launch.submission import describe_job
from trainmark.plan.choosing import RemoteTarget
from trainmark.plan.plan import Plan
from trainmark.plan.witness import StepWork, Witness, WitnessSpec
from trainmark.protocols import ContainerNeeds

if TYPE_CHECKING:
    from trainmark.launch.job_spec import JobSpec

RUNTIMES = ("docker", "podman", "apptainer")
IMAGE = "registry.example/trainmark:1"
# A vendor whose devices are the test's files; the container gets these variables.
_VENDOR = {"recorded_variables": ("ACME_VISIBLE_DEVICES", "ACL_*")}
# Answers questions about the image and the version; prints the arguments and variables of a start.
_FAKE = """#!/bin/sh
case "$*" in
*RepoDigests*) echo registry.example/trainmark@sha256:0123 ;;
*.Id*) echo sha256:4567 ;;
'image inspect'*) test "$3" = {image} || {{ echo "no such image: $3" >&2; exit 1; }} ;;
*version*) echo 28.2.2 ;;
*) printf '%s\\n' "$@"; env ;;
esac
"""


def make_site(**container: Any) -> Cluster:
    """Return a cluster whose runs are in a container, of ``IMAGE`` by docker unless given.

    Args:
        container: keys of the cluster file's part ``container``.
    """
    return Cluster.model_validate({"container": {"image": IMAGE, "runtime": "docker", **container}})


@pytest.fixture
def plan() -> Plan:
    """Return a plan that trains on the data in /data/toy."""
    toy_plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    data = toy_plan.data.model_copy(update={"folder": "/data/toy", "origin": "real"})
    return toy_plan.model_copy(update={"data": data})


@pytest.fixture
def spec(plan: Plan) -> JobSpec:
    """Return the job of a run that trains on the data in /data/toy."""
    return describe_job(plan)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a node with data, only shell programs, and user 1000."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "cut", "sha256sum", "env", "timeout", "mkdir"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    # ``id -G`` prints the numbers of all groups; ``id -u`` and ``id -g`` print 1000, the numbers of
    # the user and of its first group.
    install_program(
        tmp_path, "id", '#!/bin/sh\ncase "$1" in -G) echo 1000 44 ;; *) echo 1000 ;; esac\n'
    )
    monkeypatch.setenv("PATH", str(programs))
    (tmp_path / "data").mkdir()
    return tmp_path


def install_program(node: Path, name: str, text: str = _FAKE) -> None:
    """Write a program of the node; the default is a runtime that has the image ``IMAGE`` alone.

    Braces of the program itself are doubled in its text, as for ``str.format``.
    """
    file = node / "bin" / name
    file.unlink(missing_ok=True)  # a link to a program of this machine
    file.write_text(text.replace("{image}", IMAGE).replace("{{", "{").replace("}}", "}"))
    file.chmod(0o755)


def set_data_folder(node: Path, spec: JobSpec) -> JobSpec:
    """Return the job with a folder of data that the node has."""
    return replace(spec, data_folder=node / "data")


def start_container(
    node: Path, spec: JobSpec, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **needs: Any
) -> list[str]:
    """Return the arguments and the variables that the fake runtime was started with.

    Args:
        node: folder of a node, which has the fake runtime.
        spec: what is run; its data is taken from the node.
        cluster: settings of the container.
        monkeypatch: makes the job's vendor one with the needs.
        needs: what the vendor says that a container needs for its devices: ``devices``, ``mounts``
            and ``options``.
    """
    vendor: Any = SimpleNamespace(**_VENDOR, container_needs=ContainerNeeds(**needs))
    monkeypatch.setattr(devices, "list_vendors", lambda: {spec.vendor: vendor})
    text = render_node_script(
        set_data_folder(node, spec), cluster, node_rank="0", master="a", folder=node / "runs" / "a"
    )
    process = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    return process.stdout.splitlines()


@pytest.mark.parametrize("vendor", ["cpu", "nvidia", "amd", "ascend", "mthreads"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_command_matches_its_golden_file(runtime: str, vendor: str, spec: JobSpec) -> None:
    """``RUNTIMES``: docker, podman and apptainer; ``make_site`` makes a cluster file with one."""
    # Some vendors' files have shared memory and further arguments, so that both forms are seen.
    cluster = make_site(
        runtime=runtime,
        mounts=["/opt/site:/opt/site:ro", "/scratch:/tmp"],
        shared_memory=None if vendor == "cpu" else "16g",
        arguments=["--memory=64g"] if vendor == "amd" else [],
    ).model_copy(update={"environment": {"NCCL_DEBUG": "WARN"}, "setup": ("module load x",)})
    spec = replace(spec, run_dir=Path("/runs/a"), vendor=vendor)
    text = render_node_script(spec, cluster, node_rank="$SLURM_NODEID", master="node0")
    subprocess.run(["sh", "-n", "-c", text], check=True)  # reads it without running it
    check_golden(f"containers/{runtime}.{vendor}.sh", text)


def test_container_mounts_the_resources_of_the_node(
    node: Path, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the vendor's devices and mounts, acmelink and tool are missing on this node.

    The container gets the variables of ``_VENDOR``; its image and the version of the runtime are
    what the program ``_FAKE`` answers, which stands for docker and prints its arguments.
    ``_VENDOR`` names ACME_VISIBLE_DEVICES and ACL_*. The user 1000 has the groups 1000 and 44.
    """
    install_program(node, "docker")
    for name in ("acme0", "acme11", "acmectl", "driver"):
        (node / name).touch()
    monkeypatch.setenv("ACL_DEBUG", "1 2\n3")  # recorded, whatever its value
    monkeypatch.setenv("XACL_DEBUG", "1")  # not recorded: its name only ends like ACL_*
    words = start_container(
        node,
        spec,
        make_site(arguments=["--memory=1g"]),
        monkeypatch,
        devices=(f"{node}/acme[0-9]*", f"{node}/acmectl", f"{node}/acmelink"),
        mounts=(f"{node}/driver", f"{node}/tool"),
        options={"docker": ("--gpus=all",)},
    )
    device_options = [word for word in words if word.startswith("--device")]
    assert sorted(device_options) == [
        f"--device={node}/{name}" for name in ("acme0", "acme11", "acmectl")
    ]
    assert f"--mount=type=bind,source={node}/driver,target={node}/driver,readonly" in words
    assert not [word for word in words if f"{node}/tool" in word or "acmelink" in word]
    assert {"--gpus=all", "--env=ACME_VISIBLE_DEVICES", "--env=ACL_DEBUG"} <= set(words)
    assert "--env=XACL_DEBUG" not in words
    assert [word for word in words if word.startswith(f"--name=trainmark-{spec.run_id}-")]
    assert (node / "runs" / "a").is_dir()
    # The image that was inspected runs as the node's user.
    memory_position = words.index("--memory=1g")
    assert words[memory_position + 1 : memory_position + 4] == ["sha256:4567", "python", "-m"]
    assert {"--user=1000:1000", "--group-add=1000", "--group-add=44"} <= set(
        words[:memory_position]
    )
    assert "TRAINMARK_CONTAINER_DIGEST=registry.example/trainmark@sha256:0123" in words
    assert "TRAINMARK_CONTAINER_VERSION=28.2.2" in words


def test_outer_mounts_precede_inner_mounts(spec: JobSpec) -> None:
    """The inner one of two mounts would otherwise be hidden; the run's folder is added."""
    cluster = make_site(
        mounts=["/data:/data", "/a:/data/toy/cache", "/data/toy:/data/toy", "/z:/b:rw"]
    )
    assert list_mounts(spec, cluster, "/data/runs/a") == [
        Mount("/z", "/b"),
        Mount("/data", "/data"),
        Mount("/data/runs/a", "/data/runs/a"),
        Mount("/data/toy", "/data/toy"),  # writable, as the cluster file says of the plan's data
        Mount("/a", "/data/toy/cache"),
    ]
    # Nodes have the data in another folder than the plan says.
    elsewhere = Cluster.model_validate({"data": "/nodes/toy"})
    assert list_mounts(spec, elsewhere, "/runs/a") == [
        Mount("/nodes/toy", "/nodes/toy", read_only=True),
        Mount("/runs/a", "/runs/a"),
    ]


@pytest.mark.parametrize("folder", ["/runs/a:b", "/runs/a,b"])
def test_folder_that_no_mount_can_name_is_refused(spec: JobSpec, folder: str) -> None:
    """A colon separates the parts of a mount for pyxis; a comma those of docker's option."""
    with pytest.raises(UsageError, match="colon or a comma") as refused:
        list_mounts(spec, make_site(), folder)
    assert refused.value.where == folder


def test_folder_of_a_program_is_writable_and_data_is_not(plan: Plan) -> None:
    """``list_mounts`` returns the folders of the node that a container gets, in their order.

    The run's folder is /runs/a, the program's is /users/mine; both are writable, as ``read_only``
    is False unless it is given. A cluster file that names data adds it for this program too.
    ``StepWork`` and ``starts_ranks`` do not matter here.
    """
    # The run of a user's own program, which need not read the data that the plan names.
    witness_spec = WitnessSpec(name="mine", precision="fp32", step=StepWork(samples=8))
    witness = Witness(
        spec=witness_spec, command=("python",), folder="/users/mine", starts_ranks=False
    )
    # No node generates data for such a program, whatever the plan says of the data.
    generated = plan.data.model_copy(update={"origin": "generated"})
    witnessed = describe_job(plan.model_copy(update={"witness": witness, "data": generated}))
    assert not witnessed.generates_data
    mounts = [Mount("/runs/a", "/runs/a"), Mount("/users/mine", "/users/mine")]
    assert list_mounts(witnessed, Cluster(), "/runs/a") == mounts  # without the plan's data
    with_data = Cluster.model_validate({"data": "/data"})
    data = Mount("/data", "/data", read_only=True)
    assert list_mounts(witnessed, with_data, "/runs/a") == [data, *mounts]


def test_every_accelerator_declares_its_container_options() -> None:
    """A vendor's ``container_needs`` say how a container gets its devices.

    These are patterns of device files, further mounts, and options by runtime; ``RUNTIMES`` are
    docker, podman and apptainer.
    """
    for vendor in devices.list_vendors().values():
        if vendor.counts_cores or vendor.name in ("apple", "imaginary"):
            continue  # the CPU, a vendor without containers, and the example vendor of the docs
        needs = getattr(vendor, "container_needs", None)
        assert isinstance(needs, ContainerNeeds), vendor.name
        assert needs.devices or needs.options
        assert all(path.startswith("/dev/") for path in needs.devices), vendor.name
        assert all(Path(path).is_absolute() for path in needs.mounts), vendor.name
        assert set(needs.options) <= set(RUNTIMES), vendor.name


# This machine's own container


@pytest.mark.parametrize("container", [None, {"image": "a"}, {"image": "a", "runtime": "pyxis"}])
def test_a_local_run_is_not_in_the_container_of_an_engine(container: Any) -> None:
    """A cluster file without a container, and two whose container no local runtime starts.

    pyxis is a plugin of Slurm, an engine. A remote target is where a run goes if not to this
    machine itself.
    """
    cluster = Cluster.model_validate({"container": container})
    assert cluster.find_remote_target("local") is None
    # The container of this cluster, if any, is for an engine: ``docker`` must be set for this one.
    assert explain_unusable_launcher("container", cluster) == (
        "no container runtime (docker, podman or apptainer) is set in a cluster file"
    )


def test_run_without_a_launcher_is_in_the_container_of_the_cluster_file() -> None:
    """``TESTED``: by launcher, how it was tested, as the program tells its user.

    A container runs on this machine alone: one node, which has the run's files.
    """
    target = RemoteTarget(
        launcher="container", tested=TESTED["container"], nodes=1, has_our_files=True
    )
    assert make_site(runtime="podman").find_remote_target(launcher=None) == target


def test_missing_image_is_reported_before_a_run(node: Path, spec: JobSpec) -> None:
    """The fake docker has one image alone, which ``make_site`` names unless it is given another.

    ``node`` is the folder of a node with its programs and data; ``set_data_folder`` puts that
    folder of data into the job. ``check`` raises nothing if all is well.
    """
    install_program(node, "docker")
    Container().check(set_data_folder(node, spec), make_site())
    with pytest.raises(EnvironmentFault, match="no such image: other:2"):
        Container().check(set_data_folder(node, spec), make_site(image="other:2"))


def test_end_of_a_container_is_described_by_the_message_of_its_runtime(
    spec: JobSpec, tmp_path: Path
) -> None:
    """``start_job`` starts a command as the job of a run; here one that fails like docker.

    The job made from the description alone has no process of its own to read from.
    """
    container_spec = replace(spec, launcher="container", run_dir=tmp_path)
    # As docker fails; output and errors are one text.
    script = "echo 1; echo no such image >&2; echo; echo see --help; exit 125"
    job = start_job(EngineCommand(argv=("sh", "-c", script), files={}), container_spec, make_site())
    assert job.process is not None
    job.process.wait()
    message = "no such image; see --help"  # of the last three lines, one is empty
    assert Container().read_state(job) == JobState(phase="ended", description=message)
    # Another process does not know its message.
    assert Container().read_state(EngineJob(container_spec, make_site())) == JobState(phase="ended")
