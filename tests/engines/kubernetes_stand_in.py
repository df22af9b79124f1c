"""What kubectl asks of a cluster, answered on this machine: no cluster, but its interface.

An HTTP server that keeps what is created, as an API server does, and starts each pod's command as
a process here. What a cluster does besides (scheduling, images, volumes, names of hosts) is not
there: pods see the folders of this machine, and the first pod is found at 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

_GROUPS = {  # path of the version: kind and resource
    "api/v1": [("Pod", "pods")],
    "apis/jobset.x-k8s.io/v1alpha2": [("JobSet", "jobsets")],
}
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class Pod:
    """A pod, whose container is a process here."""

    index: int
    about: dict[str, Any]
    process: subprocess.Popen[bytes]
    log: Path
    status: dict[str, Any] = field(default_factory=dict)  # told instead of the process's own

    def told(self) -> dict[str, Any]:
        code = self.process.poll()
        state: dict[str, Any] = {"running": {}}
        if code is not None:
            code = code if code >= 0 else 128 - code
            reason = "Completed" if code == 0 else "Error"
            state = {"terminated": {"exitCode": code, "reason": reason}}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        box = {"name": "node", "ready": code is None, "restartCount": 0, "state": state}
        own = {"phase": phase, "containerStatuses": [box]}
        return self.about | {"status": own | self.status}


class Cluster:
    """The objects of a cluster.

    Args:
        folder: for the folders and logs of pods.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"jobsets": {}}
        self.pods: dict[str, Pod] = {}
        self.lock = threading.Lock()

    def create(self, resource: str, told: dict[str, Any]) -> None:
        name = told["metadata"]["name"]
        self.objects[resource][name] = told
        self._start(name, told["spec"]["replicatedJobs"][0]["template"]["spec"])

    def _start(self, name: str, job: dict[str, Any]) -> None:
        template = job["template"]
        (box,) = template["spec"]["containers"]
        for index in range(job["completions"]):
            script = box["command"][-1].replace("$$", "$")  # as a kubelet does
            script = script.replace(f"{name}-node-0-0.{name}", "127.0.0.1")
            log = self.folder / f"{name}-{index}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    ["sh", "-c", script], env=os.environ | {"JOB_COMPLETION_INDEX": str(index)},
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            pod = f"{name}-node-0-{index}-abcde"
            labels = template["metadata"]["labels"] | {_INDEX: str(index)}
            about = {"name": pod, "namespace": "default", "labels": labels,
                     "annotations": {_INDEX: str(index)}}  # fmt: skip
            spec = {"containers": [{"name": "node", "image": box["image"]}]}
            head = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
            self.pods[pod] = Pod(index, head, process, log)

    def delete(self, resource: str, name: str) -> dict[str, Any] | None:
        found = self.objects[resource].pop(name, None)
        if found is not None:
            for pod in list(self.pods.values()):
                threading.Thread(target=self._end, args=(pod,), daemon=True).start()
        return found

    def _end(self, pod: Pod) -> None:
        """End a pod as kubelet does: SIGTERM, a grace period, SIGKILL."""
        if pod.process.poll() is None:
            pod.process.send_signal(signal.SIGTERM)
            try:
                pod.process.wait(30)
            except subprocess.TimeoutExpired:
                pod.process.kill()
                pod.process.wait()
        self.pods.pop(pod.about["metadata"]["name"], None)

    def listed(self, resource: str) -> list[dict[str, Any]]:
        if resource == "pods":
            return [pod.told() for pod in list(self.pods.values())]
        return [self._with_status(one) for one in self.objects[resource].values()]

    def _with_status(self, told: dict[str, Any]) -> dict[str, Any]:
        phases = {pod.told()["status"]["phase"] for pod in list(self.pods.values())}
        condition: dict[str, Any] = {}
        if phases == {"Succeeded"}:
            condition = {"type": "Completed", "reason": "AllJobsCompleted"}
        elif phases and phases <= {"Succeeded", "Failed"}:
            message = "jobset failed due to one or more job failures"
            condition = {"type": "Failed", "reason": "FailedJobs", "message": message}
        found = [condition | {"status": "True"}] if condition else []
        return told | {"status": {"conditions": found}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, told: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _missing(self) -> None:
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                      "reason": "NotFound", "message": f"{self.path} not found"}, 404)  # fmt: skip

    def _parts(self) -> tuple[str, str, list[str], dict[str, list[str]]]:
        """Return version, resource, what follows it, and the query."""
        url = urlsplit(self.path)
        version, _, rest = url.path.strip("/").partition("/namespaces/default/")
        resource, *more = rest.split("/")
        return version, resource, more, parse_qs(url.query)

    def do_GET(self) -> None:
        version, resource, more, query = self._parts()
        if not resource:
            self._discover(version)
        else:
            found = self.cluster.listed(resource)
            if more:
                named = [one for one in found if one["metadata"]["name"] == more[0]]
                self._answer(named[0]) if named else self._missing()
                return
            for wanted in query.get("labelSelector", [""])[0].split(","):
                key, _, value = wanted.partition("=")
                found = [one for one in found if one["metadata"]["labels"].get(key) == value]
            kind = {name: kind for kind, name in _GROUPS[version]}[resource]
            group = version.removeprefix("apis/").removeprefix("api/")
            self._answer({"kind": f"{kind}List", "apiVersion": group, "metadata": {},
                          "items": found})  # fmt: skip

    def _discover(self, path: str) -> None:
        if path == "version":
            self._answer({"major": "1", "minor": "32", "gitVersion": "v1.32.0"})
        elif path == "api":
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            groups = []
            for name in (one for one in _GROUPS if one.startswith("apis/")):
                _, group, version = name.split("/")
                told = {"groupVersion": f"{group}/{version}", "version": version}
                groups.append({"name": group, "versions": [told], "preferredVersion": told})
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif path in _GROUPS:
            found = [
                {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind,
                 "verbs": ["create", "delete", "get", "list"]}
                for kind, name in _GROUPS[path]
            ]  # fmt: skip
            group = path.removeprefix("apis/").removeprefix("api/")
            self._answer({"kind": "APIResourceList", "groupVersion": group, "resources": found})
        elif path == "openapi/v3":
            told = {one: {"serverRelativeURL": f"/openapi/v3/{one}"} for one in _GROUPS}
            self._answer({"paths": told})
        elif path.startswith("openapi/v3/"):
            self._answer(self._fields(path.removeprefix("openapi/v3/")))
        else:
            self._missing()

    @staticmethod
    def _fields(path: str) -> dict[str, Any]:
        """Return that objects can be checked for unknown fields, and tried without creation."""
        group, _, version = path.removeprefix("apis/").removeprefix("api/").rpartition("/")
        names = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
        paths = {
            f"/{path}/namespaces/{{namespace}}/{name}/{{name}}": {"patch": {
                "parameters": names,
                "x-kubernetes-group-version-kind": {
                    "group": group, "kind": kind, "version": version,
                },
            }}
            for kind, name in _GROUPS[path]
        }  # fmt: skip
        return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": paths}

    def _body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}"
        )
        return found

    def do_POST(self) -> None:
        _, resource, _, query = self._parts()
        told = self._body()
        if "dryRun" not in query:
            with self.cluster.lock:
                self.cluster.create(resource, told)
        self._answer(told, 201)

    def do_DELETE(self) -> None:
        _, resource, more, _ = self._parts()
        self._body()
        with self.cluster.lock:
            found = self.cluster.delete(resource, more[0])
        self._answer(found) if found else self._missing()


@contextmanager
def kubernetes_stand_in(folder: Path) -> Any:
    """Yield a cluster, for which kubectl finds its configuration in ``folder/config``."""
    folder.mkdir()
    cluster = Cluster(folder)
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    try:
        yield cluster
    finally:
        for pod in list(cluster.pods.values()):
            if pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
        server.shutdown()
        server.server_close()
        thread.join()
