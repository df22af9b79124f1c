"""``trainmark accept --dry-run``: phases, rounds, times, and the command of each engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from trainmark.acceptance.request import AcceptRequest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {"slurm": "sbatch", "ray": "ray", "kubernetes": "kubectl", "ssh": "bash"}
AGENT = "-m trainmark.acceptance.agent"


def test_dry_run_of_one_machine_lists_all_rounds_and_writes_nothing(cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ("accept", "toy", "--device", "cpu", "--nproc", "4", "--repeats", "2", "--seconds", "5")

    code, printed, _ = cli(*args, "--out", str(out), "--dry-run", "--json")

    assert code == 0
    plan = json.loads(printed)
    # --repeats sets the rounds of single devices; a single node has one round, and three rounds
    # pair each of four devices with each other one.
    assert [(phase["phase"], phase["rounds"]) for phase in plan["phases"]] == [
        ("devices", 2),
        ("nodes", 1),
        ("pairs", 3),
    ]
    # 2 rounds of 20 s to start and 5 s of training.
    assert plan["phases"][0]["expected_s"] == 50.0
    assert plan["limit_s"] == 6 * 600.0  # 10 min for each of the 2 + 1 + 3 rounds
    # The devices of each pair; a name ends in the device's index. Every pair occurs once.
    pairs = [
        tuple(name.rpartition(":")[2] for name in team)
        for scheduled in plan["schedule"]
        if scheduled["phase"] == "pairs"
        for team in scheduled["teams"]
    ]
    assert sorted(pairs) == [
        ("0", "1"),
        ("0", "2"),
        ("0", "3"),
        ("1", "2"),
        ("1", "3"),
        ("2", "3"),
    ]
    # TASK stands for the file that tells a rank what to measure.
    assert plan["command"][-2:] == ["trainmark.acceptance.rank", "TASK"]
    assert not out.exists()


@pytest.mark.parametrize(
    ("launcher", "file", "rank_variable"),
    [
        ("slurm", "node.sh", "$SLURM_NODEID"),
        ("ray", "ray.json", "@RANK@"),
        ("kubernetes", "job.yaml", "$$JOB_COMPLETION_INDEX"),  # it replaces $$ by $ in commands
        ("ssh", "ssh.sh", "3"),  # the script has the number itself; 3 is that of the last node
    ],
)
def test_dry_run_of_an_engine_starts_an_agent_on_every_node(
    cli, tmp_path: Path, launcher: str, file: str, rank_variable: str
) -> None:
    hosts = [f"host{number}" for number in range(4)]
    settings: dict[str, object] = {"device": "cpu", "ssh": {"hosts": hosts}}
    if launcher == "kubernetes":
        settings["container"] = {"image": "trainmark:1"}
    (tmp_path / "cluster.yaml").write_text(json.dumps(settings))
    out = tmp_path / "out"
    args = ("accept", "toy", "--launcher", launcher, "--nnodes", "4", "--nproc", "2")

    code, printed, _ = cli(
        *args,
        *("--cluster", str(tmp_path / "cluster.yaml")),
        *("--out", str(out)),
        *("--dry-run", "--json"),
    )

    assert code == 0
    plan = json.loads(printed)
    # ``PROGRAMS``: the engine's program that starts the job, such as sbatch. ``AGENT``: the module
    # that runs on every node, and gets the folder of the first session.
    assert plan["command"][0] == PROGRAMS[launcher]
    script = plan["files"][file]
    assert f"{AGENT} {out}/sessions/1" in script
    # How the agent learns its node's number: each engine has its own form.
    assert rank_variable in script
    # 5 rounds are the default of --repeats; 3 rounds pair each of four nodes with each other one.
    assert [(phase["phase"], phase["rounds"]) for phase in plan["phases"]] == [
        ("devices", 5),
        ("nodes", 5),
        ("pairs", 3),
        ("groups", 5),
    ]
    # The last round has all nodes; before a start only ssh knows their names.
    names = hosts if launcher == "ssh" else [f"node {number}" for number in range(4)]
    assert plan["schedule"][-1]["teams"] == [names]
    assert not out.exists()


@pytest.mark.parametrize(
    ("time", "limit_s"),
    [
        (None, None),
        ("120", 7_200),
        ("90:30", 90 * 60 + 30),
        ("2:00:00", 7_200),
        ("0-3", 3 * 3_600),
        ("0-3:30", 3.5 * 3_600),
        ("0-0:1:5", 65),
        ("0", None),  # Slurm: no limit
        ("UNLIMITED", None),
        ("1-0", None),  # one day, longer than the test's own limit
    ],
)
def test_dry_run_states_the_time_limit_of_a_slurm_job(
    cli, tmp_path: Path, time: str | None, limit_s: float | None
) -> None:
    """``time``: ``slurm.options.time`` of the cluster file, in a form of sbatch; None: not set.

    ``limit_s``: when the test then ends at the latest; None: after its own limit, which is 300 s to
    join and two deadlines of 600 s for each of 13 rounds: 5 of devices, 5 of nodes, 1 of pairs, and
    2 barriers. Two nodes have no rounds of groups.
    """
    options = {} if time is None else {"time": time}
    settings = {"device": "cpu", "nodes": 2, "devices_per_node": 2, "slurm": {"options": options}}
    (tmp_path / "cluster.yaml").write_text(json.dumps(settings))
    args = ("accept", "toy", "--launcher", "slurm", "--cluster", str(tmp_path / "cluster.yaml"))

    code, printed, _ = cli(*args, "--out", str(tmp_path / "out"), "--dry-run", "--json")

    assert code == 0
    plan = json.loads(printed)
    assert plan["limit_s"] == (limit_s or 300 + 2 * 600 * (5 + 5 + 1 + 2))
    # What to set for a shorter job, or that it is set.
    assert any("slurm.options" in remark for remark in plan["remarks"])


def test_dry_run_names_four_of_five_nodes_and_marks_the_rest(cli, tmp_path: Path) -> None:
    hosts = [f"host{number}" for number in range(5)]
    (tmp_path / "cluster.yaml").write_text(json.dumps({"device": "cpu", "ssh": {"hosts": hosts}}))
    args = ("accept", "toy", "--launcher", "ssh", "--nnodes", "5", "--nproc", "1")

    code, printed, _ = cli(
        *args,
        *("--cluster", str(tmp_path / "cluster.yaml")),
        *("--out", str(tmp_path / "out")),
        "--dry-run",
    )

    assert code == 0
    lines = printed.splitlines()
    # "…" stands for host4. "+" joins nodes that are measured together, "," those that are not.
    assert "groups, round 1 of 5: host0 + host1 + host2 + host3 + …" in lines
    assert "nodes, round 1 of 5: host0, host1, host2, host3, …" in lines


def test_dry_run_prints_times_and_the_command(cli, tmp_path: Path) -> None:
    args = ("accept", "toy", "--device", "cpu", "--nproc", "2", "--out", str(tmp_path / "out"))

    code, printed, _ = cli(*args, "--dry-run")

    assert code == 0
    lines = printed.splitlines()
    # A round has 20 s to start and, by default, 10 s of training: 5 rounds, the default number,
    # take 150 s. The one round of the node has all of its devices.
    assert "devices: 5 rounds, about 2.5 min" in lines
    assert "nodes: 1 round, about 0.5 min" in lines
    assert lines[-1].endswith("trainmark.acceptance.rank TASK")


@pytest.mark.parametrize(
    ("args", "remarks"),
    [
        (("--nproc", "2"), []),
        (
            ("--nproc", "2", "--worse-by", "5", "--rates-worse-by", "10", "--repeats", "1"),
            [
                "--worse-by 5 allows a device to be 500% slower; for 5%, use --worse-by 0.05",
                "--rates-worse-by 10 allows a matmul, a copy or a collective to be 1000% slower; "
                "for 10%, use --rates-worse-by 0.1",
                "there are too few rounds to estimate the noise, so no device can pass unless "
                "the folder contains earlier rounds; use a larger --repeats",
            ],
        ),
        # Three pairs of three devices: as many measurements as effects.
        (
            ("--nproc", "3", "--phases", "pairs"),
            [
                "there are too few rounds to estimate the noise, so no device can pass unless "
                "the folder contains earlier rounds; add devices to --phases",
            ],
        ),
        # Fifteen pairs of six devices estimate the noise.
        (("--nproc", "6", "--repeats", "1"), []),
        # Six measurements of two devices estimate it roughly, eight well enough.
        (
            ("--nproc", "2", "--repeats", "3"),
            [
                "so few rounds show the noise only roughly, so confidence intervals are at least "
                "2.2 times as wide as with a known noise, and devices may stay undecided; use a "
                "larger --repeats",
            ],
        ),
        (("--nproc", "2", "--repeats", "4"), []),
        (
            ("--nproc", "1"),
            [
                "a single device has no peers, so its speed stays undecided; add --baseline, or "
                "measure more devices"
            ],
        ),
    ],
)
def test_dry_run_remarks_which_verdicts_the_options_exclude(
    cli, tmp_path: Path, args: tuple[str, ...], remarks: list[str]
) -> None:
    # ``args``: options of which some make a verdict impossible; ``remarks``: what the plan then
    # says. A limit is a fraction: 5 is 500%. Without more measurements than unknown effects of
    # devices, the noise cannot be estimated.
    command = ("accept", "toy", "--device", "cpu", "--out", str(tmp_path / "out"), "--dry-run")

    code, printed, _ = cli(*command, *args, "--json")

    assert code == 0
    assert json.loads(printed)["remarks"] == remarks


def test_titles_and_remarks_of_single_devices_and_nodes_are_singular(cli, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"), "--dry-run")
    _, printed, _ = cli("accept", "toy", "--device", "cpu", "--nproc", "1", *out)
    assert printed.startswith("1 device of ")

    settings = {"device": "cpu", "ssh": {"hosts": ["a", "b"]}}
    (tmp_path / "cluster.yaml").write_text(json.dumps(settings))
    nodes = ("--launcher", "ssh", "--cluster", str(tmp_path / "cluster.yaml"), "--nproc", "1")
    _, printed, _ = cli("accept", "toy", *nodes, *out, "--worse-by", "1", "--repeats", "1")
    lines = printed.splitlines()
    assert lines[0].startswith("2 nodes with 1 device each, folder ")
    assert "--worse-by 1 allows a node to be 100% slower; for 1%, use --worse-by 0.01" in lines


def test_case_may_be_left_out_before_a_changed_field(cli, tmp_path: Path) -> None:
    out = ("--device", "cpu", "--nproc", "1", "--out", str(tmp_path / "out"), "--dry-run")

    code, printed, _ = cli("accept", "bs=2", *out)
    assert code == 0
    assert printed.startswith("1 device of ")
    # A wrong field is named as such, and not as a case.
    code, _, err = cli("accept", "no_such_field=2", *out)
    assert code == 2
    assert "no_such_field" in err
    assert "case" not in err.splitlines()[0].partition("no_such_field")[2]


def test_dry_run_refuses_a_baseline_as_the_measurement_does(cli, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    args = ("accept", "toy", "--device", "cpu", "--nproc", "1", *out, "--baseline", "/nowhere")
    dry_code, _, dry_error = cli(*args, "--dry-run")
    code, _, error = cli(*args)

    assert dry_code == code == 2
    assert dry_error == error
    assert "--baseline /nowhere" in error


@pytest.mark.parametrize("verb", ["accept", "run"])
@pytest.mark.parametrize(
    ("out", "expected_error"),
    [
        ("used", "used: the folder is not empty"),
        ("used/file", "file: not a folder"),
        ("used/file/out", "out: cannot write to this folder: Not a directory"),
    ],
)
def test_dry_run_refuses_an_output_folder_as_the_measurement_does(
    cli, tmp_path: Path, verb: str, out: str, expected_error: str
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("of something else")
    args = (verb, "toy", "--device", "cpu", "--nproc", "1", "--out", str(tmp_path / out))
    dry_code, _, dry_error = cli(*args, "--dry-run")
    code, _, error = cli(*args)

    assert dry_code == code == 2
    assert dry_error == error
    assert expected_error in error


def test_dry_run_refuses_an_acceptance_of_other_work(cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    request = AcceptRequest.build(case="toy", device="cpu", nproc=1, out=out, seconds=5)
    (out / "request.json").write_text(request.model_dump_json())
    args = ("accept", "toy", "--device", "cpu", "--nproc", "1", "--out", str(out), "--dry-run")
    assert cli(*args, "--seconds", "5")[0] == 0  # it would resume the test
    code, _, error = cli(*args, "--seconds", "6")

    assert code == 2
    assert "seconds changed from 5.0 to 6.0" in error


@pytest.mark.parametrize(
    ("args", "where"),
    [
        # An attached job is planned already.
        (("--attach", "x", "--dry-run"), "--attach"),
        # Groups need the phases of nodes and pairs, and more than one machine.
        (("toy", "--phases", "groups"), "--phases"),
        (("toy", "--phases", "nodes,pairs,groups", "--device", "cpu"), "--phases"),
        # Several nodes need a launcher.
        (("toy", "--nnodes", "2", "--device", "cpu"), "--nnodes"),
    ],
)
def test_options_that_do_not_fit_are_refused(cli, args: tuple[str, ...], where: str) -> None:
    # ``where``: the option that the error names.
    code, _, err = cli("accept", *args)

    assert code == 2
    assert where in err


@pytest.mark.parametrize(
    ("nproc", "phases", "expected_fix"),
    [
        ("2", "pairs", "use --phases devices,nodes, or measure"),
        ("2", "devices,pairs", "remove pairs from --phases, or measure"),
        ("1", "pairs", "use --phases devices,nodes, or measure"),
    ],
)
def test_pairs_of_fewer_than_three_devices_are_refused_before_anything_is_written(
    cli, tmp_path: Path, nproc: str, phases: str, expected_fix: str
) -> None:
    # Two devices form a single pair, which is compared with no other.
    out = tmp_path / "out"
    args = ("accept", "toy", "--device", "cpu", "--nproc", nproc, "--out", str(out))

    code, printed, error = cli(*args, "--phases", phases)

    assert (code, printed) == (2, "")
    assert f"the pairs phase cannot run on {nproc} device" in error
    assert f"{expected_fix} at least 3 devices" in error
    assert not out.exists()
    dry_code, _, dry_error = cli(*args, "--phases", phases, "--dry-run")
    assert (dry_code, dry_error) == (code, error)
    # The default phases contain pairs, too, which are then left out.
    code, printed, _ = cli(*args, "--dry-run", "--json")
    assert code == 0
    assert [phase["phase"] for phase in json.loads(printed)["phases"]] == ["devices", "nodes"]
