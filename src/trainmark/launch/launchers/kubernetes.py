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
    Command,
    EngineJob,
    JobState,
    Launcher,
    Phase,
    compute_job_limit_s,
    render_template,
    run_program,
)
from trainmark.launch.node import render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.plan.plan import Plan

MANIFEST = "job.yaml"
# Settings of a container that only a runtime on the node takes, and what to write instead.
_NOT_OF_PODS = {
    "runtime": "",
    "mounts": ", and write its folders as kubernetes.volumes",
    "shared_memory": ", and write it as kubernetes.shared_memory",
    "arguments": "",
}
INSTANCE = (
    "app.kubernetes.io/instance"  # label of what a run creates; its value is ``format_job_name``
)
_INDEX = "batch.kubernetes.io/job-completion-index"
# Why pods end that did not end themselves:
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ and pkg/kubelet in
# https://github.com/kubernetes/kubernetes, 2026-11-22.
_TAKEN = (
    "NodeLost", "DeletionByTaintManager", "DeletionByPodGC", "PreemptionByScheduler",
    "EvictionByEvictionAPI", "TerminationByKubelet", "DeadlineExceeded",
)  # fmt: skip


def format_job_name(run_id: str) -> str:
    """Return the name of what a run creates, from its time and token, as DNS takes it.

    NAME-node-0-INDEX-xxxxx has at most 63 characters.
    """
    stamp, *_, token = run_id.lower().split("-")
    return f"tm-{stamp}-{token}"


def compute_resource_limits(plan: Plan, cluster: Cluster) -> dict[str, str]:
    """Return how much of what a pod asks for."""
    vendor_resource = getattr(
        devices.list_vendors()[plan.device.vendor], "kubernetes_resource", None
    )
    asked = (
        {vendor_resource: str(plan.nproc)} if vendor_resource else {}
    ) | cluster.kubernetes.resources
    return {name: amount for name, amount in asked.items() if amount != "0"}


def render_manifest(plan: Plan, cluster: Cluster) -> str:
    """Return the YAML of what a run creates.

    Raises:
        UsageError: the cluster names no image, or what a pod does not take beside it.
    """
    box = cluster.container
    if box is None:
        raise cluster.fault(
            "container", "pods need an image", fix="write container: {image: IMAGE}"
        )
    for key, instead in _NOT_OF_PODS.items():
        if key in box.model_fields_set and getattr(box, key):
            raise cluster.fault(
                f"container.{key}",
                f"{key} cannot be used with Kubernetes",
                rule="the cluster starts the image itself",
                fix=f"remove `{key}` from `container`{instead}",
            )
    settings, called = cluster.kubernetes, format_job_name(plan.run_id)
    master = f"{called}-node-0-0.{called}"
    script = render_node_script(plan, cluster, node_rank="$JOB_COMPLETION_INDEX", master=master)
    return render_template(
        "kubernetes.yaml.j2",
        plan=plan,
        own=settings,
        name=called,
        image=box.image,
        labels=settings.labels | {"app.kubernetes.io/name": "trainmark", INSTANCE: called},
        limits=compute_resource_limits(plan, cluster),
        limit_s=round(compute_job_limit_s(plan)),
        # The cluster replaces $(NAME) in a command, and $$ by $, before a shell sees it.
        script=script.replace("$", "$$"),
    )


class Kubernetes(Launcher):
    """Runs as a JobSet; see ``Launcher``."""

    programs = ("kubectl",)

    def check(self, plan: Plan, cluster: Cluster) -> None:
        """Refuse what no cluster could run, then let the cluster check the manifest."""
        if not any(map(Path(plan.run_dir).is_relative_to, cluster.kubernetes.volumes)):
            raise cluster.fault(
                "kubernetes.volumes",
                f"no volume of the pods holds {plan.run_dir}",
                fix="name one that this machine shares, by its path here",
            )
        with TemporaryDirectory() as trial:
            file = Path(trial) / MANIFEST
            file.write_text(render_manifest(plan, cluster), encoding="utf-8")
            _run_kubectl(cluster, "create", "-f", str(file), "--dry-run=server")

    def command(self, plan: Plan, cluster: Cluster) -> Command:
        """Return what starts the run."""
        argv = (*_build_kubectl_command(cluster), "create", "-f", MANIFEST, "-o", "name")
        return Command(argv=argv, files={MANIFEST: render_manifest(plan, cluster)}, submits=True)

    def state(self, job: EngineJob) -> JobState:
        """Return what the cluster says of the JobSet and its pods."""
        kinds = f"{job.id.partition('/')[0]},pods"
        selector = f"{INSTANCE}={format_job_name(job.plan.run_id)}"
        answer = json.loads(_run_kubectl(job.cluster, "get", kinds, "-l", selector, "-o", "json"))
        return derive_state(answer["items"], job.plan.nnodes)

    def cancel(self, job: EngineJob) -> None:
        """Delete what was created."""
        self.collect(job)

    def collect(self, job: EngineJob) -> None:
        """Delete what was created; the pods wrote into the run directory."""
        file = str(job.folder / MANIFEST)
        _run_kubectl(job.cluster, "delete", "-f", file, "--ignore-not-found", "--wait=false")


def derive_state(objects: list[dict[str, Any]], nnodes: int) -> JobState:
    """Return the state of a job.

    Args:
        found: the job and its pods, as ``kubectl get -o json`` lists them.
    """
    pods = [
        _derive_pod_state(one)
        for one in sorted((x for x in objects if x["kind"] == "Pod"), key=_read_node_index)
    ]
    job = next((_index_conditions(one) for one in objects if one["kind"] != "Pod"), None)
    words = [pod.said for pod in pods if pod.said][:3]
    if job is None:
        gone = "its pods are being deleted" if pods else "it was deleted"
        return JobState(phase="running" if pods else "lost", said=gone)
    if "Completed=True" in job:
        return JobState(phase="ended", said="Completed")
    if "Failed=True" in job and not any(pod.phase == "running" for pod in pods):
        why = job["Failed=True"]
        taken = why["reason"] in _TAKEN or any(pod.phase == "lost" for pod in pods)
        said = "; ".join([_format_reason(why), *words])
        return JobState(phase="lost" if taken else "ended", said=said)
    waits = sum(pod.phase == "waiting" for pod in pods)
    suspended = [_format_reason(job["Suspended=True"])] if "Suspended=True" in job else []
    said = "; ".join([f"{len(pods) - waits} of {nnodes} pods run", *suspended, *words])
    runs = not waits and len(pods) >= nnodes
    return JobState(phase="running" if runs else "waiting", said=said)


def _read_node_index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["annotations"][_INDEX])


def _derive_pod_state(pod: dict[str, Any]) -> JobState:
    """Return the state of a pod, with why it waits or ended."""
    status, conditions = pod["status"], _index_conditions(pod)
    now = (status.get("containerStatuses") or [{}])[0].get("state", {})
    over = now.get("terminated") or {}
    sources = (
        conditions.get("DisruptionTarget=True"),
        status,
        over,
        now.get("waiting"),
        conditions.get("PodScheduled=False"),
        {"reason": status["phase"]},
    )
    reasons = [source for source in sources if source and "reason" in source]
    if any(source["reason"] in _TAKEN for source in reasons):
        phase: Phase = "lost"
    elif status["phase"] == "Failed" or over.get("exitCode"):
        phase = "ended"
    elif over or "running" in now:
        return JobState(phase="ended" if over else "running")
    else:
        phase = "waiting"
    return JobState(phase=phase, said=f"node {_read_node_index(pod)}: {_format_reason(reasons[0])}")


def _index_conditions(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the conditions of a job or pod by type and status."""
    conditions = item.get("status", {}).get("conditions", [])
    return {f"{condition['type']}={condition['status']}": condition for condition in conditions}


def _format_reason(condition: dict[str, Any]) -> str:
    """Return a reason with what is said about it."""
    more = condition.get("message") or (
        f"exit code {condition['exitCode']}" if "exitCode" in condition else ""
    )
    return f"{condition['reason']} ({more.strip()})" if more else str(condition["reason"])


def _build_kubectl_command(cluster: Cluster) -> list[str]:
    context = ["--context", cluster.kubernetes.context] if cluster.kubernetes.context else []
    return ["kubectl", *context, "--namespace", cluster.kubernetes.namespace]


def _run_kubectl(cluster: Cluster, *words: str) -> str:
    """Return what ``kubectl`` prints."""
    return run_program(*_build_kubectl_command(cluster), "--request-timeout=10s", *words)
