"""Requests to Ray and the meaning of its answers, which are recorded (Ray 2.60)."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import GOLDEN, check_golden
from trainmark.errors import EnvironmentFault
from trainmark.launch.cluster import Cluster, RaySettings
from trainmark.launch.launchers import EngineJob
from trainmark.launch.launchers.ray import Ray
from trainmark.launch.submission import describe_job
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.launch.job_spec import JobSpec

RECORDED = json.loads((Path(__file__).parent / "ray_outputs.json").read_text())


@pytest.fixture
def spec() -> JobSpec:
    """Return the Ray job of the toy case's golden plan on two nodes with eight ranks each."""
    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    return replace(describe_job(plan), nnodes=2, nproc=8, launcher="ray")


class Dashboard(ThreadingHTTPServer):
    """Gives recorded answers to the requests of a job."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on any free port of this machine; ``url`` is the address of the server."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        # By path below /api/jobs/; the path itself lists all jobs.
        self.answers: dict[str, Any] = {"": []}
        self.texts: dict[str, str] = {}  # by such a path, a text to send in place of the answer

    def answer_with(self, run_id: str, name: str) -> None:
        """Answer requests about the job of a run with the recording of this name.

        ``RECORDED`` has, by name such as "node_lost", what Ray answered about a job in this state:
        its description (``job``) and its output (``log``).
        """
        recording = RECORDED[name]
        self.answers[run_id] = recording["job"]
        self.answers[f"{run_id}/logs"] = {"logs": recording["log"]}


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        """Send the answer that the server has for the path of a job, or 404 if it has none."""
        path = self.path.removeprefix("/api/jobs/")
        answer = self.server.answers.get(path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(self.server.texts.get(path, json.dumps(answer)).encode())

    def do_POST(self) -> None:
        """Answer a request to stop a job in the same way."""
        self.do_GET()


@pytest.fixture
def cluster() -> Iterator[Dashboard]:
    """Serve the HTTP API of a Ray cluster, with recorded answers, until the test ends."""
    with Dashboard() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def make_site(address: str | None = "http://head:8265", **settings: Any) -> Cluster:
    """Return a cluster file's settings.

    Args:
        address: of Ray's HTTP API on the head node; None: not given.
        settings: other keys of the file; ``ray``: other keys of its section on Ray.
    """
    ray = RaySettings(address=address, **settings.pop("ray", {}))
    return Cluster(python="/opt/trainmark/bin/python", ray=ray, **settings)


def read_driver_request(spec: JobSpec, cluster: Cluster) -> dict[str, Any]:
    """Return what the driver of a job asks Ray for, from the file ``ray.json`` of its command.

    The driver is the program that Ray starts first; it asks for the nodes and starts the ranks.
    """
    document: dict[str, Any] = json.loads(Ray().build_command(spec, cluster).files["ray.json"])
    return document


# The command


def test_command_matches_its_golden_file(spec: JobSpec) -> None:
    command = Ray().build_command(spec, make_site())
    check_golden("ray/common_folder.sh", command.render_script(spec.run_dir))


@pytest.mark.parametrize(
    # ``resources``: of the cluster file; ``bundle``: what Ray is asked for on each node.
    ("vendor", "resources", "bundle"),
    [
        ("cpu", {}, {"CPU": 8}),
        ("nvidia", {}, {"CPU": 8, "GPU": 8}),
        ("ascend", {}, {"CPU": 8, "NPU": 8}),
        # Ray has no name for these devices: the cluster file replaces the usual one.
        ("cambricon", {"GPU": 0, "MLU": 8}, {"CPU": 8, "MLU": 8}),
        ("nvidia", {"CPU": 64}, {"CPU": 64, "GPU": 8}),
    ],
)
def test_a_node_is_asked_for_its_devices(
    spec: JobSpec, vendor: str, resources: dict[str, float], bundle: dict[str, float]
) -> None:
    """The job has eight ranks on each of two nodes: a core and a device for each rank.

    What the cluster file has in ``resources`` replaces or complements that; 0 removes it.
    """
    cluster = make_site(ray={"resources": resources})
    request = read_driver_request(replace(spec, vendor=vendor), cluster)
    assert request["bundle"] == bundle


def test_answer_that_is_not_json_is_reported(spec: JobSpec, cluster: Dashboard) -> None:
    # What a proxy in front of the cluster sends, such as a page to log in. The path "" is that of
    # the list of all jobs, which ``check`` asks for.
    cluster.texts[""] = "<html>Log in</html>"
    with pytest.raises(EnvironmentFault, match="does not respond"):
        Ray().check(spec, make_site(cluster.url))


def test_headers_that_are_not_json_are_reported(
    spec: JobSpec, cluster: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The variable must hold a JSON object of HTTP headers, not a header as curl takes it.
    monkeypatch.setenv("RAY_JOB_HEADERS", "Authorization: Bearer x")
    with pytest.raises(EnvironmentFault) as refused:
        Ray().check(spec, make_site(cluster.url))
    assert refused.value.where == "environment variable RAY_JOB_HEADERS"


def test_unreachable_cluster_is_reported_before_submission(spec: JobSpec) -> None:
    """``Dashboard`` is a server with the HTTP API of a Ray cluster, until its block ends.

    ``make_site`` returns a cluster file that names this address; ``where`` is the place of the
    fault in the error.
    """
    with Dashboard() as closed:
        url = closed.url  # of a port that nothing listens to any more
    with pytest.raises(EnvironmentFault) as refused:
        Ray().check(spec, make_site(url))
    assert (refused.value.where or "").startswith(url)


# States


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pending", "waiting"),
        ("starting", "waiting"),
        ("waiting", "waiting"),
        ("running", "running"),
        ("succeeded", "ended"),
        ("stopped", "lost"),
        ("failed", "ended"),
        ("node_lost", "ended"),
        ("no_program", "ended"),
        ("supervisor_died", "ended"),
        ("driver_out_of_memory", "ended"),
    ],
)
def test_job_states_are_distinguished(
    spec: JobSpec, cluster: Dashboard, name: str, expected: str
) -> None:
    """``RECORDED``: by name, what Ray said of a job, and the description that follows from it.

    ``name`` is that of a recording, which the fake dashboard ``cluster`` serves; ``expected`` is
    the job's phase. ``waiting``: no start yet; ``lost``: it was stopped; ``ended``: by itself, well
    or not.
    """
    cluster.answer_with(spec.run_id, name)
    state = Ray().read_state(EngineJob(spec, make_site(cluster.url)))
    assert state.phase == expected
    assert RECORDED[name]["description"] in state.description  # the recorded message of this state
