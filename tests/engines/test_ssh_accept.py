"""``trainmark accept`` on four namespaces with an sshd each; one of them hangs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

from engines import accept_faults
from engines.ssh_hosts import Hosts, explain_absence
from trainmark.acceptance.evidence import EVIDENCE_DIR
from trainmark.acceptance.result import read_result

if explain_absence():
    pytest.skip(
        f"no hosts for ssh here: {explain_absence()} (make test-engines)", allow_module_level=True
    )

HUNG = 2  # number of the host whose agent is stopped


@pytest.fixture
def hosts(tmp_path):
    """Four hosts with an sshd each, in namespaces of this machine."""
    folder = tmp_path / "hosts"
    folder.mkdir()
    ssh_hosts = Hosts(folder, count=4)
    yield ssh_hosts
    ssh_hosts.end()


def stop_agent(rank, patience_s=300.0):
    """Stop the agent of a node, so that its heartbeats end; return its process.

    The caller must kill it: a stopped process ignores other signals.

    Args:
        rank: number of the node.
        patience_s: how long the agent may take to start.
    """
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        for process in psutil.process_iter(["cmdline"]):
            args = process.info["cmdline"] or []
            if "trainmark.acceptance.agent" in args and args[args.index("--node-rank") + 1] == str(
                rank
            ):
                process.send_signal(signal.SIGSTOP)
                return process
        time.sleep(0.2)
    raise AssertionError("the agent never started")


def test_hung_host_is_named_and_the_others_measure_all_their_pairs(hosts, tmp_path):
    # ``hosts`` are four, numbered from 0. A round may take 120 s (``--deadline``), and hosts may
    # take 60 s to join. ``run_root``: an acceptance needs a folder that all hosts share.
    settings = hosts.build_settings(run_root=None)
    settings["environment"] |= {"TRAINMARK_CACHE": str(tmp_path / "cache")}
    # Each host has a network of its own, in which every port is free.
    (tmp_path / "cluster.yaml").write_text(json.dumps(settings | {"master_port": 29_611}))
    out = tmp_path / "out"
    command = [
        sys.executable,
        *shlex.split("-m trainmark accept toy --launcher ssh --nnodes 4 --nproc 1"),
        *("--cluster", str(tmp_path / "cluster.yaml")),
        *shlex.split("--device cpu --repeats 2 --seconds 0.2 --deadline 120 --join 60"),
        # The hosts share the cores of one machine: only what takes 1,000% more is too slow.
        *shlex.split("--worse-by 10 --rates-worse-by 10"),
        *("--out", str(out)),
    ]
    environment = os.environ | {"TRAINMARK_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        hosts.login.enter_namespace(*command),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # ``HUNG`` is 2, the number of one of the four hosts. Its agent, the process that measures
    # there, is stopped by a signal.
    hung_agent = stop_agent(HUNG)
    try:
        printed, _ = process.communicate()
    finally:
        hung_agent.kill()

    # 1: a host failed. ``list_names`` returns the addresses of the hosts with this verdict. An
    # event "measured" of the phase "pairs" has, in ``members``, the two hosts that measured.
    assert process.returncode == 1, printed
    result = read_result(out)
    assert result.list_names("fail") == [hosts.get_address(HUNG)], printed
    healthy = {hosts.get_address(number) for number in range(4) if number != HUNG}
    texts = [path.read_text() for path in (out / EVIDENCE_DIR).iterdir()]
    events = [json.loads(line) for text in texts for line in text.splitlines()]
    pairs = {
        tuple(event["members"])
        for event in events
        if event["event"] == "measured" and event["phase"] == "pairs"
    }
    assert {name for pair in pairs for name in pair} == healthy
    assert len(pairs) == 3  # all pairs of three hosts


@pytest.mark.nightly
@pytest.mark.skipif(
    accept_faults.explain_absence() is not None, reason="no control groups or iptables"
)
def test_faults_of_hosts_are_named(tmp_path):
    faulty_hosts, out, printed = accept_faults.accept(tmp_path)

    checked = accept_faults.check_findings(faulty_hosts, out)

    # The host with a CPU quota, the hung one and the one whose ranks are killed. Whether the lossy
    # link is seen depends on what else these cores do.
    # ``one_deadline``: no node waited for the hung host longer than one deadline.
    for fault in ("quota", "hung", "crash", "one_deadline"):
        assert checked[fault], printed
