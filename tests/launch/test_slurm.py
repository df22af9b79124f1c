"""What Slurm is told, and what its answers mean; the answers are recorded ones."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from fakes import GOLDEN, FakeClock, check_golden
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch.launchers import JobState
from trainmark.launch.launchers.slurm import ENDED_FILE, Slurm, SlurmJob
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
    assert argv[argv.index("--output=log.job.txt") + 1] == "--time=7"  # two minutes, and grace
    assert list(argv[argv.index("--time=7") + 1 : -1]) == words
    assert (argv[0], argv[-1]) == ("sbatch", "job.sh")


def test_an_option_that_is_not_the_sites_is_refused(plan: Plan) -> None:
    with pytest.raises(UsageError) as refused:
        Slurm().command(plan, site(slurm=SlurmSite(options={"nodes": "1"})))
    assert refused.value.where == "site file, slurm.options.nodes"


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
    "completed": ("ended", 0, "COMPLETED"),
    "failed": ("ended", 3, "FAILED (NonZeroExitCode)"),
    "cancelled": ("lost", 9, "CANCELLED"),
    "cancelled_waiting": ("lost", 0, "CANCELLED (Resources)"),
    "timeout": ("lost", 9, "TIMEOUT (TimeLimit)"),
    "preempted": ("lost", 9, "PREEMPTED"),
    "node_fail": ("ended", 9, "NODE_FAIL (NodeDown)"),
    "launch_failure": ("ended", -53, "FAILED (JobLaunchFailure)"),
}


@pytest.mark.parametrize("recording", ENDED)
def test_endings_are_told_apart(tmp_path: Path, recording: str) -> None:
    phase, exit_code, said = ENDED[recording]
    found = job(tmp_path, scontrol=(0, RECORDED[recording]["scontrol"], "")).state()
    assert found == JobState(phase=phase, said=said, exit_code=exit_code)


def test_a_job_that_slurm_forgot_is_told_by_its_own_file(tmp_path: Path) -> None:
    found = job(tmp_path, scontrol=UNKNOWN).state()
    assert (found.phase, found.exit_code) == ("ended", None)
    (tmp_path / ENDED_FILE).write_text("143\n")
    assert job(tmp_path, scontrol=UNKNOWN).state().exit_code == 143


# JOB STATE CODES of https://slurm.schedmd.com/squeue.html, Slurm 24.11
CODES = {
    "waiting": "CONFIGURING PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    "running": "COMPLETING RUNNING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED SOME_NEW_STATE",
    "ended": "COMPLETED FAILED OUT_OF_MEMORY NODE_FAIL BOOT_FAIL",
    "lost": "CANCELLED DEADLINE PREEMPTED REVOKED TIMEOUT",
}


@pytest.mark.parametrize("phase", CODES)
def test_every_state_of_slurm_has_a_meaning(tmp_path: Path, phase: str) -> None:
    for code in CODES[phase].split():
        found = job(tmp_path, scontrol=(0, f"JobId=1 JobState={code} Reason=None", "")).state()
        assert found.phase == phase, code


def test_a_silent_controller_leaves_the_job_where_it_was(tmp_path: Path) -> None:
    clock = FakeClock()
    one = job(tmp_path, clock, scontrol=(0, RECORDED["running"]["scontrol"], ""))
    assert one.state().phase == "running"
    one._ask.answers["scontrol"] = (1, "", "Unable to contact slurm controller (connect failure)")
    clock.advance(10**10)
    found = one.state()
    assert found.phase == "running"
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


def test_a_run_directory_without_a_job_is_refused(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "job.id").write_text("none")
    with pytest.raises(RecordError) as refused:
        Slurm().attach(plan.model_copy(update={"run_dir": str(tmp_path)}), site())
    assert re.fullmatch(r".*/job\.id", refused.value.where)


# The script, with programs that stand in for Slurm's


def run_script(plan: Plan, programs: Path, folder: Path, srun: str, node_address: str) -> int:
    stand_in(programs, "srun", srun)
    stand_in(
        programs, "scontrol",
        f'case "$2" in hostnames) printf "%s\\n" far0 far1;; node) echo "{node_address}";;'
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
    assert (tmp_path / ENDED_FILE).read_text() == "0\n"


def test_the_script_waits_for_the_nodes_after_a_sigterm(
    plan: Plan, programs: Path, tmp_path: Path
) -> None:
    srun = 'trap "echo ended > nodes; exit 7" TERM; kill -TERM $PPID; kill -TERM $$; exit 1'
    assert run_script(plan, programs, tmp_path, srun, "") in {7, 143}
    assert (tmp_path / "nodes").read_text() == "ended\n"
    assert (tmp_path / ENDED_FILE).exists()
