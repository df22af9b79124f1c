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
    """Return a port that leaves room for the next ones, which pairs of nodes use."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return min(free.getsockname()[1], 65_000)  # the last port is 65,535


@pytest.fixture
def accept(tmp_path):
    """Return a function that accepts both nodes of a cluster; it returns the ended process.

    Its arguments are those of ``trainmark accept``.
    """
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
    """First two rounds without pairs; then a third round, and pairs, in the same folder.

    ``accept`` runs the command and returns the ended process: its code is 0 if all nodes pass, 3 if
    some are undecided. ``NODES`` are the names of the two nodes. Each node writes an event for each
    round of a phase; rounds count from 0.
    """
    out = tmp_path / "out"
    args = (
        *shlex.split("toy --launcher slurm --nnodes 2 --nproc 1 --seconds 0.2"),
        *("--cluster", str(tmp_path / "cluster.yaml")),
        # The nodes share the cores of one machine: only very large differences fail.
        *shlex.split("--worse-by 10 --rates-worse-by 10"),
        *("--out", str(out)),
    )

    process = accept(*args, "--repeats", "2", "--phases", "devices,nodes")

    # Passed, or undecided because of few rounds.
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
    # Two nodes report each round.
    assert measured.count(("devices", 0)) == 2  # not measured again
    assert measured.count(("devices", 2)) == 2  # the third round, of the second command
    assert measured.count(("pairs", 0)) == 2
    assert not read_result(out).not_measured
