"""Requests to Ray and the meaning of its answers, which are recorded (Ray 2.60)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import GOLDEN, check_golden
from trainmark.errors import EnvironmentFault
from trainmark.launch.cluster import Cluster, RaySettings
from trainmark.launch.launchers import EngineJob
from trainmark.launch.launchers.ray import Ray
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = json.loads((Path(__file__).parent / "ray_outputs.json").read_text())


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    toy = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    return toy.model_copy(update={"nnodes": 2, "nproc": 8, "launcher": "ray"})


class Dashboard(ThreadingHTTPServer):
    """Gives recorded answers and keeps the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: dict[str, Any] = {"": []}
        self.asked: list[tuple[str, str, str | None]] = []

    def says(self, run_id: str, name: str, log: str | None = None) -> None:
        recording = RECORDED[name]
        self.answers[run_id] = recording["job"]
        self.answers[f"{run_id}/logs"] = {"logs": recording["log"] if log is None else log}


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        what = self.path.removeprefix("/api/jobs/")
        self.server.asked.append((self.command, what, self.headers["X-Token"]))
        answer = self.server.answers.get(what)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_POST(self) -> None:
        self.do_GET()


@pytest.fixture
def cluster() -> Iterator[Dashboard]:
    with Dashboard() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def make_site(address: str | None = "http://head:8265", **settings: Any) -> Cluster:
    ray = RaySettings(address=address, **settings.pop("ray", {}))
    return Cluster(python="/opt/trainmark/bin/python", ray=ray, **settings)


def read_driver_request(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Ray().build_command(plan, cluster).files["ray.json"])
    return document


# The command


def test_command_matches_its_golden_file(plan: Plan) -> None:
    command = Ray().build_command(plan, make_site())
    check_golden("ray/common_folder.sh", command.render_script(Path(plan.run_dir)))


@pytest.mark.parametrize(
    ("vendor", "more", "bundle"),
    [
        ("cpu", {}, {"CPU": 8}),
        ("nvidia", {}, {"CPU": 8, "GPU": 8}),
        ("ascend", {}, {"CPU": 8, "NPU": 8}),
        ("cambricon", {"GPU": 0, "MLU": 8}, {"CPU": 8, "MLU": 8}),
        ("nvidia", {"CPU": 64}, {"CPU": 64, "GPU": 8}),
    ],
)
def test_a_node_is_asked_for_its_devices(
    plan: Plan, vendor: str, more: dict[str, float], bundle: dict[str, float]
) -> None:
    device = plan.device.model_copy(update={"vendor": vendor})
    of_vendor = plan.model_copy(update={"device": device})
    assert read_driver_request(of_vendor, make_site(ray={"resources": more}))["bundle"] == bundle


def test_unreachable_cluster_is_reported_before_submission(plan: Plan) -> None:
    with Dashboard() as closed:
        url = closed.url
    with pytest.raises(EnvironmentFault) as refused:
        Ray().check(plan, make_site(url))
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
    plan: Plan, cluster: Dashboard, name: str, expected: str
) -> None:
    cluster.says(plan.run_id, name)
    state = Ray().read_state(EngineJob(plan, make_site(cluster.url)))
    assert state.phase == expected
    assert RECORDED[name]["said"] in state.description
