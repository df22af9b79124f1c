"""Bare hosts: what is refused, what would run, and how connections end; ssh itself is a fake."""

from __future__ import annotations

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fakes import GOLDEN, check_golden
from trainmark import __version__
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch.contract import JOB_FILE
from trainmark.launch.launchers import ssh, ssh_hosts
from trainmark.launch.node import probe
from trainmark.launch.site import Site, SshSite
from trainmark.plan.plan import Plan
from trainmark.rank.events import node_file
from trainmark.record import evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.contract import JobState

# Runs on this machine what it is told, but for hosts with a file of their own.
_FAKE_SSH = """#!/bin/sh
echo "$@" >> {folder}/asked
while case "$1" in -*) true;; *) false;; esac; do shift; done
host=$1; shift
if [ -e {folder}/$host.said ]; then cat {folder}/$host.said >&2; exit 255; fi
if [ -e {folder}/$host.sh ]; then exec sh {folder}/$host.sh; fi
exec sh -c "$*"
"""
# Copies what is lacking, as much as the file `most` allows.
_FAKE_SFTP = """#!{python}
import re, sys
from pathlib import Path
there, here = map(Path, re.findall(r'"([^"]*)"', sys.stdin.read()))
most = Path("{folder}/most")
left = int(most.read_text()) if most.exists() else 10**9
for source in sorted(path for path in there.rglob("*") if path.is_file()):
    target = here / source.relative_to(there)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        lacking = source.read_bytes()[file.tell() :]
        file.write(lacking[:left])
        with Path("{folder}/fetched").open("a") as log:
            log.write(f"{{source.name}} {{len(lacking[:left])}}\\n")
        left -= len(lacking[:left])
sys.exit(1 if left == 0 else 0)
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "fakes"
    folder.mkdir()
    for name, text in {"ssh": _FAKE_SSH, "sftp": _FAKE_SFTP}.items():
        (folder / name).write_text(text.format(folder=folder, python=sys.executable))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    run = tmp_path / "run"
    run.mkdir()
    told = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    plan = told.model_copy(update={"nnodes": 2, "nproc": 1, "run_dir": str(run)})
    plan.save(run)
    return plan


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., Site]:
    def make(hosts: str = "a\nb\n", **ssh_settings: Any) -> Site:
        file = tmp_path / "hosts"
        file.write_text(hosts)
        settings = SshSite(hosts=file, **ssh_settings)
        return Site(python="/opt/env/bin/python", run_root=tmp_path / "there", ssh=settings)

    return make


def _refusal(hosts: str, make_site: Callable[..., Site], nnodes: int = 1) -> UsageError:
    with pytest.raises(UsageError) as caught:
        ssh_hosts.read_hosts(make_site(hosts).ssh, nnodes=nnodes)
    return caught.value


def test_a_hosts_file_names_users_and_ports(make_site: Callable[..., Site]) -> None:
    text = "# rack 1\nnode1\n\nme@node2:2222  # the old one\n[fe80::1%eth0]:22\nlast\n"
    site = make_site(text, user="you", port=2200).ssh
    assert ssh_hosts.read_hosts(site, nnodes=3) == [
        ssh_hosts.Host("node1", "you", 2200),
        ssh_hosts.Host("node2", "me", 2222),
        ssh_hosts.Host("fe80::1%eth0", "you", 22),
    ]


def test_a_path_is_one_word_of_sftp() -> None:
    assert ssh._word('/a b/"c"') == r'"/a b/\"c\""'


def test_a_host_twice_is_refused_with_both_lines(make_site: Callable[..., Site]) -> None:
    fault = _refusal("a\n# b\nb\nme@A\n", make_site)
    assert fault.where is not None
    assert fault.where.endswith("hosts, line 4")
    assert "line 1" in fault.what


def test_another_port_does_not_make_another_host(make_site: Callable[..., Site]) -> None:
    assert "line 1" in _refusal("a:1\na:2\n", make_site).what


@pytest.mark.parametrize(
    "line", ["-oProxyCommand=x", "a b", "a slots=8", "a:99999", "a:0", "@a", "a;b", "[::1"]
)
def test_a_line_that_is_no_host_is_refused(line: str, make_site: Callable[..., Site]) -> None:
    assert repr(line) in _refusal(f"ok\n{line}\n", make_site).what


def test_fewer_hosts_than_nodes_are_refused(make_site: Callable[..., Site]) -> None:
    assert "3 nodes" in _refusal("a\nb\n", make_site, nnodes=3).what


def test_no_hosts_file_is_refused(tmp_path: Path) -> None:
    endless = Path("/dev/zero")
    (tmp_path / "large").write_bytes(b"#" * (2 << 20))
    for file in (None, tmp_path / "none", endless, tmp_path / "large"):
        site = SshSite(hosts=file)
        with pytest.raises(UsageError) as caught:
            ssh_hosts.read_hosts(site, nnodes=1)
        assert caught.value.where == "--hosts"


@pytest.mark.parametrize("told", [b"", b"x", b"\xff\x00", b"-1", b"9" * 40])
def test_a_file_that_names_no_process_is_refused(plan: Plan, told: bytes) -> None:
    (Path(plan.run_dir) / "job.id").write_bytes(told)
    with pytest.raises(RecordError):
        ssh.Ssh().attach(plan, Site())


def test_the_sites_options_cannot_weaken_how_hosts_are_trusted() -> None:
    site = SshSite(options={"StrictHostKeyChecking": "no", "ConnectTimeout": "3"})
    words = ssh_hosts.options(ssh_hosts.Host("a", None, None), site)
    first = {}
    for name, _, value in (word.removeprefix("-o").partition("=") for word in words):
        first.setdefault(name, value)  # as ssh takes them
    assert first["StrictHostKeyChecking"] == "yes"
    assert first["BatchMode"] == "yes"
    assert first["PreferredAuthentications"] == "publickey"
    assert first["ConnectTimeout"] == "3"


def test_keys_of_hosts_are_unchecked_only_if_the_site_says_so() -> None:
    words = ssh_hosts.options(ssh_hosts.Host("a", "me", 22), SshSite(check_host_keys=False))
    assert "-oStrictHostKeyChecking=no" in words
    assert {"-oUserKnownHostsFile=/dev/null", "-oUser=me", "-oPort=22"} <= set(words)


def test_what_would_be_submitted_is_golden(
    plan: Plan, make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python")
    site = make_site("a\nme@b:2222\n").model_copy(update={"run_root": Path("/scratch")})
    plan = plan.model_copy(update={"run_dir": "/somewhere/run"})
    text = ssh.Ssh().command(plan, site).script(Path(plan.run_dir))
    check_golden("ssh_command.sh", text)


def _probe_of(versions: dict[str, str], *, ahead_s: int = 0) -> str:
    told = shlex.quote(json.dumps({"versions": versions, "faults": []}))
    clock = f"echo $(($(date +%s%N) + {ahead_s} * 1000000000))"
    return f"echo welcome to this host; echo {told}; read line; {clock}\n"


def _fault(plan: Plan, site: Site) -> str:
    hosts = ssh_hosts.read_hosts(site.ssh, nnodes=plan.nnodes)
    with pytest.raises(EnvironmentFault) as caught:
        ssh_hosts.check_hosts(hosts, plan, site)
    return str(caught.value)


def test_every_host_is_told_with_its_fault(
    plan: Plan, fakes: Path, make_site: Callable[..., Site]
) -> None:
    own = {"trainmark": plan.suite_version, "torch": "2.13.0"}
    said = {
        "away": "ssh: connect to host away port 22: No route to host\n",
        "gone": "ssh: connect to host away port 22: No route to host\n",
        "changed": "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
        "Host key verification failed.\r\n",
        "unknown": "No ED25519 host key is known for unknown\nHost key verification failed.\n",
        "open": "@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\nPermissions 0644 for '/k' are too "
        "open.\nme@open: Permission denied (publickey).\n",
        "closed": "me@closed: Permission denied (publickey).\n",
    }
    for name, text in said.items():
        (fakes / f"{name}.said").write_text(text)
    (fakes / "bare.sh").write_text("echo sh: /opt/env/bin/python: not found >&2; exit 127\n")
    (fakes / "late.sh").write_text(_probe_of(own, ahead_s=-3))
    (fakes / "older.sh").write_text(_probe_of(own | {"torch": "2.11.0"}))
    (fakes / "other.sh").write_text(_probe_of(own | {"trainmark": "9.9"}))
    site = make_site("\n".join([*said, "bare", "late", "older", "other"]))
    told = _fault(plan.model_copy(update={"nnodes": 10}), site)
    assert "away, gone: ssh: connect to host away port 22: No route to host" in told
    assert "changed: ssh: WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!" in told
    assert "ssh-keygen -R changed" in told
    assert "unknown: ssh: Host key verification failed." in told
    assert "open: ssh: Permissions 0644 for '/k' are too open." in told
    assert "closed: ssh: me@closed: Permission denied (publickey)." in told
    assert "bare: /opt/env/bin/python does not run this program there: sh: " in told
    assert "late: its clock is -3.0 s" in told
    assert "torch: different versions: 2.13.0 on late, other; 2.11.0 on older" in told
    here = plan.suite_version
    assert f"trainmark: different versions: {here} on this machine, late, older; 9.9 on" in told
    assert told.count("way out") == 9


def test_hosts_without_a_fault_pass(
    plan: Plan, fakes: Path, make_site: Callable[..., Site], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (fakes / f"{name}.sh").write_text(_probe_of({"trainmark": plan.suite_version}))
    site = make_site(sync=f"echo to {{host}} >> {tmp_path}/synchronized", user="me")
    ssh.Ssh().check(plan, site)
    lines = (tmp_path / "synchronized").read_text().splitlines()
    assert sorted(lines) == ["to me@a", "to me@b"]


def test_a_failing_sync_ends_the_check(
    plan: Plan, fakes: Path, make_site: Callable[..., Site]
) -> None:
    told = _fault(plan, make_site(sync="echo no space on {host} >&2; exit 3"))
    assert "a: ssh.sync failed: no space on a" in told
    assert not (fakes / "asked").exists()


def test_a_probe_tells_what_its_node_lacks(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert list(probe.folder_faults(tmp_path / "new" / "folder", None)) == []
    assert (tmp_path / "new" / "folder").is_dir()
    assert len(list(probe.folder_faults(file / "below", None))) == 1
    assert list(probe.folder_faults(tmp_path, "file")) == []
    assert len(list(probe.folder_faults(tmp_path, "of another machine"))) == 1


def test_a_probe_finds_a_port_in_use_and_an_unknown_first_host() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert len(list(probe.network_faults("127.0.0.1", port))) == 1
    assert list(probe.network_faults("127.0.0.1", port)) == []
    assert list(probe.network_faults("127.0.0.1", 0)) == []
    assert len(list(probe.network_faults("no such host.invalid", 0))) == 1


@pytest.mark.parametrize(
    ("count", "counts_cores", "faults"), [(1, False, 1), (2, False, 0), (1, True, 0)]
)
def test_a_probe_counts_devices(count: int, counts_cores: bool, faults: int) -> None:
    vendor = SimpleNamespace(name="v", count=lambda: count, counts_cores=counts_cores)
    assert len(list(probe.device_faults(vendor, 2))) == faults


def test_a_probe_that_answers_is_asked_for_its_clock(plan: Plan, tmp_path: Path) -> None:
    words = ["--vendor", "cpu", "--nproc", "1", "--folder", str(tmp_path), "--master", "127.0.0.1"]
    words += ["--port", "0"]
    told = probe.ask([sys.executable, "-m", "trainmark.launch.node.probe", *words])
    assert told.faults == []
    assert told.versions["python"] == platform.python_version()


def _nodes(plan: Plan, *starts: str, folder: Path | None = None) -> Path:
    nodes = [{"host": f"n{one}", "options": [], "start": text} for one, text in enumerate(starts)]
    told = {"folder": folder and str(folder), "nodes": nodes}
    run = Path(plan.run_dir)
    (run / ssh.NODES_FILE).write_text(json.dumps(told))
    return run


def _never() -> bool:
    return False


def test_nodes_that_succeed_complete_the_job(plan: Plan, fakes: Path) -> None:
    state = ssh.hold(_nodes(plan, "true", "true"), _never)
    assert (state.ending, state.exit_code, state.lost) == ("completed", 0, ())


def test_a_node_gets_the_plan_and_then_beats(
    plan: Plan, fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "BEAT_S", 0.0)
    there = tmp_path / "there's"
    start = ssh._TAKE_PLAN.format(shlex.quote(str(there))) + f"head -c 3 > {tmp_path}/beats"
    assert ssh.hold(_nodes(plan, start, folder=there), _never).ending == "completed"
    assert Plan.read(there) == plan
    assert (tmp_path / "beats").read_bytes() == b"..."


def test_a_lost_node_ends_the_others_and_is_named(
    plan: Plan, fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_GRACE_S", 0.0)
    (fakes / "n1.said").write_text("Timeout, server n1 not responding.\n")
    state = ssh.hold(_nodes(plan, "cat > /dev/null; exit 1", "true"), _never)
    assert (state.ending, state.exit_code, state.lost) == ("node_lost", 1, (1,))
    assert state.said == "n1: ssh: Timeout, server n1 not responding."


def test_a_failing_node_fails_the_job(
    plan: Plan, fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_GRACE_S", 0.0)
    state = ssh.hold(_nodes(plan, "cat > /dev/null", "exit 1"), _never)
    assert (state.ending, state.exit_code, state.lost) == ("failed", 1, ())


def test_a_node_that_does_not_end_is_left_with_its_connection(
    plan: Plan, fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_PATIENCE_S", 0.0)
    (fakes / "n0.sh").write_text("exec sleep 1000")
    state = ssh.hold(_nodes(plan, "true"), lambda: True)
    assert (state.ending, state.exit_code, state.lost) == ("cancelled", 1, ())


def test_unchecked_keys_of_hosts_are_a_label_of_the_run() -> None:
    elsewhere = Site(ssh=SshSite(check_host_keys=False)).elsewhere
    asked, other = elsewhere("ssh"), elsewhere("slurm")
    assert asked is not None
    assert other is not None
    assert (asked.labels, other.labels) == (("host-keys-unchecked",), ())


def _until(job: ssh.SshJob, phase: str) -> JobState:
    while (state := job.state()).phase != phase:
        time.sleep(0.05)
    return state


def test_a_job_is_followed_by_its_own_process_and_by_another(
    plan: Plan, fakes: Path, make_site: Callable[..., Site]
) -> None:
    launcher, site = ssh.Ssh(), make_site()
    with pytest.raises(RecordError):
        launcher.attach(plan, site)
    _nodes(plan, "cat > /dev/null")
    job = launcher.start(launcher.command(plan, site), plan, site)
    assert job.state().phase == "running"
    while not (Path(plan.run_dir) / JOB_FILE).exists():
        time.sleep(0.05)
    other = launcher.attach(plan, site)
    assert (other.id, other.state().phase) == (job.id, "running")
    other.cancel()
    assert _until(job, "ended").ending == "cancelled"
    assert other.state() == job.state()
    assert job.process is not None
    assert job.process.wait() == 1
    other.cancel()  # changes nothing


def test_a_job_whose_process_was_killed_ended_for_unknown_reasons(
    plan: Plan, fakes: Path, make_site: Callable[..., Site]
) -> None:
    _nodes(plan, "cat > /dev/null")
    launcher, site = ssh.Ssh(), make_site()
    job = launcher.start(launcher.command(plan, site), plan, site)
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    assert job.state().ending == "unknown"


def test_files_are_fetched_from_where_a_transfer_was_cut_off(
    plan: Plan, fakes: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    (there / "artifacts").mkdir(parents=True)
    contents = {
        "artifacts/adapter": b"x" * 10,
        node_file(0): b"events\n",
        "log.rank0.txt": b"hello",
    }
    for name, content in contents.items():
        (there / name).write_bytes(content)
    plan.save(there)
    run = _nodes(plan, "true", folder=there)
    (run / "log.rank0.txt").write_text("own")  # whatever is in place stays
    (fakes / "most").write_text("4")
    job = ssh.SshJob(plan, "1")
    with pytest.raises(EnvironmentFault):
        job.collect()
    assert not (run / node_file(0)).exists()
    (fakes / "most").unlink()
    job.collect()
    assert (run / node_file(0)).read_bytes() == b"events\n"
    assert (run / "artifacts" / "adapter").read_bytes() == b"x" * 10
    assert (run / "log.rank0.txt").read_text() == "own"
    fetched = (fakes / "fetched").read_text().splitlines()
    assert [line for line in fetched if line.startswith("adapter")] == ["adapter 4", "adapter 6"]
    assert not list(run.glob(".node*"))
    assert [path.name for path in run.glob("ssh.nodes*")] == ["ssh.nodes.json"]  # to be redacted
    job.collect()
    assert (fakes / "fetched").read_text().splitlines() == fetched  # nothing again


def test_hosts_that_cannot_be_reached_are_named_and_the_others_fetched(
    plan: Plan, fakes: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / node_file(0)).write_bytes(b"events\n")
    run = _nodes(plan, "true", "true", folder=there)
    (fakes / "n1.said").write_text("ssh: connect to host n1 port 22: Connection timed out\n")
    with pytest.raises(EnvironmentFault, match="n1: ssh: connect to host n1"):
        ssh.SshJob(plan, "1").collect()
    assert (run / node_file(0)).exists()
    evidence.redact(run)
    assert "n1" in (run / ssh.NODES_FILE).read_text()  # it is still needed


def test_a_common_folder_needs_no_collection(plan: Plan, fakes: Path) -> None:
    _nodes(plan, "true")
    ssh.SshJob(plan, "1").collect()
    assert not (fakes / "asked").exists()


def test_without_a_common_folder_the_hosts_are_asked_for_a_new_file(
    plan: Plan, fakes: Path, make_site: Callable[..., Site]
) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]  # free in a moment
    settings = {"run_root": None, "python": sys.executable, "master_port": port}
    site = make_site("127.0.0.1\n").model_copy(update=settings)
    plan = plan.model_copy(update={"nnodes": 1, "suite_version": __version__})
    ssh.Ssh().check(plan, site)
    assert "--shared" in (fakes / "asked").read_text()
    assert "--folder" in (fakes / "asked").read_text()
    assert not list(Path(plan.run_dir).parent.glob("tmp*"))


def test_many_nodes_need_no_higher_limit_of_open_files(plan: Plan, fakes: Path) -> None:
    run = _nodes(plan, *["head -c 1"] * 40)
    lowered = ["sh", "-c", f"ulimit -Sn 32; exec {sys.executable} -m {ssh.MODULE}"]
    assert subprocess.run(lowered, cwd=run, check=False).returncode == 0
    assert json.loads((run / ssh.STATE_FILE).read_bytes())["ending"] == "completed"


def test_a_line_of_the_hosts_file_outranks_the_sites_options() -> None:
    site = SshSite(options={"Port": "1", "User": "you"})
    words = ssh_hosts.options(ssh_hosts.Host("a", "me", 2), site)
    assert words.index("-oPort=2") < words.index("-oPort=1")
    assert words.index("-oUser=me") < words.index("-oUser=you")
