"""Start a run on Kubernetes as a JobSet with ``kubectl``, and follow its pods.

Run directory and data are on volumes that the pods and, for the run directory, this machine share.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainmark import devices
from trainmark.launch.launchers import (
    EngineCommand,
    EngineJob,
    JobPhase,
    JobState,
    Launcher,
    render_template,
    run_program,
)
from trainmark.launch.node_script import render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.job_spec import JobSpec

MANIFEST = "job.yaml"
# Settings of a container that do not apply to pods, and how the error's fix continues.
_NODE_ONLY_SETTINGS = {
    "runtime": "",
    "mounts": ", and list the mounted folders under kubernetes.volumes",
    "shared_memory": ", and set kubernetes.shared_memory",
    "arguments": "",
}
# Label of all objects that a run creates; its value is that of ``format_job_name``.
INSTANCE_LABEL = "app.kubernetes.io/instance"
_INDEX = "batch.kubernetes.io/job-completion-index"
# Reasons of pods that were ended from outside:
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ and pkg/kubelet in
# https://github.com/kubernetes/kubernetes, 2026-11-22.
_OUTSIDE_REASONS = (
    "NodeLost",
    "DeletionByTaintManager",
    "DeletionByPodGC",
    "PreemptionByScheduler",
    "EvictionByEvictionAPI",
    "TerminationByKubelet",
    "DeadlineExceeded",
)


def format_job_name(run_id: str) -> str:
    """Return the name of the objects that a run creates: its time and token, valid in DNS.

    A run's id has the form TIME-CASE-TOKEN. The name leaves out the case, because a pod's name,
    NAME-node-0-INDEX-xxxxx, may have at most 63 characters.
    """
    stamp, *_, token = run_id.lower().split("-")  # between them is the name of the case
    return f"tm-{stamp}-{token}"


def compute_resource_limits(spec: JobSpec, cluster: Cluster) -> dict[str, str]:
    """Return the amount of each resource that a pod requests, by the resource's name."""
    vendor = devices.list_vendors()[spec.vendor]
    # Name of the vendor's devices in Kubernetes, such as acme.com/gpu. None, as for a CPU: its
    # devices are not a resource that a pod requests.
    vendor_resource = getattr(vendor, "kubernetes_resource", None)
    limits = {vendor_resource: str(spec.nproc)} if vendor_resource else {}
    limits |= cluster.kubernetes.resources
    # The cluster file may set an amount of 0, so that pods do not request the resource.
    return {name: amount for name, amount in limits.items() if amount != "0"}


def render_manifest(spec: JobSpec, cluster: Cluster) -> str:
    """Return the manifest of a run as YAML.

    Raises:
        UsageError: the cluster file names no image, or has settings that do not apply to pods.
    """
    container = cluster.container
    if container is None:
        raise cluster.build_error(
            "container", "Kubernetes pods need an image", fix="write container: {image: IMAGE}"
        )
    # Settings that do not apply to pods, and how the error's fix continues for each.
    for key, rest_of_fix in _NODE_ONLY_SETTINGS.items():
        if key in container.model_fields_set and getattr(container, key):  # set and not empty
            raise cluster.build_error(
                f"container.{key}",
                f"{key} cannot be used with Kubernetes",
                rule="the cluster starts the image itself",
                fix=f"remove `{key}` from `container`{rest_of_fix}",
            )
    settings = cluster.kubernetes
    name = format_job_name(spec.run_id)
    master = f"{name}-node-0-0.{name}"  # name in DNS of the pod with the index 0
    # Kubernetes sets the variable in each pod to the pod's index.
    script = render_node_script(spec, cluster, node_rank="$JOB_COMPLETION_INDEX", master=master)
    return render_template(
        "kubernetes.yaml.j2",
        spec=spec,
        settings=settings,
        name=name,
        image=container.image,
        labels=settings.labels | {"app.kubernetes.io/name": "trainmark", INSTANCE_LABEL: name},
        limits=compute_resource_limits(spec, cluster),
        limit_s=round(spec.engine_limit_s),
        # The cluster replaces $(NAME) in a command, and $$ by $, before a shell sees it.
        script=script.replace("$", "$$"),
    )


class Kubernetes(Launcher):
    """Runs as a JobSet; see ``Launcher``."""

    programs = ("kubectl",)

    def check(self, spec: JobSpec, cluster: Cluster) -> None:
        """Check that a volume contains the run directory; let the cluster check the manifest."""
        if not any(spec.run_dir.is_relative_to(folder) for folder in cluster.kubernetes.volumes):
            raise cluster.build_error(
                "kubernetes.volumes",
                f"no volume of the pods contains {spec.run_dir}",
                fix="add a volume that is mounted at the same path on this machine",
            )
        with TemporaryDirectory() as temporary_folder:  # the run directory does not exist yet
            file = Path(temporary_folder) / MANIFEST
            file.write_text(render_manifest(spec, cluster), encoding="utf-8")
            _run_kubectl(cluster, "create", "-f", str(file), "--dry-run=server")

    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return the ``kubectl create`` command, with the manifest as its file."""
        argv = (*_build_kubectl_command(cluster), "create", "-f", MANIFEST, "-o", "name")
        return EngineCommand(
            argv=argv, files={MANIFEST: render_manifest(spec, cluster)}, submits=True
        )

    def read_state(self, job: EngineJob) -> JobState:
        """Return the state of the JobSet and its pods."""
        # The id is what `kubectl create -o name` printed: the JobSet's kind, a slash and its name.
        kinds = f"{job.id.partition('/')[0]},pods"
        selector = f"{INSTANCE_LABEL}={format_job_name(job.spec.run_id)}"
        answer = json.loads(_run_kubectl(job.cluster, "get", kinds, "-l", selector, "-o", "json"))
        return derive_state(answer["items"], job.spec.nnodes)

    def cancel(self, job: EngineJob) -> None:
        """Delete the JobSet and its pods, which ends the run."""
        _delete_job(job)

    def collect(self, job: EngineJob) -> None:
        """Delete the JobSet and its pods, which remain in the cluster after the run.

        There are no files to copy: the pods wrote into the run directory itself.
        """
        _delete_job(job)


def _delete_job(job: EngineJob) -> None:
    """Have Kubernetes delete the JobSet and its pods, without waiting until they are gone.

    The caller need not wait here: ``read_state`` reports the job as running while it has pods.
    """
    file = str(job.folder / MANIFEST)
    _run_kubectl(job.cluster, "delete", "-f", file, "--ignore-not-found", "--wait=false")


def derive_state(objects: list[dict[str, Any]], nnodes: int) -> JobState:
    """Return the state of a job.

    Args:
        objects: the JobSet and its pods, as ``kubectl get -o json`` lists them.
        nnodes: number of pods that the run needs.
    """
    pod_objects = [item for item in objects if item["kind"] == "Pod"]
    job_objects = [item for item in objects if item["kind"] != "Pod"]
    pods = [_derive_pod_state(pod) for pod in sorted(pod_objects, key=_read_node_index)]
    # Of three pods at most, so that the description stays short.
    descriptions = [pod.description for pod in pods if pod.description][:3]
    if not job_objects:
        if pods:  # they may still write events
            return JobState(phase="running", description="its pods are being deleted")
        return JobState(phase="lost", description="it was deleted")
    conditions = _index_conditions(job_objects[0])
    if "Completed=True" in conditions:  # only once every pod has succeeded: none still writes
        return JobState(phase="ended", description="Completed")
    # While a pod of a failed job runs, the job has not ended: the pod may still write events.
    if "Failed=True" in conditions and not any(pod.phase == "running" for pod in pods):
        failure = conditions["Failed=True"]
        # Lost: the job or a pod was ended from outside, for example by an eviction.
        is_lost = failure["reason"] in _OUTSIDE_REASONS or any(pod.phase == "lost" for pod in pods)
        text = "; ".join([_format_reason(failure), *descriptions])
        return JobState(phase="lost" if is_lost else "ended", description=text)
    has_failed = "Failed=True" in conditions  # its last pods are ending: it waits for no others
    num_waiting = sum(pod.phase == "waiting" for pod in pods)
    sentences = [f"{len(pods) - num_waiting} of {nnodes} pods have started"]
    if "Suspended=True" in conditions:
        sentences.append(_format_reason(conditions["Suspended=True"]))
    text = "; ".join([*sentences, *descriptions])
    all_run = num_waiting == 0 and len(pods) >= nnodes
    return JobState(phase="running" if all_run or has_failed else "waiting", description=text)


def _read_node_index(pod: dict[str, Any]) -> int:
    """Return the number of the run's node that a pod is."""
    return int(pod["metadata"]["annotations"][_INDEX])


def _derive_pod_state(pod: dict[str, Any]) -> JobState:
    """Return the state of a pod, with the reason why it waits or ended."""
    status = pod["status"]
    conditions = _index_conditions(pod)  # by TYPE=STATUS
    # Empty until the container is created; a run's pod has one container.
    container_statuses = status.get("containerStatuses") or [{}]
    container_state = container_statuses[0].get("state", {})
    termination = container_state.get("terminated") or {}
    # Parts of the pod that may give a reason, the most specific first. The pod's phase is the last
    # resort.
    sources = (
        conditions.get("DisruptionTarget=True"),
        status,
        termination,
        container_state.get("waiting"),
        conditions.get("PodScheduled=False"),
        {"reason": status["phase"]},
    )
    reasons = [source for source in sources if source and "reason" in source]
    if any(source["reason"] in _OUTSIDE_REASONS for source in reasons):
        # Ended from outside: its program did not fail by itself. This is also so if its container
        # still counts as running: if its machine has stopped, nobody reports the container's end.
        phase: JobPhase = "lost"
    elif status["phase"] == "Failed" or termination.get("exitCode"):
        phase = "ended"  # its program failed
    elif termination:
        return JobState(phase="ended")  # its program succeeded: there is no reason to tell
    elif "running" in container_state:
        return JobState(phase="running")
    else:
        phase = "waiting"
    return JobState(
        phase=phase, description=f"node {_read_node_index(pod)}: {_format_reason(reasons[0])}"
    )


def _index_conditions(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the conditions of a job or pod, by TYPE=STATUS such as ``Failed=True``."""
    conditions = item.get("status", {}).get("conditions", [])
    return {f"{condition['type']}={condition['status']}": condition for condition in conditions}


def _format_reason(condition: dict[str, Any]) -> str:
    """Return the reason of a condition, with its message or exit code.

    Args:
        condition: a condition of a job or pod, or another part of a pod that gives a reason: its
            status, or the state of its container, which alone may have an exit code.
    """
    details = condition.get("message", "")
    if not details and "exitCode" in condition:
        details = f"exit code {condition['exitCode']}"
    return f"{condition['reason']} ({details.strip()})" if details else str(condition["reason"])


def _build_kubectl_command(cluster: Cluster) -> list[str]:
    """Return ``kubectl`` with the options for the cluster's context and namespace."""
    context = ["--context", cluster.kubernetes.context] if cluster.kubernetes.context else []
    return ["kubectl", *context, "--namespace", cluster.kubernetes.namespace]


def _run_kubectl(cluster: Cluster, *words: str) -> str:
    """Run ``kubectl`` and return its output."""
    return run_program(*_build_kubectl_command(cluster), "--request-timeout=10s", *words)
