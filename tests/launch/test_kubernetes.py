"""Manifests against the published schemas, states as clusters tell them, and kubectl's calls."""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

from support.fakes import GOLDEN, check_golden
from trainmark import devices
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch.cluster import Cluster
from trainmark.launch.launchers import JOB_FILE, EngineJob, JobState, load_launcher, start_job
from trainmark.launch.launchers.kubernetes import (
    MANIFEST,
    Kubernetes,
    derive_state,
    render_manifest,
)
from trainmark.launch.submission import describe_job
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from trainmark.launch.job_spec import JobSpec

_HERE = Path(__file__).parent / "kubernetes"
_STATES = json.loads((_HERE / "states.json").read_text())  # of pods and jobs, by a name for each
_NAME = "tm-20260102t030405z-abc123"  # of the job of the golden plan
# Settings of a cluster with the keys that are needed, and with all keys.
_REQUIRED_KEYS: dict[str, Any] = {
    "container": {"image": "registry.example/trainer:1"},
    "kubernetes": {"volumes": {"/runs": {"persistentVolumeClaim": {"claimName": "runs"}}}},
}
_ALL_KEYS: dict[str, Any] = {
    "data": "/data/toy",
    "container": {
        "image": "registry.example/trainer@sha256:00", "python": "python3",
    },
    "kubernetes": {
        "namespace": "bench", "context": "lab", "shared_memory": "8Gi",
        "resources": {"nvidia.com/gpu": "2", "rdma/hca": "1", "cpu": "8", "memory": "64Gi"},
        "volumes": {
            "/data": {"persistentVolumeClaim": {"claimName": "data"}},
            "/scratch": {"hostPath": {"path": "/mnt/nvme"}},
        },
        "node_selector": {"gpu": "y", "rev": "1e3"},
        "tolerations": [{
            "key": "gpu", "operator": "Exists", "effect": "NoExecute",
        }],
        "image_pull_secrets": ["registry"],
        "labels": {"kueue.x-k8s.io/queue-name": "bench"},
    },
}  # fmt: skip


def make_spec(run_dir: Path | str = "/runs/toy", nnodes: int = 2, nproc: int = 2) -> JobSpec:
    """Return the Kubernetes job of the case toy's golden plan.

    Args:
        run_dir: folder of the run.
        nnodes: number of nodes.
        nproc: number of ranks of each node.
    """
    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_text())
    return replace(
        describe_job(plan),
        run_dir=Path(run_dir),
        nnodes=nnodes,
        nproc=nproc,
        launcher="kubernetes",
    )


def make_site(settings: dict[str, Any], **more: Any) -> Cluster:
    """Return a cluster with these settings; ``more``: other keys of its part ``kubernetes``."""
    return Cluster.model_validate(settings | {"kubernetes": settings["kubernetes"] | more})


# Manifests


def forbid_unknown_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an API server that takes unknown fields for errors."""
    strict = {key: forbid_in_value(value) for key, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    return strict


def forbid_in_value(value: Any) -> Any:
    """Return a value of a schema in which all schemas forbid unknown fields."""
    if isinstance(value, dict):
        return forbid_unknown_fields(value)
    return [forbid_in_value(item) for item in value] if isinstance(value, list) else value


def read_schema() -> dict[str, Any]:
    """Return the published schema of a JobSet, as strict as an API server is."""
    strict = forbid_unknown_fields(json.loads((_HERE / "jobset-v0.12.0.json").read_text()))
    # The server checks these of every object; a schema of a custom resource leaves them open.
    strict["properties"]["metadata"] = {
        "properties": {
            "name": {"maxLength": 63},
            "labels": {
                "additionalProperties": {
                    "type": "string",
                    "maxLength": 63,
                    "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
                }
            },
        },
        "additionalProperties": False,
    }
    return strict


@pytest.mark.parametrize(
    ("settings", "golden"), [(_REQUIRED_KEYS, "shared"), (_ALL_KEYS, "all_keys")]
)
def test_manifests_are_valid_by_the_published_schema(settings: dict[str, Any], golden: str) -> None:
    """Settings of a cluster with the keys that are needed, and with all keys.

    ``golden``: the name of the stored file for them.

    A manifest is the description of a job that Kubernetes gets.

    ``read_schema`` returns the published schema of a JobSet, which forbids unknown fields. The job
    has a time limit of 1,800 s.
    """
    text = render_manifest(make_spec(), make_site(settings))
    manifest = yaml.safe_load(text)
    jsonschema.validate(manifest, read_schema())
    check_golden(f"kubernetes_jobset_{golden}.yaml", text)
    # Nothing is started again after a failure: neither the set of jobs, nor a pod, nor a container.
    assert manifest["spec"]["failurePolicy"] == {"maxRestarts": 0}
    (job,) = manifest["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["backoffLimit"] == 0
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["activeDeadlineSeconds"] == 1_800 + 300  # the time limit, and grace
    # Kubernetes expands $(NAME) and turns $$ into $: every $ of the script must be doubled.
    script = pod["containers"][0]["command"][2].replace("$$", "\0")
    assert "$" not in script
    assert '--node-rank "\0JOB_COMPLETION_INDEX"' in script
    if settings is _ALL_KEYS:  # kubectl reads unquoted y as true and 1e3 as a number
        assert pod["nodeSelector"] == {"gpu": "y", "rev": "1e3"}
        assert '"gpu": "y"' in text


_NO_RESOURCE = {"cpu", "apple"}


def test_each_accelerator_has_its_resource() -> None:
    """``_NO_RESOURCE``: vendors whose devices Kubernetes does not hand out.

    A resource is the name by which a pod asks for devices of a vendor.
    """
    resources = {
        key: getattr(vendor, "kubernetes_resource", None)
        for key, vendor in devices.list_vendors().items()
    }
    assert {key for key, value in resources.items() if value is None} == _NO_RESOURCE
    # All resources differ; None, of several vendors, counts once.
    assert len(set(resources.values())) == len(resources) - len(_NO_RESOURCE) + 1


# States


def make_listing(job: str | None, *pods: str) -> list[dict[str, Any]]:
    """Return what kubectl lists of a job and its pods.

    Args:
        job: its kind, ``jobset``, or its kind and state, such as ``jobset_failed``; None: the job
            is gone.
        pods: state of the pod of each node; ``-``: this node's pod is gone.

    ``_STATES`` has recorded states of jobs and pods by these names.
    """
    items = [
        {
            "kind": "Pod",
            "metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": str(index)}},
            "status": _STATES[pod],
        }
        for index, pod in enumerate(pods)
        if pod != "-"
    ]
    if job is None:
        return items
    return [{"kind": job.partition("_")[0], "status": _STATES.get(job, {})}, *items]


@pytest.mark.parametrize(
    ("job", "pods", "phase", "message"),
    [
        ("jobset_suspended", (), "waiting",
         "0 of 2 pods have started; SuspendedJobs (jobset is suspended)"),
        ("jobset", ("unschedulable", "starting"), "waiting",
         "0 of 2 pods have started; node 0: Unschedulable (0/3 nodes are available: 3 Insufficient "
         "nvidia.com/gpu.); node 1: ContainerCreating"),
        ("jobset", ("running", "pulling"), "waiting",
         '1 of 2 pods have started; node 1: ImagePullBackOff (Back-off pulling image "trainer:1")'),
        ("jobset", ("running", "running"), "running", "2 of 2 pods have started"),
        # A failed job counts as running as long as one of its pods runs and may still write.
        ("jobset_failed", ("failed", "running"), "running",
         "2 of 2 pods have started; node 0: Error (exit code 1)"),
        ("jobset_failed", ("-", "running"), "running", "1 of 2 pods have started"),
        # The job was deleted, but not yet its pod.
        (None, ("running",), "running", "its pods are being deleted"),
    ],
)  # fmt: skip
def test_unfinished_job_has_phase_and_message(
    job: str, pods: tuple[str, ...], phase: Any, message: str
) -> None:
    """``job`` and ``pods`` are recorded states, by name: of the job, and of the pod of each node.

    ``-`` is a pod that is gone; ``message`` has the words that were recorded with a state.
    """
    state = derive_state(make_listing(job, *pods), nnodes=2)
    assert state == JobState(phase=phase, description=message)


@pytest.mark.parametrize(
    ("job", "pods", "phase"),
    [
        # Ended: by its own programs. "-": the pod of this node is gone.
        ("jobset_completed", ("succeeded", "succeeded"), "ended"),
        ("jobset_failed", ("-", "-"), "ended"),
        ("jobset_failed", ("out_of_memory", "failed"), "ended"),
        # Lost: ended from outside. The cluster ended a pod, or the job was deleted.
        ("jobset_failed", ("failed", "preempted"), "lost"),
        ("jobset_failed", ("-", "tainted"), "lost"),
        (None, (), "lost"),
    ],
)
def test_ended_job_has_its_phase(job: str | None, pods: tuple[str, ...], phase: str) -> None:
    assert derive_state(make_listing(job, *pods), nnodes=2).phase == phase


# Calls of kubectl

# Records its words; prints the file that is named as its verb, or fails with the text VERB.fails.
_FAKE = """#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
words = sys.argv[1:]
with (folder / "calls").open("a") as file:
    file.write(json.dumps(words) + "\\n")
verb = next(word for word in words if word in ("version", "create", "get", "delete"))
answer = folder / verb
if verb == "create" and "--dry-run=server" in words:
    answer = folder / "dry-run"
if (folder / (answer.name + ".fails")).exists():
    sys.exit((folder / (answer.name + ".fails")).read_text())
sys.stdout.write(answer.read_text() if answer.exists() else "")
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder with the answers of a fake kubectl and its recorded calls.

    A test writes an answer into a file that is named as the verb, such as ``get``, or an error into
    ``get.fails``.
    """
    folder = tmp_path / "cluster"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(_FAKE.format(python=sys.executable, folder=str(folder)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def read_calls(cluster: Path) -> list[list[str]]:
    """Return the words of each call of the fake kubectl, whose folder is ``cluster``, in order."""
    return [json.loads(line) for line in (cluster / "calls").read_text().splitlines()]


def start_cluster_job(
    cluster: Path, tmp_path: Path, settings: dict[str, Any]
) -> tuple[JobSpec, Cluster, Any]:
    """Start the job of a plan through the fake kubectl; return its spec, its cluster, the job.

    The fake prints what the file ``create`` says. ``_NAME``: the job's name, made of the run's id.

    Args:
        cluster: folder of the fake kubectl.
        settings: of the cluster, as in a cluster file.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    spec, site = make_spec(folder), make_site(settings)
    command = load_launcher("kubernetes").build_command(spec, site)
    (folder / MANIFEST).write_text(command.files[MANIFEST])  # ``start_job`` expects it there
    (cluster / "create").write_text(f"jobset.jobset.x-k8s.io/{_NAME}\n")
    return spec, site, start_job(command, spec, site)


def test_start_and_attach_name_the_same_job(cluster: Path, tmp_path: Path) -> None:
    """The name ``_NAME`` is made of the run's id; ``_ALL_KEYS``: settings with every key.

    A jobset is the kind of job that is made here; kubectl writes an object as ``KIND/NAME``.
    ``JOB_FILE`` is in the run's folder, so that another process, which attaches, finds the job.
    """
    spec, site, job = start_cluster_job(cluster, tmp_path, _ALL_KEYS)
    assert job.id == f"jobset.jobset.x-k8s.io/{_NAME}"
    assert EngineJob(spec, site).id == job.id  # as another process finds it
    (spec.run_dir / JOB_FILE).unlink()  # it has the name of the job
    with pytest.raises(RecordError):
        Kubernetes().read_state(EngineJob(spec, site))


def test_states_are_asked_for_by_the_label_of_the_manifest(cluster: Path, tmp_path: Path) -> None:
    """``cluster`` is the folder of the fake kubectl, which records its calls there.

    It prints the file ``get``, or fails with the text in ``get.fails``. ``_ALL_KEYS``: settings of
    a cluster with every key. ``make_listing`` returns what kubectl lists of a job, here a jobset,
    and of the pods of its nodes, here two that run. ``MANIFEST``: name of the job's description.
    """
    _, _, job = start_cluster_job(cluster, tmp_path, _ALL_KEYS)
    (cluster / "get").write_text(
        json.dumps({"items": make_listing("jobset", "running", "running")})
    )
    assert Kubernetes().read_state(job).phase == "running"
    words = read_calls(cluster)[-1]
    assert words[words.index("get") + 1] == "jobset.jobset.x-k8s.io,pods"
    jobset = list(yaml.safe_load_all((tmp_path / "run" / MANIFEST).read_text()))[-1]
    key, _, value = words[words.index("-l") + 1].partition("=")
    assert jobset["metadata"]["labels"][key] == value

    (cluster / "get.fails").write_text("Unable to connect to the server\n")
    with pytest.raises(EnvironmentFault, match="Unable to connect"):
        Kubernetes().read_state(job)


def test_the_cluster_checks_the_manifest_before_submission(cluster: Path, tmp_path: Path) -> None:
    """``cluster`` is the folder of a fake kubectl; ``read_calls`` returns the words of each call.

    A manifest is the description of a job. With ``--dry-run=server`` a cluster checks it, but makes
    nothing. ``_REQUIRED_KEYS``: the least settings that a cluster needs.
    """
    spec = make_spec()
    Kubernetes().check(spec, make_site(_REQUIRED_KEYS))
    assert "--dry-run=server" in read_calls(cluster)[-1]
    # The fake kubectl fails with this text when it is called with ``--dry-run=server``.
    (cluster / "dry-run.fails").write_text('no matches for kind "JobSet"\n')
    with pytest.raises(EnvironmentFault) as caught:
        Kubernetes().check(spec, make_site(_REQUIRED_KEYS))
    assert 'no matches for kind "JobSet"' in caught.value.what


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (_REQUIRED_KEYS | {"container": {"image": "a", "runtime": "docker"}}, "container.runtime"),
        (_REQUIRED_KEYS | {"container": {"image": "a", "mounts": ["/a:/b"]}}, "container.mounts"),
        (
            _REQUIRED_KEYS | {"container": {"image": "a", "shared_memory": "1g"}},
            "container.shared_memory",
        ),
        (_REQUIRED_KEYS | {"container": None}, "container"),
        (_REQUIRED_KEYS | {"kubernetes": {}}, "kubernetes.volumes"),
    ],
)
def test_options_unsupported_by_pods_are_refused_before_submission(
    cluster: Path, settings: dict[str, Any], key: str
) -> None:
    """``_REQUIRED_KEYS``: the least settings that a cluster needs; ``key``: the wrong one.

    Pods have a runtime, mounts and shared memory of their own, which other keys set. They need an
    image, and a volume with the folder of the run.
    """
    with pytest.raises(UsageError) as caught:
        Kubernetes().check(make_spec(), Cluster.model_validate(settings))
    assert caught.value.where == f"cluster file, {key}"
    assert not (cluster / "calls").exists()  # kubectl was not called
