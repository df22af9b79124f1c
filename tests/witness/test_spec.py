"""The file of ``run --witness``: what it holds, and which faults it names."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from trainmark.cli.dry_run import describe_plan
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.series import check_entries
from trainmark.plan.plan_file import read_plan_file
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.plan.witness import find_rank_launcher, read_nproc, read_witness_spec
from trainmark.record.work import describe_planned_work

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """
name = "mine"
precision = "bf16"
warmup_steps = 5
flops_per_token = 6e9
speed_line = 'tok/s: (?P<tokens_per_second>[0-9,]+)'
[step]
samples = 8
tokens = 4096
"""


def write_spec(folder: Path, text: str) -> Path:
    """Write the file of ``--witness`` and return its path."""
    path = folder / "work.toml"
    path.write_text(text)
    return path


def test_whole_file_is_read(tmp_path):
    # ``WHOLE`` is the text of a file with the values below, and with a pattern of lines that have a
    # speed. It has no ``optimizers`` and ``window_steps``, which get their defaults, 1 and None.
    # Because it states tokens of a step, tokens are counted.
    # ``flops_per_token`` is 6e9, and the precision bf16.
    spec = read_witness_spec(write_spec(tmp_path, WHOLE))
    assert (spec.name, spec.precision, spec.warmup_steps) == ("mine", "bf16", 5)
    assert spec.step is not None
    assert (spec.step.samples, spec.step.tokens, spec.counts_tokens) == (8, 4096, True)
    assert (spec.flops_per_token, spec.optimizers, spec.window_steps) == (6e9, 1, None)


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        # ``place``: the key or file that the error names; ``part``: a piece of its text.
        (WHOLE.replace("name", "names", 1), "names", "unknown key 'names'"),
        (WHOLE.replace('"bf16"', '"bf17"'), "precision", "bf17"),
        (WHOLE.replace("samples = 8", "samples = 0"), "step.samples", "0"),
        (WHOLE.replace("warmup_steps = 5", "warmup_steps = 2"), "warmup_steps", "at least 3"),
        (WHOLE.split("[step]", maxsplit=1)[0], "work.toml", "either [step] or [batch]"),
        (WHOLE + "[batch]\nsamples = 0\n", "work.toml", "either [step] or [batch]"),
        (WHOLE.replace("(?P<tokens_per_second>", "(?P<speed>"), "speed_line", "named group"),
        (WHOLE.replace("(?P<tokens_per_second>", "(?P<tokens"), "speed_line", "regular expression"),
        (WHOLE.replace("tokens = 4096", ""), "work.toml", "flops_per_token needs"),
        ("name = ", "work.toml", "not TOML"),
    ],
)
def test_fault_names_file_and_key(tmp_path, text, place, part):
    # ``WHOLE`` is a file without a fault: the name, bf16, 5 steps of warm-up, FLOPs of a token, 8
    # samples and 4,096 tokens in a step, and a pattern with a group for each printed quantity.
    with pytest.raises(UsageError) as fault:
        read_witness_spec(write_spec(tmp_path, text))
    assert str(tmp_path / "work.toml") in str(fault.value.where)
    assert place in str(fault.value.where)
    assert part in f"{fault.value.what} {fault.value.rule}"


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError) as fault:
        read_witness_spec(tmp_path / "none.toml")
    assert fault.value.where == str(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("command", "launcher", "nproc"),
    [
        ("python train.py --nproc-per-node 4", None, None),  # an option of the program's own
        ("torchrun --nproc-per-node 4 train.py", "torchrun", 4),
        ("/venv/bin/torchrun --nproc_per_node=8 train.py", "torchrun", 8),
        ("torchrun --nproc-per-node auto train.py", "torchrun", None),  # not known before it runs
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", "torch.distributed.run", 2),
        ("torchrun t.py --nproc-per-node 4", "torchrun", None),  # an option of the script's own
        ("torchrun --nproc-per-node 2 --nproc_per_node=4 t.py", "torchrun", 4),  # the last counts
        ("torchrun --nproc-per-node 2 --nproc-per-node gpu t.py", "torchrun", None),
        ("accelerate launch --num_processes 2 train.py", "accelerate", 2),
        ("python3 -m accelerate.commands.launch --num_processes 3 t.py", "accelerate", 3),
        ("python -u -X dev -m torch.distributed.run t.py", "torch.distributed.run", None),
        ("python -um torch.distributed.run --nproc-per-node 2 t.py", "torch.distributed.run", 2),
        ("python -Bmtorch.distributed.run --nproc-per-node 2 t.py", "torch.distributed.run", 2),
        ("python -uX dev -Wignore -m deepspeed --num_gpus 4 t.py", "deepspeed", 4),
        ("python -Wm deepspeed t.py", None, None),  # the value of -W is "m"
        ("python -uc code -m deepspeed", None, None),
        ("python train.py -m deepspeed --num_gpus 4", None, None),  # options of the program's own
        ("python -c code -m deepspeed", None, None),
        ("python -m train -m deepspeed", None, None),
        ("python -m", None, None),
        ("python", None, None),
    ],
)
def test_ranks_of_known_launchers(command, launcher, nproc):
    # ``launcher``: the program in the command that starts ranks; ``nproc``: how many on a machine.
    # None: no such program, or a number that the command does not tell.
    args = command.split()
    assert find_rank_launcher(args) == launcher
    assert read_nproc(args, nnodes=1) == nproc


def test_ranks_of_accelerate_are_those_of_all_machines():
    # The option of accelerate is the total, that of torchrun is the number on each machine.
    assert read_nproc(["accelerate", "launch", "--num_processes", "16", "t.py"], nnodes=2) == 8
    assert read_nproc(["torchrun", "--nproc-per-node", "16", "t.py"], nnodes=2) == 16


def make_plan(folder: Path, command: str, **fields: object):
    """Return the plan of a command with ``WHOLE``; ``fields`` are further ones of the request.

    ``WHOLE`` is the file of ``--witness``: bf16, and 8 samples with 4,096 tokens in a step.
    """
    request = RunRequest.build(
        case="witnessed",
        witness=write_spec(folder, WHOLE),
        command=command.split(),
        device="cpu",
        **fields,
    )
    return resolve(request, dry_run=True)


def test_plan_takes_ranks_from_the_command(tmp_path):
    # The plan of ``run --witness FILE -- COMMAND``, which measures a user's own program, here one
    # that starts its ranks itself.
    planned = make_plan(tmp_path, "torchrun --nproc-per-node 4 train.py")
    assert (planned.nproc, planned.world_size) == (4, 4)
    assert planned.witness is not None  # the user's program
    assert planned.witness.starts_ranks
    # ``WHOLE``, the file of ``make_plan``, states 8 samples a step, which 4 ranks share.
    assert planned.recipe["micro_batch_size"] == 2
    assert "witnessed" in planned.labels


def test_ranks_that_contradict_the_command_are_refused(tmp_path):
    # The command starts 4 ranks, but the option ``--nproc`` of the user says 2.
    with pytest.raises(UsageError) as fault:
        make_plan(tmp_path, "torchrun --nproc-per-node 4 train.py", nproc=2)
    assert fault.value.where == "--nproc"


def test_options_of_cases_are_refused_for_a_program(tmp_path):
    # Trainmark cannot set the seed or the batch of a user's program: that program has options of
    # its own. ``make_plan`` plans a run of a command with ``--witness``.
    with pytest.raises(UsageError) as fault:
        make_plan(tmp_path, "python train.py", seed=3)
    assert fault.value.where == "--seed"
    with pytest.raises(UsageError, match="KEY=VALUE cannot be used with --witness"):
        make_plan(tmp_path, "python train.py", overrides={"bs": 16})


def test_time_limit_of_zero_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--timeout: 0"):
        make_plan(tmp_path, "python train.py", timeout=0.0)


def test_first_line_of_a_script_may_have_a_quotation_mark(tmp_path):
    # ``WHOLE`` is a valid file of ``--witness``. The command is a script, whose first line names
    # the Python that planning asks whether it can import the probe, which watches a program.
    script = tmp_path / "train"
    script.write_text(f'#!{sys.executable} "missing\n')
    script.chmod(0o755)
    request = RunRequest.build(
        case="witnessed",
        witness=write_spec(tmp_path, WHOLE),
        command=[str(script)],
        device="cpu",
        nproc=1,
    )
    # Linux gives this Python the argument `"missing`, a file that does not exist.
    with pytest.raises(EnvironmentFault, match="cannot import Trainmark's probe") as fault:
        resolve(request)
    assert '"missing' in str(fault.value)


def test_name_of_a_case_is_refused(tmp_path):
    # ``WHOLE``, a valid file of ``--witness``, names its program "mine"; "toy" is a case of ours.
    request = RunRequest.build(
        case="witnessed",
        witness=write_spec(tmp_path, WHOLE.replace('"mine"', '"toy"')),
        command=["python", "train.py"],
        device="cpu",
    )
    with pytest.raises(UsageError) as fault:
        resolve(request, dry_run=True)
    assert "already belongs to a case" in fault.value.what


def test_program_is_not_comparable_with_a_case_or_another_command(tmp_path):
    # Runs are compared only if their work is the same, ``witnessed`` included: it identifies a
    # user's program and its command, and is None for a case.
    first = describe_planned_work(make_plan(tmp_path, "python train.py"))
    other = describe_planned_work(make_plan(tmp_path, "python train.py --lr 3"))
    case = describe_planned_work(resolve(RunRequest.build(case="toy", device="cpu")))
    assert first["witnessed"] != other["witnessed"]
    assert first["witnessed"] is not None
    assert case["witnessed"] is None


def test_program_stays_comparable_if_only_the_speed_pattern_changes(tmp_path):
    # Runs are compared only if what ``describe_planned_work`` returns is equal. ``WHOLE`` is the
    # file of ``--witness`` that ``make_plan`` writes, too.
    first = describe_planned_work(make_plan(tmp_path, "python train.py"))
    # The same file with the pattern of lines with a speed made a comment: how a speed is printed
    # does not change the work.
    without = WHOLE.replace("speed_line", "# speed_line")
    write_spec(tmp_path, without)
    request = RunRequest.build(
        case="witnessed",
        witness=tmp_path / "work.toml",
        command=["python", "train.py"],
        device="cpu",
    )
    assert describe_planned_work(resolve(request, dry_run=True)) == first


def test_plan_file_names_programs(tmp_path):
    # ``WHOLE`` is a valid file of ``--witness``, which ``write_spec`` writes to ``work.toml``. The
    # first entry runs twice, with one and with two ranks. Without a name of its own, it has that of
    # its file and the value in which its runs differ.
    work = write_spec(tmp_path, WHOLE)
    (tmp_path / "plan.yaml").write_text(
        f"runs:\n  - {{witness: {work}, command: [python, train.py, --lr, '3'], nproc: [1, 2]}}\n"
        f"  - {{witness: {work}, command: [python, other.py], name: other}}\n"
    )
    request = RunRequest.build(
        case=str(tmp_path / "plan.yaml"), device="cpu", out=tmp_path / "runs"
    )
    entries = check_entries(read_plan_file(request), dry_run=True)
    assert [entry.name for entry in entries] == ["work-nproc_1", "work-nproc_2", "other"]
    plans = [entry.plan for entry in entries if entry.plan is not None]
    assert [planned.nproc for planned in plans] == [1, 2, 1]
    commands = [planned.witness.command for planned in plans if planned.witness is not None]
    assert commands == [("python", "train.py", "--lr", "3")] * 2 + [("python", "other.py")]


def test_dry_run_shows_the_command(tmp_path):
    # What ``--dry-run`` prints, by the name of each line. "each rank": Trainmark itself starts each
    # rank by the command. bf16 is of ``WHOLE``, the file that ``make_plan`` writes.
    lines = dict(describe_plan(make_plan(tmp_path, "python train.py --lr 3")))
    assert lines["program"] == "python train.py --lr 3"
    assert lines["starts"] == "each rank"
    assert lines["device"].endswith("1 rank, bf16")
