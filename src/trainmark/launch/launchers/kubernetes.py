"""Start a run on Kubernetes with ``kubectl``, and follow its pods.

Knows what the cluster reports; ``kubernetes_manifest`` has what is created. Where the nodes do not
see the run directory, their files come through the logs of their pods.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import suppress
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainmark import devices
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch.contract import JOB_FILE, Command, Ending, JobState
from trainmark.launch.launchers import kubernetes_manifest as manifests
from trainmark.launch.node.files import names_of, receive
from trainmark.launch.submission import submit

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

MANIFEST = "job.yaml"
_COLLECTED = ".collected"  # in the run directory once all files are: the job's last state
_INDEX = "batch.kubernetes.io/job-completion-index"
# Why pods end, the gravest first: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/
# and pkg/kubelet in https://github.com/kubernetes/kubernetes, 2026-11-22.
_ENDINGS: dict[str, Ending] = {
    "NodeLost": "node_lost", "DeletionByTaintManager": "node_lost", "DeletionByPodGC": "node_lost",
    "PreemptionByScheduler": "preempted", "EvictionByEvictionAPI": "preempted",
    "TerminationByKubelet": "preempted", "OOMKilled": "out_of_memory",
    "DeadlineExceeded": "timed_out",
}  # fmt: skip
_GRAVEST_FIRST: list[Ending | None] = [*_ENDINGS.values(), "failed"]


class Kubernetes:
    """Runs as a JobSet or a TrainJob; see ``Launcher``."""

    name = "kubernetes"
    detaches = True

    def absent(self, site: Site) -> str | None:
        """Return why it cannot be used here, None if it can."""
        try:
            _kubectl(site, "version")
        except EnvironmentFault as fault:
            return _unanswered(fault)
        return None

    def check(self, plan: Plan, site: Site) -> None:
        """Refuse what no cluster could run, then let the cluster check the manifest."""
        box, folder = site.container, Path(plan.run_dir)
        seen = any(folder.is_relative_to(one.path) for one in site.kubernetes.volumes)
        vendor = devices.all_vendors()[plan.device.vendor]
        for wrong, what, key, remedy in (
            (not box or box.runtime or box.mounts or box.arguments, "pods take an image alone",
             "container", "set image, and mounts as kubernetes.volumes"),
            (site.run_root is None and not seen, f"no volume of the pods holds {folder}",
             "kubernetes.volumes", "name one by its path here, or set run_root"),
            (not vendor.counts_cores and not manifests.accelerators(plan, site),
             f"the resource that stands for {vendor.name} devices is unknown",
             "kubernetes.resource", "set it, for example vendor.com/gpu"),
        ):  # fmt: skip
            if wrong:
                raise UsageError(what, where=f"site key {key}", remedy=remedy)
        with TemporaryDirectory() as trial:
            file = Path(trial) / MANIFEST
            file.write_text(manifests.manifest(plan, site), encoding="utf-8")
            _kubectl(site, "create", "-f", str(file), "--dry-run=server")

    def command(self, plan: Plan, site: Site) -> Command:
        """Return what starts the run; a pure function.

        Raises:
            UsageError: the site names no image.
        """
        if site.container is None:
            raise UsageError(
                "pods need an image", where="site file, container", remedy="set container.image"
            )
        argv = (*_words(site), "create", "-f", MANIFEST, "-o", "name")
        return Command(argv=argv, files={MANIFEST: manifests.manifest(plan, site)}, prints_job=True)

    def start(self, command: Command, plan: Plan, site: Site) -> KubernetesJob:
        """Create what the manifest says."""
        submit(command, Path(plan.run_dir))
        return self.attach(plan, site)

    def attach(self, plan: Plan, site: Site) -> KubernetesJob:
        """Return the job that was started for ``plan``, also by a pasted script."""
        file = Path(plan.run_dir) / JOB_FILE
        told = file.read_text(errors="replace").split() if file.exists() else []
        own = rf"[a-z][a-z0-9.-]*/{manifests.name(plan.run_id)}"
        if not told or not re.fullmatch(own, told[-1]):
            raise RecordError("does not name a job of this run", where=str(file))
        return KubernetesJob(told[-1], plan, site)


class KubernetesJob:
    """A JobSet or TrainJob; see ``Job``."""

    def __init__(self, job: str, plan: Plan, site: Site) -> None:
        self.id = job
        self._plan, self._site, self._done = plan, site, Path(plan.run_dir) / _COLLECTED
        self._own = f"{manifests.INSTANCE}={manifests.name(plan.run_id)}"
        self._last = JobState(phase="waiting", said="created")
        self._seen: dict[int, JobState] = {}
        self._logs: dict[int, subprocess.Popen[str]] = {}

    def state(self) -> JobState:
        """Return where it is now; while the cluster does not answer, where it was."""
        if self._done.exists():
            return JobState(**json.loads(self._done.read_text()))
        try:
            self._look()
        except EnvironmentFault as fault:
            return replace(self._last, said=_unanswered(fault))
        return self._last

    def _look(self) -> None:
        """Ask the cluster; delete a job whose runtime, as a TrainJob's may, starts a pod again."""
        kinds = f"{self.id.partition('/')[0]},pods"
        told = json.loads(_kubectl(self._site, "get", kinds, "-l", self._own, "-o", "json"))
        self._last = state_of(told["items"], self._plan.nnodes, self._seen)
        pods = [one["status"] for one in told["items"] if one["kind"] == "Pod"]
        boxes = [box for pod in pods for box in pod.get("containerStatuses", [])]
        if len(pods) > self._plan.nnodes or any(box.get("restartCount") for box in boxes):
            self.cancel()

    def cancel(self) -> None:
        """Delete what was created; logs, which go with their pods, are read to their ends."""
        self._logs = self._logs or {node: self._log(node) for node in self._senders()}
        with suppress(EnvironmentFault):  # the state shows that it is still there
            _delete(self._plan, self._site)

    def collect(self) -> None:
        """Receive the files in the pods' logs, then delete what was created.

        Raises:
            EnvironmentFault: they are not whole; the job is kept.
        """
        if not self._done.exists():
            self._look()  # which pods began
            self._receive()
            self._done.write_text(json.dumps(asdict(self._last)))
        _delete(self._plan, self._site)

    def _senders(self) -> list[int]:
        """Return the nodes whose files come through logs: those that began."""
        return [] if self._site.run_root is None else sorted(self._seen)

    def _receive(self) -> None:
        faults = []
        for node in self._senders():
            with self._logs.pop(node, None) or self._log(node) as log:
                files, lines = names_of(node, self._plan), log.stdout or ()
                try:
                    receive(lines, self._done.parent, expected=files)
                except EnvironmentFault as fault:
                    faults.append(f"node {node}: {fault.what}")
        if faults:
            raise EnvironmentFault(
                "; ".join(faults), where=self.id,
                rule="a node that died sends none, and clusters show a log since its last rotation",
                remedy="use a volume that this machine sees too, and no run_root",
            )  # fmt: skip

    def _log(self, node: int) -> subprocess.Popen[str]:
        """Start to read the log of a node's pod until it ends."""
        which = ("-l", f"{self._own},{_INDEX}={node}", "-c", manifests.CONTAINER, "--tail=-1")
        return subprocess.Popen(  # in a session of its own, so that no Ctrl-C ends it
            [*_words(self._site), "logs", *which, "--follow", "--request-timeout=300s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", start_new_session=True)  # fmt: skip


def state_of(found: list[dict[str, Any]], nnodes: int, seen: dict[int, JobState]) -> JobState:
    """Return the state of a job.

    Args:
        found: the job and its pods, as ``kubectl get -o json`` lists them.
        seen: pods that began, by node; the call adds to them, for they may be deleted soon.
    """
    states = sorted((_pod(one) for one in found if one["kind"] == "Pod"), key=itemgetter(0))
    pods = [pod for _, pod in states]
    job = next((_conditions(one) for one in found if one["kind"] != "Pod"), None)
    if job is None and pods:
        return JobState(phase="running", said="its pods are being deleted")
    failed = {node: pod for node, pod in (*states[::-1], *seen.items()) if pod.ending}
    seen |= {node: pod for node, pod in states if pod.phase != "waiting"} | failed
    lost = tuple(sorted({node for pod in (*pods, *failed.values()) for node in pod.lost}))
    if job is None and not failed:
        return JobState(phase="ended", said="it was deleted", ending="cancelled")
    told = {"Failed=True": {"reason": "Failed"}} if job is None else job
    if told.keys() & {"Completed=True", "Complete=True"}:
        return JobState(phase="ended", said="Completed", ending="completed", exit_code=0)
    if "Failed=True" in told and not any(pod.phase == "running" and not pod.lost for pod in pods):
        why = told["Failed=True"]
        own = JobState(phase="ended", ending=_ENDINGS.get(why["reason"], "failed"))
        ends = [failed[node] for node in sorted(failed)]
        end = min(ends, key=lambda pod: _GRAVEST_FIRST.index(pod.ending), default=own)
        return replace(end, said="; ".join(filter(None, [_said(why), end.said])), lost=lost)
    waits = [pod for pod in pods if pod.phase == "waiting"]
    said = [f"{len(pods) - len(waits)} of {nnodes} pods run"]
    said += [_said(told["Suspended=True"])] if "Suspended=True" in told else []
    said += [pod.said for pod in pods if pod.said][:3]
    runs = not waits and (len(pods) >= nnodes or failed)
    return JobState(phase="running" if runs else "waiting", said="; ".join(said), lost=lost)


def _pod(found: dict[str, Any]) -> tuple[int, JobState]:
    """Return the number of a pod's node, and its state with why it waits or ended."""
    node, status = int(found["metadata"]["annotations"][_INDEX]), found["status"]
    told, boxes = _conditions(found), status.get("containerStatuses", [])
    box: dict[str, Any] = boxes[0] if boxes else {}
    now = box.get("state", {})
    over = now.get("terminated") or box.get("lastState", {}).get("terminated") or {}
    sources = (told.get("DisruptionTarget=True"), status, over, now.get("waiting"),
               told.get("PodScheduled=False"), {"reason": status["phase"]})  # fmt: skip
    reasons = [one for one in sources if one and "reason" in one]
    failed: list[Ending] = [_ENDINGS[one["reason"]] for one in reasons if one["reason"] in _ENDINGS]
    if status["phase"] == "Failed" or over.get("exitCode"):
        failed.append("failed")
    state = JobState(phase="waiting", said=f"node {node}: {_said(reasons[0])}")
    if failed:
        lost = (node,) if failed[0] in ("node_lost", "preempted") else ()
        state = replace(state, phase="ended", ending=failed[0], lost=lost,
                        exit_code=over.get("exitCode"))  # fmt: skip
    elif box.get("ready") and "Ready=False" in told:  # so the cluster marks pods on silent machines
        state = JobState(phase="running", said=f"node {node} does not answer", lost=(node,))
    elif over or "running" in now:
        state = JobState(phase="ended" if over else "running")
    return node, state


def _conditions(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the conditions of a job or pod by type and status."""
    found = item.get("status", {}).get("conditions", [])
    return {f"{one['type']}={one['status']}": one for one in found}


def _said(told: dict[str, Any]) -> str:
    """Return a reason with what is said about it."""
    more = told.get("message") or (f"exit code {told['exitCode']}" if "exitCode" in told else "")
    return f"{told['reason']} ({more.strip()})" if more else str(told["reason"])


def _unanswered(fault: EnvironmentFault) -> str:
    """Return what ``kubectl`` said last, without how ``submit`` words each failure."""
    last = fault.what.splitlines()[-1].removeprefix("the engine refused the job: ")
    return f"no cluster answers: {last}"


def _words(site: Site) -> list[str]:
    context = ["--context", site.kubernetes.context] if site.kubernetes.context else []
    return ["kubectl", *context, "--namespace", site.kubernetes.namespace]


def _kubectl(site: Site, *words: str) -> str:
    """Return what ``kubectl`` prints."""
    return submit(Command(argv=(*_words(site), "--request-timeout=10s", *words)), Path())


def _delete(plan: Plan, site: Site) -> None:
    file = str(Path(plan.run_dir) / MANIFEST)
    _kubectl(site, "delete", "-f", file, "--ignore-not-found", "--wait=false")
