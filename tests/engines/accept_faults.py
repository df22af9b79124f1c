"""Six ssh hosts of one machine, four of them with a fault each, accepted for real.

``python -m engines.accept_faults 10`` in the folder ``tests`` does it ten times, and writes
``benchmarks/results/accept_faults.md``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from engines.ssh_hosts import Hosts
from support.run_fixtures import CASES
from trainmark.acceptance.evidence import EVIDENCE_DIR
from trainmark.acceptance.result import AcceptanceResult, read_result

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_HOSTS = 6
# Numbers of the hosts with a fault; the last host has none.
QUOTA, HUNG, CRASHES, LINK_ENDS = 0, 1, 2, (3, 4)
CPU_GROUP = Path("/sys/fs/cgroup/cpu")  # of control groups of version 1
CPU_SHARE = 0.03  # of a core, for all ranks of the host with a quota
PACKET_LOSS = 0.3
WORSE_BY = 1.0  # two cores carry six hosts: smaller differences are noise
RATES_WORSE_BY = 10.0  # the largest that is allowed: only step times are judged
DEADLINE_S = 60.0  # how long a node waits for another one in a round
JOIN_S = 60.0  # how long it waits for all nodes at the beginning
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "accept_faults.md"
# What is checked, by the keys of ``check_findings``.
FAULTS = {
    "quota": "a CPU quota of 3% of a core",
    "hung": "its agent stopped (SIGSTOP)",
    "crash": "its ranks are killed (SIGKILL)",
    "link": "30% of the packets between two hosts are lost",
    "healthy": "nothing wrong: no host without a fault is blamed",
    "one_deadline": "a partner of the hung host waits once, at most one deadline",
}


def explain_absence() -> str | None:
    """Return why these faults cannot be planted on this machine; None: they can."""
    # ``CPU_GROUP`` is the folder of the processor's control groups, version 1. The root group may
    # have no quota of its own, but groups below it have one.
    if not (CPU_GROUP / "cpu.cfs_quota_us").exists() and not (CPU_GROUP / "cgroup.procs").exists():
        return f"no {CPU_GROUP}"
    return "no iptables" if shutil.which("iptables") is None else None


@contextmanager
def make_quota_group() -> Iterator[Path]:
    """Yield the file of a control group whose processes have little of the processor."""
    group = CPU_GROUP / f"trainmark-test-{os.getpid()}"
    group.mkdir()
    # ``CPU_SHARE`` is 0.03: in each period of 100 ms all processes of the group together may
    # compute for 3 ms. ``CPU_GROUP`` is the folder of control groups of version 1.
    period_us = 100_000
    (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / "cpu.cfs_quota_us").write_text(str(round(CPU_SHARE * period_us)))
    processes_file = group / "cgroup.procs"
    try:
        yield processes_file
    finally:
        # A group can be removed only when no process is in it.
        for pid in processes_file.read_text().split():
            (CPU_GROUP / "cgroup.procs").write_text(pid)
        group.rmdir()


def lose_packets(hosts: Hosts, first: int, second: int) -> None:
    """Drop some packets between two hosts, in both directions.

    ``PACKET_LOSS`` is 0.3: three of ten. Each of the two hosts drops what it sends to the other.

    Args:
        first: number of one of the two hosts.
        second: number of the other one.
    """
    for here, there in ((first, second), (second, first)):
        rule = shlex.split(
            f"iptables -A OUTPUT -d {hosts.get_address(there)}"
            f" -m statistic --mode random --probability {PACKET_LOSS} -j DROP"
        )
        subprocess.run(hosts.nodes[here].enter_namespace(*rule), check=True)


def stop_agent(hosts: Hosts, number: int, out: Path, patience_s: float = 600.0) -> psutil.Process:
    """Stop the agent of a host once it has joined, so that it sends no more heartbeats.

    Args:
        number: of the host.
        out: folder of the acceptance, which has the evidence of all nodes.
        patience_s: how long the host may take to join; it loads torch, beside five others.

    Returns:
        The agent, which the caller must kill: it ignores the end of its host.
    """
    path = out / EVIDENCE_DIR / f"{hosts.get_address(number)}.1.jsonl"  # of the first session
    end_s = time.monotonic() + patience_s
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < end_s, "the node never joined"
        time.sleep(0.2)
    root = psutil.Process(hosts.nodes[number].pid)
    for process in root.children(recursive=True):
        if "trainmark.acceptance.agent" in process.cmdline():
            process.send_signal(signal.SIGSTOP)
            return process
    raise AssertionError("the agent has ended")


def accept(folder: Path, case: str = "handicapped") -> tuple[Hosts, Path, str]:
    """Accept six hosts with all faults; return the hosts, the folder, what was printed.

    Six hosts of this machine (``NUM_HOSTS``), numbered from 0: host 0 (``QUOTA``) may use 3% of a
    core, the agent of host 1 (``HUNG``) is stopped, the ranks of host 2 (``CRASHES``) are killed,
    and 30% of the packets between hosts 3 and 4 (``LINK_ENDS``) are lost. Host 5 is healthy.

    Args:
        folder: an empty folder for the hosts' disks, the data, and the result in ``out``.
        case: a case whose ranks take their host's handicap, a file "quota" or "crash" on its disk.

    Returns:
        The hosts, which have ended; the folder ``out``; what the command printed.
    """
    out = folder / "out"
    (folder / "hosts").mkdir()
    hosts = Hosts(folder / "hosts", count=NUM_HOSTS)
    try:
        (hosts.get_disk(CRASHES) / "crash").touch()
        lose_packets(hosts, *LINK_ENDS)
        # ``run_root``: an acceptance needs a folder that all hosts share.
        settings = hosts.build_settings(run_root=None)
        settings["environment"] |= {
            "TRAINMARK_CACHE": str(folder / "cache"),
            "TRAINMARK_CASE_PATH": str(CASES),
            "HANDICAPS": str(folder / "hosts" / "root"),  # each host mounts its own disk there
        }
        settings["master_port"] = 29_711  # free on every host: it has a network of its own
        (folder / "cluster.yaml").write_text(json.dumps(settings))
        # Each host is measured alone four times; ten rounds measure each pair twice. Hosts share
        # two cores: a step may take 100% more than elsewhere (``WORSE_BY``), a product or a copy
        # 1,000% (``RATES_WORSE_BY``). ``DEADLINE_S`` and ``JOIN_S`` are 60 s.
        command = [
            *(sys.executable, "-m", "trainmark", "accept", case),
            *shlex.split(f"--launcher ssh --nnodes {NUM_HOSTS} --nproc 1 --device cpu"),
            *("--cluster", str(folder / "cluster.yaml")),
            *shlex.split("--phases nodes,pairs --repeats 4 --rounds 10 --seconds 0.3"),
            *shlex.split(f"--deadline {DEADLINE_S} --join {JOIN_S}"),
            *shlex.split(f"--worse-by {WORSE_BY} --rates-worse-by {RATES_WORSE_BY}"),
            *("--out", str(out)),
        ]
        # For the command itself; those of the cluster file are for the ranks on the hosts.
        variables = {"TRAINMARK_CACHE": str(folder / "cache"), "TRAINMARK_CASE_PATH": str(CASES)}
        with make_quota_group() as processes_file:
            # Ranks of the case ``handicapped`` on this host add themselves to the group.
            (hosts.get_disk(QUOTA) / "quota").write_text(str(processes_file))
            process = subprocess.Popen(
                hosts.login.enter_namespace(*command),
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            # Waits until the agent has joined.
            hung_agent = stop_agent(hosts, HUNG, out)
            try:
                printed, _ = process.communicate()
            finally:
                hung_agent.kill()  # a stopped process ignores all signals but SIGKILL
    finally:
        hosts.end()
    return hosts, out, printed


def check_findings(hosts: Hosts, out: Path) -> dict[str, bool]:
    """Return, by the keys of ``FAULTS``, whether the acceptance found exactly the planted faults.

    ``QUOTA``, ``HUNG``, ``CRASHES`` and ``LINK_ENDS`` are the numbers of the hosts with a fault:
    little processor time, a stopped agent, killed ranks, and a link between two that loses packets.
    A deadline is 60 s (``DEADLINE_S``).

    Args:
        hosts: those that were accepted; they give each number its address, the member's name.
        out: folder of the acceptance.
    """
    result = read_result(out)
    names = {number: hosts.get_address(number) for number in range(NUM_HOSTS)}
    codes = {
        member.name: {finding.code for finding in member.findings} for member in result.members
    }
    ends = {names[number] for number in LINK_ENDS}
    blamed = set(result.list_names("fail"))
    return {
        # Slow from the first round on, or slower in later ones, or it is not known which.
        "quota": bool(codes[names[QUOTA]] & {"slow", "slow_hot", "slow_unknown"}),
        "hung": codes[names[HUNG]] == {"no_answer"},
        "crash": "failed" in codes[names[CRASHES]],
        # Without one end of the link it is not used any more; the other end can stay.
        "link": is_link_named(result, ends) and len(blamed & ends) == 1,
        "healthy": blamed - ends == {names[QUOTA], names[HUNG], names[CRASHES]},
        # No node waited for the hung one longer than a deadline.
        "one_deadline": find_longest_wait_s(out, names[HUNG]) <= DEADLINE_S,
    }


def is_link_named(result: AcceptanceResult, ends: set[str]) -> bool:
    """Return whether exactly one link was found bad, that between ``ends``.

    A finding of a bad link has, in ``members``, the addresses of the two hosts that it joins; both
    hosts may have the same finding, which counts once.

    Args:
        result: of the acceptance; its members are the hosts.
        ends: the addresses of the two hosts.
    """
    bad = {
        frozenset(finding.members)
        for member in result.members
        for finding in member.findings
        if finding.code in ("slow_link", "link_failed")
    }
    return bad == {frozenset(ends)}


def find_longest_wait_s(out: Path, absent: str) -> float:
    """Return the longest time that any node waited for the node ``absent``, which never came.

    Each node writes its events to a file of the evidence: it has "arrived" at the barrier before a
    measurement, and the measurement was "not_measured" because of the absent node.

    Args:
        out: folder of the acceptance.
        absent: address of the node.
    """
    longest_s = 0.0
    for path in (out / EVIDENCE_DIR).glob("*.jsonl"):
        arrived_s: dict[str, float] = {}
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "arrived":
                arrived_s[event["meeting"]] = event["unix_s"]  # by the name of the barrier
            elif event["event"] == "not_measured" and event["absent"] == absent:
                meeting = f"{event['phase']} {event['round']}"
                longest_s = max(longest_s, event["unix_s"] - arrived_s[meeting])
    return longest_s


def main(count: int) -> None:
    """Accept ``count`` times and write how often each fault was named rightly.

    ``accept`` plants all faults at once; ``check_findings`` returns, by the keys of ``FAULTS``,
    whether each was named rightly. ``write_table`` writes the counts to a file.
    """
    right: Counter[str] = Counter()
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="tm-accept-") as place:
            hosts, out, printed = accept(Path(place))
            checked = check_findings(hosts, out)
            if len(sys.argv) > 2:  # a folder in which the results are kept
                shutil.copytree(out, Path(sys.argv[2]) / str(number))
        right.update(name for name, is_right in checked.items() if is_right)
        print(number + 1, checked, flush=True)
        if not all(checked.values()):
            print(printed, flush=True)
        write_table(right, number + 1)


def write_table(right: Counter[str], count: int) -> None:
    """Write the table of results so far.

    Args:
        right: for each fault, in how many acceptances it was named rightly.
        count: number of acceptances so far.
    """
    from benchmarks.harness import describe_commit, describe_machine

    lines = [
        "# Acceptance of six hosts with four faults",
        "",
        f"{describe_machine()}; commit {describe_commit()}.",
        "Written by `python -m engines.accept_faults` in the folder `tests`.",
        "",
        "Six network namespaces of one machine with an sshd each share its two cores with other",
        f"programs, so that only differences above {WORSE_BY:.0%} are judged. Every run has all",
        "faults at once. This kernel has no netem: packets are lost by iptables, not delayed.",
        "",
        "| host | named rightly |",
        "|---|---:|",
        *(f"| {text} | {right[name]} of {count} |" for name, text in FAULTS.items()),
    ]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]))
