"""What Slurm is told, and what its answers mean; the answers are recorded ones."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fakes import GOLDEN, FakeClock, check_golden
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch.contract import JobState
from trainmark.launch.launchers.slurm import ENDED_FILE, LOG_FILE, Slurm, SlurmJob
from trainmark.launch.site import ContainerSite, Site, SlurmSite
from trainmark.plan.plan import Plan

RECORDED = tomllib.loads((Path(__file__).parent / "slurm_outputs.toml").read_text())
UNKNOWN = (1, "", RECORDED["unknown"]["stderr"].strip())


@pytest.fixture
def plan() -> Plan:
    toy = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    return toy.model_copy(update={"nnodes": 2, "nproc": 8, "launcher": "slurm"})


def site(**settings: object) -> Site:
    return Site(python="/opt/trainmark/bin/python", **settings)


class Answers:
    """Slurm's programs, which answer as recorded; asked words are kept."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers, self.asked = answers, []

    def __call__(self, program: str, *words: str) -> tuple[int, str, str]:
        self.asked.append((program, *words))
        return self.answers.get(program, (0, "", ""))


def job(tmp_path: Path, clock: FakeClock | None = None, **answers: object) -> SlurmJob:
    seconds = clock or FakeClock()
    return SlurmJob("4711\n", tmp_path, Answers(**answers), lambda: seconds() / 1e9)


# The command


def test_the_script_of_the_defaults_is_golden(plan: Plan) -> None:
    command = Slurm().command(plan, site())
    check_golden("slurm/defaults.sh", command.script(Path(plan.run_dir)))


def test_the_script_of_all_keys_is_golden(plan: Plan) -> None:
    keys = SlurmSite(
        partition="gpu", account="physics", qos="high", time="1-02:30:00",
        constraint="[rack1|rack2]&a100", reservation="maintenance test", gpus_option="gres",
        options={"mem": "64G", "comment": "it's \"ours\" # $HOME", "contiguous": "true"},
    )  # fmt: skip
    told = site(
        slurm=keys, setup=("module load cuda/12.8",), environment={"NCCL_DEBUG": "WARN INFO"},
        interface="ib0", data=Path("/scratch/data"), master_port=31_000,
    )  # fmt: skip
    check_golden("slurm/all_keys.sh", Slurm().command(plan, told).script(Path(plan.run_dir)))


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_the_scripts_of_containers_are_golden(plan: Plan, runtime: str) -> None:
    box = ContainerSite(
        image="registry.example/trainmark:1" if runtime == "pyxis" else "/images/trainmark.sif",
        runtime=runtime, mounts=("/etc/hosts:/etc/hosts:ro",), python="python3",
    )  # fmt: skip
    command = Slurm().command(plan, site(container=box))
    check_golden(f"slurm/{runtime}.sh", command.script(Path(plan.run_dir)))


@pytest.mark.parametrize("name", ["job.sh", "node.sh"])
def test_both_scripts_are_valid_bash(plan: Plan, name: str) -> None:
    told = site(slurm=SlurmSite(options={"comment": "a 'b' $(c)"}), setup=("module load a",))
    script = Slurm().command(plan, told).files[name]
    checked = subprocess.run(
        ["bash", "-n"], input=script, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ["--exclusive", "--mem=0"]),
        ({"options": {"mem-per-gpu": "32G"}}, ["--exclusive", "--mem-per-gpu=32G"]),
        ({"exclusive": False}, []),
        ({"exclusive": False, "gpus_option": "gpus-per-node"}, ["--gpus-per-node=8"]),
        ({"exclusive": False, "gpus_option": "gres"}, ["--gres=gpu:8"]),
        ({"exclusive": False, "options": {"gres": "npu:8"}}, ["--gres=npu:8"]),
        ({"exclusive": False, "options": {"overcommit": "true"}}, ["--overcommit"]),
        ({"exclusive": False, "options": {"nodelist": "a[1-2]"}}, ["--nodelist=a[1-2]"]),
    ],
)
def test_each_key_is_one_option(plan: Plan, keys: dict[str, object], words: list[str]) -> None:
    argv = Slurm().command(plan, site(slurm=SlurmSite(**keys))).argv
    assert list(argv[argv.index("--output=log.job.txt") + 1 : -1]) == words
    assert (argv[0], argv[-1]) == ("sbatch", "job.sh")


@pytest.mark.parametrize("name", ["nodes", "array", "output", "partition"])
def test_an_option_that_is_not_the_sites_is_refused(plan: Plan, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        Slurm().command(plan, site(slurm=SlurmSite(options={name: "1"})))
    assert refused.value.where == f"site file, slurm.options.{name}"


WORD = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


# States


@pytest.mark.parametrize(
    ("recording", "expected"),
    [
        ("pending", JobState(phase="waiting", said="PENDING (Resources)")),
        ("running", JobState(phase="running", said="RUNNING")),
        ("completing", JobState(phase="running", said="COMPLETING")),
    ],
)
def test_a_job_that_has_not_ended(tmp_path: Path, recording: str, expected: JobState) -> None:
    assert job(tmp_path, scontrol=(0, RECORDED[recording]["scontrol"], "")).state() == expected


ENDED = {
    "completed": ("completed", 0, "COMPLETED"),
    "failed": ("failed", 3, "FAILED (NonZeroExitCode)"),
    "cancelled": ("cancelled", 9, "CANCELLED"),
    "cancelled_waiting": ("cancelled", 0, "CANCELLED (Resources)"),
    "timeout": ("timed_out", 9, "TIMEOUT (TimeLimit)"),
    "preempted": ("preempted", 9, "PREEMPTED"),
    "preempted_grace": ("preempted", 9, "FAILED (NonZeroExitCode)"),
    "node_fail": ("node_lost", 9, "NODE_FAIL (NodeDown)"),
    "launch_failure": (
        "failed", -53,
        "FAILED (JobLaunchFailure), as when a node cannot write into the run directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("recording", ENDED)
def test_endings_are_told_apart_while_the_controller_knows_the_job(
    tmp_path: Path, recording: str
) -> None:
    ending, exit_code, said = ENDED[recording]
    found = job(tmp_path, scontrol=(0, RECORDED[recording]["scontrol"], "")).state()
    assert found == JobState(phase="ended", said=said, ending=ending, exit_code=exit_code)


MARKERS = {
    "completed": "0\nReason=None\nPreemptTime=None\n",
    "failed": "3\nReason=None\nPreemptTime=None\n",
    "cancelled": "143\nReason=None\nPreemptTime=None\n",
    "timeout": "9\nReason=TimeLimit\nPreemptTime=None\n",
    "preempted": "143\nReason=None\nPreemptTime=2026-11-22T11:29:08\n",
    "preempted_grace": "9\nReason=None\nPreemptTime=2026-11-22T11:29:08\n",
    "node_fail": "143\nReason=NodeDown\nPreemptTime=None\n",
}


@pytest.mark.parametrize(
    ("recording", "controller_answered"),
    [
        *((name, True) for name in MARKERS),
        *((name, False) for name in MARKERS if name != "preempted_grace"),  # nothing tells it then
    ],
)
def test_endings_are_told_apart_by_the_jobs_own_files(
    tmp_path: Path, recording: str, controller_answered: bool
) -> None:
    code = MARKERS[recording].partition("\n")[0]
    marker = MARKERS[recording] if controller_answered else f"{code}\n\n"
    (tmp_path / ENDED_FILE).write_text(marker)
    (tmp_path / LOG_FILE).write_text(RECORDED[recording].get("log", ""))
    found = job(tmp_path, scontrol=UNKNOWN).state()
    ending = ENDED[recording][0]
    assert found == JobState(
        phase="ended", said="Slurm does not know job 4711 any more", ending=ending,
        exit_code=int(code),
    )  # fmt: skip


def test_a_job_of_which_nothing_is_left_has_an_unknown_end(tmp_path: Path) -> None:
    found = job(tmp_path, scontrol=UNKNOWN).state()
    assert (found.phase, found.ending, found.exit_code) == ("ended", "unknown", None)


@pytest.mark.parametrize(
    "line",
    [
        # As Slurm 22.05 says it with JobAcctGatherParams=OverMemoryKill, recorded.
        "slurmstepd-node0: error: StepId=4.0 exceeded memory limit (412168192 > 52428800), being"
        " killed",
        # Where cgroups hold the limit, by an older and a newer version, as users reported them:
        # https://github.com/hafs-community/HAFS/issues/101 (2021),
        # https://github.com/chrisknewman/tusas/issues/149 (2023); with the label of a task.
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup. Some of your"
        " processes may have been killed by the cgroup out-of-memory handler.",
        "1: slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks"
        " have been OOM Killed.",
        "srun: error: nid001277: tasks 1-3: Out Of Memory",
    ],
)
def test_a_job_killed_for_its_memory_is_told_from_one_that_failed(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / LOG_FILE).write_text(f"srun: error: tasks ended\n{line}\n")
    found = job(tmp_path, scontrol=(0, RECORDED["failed"]["scontrol"], "")).state()
    assert found.ending == "out_of_memory"


# JOB STATE CODES of https://slurm.schedmd.com/squeue.html, Slurm 24.11
CODES = {
    "BOOT_FAIL": "node_lost", "CANCELLED": "cancelled", "COMPLETED": "completed",
    "DEADLINE": "timed_out", "FAILED": "failed", "NODE_FAIL": "node_lost",
    "OUT_OF_MEMORY": "out_of_memory", "PREEMPTED": "preempted", "REVOKED": "cancelled",
    "TIMEOUT": "timed_out", "CONFIGURING": "waiting", "PENDING": "waiting",
    "REQUEUED": "waiting", "REQUEUE_FED": "waiting", "REQUEUE_HOLD": "waiting",
    "RESV_DEL_HOLD": "waiting", "SPECIAL_EXIT": "waiting", "COMPLETING": "running",
    "RUNNING": "running", "RESIZING": "running", "SIGNALING": "running", "STAGE_OUT": "running",
    "STOPPED": "running", "SUSPENDED": "running", "SOME_NEW_STATE": "running",
}  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_every_state_of_slurm_has_a_meaning(tmp_path: Path, code: str) -> None:
    found = job(tmp_path, scontrol=(0, f"JobId=1 JobState={code} Reason=None", "")).state()
    assert (found.ending or found.phase) == CODES[code]


def test_a_silent_controller_leaves_the_job_where_it_was(tmp_path: Path) -> None:
    clock = FakeClock()
    one = job(tmp_path, clock, scontrol=(0, RECORDED["running"]["scontrol"], ""))
    assert one.state().phase == "running"
    one._ask.answers["scontrol"] = (1, "", "Unable to contact slurm controller (connect failure)")
    clock.advance(10**10)
    found = one.state()
    assert (found.phase, found.ending) == ("running", None)
    assert "Unable to contact" in found.said


def test_a_cancelled_job_is_killed_when_it_stays(tmp_path: Path) -> None:
    one = job(tmp_path)
    one.cancel()
    one.cancel()
    assert one._ask.asked == [
        ("scancel", "4711"),
        ("scancel", "--full", "--signal=KILL", "4711"),
    ]


# Programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH for programs that stand in for Slurm's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def stand_in(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_what_sbatch_refuses_is_refused_before_the_run_begins(plan: Plan, programs: Path) -> None:
    stand_in(
        programs, "sbatch",
        "echo 'sbatch: error: invalid partition specified: nope' >&2\n"
        "echo 'allocation failure: Invalid partition name specified' >&2; exit 1",
    )  # fmt: skip
    with pytest.raises(EnvironmentFault) as refused:
        Slurm().check(plan, site())
    assert refused.value.what == (
        "invalid partition specified: nope\nallocation failure: Invalid partition name specified"
    )


def test_a_start_leaves_the_jobs_number(plan: Plan, programs: Path, tmp_path: Path) -> None:
    here = plan.model_copy(update={"run_dir": str(tmp_path)})
    stand_in(programs, "sbatch", "pwd > where; echo 4711")
    launcher = Slurm()
    started = launcher.start(launcher.command(here, site()), here, site())
    assert (started.id, (tmp_path / "where").read_text().strip()) == ("4711", str(tmp_path))
    assert launcher.attach(here, site()).id == "4711"


@pytest.mark.parametrize("content", [None, "none"])
def test_a_run_directory_without_a_job_is_refused(
    plan: Plan, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "job.id").write_text(content)
    with pytest.raises(RecordError) as refused:
        Slurm().attach(plan.model_copy(update={"run_dir": str(tmp_path)}), site())
    assert re.fullmatch(r".*/job\.id", refused.value.where)


# The script, with programs that stand in for Slurm's


def run_script(plan: Plan, programs: Path, folder: Path, srun: str, node_address: str) -> int:
    stand_in(programs, "srun", srun)
    stand_in(
        programs, "scontrol",
        f'case "$2" in hostnames) printf "%s\\n" far0 far1;; node) echo "{node_address}";;'
        ' job) printf "JobId=1 JobState=COMPLETING Reason=TimeLimit X=\\n   PreemptTime=None\\n";;'
        " esac",
    )  # fmt: skip
    (folder / "job.sh").write_text(Slurm().command(plan, site()).files["job.sh"])
    return subprocess.run(["bash", "job.sh"], cwd=folder, check=False).returncode


@pytest.mark.parametrize(
    ("shown", "master"),
    [("NodeName=far0 NodeAddr=10.0.0.7 NodeHostName=far0", "10.0.0.7"), ("", "far0")],
)
def test_ranks_meet_on_the_first_host(
    plan: Plan, programs: Path, tmp_path: Path, shown: str, master: str
) -> None:
    assert run_script(plan, programs, tmp_path, 'echo "$TRAINMARK_MASTER" > met', shown) == 0
    assert (tmp_path / "met").read_text() == f"{master}\n"
    assert (tmp_path / ENDED_FILE).read_text() == "0\nReason=TimeLimit\nPreemptTime=None\n"


def test_the_script_waits_for_the_nodes_after_a_sigterm(
    plan: Plan, programs: Path, tmp_path: Path
) -> None:
    srun = 'trap "echo ended > nodes; exit 7" TERM; kill -TERM $PPID; kill -TERM $$; exit 1'
    assert run_script(plan, programs, tmp_path, srun, "") in {7, 143}
    assert (tmp_path / "nodes").read_text() == "ended\n"
    assert (tmp_path / ENDED_FILE).exists()
