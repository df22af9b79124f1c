"""``trainmark accept`` through a real Slurm: two slurmd on this host."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys

import pytest

from engines.slurm_cluster import NODES, list_missing_programs, start_slurm_cluster
from trainmark.acceptance.evidence import EVIDENCE_DIR
from trainmark.acceptance.result import read_result

if list_missing_programs():
    lacking = ", ".join(list_missing_programs())
    pytest.skip(f"no Slurm here: {lacking} missing (make test-engines)", allow_module_level=True)


def find_free_port():
    """Return a port after which some more are free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return min(free.getsockname()[1], 65_000)


@pytest.fixture
def accept(tmp_path):
    """Accept both nodes with all that a user types; return the ended process."""
    settings = {
        "device": "cpu",
        "environment": {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        "master_port": find_free_port(),
        "slurm": {"exclusive": False, "options": {"partition": "main"}},
    }
    (tmp_path / "cluster.yaml").write_text(json.dumps(settings))
    with start_slurm_cluster() as cluster:

        def run(*args):
            command = [sys.executable, "-m", "trainmark", "accept", *args]
            return subprocess.run(
                command,
                env=os.environ | cluster.variables,
                capture_output=True,
                text=True,
                check=False,
            )

        yield run


@pytest.mark.nightly
def test_acceptance_of_two_slurm_nodes_resumes_with_missing_measurements(accept, tmp_path):
    out = tmp_path / "out"
    args = (
        *shlex.split("toy --launcher slurm --nnodes 2 --nproc 1 --seconds 0.2"),
        *("--cluster", str(tmp_path / "cluster.yaml")),
        *shlex.split("--worse-by 10 --rates-worse-by 10"),
        *("--out", str(out)),
    )

    process = accept(*args, "--repeats", "2", "--phases", "devices,nodes")

    assert process.returncode in (0, 3), process.stderr
    result = read_result(out)
    assert [member.name for member in result.members] == list(NODES)
    assert all(member.step is not None for member in result.members)
    assert "devices: 2 of 2 rounds " in process.stderr

    process = accept(*args, "--repeats", "3")

    assert process.returncode in (0, 3), process.stderr
    texts = [path.read_text() for path in (out / EVIDENCE_DIR).iterdir()]
    events = [json.loads(line) for text in texts for line in text.splitlines()]
    measured = [
        (event["phase"], event["round"]) for event in events if event["event"] == "measured"
    ]
    assert measured.count(("devices", 0)) == 2  # not again
    assert measured.count(("devices", 2)) == 2
    assert measured.count(("pairs", 0)) == 2
    assert not read_result(out).not_measured
