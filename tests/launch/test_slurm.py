"""Commands for Slurm and the meaning of its answers, which are recorded."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fakes import GOLDEN, check_golden
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch.cluster import Cluster, ContainerSettings, SlurmSettings
from trainmark.launch.launchers import JOB_FILE, EngineJob, JobState, slurm, start_job
from trainmark.launch.launchers.slurm import Slurm, read_time_option_s
from trainmark.launch.submission import describe_job
from trainmark.plan.plan import Plan
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from trainmark.launch.job_spec import JobSpec

RECORDED = read_toml(Path(__file__).parent / "slurm_outputs.toml")


@pytest.fixture
def spec() -> JobSpec:
    """Return the job of a run on two nodes with eight ranks each."""
    plan = Plan.model_validate_json((GOLDEN / "plan_toy.json").read_bytes())
    return replace(describe_job(plan), nnodes=2, nproc=8, launcher="slurm")


def make_site(**settings: object) -> Cluster:
    """Return the settings of a cluster file with these keys, and with a Python of the nodes."""
    return Cluster(python="/opt/trainmark/bin/python", **settings)


def read_job_state(
    monkeypatch: pytest.MonkeyPatch, job: EngineJob, output: str, *, fails: bool = False
) -> JobState:
    """Return the state of a job if Slurm's programs print ``output``.

    Args:
        job: whose state is asked for.
        output: text of the standard output of any program that is called.
        fails: the programs fail, and ``output`` is their error.
    """

    def answer_program(*_: str) -> str:
        if fails:
            raise EnvironmentFault(output)
        return output

    monkeypatch.setattr(slurm, "run_program", answer_program)
    return Slurm().read_state(job)


@pytest.fixture
def job(spec: JobSpec, tmp_path: Path) -> EngineJob:
    """Return job 4711 of Slurm; the file ``JOB_FILE`` of the run's folder has this number."""
    (tmp_path / JOB_FILE).write_text("4711\n")
    return EngineJob(replace(spec, run_dir=tmp_path), make_site())


# The command


def test_script_with_defaults_matches_its_golden_file(spec: JobSpec) -> None:
    command = Slurm().build_command(spec, make_site())
    check_golden("slurm/defaults.sh", command.render_script(spec.run_dir))


def test_script_with_all_keys_matches_its_golden_file(spec: JobSpec) -> None:
    # The fixture ``spec`` has two nodes with eight ranks each. ``options`` are passed to sbatch,
    # with ``{nproc}`` replaced by these 8; ``make_site`` returns the settings of a cluster with
    # these keys. The golden file has the script as it was reviewed, with a line for every key.
    keys = SlurmSettings(
        options={
            "partition": "gpu",
            "time": "1-02:30:00",
            "constraint": "[rack1|rack2]&a100",
            "reservation": "maintenance test",
            "gres": "gpu:{nproc}",
            "mem": "64G",
            "comment": 'it\'s "ours" # $HOME',  # what a shell would change unless it is quoted
            "contiguous": "true",
        }
    )
    settings = make_site(
        slurm=keys,
        setup=("module load cuda/12.8",),
        environment={"NCCL_DEBUG": "WARN INFO"},
        data=Path("/scratch/data"),
        master_port=31_000,
    )
    check_golden(
        "slurm/all_keys.sh", Slurm().build_command(spec, settings).render_script(spec.run_dir)
    )


@pytest.mark.parametrize(
    ("option", "limit_s"),
    [
        ("90", 90 * 60),  # minutes
        ("1-02:30:00", (24 + 2.5) * 3600),  # days-hours:minutes:seconds
        ("0", None),  # for sbatch no limit
        ("soon", None),  # which sbatch refuses
    ],
)
def test_time_limit_of_the_cluster_file_is_read_as_sbatch_does(
    option: str, limit_s: float | None
) -> None:
    # ``options`` of a cluster file are those of sbatch; ``time`` limits how long a job may run.
    assert read_time_option_s(make_site(slurm=SlurmSettings(options={"time": option}))) == limit_s


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_scripts_with_containers_match_their_golden_files(spec: JobSpec, runtime: str) -> None:
    # ``pyxis`` is a plugin of srun that takes an image of a registry; ``apptainer`` is a program
    # that takes a file. The golden file of each has the reviewed script with its own way to call
    # it.
    container = ContainerSettings(
        image="registry.example/trainmark:1" if runtime == "pyxis" else "/images/trainmark.sif",
        runtime=runtime,
        mounts=("/etc/hosts:/etc/hosts:ro",),
        python="python3",
    )
    command = Slurm().build_command(spec, make_site(container=container))
    check_golden(f"slurm/{runtime}.sh", command.render_script(spec.run_dir))


def test_shared_node_gets_no_memory_request(spec: JobSpec) -> None:
    # ``exclusive=False``: other jobs may share the nodes, so the job must not ask for all memory,
    # which ``--mem=0`` would do. ``argv`` are the words of the command ``sbatch``.
    argv = Slurm().build_command(spec, make_site(slurm=SlurmSettings(exclusive=False))).argv
    # ``--mem`` would come last of the options, before the script. The time limit of 35 minutes is
    # that of the run, 30 minutes, and five of grace.
    assert argv[-2:] == ("--time=35", "job.sh")


def test_option_that_the_launcher_sets_itself_is_refused(spec: JobSpec) -> None:
    # The number of nodes follows from the plan, so the user's options must not set it. ``where``
    # names the place of the fault: the file with the cluster's settings, and the key in it.
    with pytest.raises(UsageError) as refused:
        Slurm().build_command(spec, make_site(slurm=SlurmSettings(options={"nodes": "1"})))
    assert refused.value.where == "cluster file, slurm.options.nodes"


# States


# By name of a recorded output of scontrol (of real jobs: see slurm_outputs.toml): the phase that is
# expected, and the text with Slurm's state and reason.
STATES = {
    "pending": ("waiting", "PENDING (Resources)"),
    "completed": ("ended", "COMPLETED"),
    "failed": ("ended", "FAILED (NonZeroExitCode)"),
    "cancelled": ("lost", "CANCELLED"),
    "cancelled_waiting": ("lost", "CANCELLED (Resources)"),
    "node_fail": ("ended", "NODE_FAIL (NodeDown)"),
    "launch_failure": ("ended", "FAILED (JobLaunchFailure)"),
}


@pytest.mark.parametrize("recording", STATES)
def test_job_states_are_distinguished(
    monkeypatch: pytest.MonkeyPatch, job: EngineJob, recording: str
) -> None:
    # ``RECORDED``: real answers of ``scontrol show job``, by a name such as "node_fail".
    # ``STATES``: for each, the phase in which Trainmark takes the job to be, such as "waiting", and
    # what the user is told: Slurm's state and, in brackets, its reason.
    phase, message = STATES[recording]
    state_of_job = read_job_state(monkeypatch, job, RECORDED[recording]["scontrol"])
    assert state_of_job == JobState(phase=phase, description=message)


def test_job_unknown_to_slurm_has_ended(monkeypatch: pytest.MonkeyPatch, job: EngineJob) -> None:
    state_of_job = read_job_state(monkeypatch, job, RECORDED["unknown"]["stderr"], fails=True)
    assert state_of_job == JobState(phase="ended", description="Slurm no longer knows job 4711")


# JOB STATE CODES of https://slurm.schedmd.com/squeue.html, Slurm 24.11
STATES_BY_PHASE = {  # a state that is not known counts as running
    "waiting": "CONFIGURING PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    "running": "COMPLETING RUNNING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED SOME_NEW_STATE",
    "ended": "COMPLETED FAILED OUT_OF_MEMORY NODE_FAIL BOOT_FAIL",
    "lost": "CANCELLED DEADLINE PREEMPTED REVOKED TIMEOUT",
}


@pytest.mark.parametrize("phase", STATES_BY_PHASE)
def test_every_state_of_slurm_has_a_meaning(
    monkeypatch: pytest.MonkeyPatch, job: EngineJob, phase: str
) -> None:
    # ``STATES_BY_PHASE``: the names of Slurm's states, separated by spaces, by the phase in which
    # Trainmark takes the job to be, such as "waiting". The text imitates what ``scontrol`` prints;
    # the fixture ``job`` is any job, as only ``JobState`` matters.
    for state in STATES_BY_PHASE[phase].split():
        state_of_job = read_job_state(monkeypatch, job, f"JobId=1 JobState={state} Reason=None")
        assert state_of_job.phase == phase, state


def test_job_counts_as_running_if_slurm_reports_no_state(
    monkeypatch: pytest.MonkeyPatch, job: EngineJob
) -> None:
    # A job must not count as ended, which would stop the wait for it, unless Slurm says so.
    state_of_job = read_job_state(monkeypatch, job, "JobId=1 Reason=None")
    assert state_of_job == JobState(phase="running", description="")


def test_cancelled_job_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, job: EngineJob
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(slurm, "run_program", lambda *words: commands.append(words))
    # The caller cancels again if the job has not ended.
    for num_cancels in (1, 2):
        job.num_cancels = num_cancels  # which the caller counts
        Slurm().cancel(job)
    # 4711 is the number of ``job``. The first call ends the job; the second one kills it with its
    # script (``--full``), as SIGKILL cannot be ignored.
    assert commands == [("scancel", "4711"), ("scancel", "--full", "--signal=KILL", "4711")]


def test_job_on_another_cluster_is_queried_and_cancelled_there(
    monkeypatch: pytest.MonkeyPatch, job: EngineJob
) -> None:
    # What sbatch --parsable prints if the option ``clusters`` was given: the job's number and the
    # name of its cluster; ``JOB_FILE`` keeps it. ``run_program`` runs Slurm's programs. scontrol
    # and scancel know no such id, and would answer for the cluster of this machine.
    (job.folder / JOB_FILE).write_text("4711;west\n")
    commands: list[tuple[str, ...]] = []

    def answer_program(*words: str) -> str:
        commands.append(words)
        return "JobId=4711 JobState=RUNNING Reason=None"

    monkeypatch.setattr(slurm, "run_program", answer_program)
    assert Slurm().read_state(job).phase == "running"
    Slurm().cancel(job)
    assert commands == [
        ("scontrol", "--clusters=west", "show", "job", "--oneliner", "4711"),
        ("scancel", "--clusters=west", "4711"),
    ]


# Programs


@pytest.fixture
def program_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, first on PATH, for scripts that run in place of Slurm's programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def install_stand_in(folder: Path, name: str, script: str) -> None:
    """Write a program ``name`` that runs ``script`` of a shell, in place of Slurm's own.

    ``folder`` is on PATH before all others.
    """
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_refusal_of_sbatch_is_reported_before_the_run_starts(
    spec: JobSpec, program_folder: Path
) -> None:
    # ``install_stand_in`` writes a script that runs in place of Slurm's program of this name.
    install_stand_in(
        program_folder,
        "sbatch",
        "echo 'sbatch: error: invalid partition specified: nope' >&2\n"
        "echo 'allocation failure: Invalid partition name specified' >&2; exit 1",
    )
    # ``check`` runs before any launch and calls sbatch with ``--test-only``; here the stand-in
    # answers. Its two lines are reported without the prefix of the program.
    with pytest.raises(EnvironmentFault) as refused:
        Slurm().check(spec, make_site())
    assert refused.value.what == (
        "invalid partition specified: nope\nallocation failure: Invalid partition name specified"
    )


def test_started_job_has_its_number_recorded(
    spec: JobSpec, program_folder: Path, tmp_path: Path
) -> None:
    # The number is in the file job.id of the run's folder.
    local_spec = replace(spec, run_dir=tmp_path)
    with pytest.raises(RecordError, match=r"job\.id"):  # before it was started
        assert EngineJob(local_spec, make_site()).id

    # sbatch runs in the folder of the run, and prints the number of the job.
    install_stand_in(program_folder, "sbatch", "pwd > where; echo 4711")
    started = start_job(Slurm().build_command(local_spec, make_site()), local_spec, make_site())
    assert started.id == "4711"
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)
    assert EngineJob(local_spec, make_site()).id == "4711"  # as another process finds it


# The script, with programs that stand in for Slurm's


def run_script(spec: JobSpec, program_folder: Path, folder: Path, srun: str, node_text: str) -> int:
    """Run the script of a job on the nodes far0 and far1; return its exit code.

    Args:
        folder: in which it runs.
        srun: script that stands in for srun.
        node_text: what ``scontrol show node`` prints.
    """
    install_stand_in(program_folder, "srun", srun)
    install_stand_in(
        program_folder,
        "scontrol",
        f'case "$2" in hostnames) printf "%s\\n" far0 far1;; node) echo "{node_text}";; esac',
    )
    (folder / "job.sh").write_text(Slurm().build_command(spec, make_site()).files["job.sh"])
    return subprocess.run(["bash", "job.sh"], cwd=folder, check=False).returncode


@pytest.mark.parametrize(
    ("node_text", "master"),
    [
        ("NodeName=far0 NodeAddr=10.0.0.7 NodeHostName=far0", "10.0.0.7"),
        ("", "far0"),  # its address is not known
    ],
)
def test_ranks_connect_to_the_first_host(
    spec: JobSpec, program_folder: Path, tmp_path: Path, node_text: str, master: str
) -> None:
    # ``run_script`` runs the script of a job on the hosts far0 and far1, with this script in place
    # of srun, which would start the ranks. It writes the variable that tells them where to connect.
    # ``node_text`` is what ``scontrol show node`` prints.
    srun = 'echo "$TRAINMARK_MASTER" > master'
    assert run_script(spec, program_folder, tmp_path, srun, node_text) == 0
    assert (tmp_path / "master").read_text() == f"{master}\n"


def test_the_script_waits_for_the_nodes_after_a_sigterm(
    spec: JobSpec, program_folder: Path, tmp_path: Path
) -> None:
    # Slurm sends SIGTERM to the script, which is the parent of srun, and to srun.
    srun = 'trap "echo ended > nodes; exit 7" TERM; kill -TERM $PPID; kill -TERM $$; exit 1'
    # The exit code of the trap of srun, or that of a script ended by SIGTERM. The addresses of
    # nodes (``node_text``) do not matter here.
    assert run_script(spec, program_folder, tmp_path, srun, node_text="") in {7, 128 + 15}
    assert (tmp_path / "nodes").read_text() == "ended\n"
