"""The manifest of a run on Kubernetes: pure functions of plan and site.

A JobSet, or a TrainJob of Kubeflow Trainer 2.2 or later, with a pod for each node. No pod runs
twice: a run that was interrupted is no measurement.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import yaml

from trainmark import devices
from trainmark.launch.node.command import node_script, run_dir_on_nodes
from trainmark.plan.plan import PLAN_FILE

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

CONTAINER = "node"  # and the replicated job: so they are called in Kubeflow's runtimes
INSTANCE = "app.kubernetes.io/instance"  # label of what a run creates; its value is ``name``


def name(run_id: str) -> str:
    """Return the name of what a run creates: letters, digits and ``-``, as DNS takes it.

    Of a longer one the time and the end, for NAME-node-0-INDEX-xxxxx has at most 63 characters.
    """
    found = re.sub(r"[^a-z0-9]+", "-", f"tm-{run_id.lower()}").strip("-")
    return found if len(found) <= 44 else re.sub("-+", "-", f"{found[:19]}-{found[-24:]}")


def accelerators(plan: Plan, site: Site) -> dict[str, int]:
    """Return how many of what a pod asks for; empty for processors, and where no key is known."""
    vendor = devices.all_vendors().get(plan.device.vendor)
    words = site.kubernetes.resource or getattr(vendor, "kubernetes_resource", None) or ""
    pairs = (word.partition("=") for word in words.split(",") if word)
    return {key: int(count or plan.nproc) for key, _, count in pairs}


def manifest(plan: Plan, site: Site) -> str:
    """Return the YAML of all that a run creates."""
    own, called = site.kubernetes, name(plan.run_id)
    labels = own.labels | {"app.kubernetes.io/name": "trainmark", INSTANCE: called}
    metadata = {"name": called, "labels": labels}
    documents = [(_jobset if own.kind == "jobset" else _trainjob)(plan, site, metadata)]
    if site.run_root is not None:
        files = {PLAN_FILE: plan.model_dump_json(indent=2) + "\n"}
        documents.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
                             "immutable": True, "data": files})  # fmt: skip
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return str(text)


def _jobset(plan: Plan, site: Site, metadata: dict[str, Any]) -> dict[str, Any]:
    pod, mounts = _pod(plan, site)
    own = {"name": CONTAINER, "resources": _resources(plan, site), "volumeMounts": mounts}
    pod |= {"restartPolicy": "Never", "containers": [_run(plan, site) | own]}
    job = {
        "completionMode": "Indexed", "completions": plan.nnodes, "parallelism": plan.nnodes,
        # Logs that hold the files of the other nodes must outlive the pod that failed.
        "backoffLimit" if site.run_root is None else "backoffLimitPerIndex": 0,
        "template": {"metadata": {"labels": {**metadata["labels"]}}, "spec": pod},
    }  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": metadata["name"]},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": {"spec": job}}],
        },
    }  # fmt: skip


def _trainjob(plan: Plan, site: Site, metadata: dict[str, Any]) -> dict[str, Any]:
    pod, mounts = _pod(plan, site)
    pod |= {"containers": [{"name": CONTAINER, "volumeMounts": mounts}]}
    patch = {"spec": {"template": {"metadata": {"labels": {**metadata["labels"]}}, "spec": pod}}}
    jobs = {"replicatedJobs": [{"name": CONTAINER, "template": patch}]}
    # The runtime says whether a container that failed is started again: it then does nothing.
    started = shlex.quote(f"{run_dir_on_nodes(plan, site)}/.started.")
    guard = f'mkdir {started}"$JOB_COMPLETION_INDEX" || exit 1\n'
    trainer = {"numNodes": plan.nnodes, "numProcPerNode": plan.nproc,
               "resourcesPerNode": _resources(plan, site)}  # fmt: skip
    spec = {
        "runtimeRef": {"name": site.kubernetes.runtime},
        "trainer": _run(plan, site, guard=guard) | trainer,
        "runtimePatches": [{"manager": "trainmark/launcher",
                            "trainingRuntimeSpec": {"template": {"spec": jobs}}}],
    }  # fmt: skip
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": metadata, "spec": spec}  # fmt: skip


def _run(plan: Plan, site: Site, *, guard: str = "") -> dict[str, Any]:
    """Return image and command of a pod, which is the node with the pod's index."""
    own, box = name(plan.run_id), site.container
    node = node_script(
        plan, site, node_rank="$JOB_COMPLETION_INDEX", master=f"{own}-{CONTAINER}-0-0.{own}",
        options=() if site.run_root is None else ("--send-files",),
    )  # fmt: skip
    return {"image": box and box.image, "command": ["sh", "-c", guard + node]}


def _resources(plan: Plan, site: Site) -> dict[str, Any]:
    told = {"cpu": site.kubernetes.cpu, "memory": site.kubernetes.memory}
    return {"limits": accelerators(plan, site) | {key: one for key, one in told.items() if one}}


def _pod(plan: Plan, site: Site) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the pod's specification has of the site, and the mounts of its container."""
    own, folder = site.kubernetes, str(run_dir_on_nodes(plan, site))
    memory = {"medium": "Memory", "sizeLimit": own.shared_memory}
    volumes: list[dict[str, Any]] = [{"emptyDir": memory}]
    mounts: list[dict[str, Any]] = [{"mountPath": "/dev/shm"}]
    for one in own.volumes:
        claim = {"persistentVolumeClaim": {"claimName": one.claim}}
        volumes.append(claim if one.claim else {"hostPath": {"path": one.host_path}})
        mounts.append({"mountPath": one.path})
    if site.run_root is not None:
        at = {"mountPath": f"{folder}/{PLAN_FILE}", "subPath": PLAN_FILE, "readOnly": True}
        volumes += [{"emptyDir": {}}, {"configMap": {"name": name(plan.run_id)}}]
        mounts += [{"mountPath": folder}, at]
    pod: dict[str, Any] = {
        "nodeSelector": own.node_selector,
        "tolerations": [{key: int(word) if key == "tolerationSeconds" else word
                         for key, word in one.items()} for one in own.tolerations],
        "imagePullSecrets": [{"name": secret} for secret in own.image_pull_secrets],
        "volumes": [{"name": f"volume-{number}"} | one for number, one in enumerate(volumes)],
    }  # fmt: skip
    mounts = [{"name": f"volume-{number}"} | one for number, one in enumerate(mounts)]
    return {key: one for key, one in pod.items() if one}, mounts


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is, and none that Go's YAML takes for another type."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = len(text) > 1 and (text[0].isalpha() or text[0] == "/")
    style = "|" if "\n" in text else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
