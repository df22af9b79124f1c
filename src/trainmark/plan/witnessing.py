"""Resolve a request for a program of the user's own into a plan; starts nothing."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.plan.choosing import Choice, format_case_key, list_unproven, select_vendor
from trainmark.plan.plan import (
    RUNS_DIR,
    Plan,
    PlannedCase,
    PlannedData,
    PlannedDevice,
    format_run_id,
)
from trainmark.plan.reference import References
from trainmark.plan.witness import (
    WITNESSED,
    Witness,
    WitnessSpec,
    find_rank_launcher,
    read_nproc,
    read_witness_spec,
)
from trainmark.recipe import Recipe
from trainmark.spec import Case, Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from trainmark.plan.choosing import RemoteTarget
    from trainmark.plan.request import RunRequest
    from trainmark.protocols import Vendor

_CASE_OPTIONS = ("recipe", "data", "seed", "resume", "overrides")  # only for runs of a case
# Fields of the plan's recipe; the others are not known of a program of the user's own.
_KNOWN_FIELDS = (
    "micro_batch_size",
    "grad_accum_steps",
    "precision",
    "max_epochs",
    "max_steps",
    "warmup_steps",
    "window_steps",
    "target_value",
    "timeout_s",
)
_MAX_CHECK_S = 120.0  # for a Python to import the probe


def resolve_witnessed(
    request: RunRequest,
    *,
    remote: RemoteTarget | None,
    started: datetime,
    run_token: str,
    dry_run: bool,
) -> Plan:
    """Check a request to measure a user's own program, and return its plan.

    Args:
        remote: the machines of a launcher; None: this one.
        started: the run's time, which is part of its id.
        run_token: the random end of the run's id.
        dry_run: the plan is only shown.

    Raises:
        UsageError, EnvironmentFault: before anything starts.
    """
    assert request.witness is not None, "the caller has a file of --witness"
    _refuse_options(request)
    spec = read_witness_spec(request.witness)
    witness = _describe_program(spec, request.command)
    nproc = _choose_nproc(request, witness)
    choice = _choose_work(request, spec, nproc)
    # As for a case, ranks that are more than the cores run, but compete for them.
    vendor = select_vendor(choice, request.device, remote=remote, ranks_share_cores=True)
    # The check starts the program's Python. A dry run starts nothing, and other machines have
    # programs of their own.
    if remote is None and not dry_run:
        _check_interpreter(witness)

    run_id = format_run_id(choice.case.name, started, run_token)
    return _assemble_plan(request, witness, choice, vendor, remote=remote, run_id=run_id)


def choose_program_work(request: RunRequest) -> Choice:
    """Return the program of a request in the form of a case's choice, without checking devices.

    Raises:
        UsageError: there is no program, an option is only for cases or contradicts the command, or
            the witness file is unreadable or wrong.
    """
    assert request.witness is not None, "the caller has a file of --witness"
    _refuse_options(request)
    spec = read_witness_spec(request.witness)
    # The number of ranks depends on whether the program starts the ranks of a machine itself.
    nproc = _choose_nproc(request, _describe_program(spec, request.command))
    return _choose_work(request, spec, nproc)


def _refuse_options(request: RunRequest) -> None:
    """Refuse options that only a case has, and a request without a program."""
    if not request.command:
        raise UsageError(
            "--witness needs a program",
            where="--witness",
            fix=(
                "add the program after --, as in `trainmark run --witness work.toml -- python "
                "train.py`"
            ),
        )
    for name in _CASE_OPTIONS:
        if getattr(request, name) not in (None, {}):  # an option that is not given has one of these
            option = "KEY=VALUE" if name == "overrides" else f"--{name}"
            raise UsageError(
                f"{option} cannot be used with --witness",
                where=option,
                rule="with --witness, the program itself controls this setting",
                fix="pass the option to the program, after --",
            )


def _describe_program(spec: WitnessSpec, command: Sequence[str]) -> Witness:
    """Return the program with its folder, and whether it starts the ranks of a machine itself."""
    starts_ranks = spec.starts_ranks  # None: the witness file does not say
    if starts_ranks is None:
        starts_ranks = find_rank_launcher(command) is not None
    return Witness(
        spec=spec, command=tuple(command), folder=str(Path.cwd()), starts_ranks=starts_ranks
    )


def _choose_nproc(request: RunRequest, witness: Witness) -> int:
    """Return the ranks on each machine.

    Raises:
        UsageError: the command and ``--nproc`` differ.
    """
    nproc = read_nproc(witness.command, nnodes=request.nnodes or 1)
    if nproc is None:
        return request.nproc or 1
    if request.nproc not in (None, nproc):
        raise UsageError(
            f"--nproc is {request.nproc}, but the command starts {nproc} ranks on each machine",
            where="--nproc",
            rule="--nproc must be the number of ranks that the command starts on each machine",
            fix="remove --nproc",
        )
    return nproc


def _choose_work(request: RunRequest, spec: WitnessSpec, nproc: int) -> Choice:
    """Return the program as a ``Choice``, with a case and a recipe made for it."""
    nnodes = request.nnodes or 1
    world_size = nnodes * nproc
    _refuse_impossible_spec(spec, str(request.witness), world_size=world_size)
    step = spec.step
    # The numbers 1 and 10 are placeholders for what the file leaves open. The probe inside the
    # program counts the batch, or chooses the window.
    recipe = Recipe(
        micro_batch_size=1 if step is None else ceil(step.samples / world_size),
        precision=spec.precision,
        warmup_steps=spec.warmup_steps,
        window_steps=spec.window_steps or 10,
        eval_every_epochs=None,
        target_value=spec.target_loss,
        timeout_s=request.timeout or Recipe.timeout_s,
    )
    case = Case(
        name=spec.name,
        title=Text(spec.name, spec.name),
        task=Text("a program of the user's own", "用户自己的程序"),
        model=spec.name,
        dataset=Text("read by the program", "由程序读取"),
        metric="train_loss",
        metric_note=Text("mean training loss of the last steps", "最后若干步的平均训练损失"),
        sample_note=Text("as stated in the --witness file", "按 --witness 文件的说明"),
        higher_is_better=False,
        work_unit="tokens" if spec.counts_tokens else "samples",
        recipe_type=Recipe,
        recipes={WITNESSED: recipe},
    )
    return Choice(
        case=case,
        recipe_name=WITNESSED,
        recipe=recipe,
        hardware=None,
        nnodes=nnodes,
        nproc=nproc,
        repeat=request.repeat or 1,
    )


def _refuse_impossible_spec(spec: WitnessSpec, file: str, *, world_size: int) -> None:
    """Refuse the name of a case, and a step with fewer samples than ranks.

    Args:
        file: path of the file that has ``spec``.
    """
    if spec.name in cases.list_names():
        raise UsageError(
            f"the name {spec.name!r} already belongs to a case",
            where=f"{file}: name",
            rule=(
                "a program must not have the name of a case, because results of programs are never "
                "comparable with results of cases"
            ),
            fix="choose another name",
        )
    if spec.step is not None and spec.step.samples < world_size:
        raise UsageError(
            f"step.samples is {spec.step.samples}, but there are {world_size} ranks",
            where=f"{file}: step.samples",
            rule="step.samples is the total of all ranks, and each rank needs at least one sample",
            fix="set step.samples to the total number of samples per step on all ranks",
        )


def _check_interpreter(witness: Witness) -> None:
    """Refuse a program that does not exist, or whose Python cannot import the probe.

    Only Python itself and scripts whose first line names a Python are checked for the import.
    """
    program = witness.command[0]
    path = shutil.which(program)
    if path is None:
        raise UsageError(
            f"there is no program {program!r}",
            where="the command after --",
            rule="the first word must be a program on the PATH, or the path of a program",
            fix="to run a Python file, put `python` before the name of the file",
        )
    interpreter = [path] if Path(path).name.startswith("python") else _read_shebang(Path(path))
    if not interpreter:
        return
    reason = _find_import_error(interpreter)
    if reason is not None:
        raise EnvironmentFault(
            f"{shlex.join(interpreter)} cannot import Trainmark's probe: {reason}",
            where="the command after --",
            rule=(
                "the probe runs inside the program, so Trainmark must be installed in the "
                "program's environment"
            ),
            fix="install Trainmark in the environment of the program",
        )


def _find_import_error(interpreter: Sequence[str]) -> str | None:
    """Return why a Python cannot import the probe; None if it can.

    The probe is the part of Trainmark that runs inside the measured program.

    Args:
        interpreter: the command of this Python.
    """
    try:
        check = subprocess.run(
            [*interpreter, "-c", "import trainmark.witness.hooks"],
            capture_output=True,
            text=True,
            timeout=_MAX_CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the import did not end within {_MAX_CHECK_S:.0f} s"
    except OSError as error:  # a script may name a Python that does not exist
        return error.strerror or str(error)
    if check.returncode == 0:
        return None
    error_lines = check.stderr.strip().splitlines()
    return error_lines[-1] if error_lines else "no reason given"


def _read_shebang(script: Path) -> list[str]:
    """Return the Python command in the first line of a script; empty if there is none."""
    with script.open("rb") as file:
        first_line = file.readline(512)  # enough: Linux reads 256 bytes at most
    if not first_line.startswith(b"#!") or b"python" not in first_line:
        return []
    # As Linux does: all that follows the interpreter is one argument.
    return first_line[2:].decode("utf-8", "replace").strip().split(maxsplit=1)


def _assemble_plan(
    request: RunRequest,
    witness: Witness,
    choice: Choice,
    vendor: Vendor,
    *,
    remote: RemoteTarget | None,
    run_id: str,
) -> Plan:
    """Return the plan of a run; with several launches, the one from which theirs are made."""
    case = choice.case
    is_remote = remote is not None
    # A ``Case`` lacks only ``references``, of which a program of the user's own has none.
    facts = {name: getattr(case, name) for name in PlannedCase.model_fields if hasattr(case, name)}
    return Plan(
        suite_version=__version__,
        run_id=run_id,
        case=case.name,
        about=PlannedCase(**facts, references=References()),
        case_key=format_case_key(choice, vendor.name),
        recipe_name=WITNESSED,
        recipe=_describe_recipe(choice.recipe),
        compared_with=WITNESSED,  # with itself, so there are no changes of the recipe
        fix_hp={},  # changes that the closed rules allow
        extra={},  # all other changes
        rules="open",  # only cases have closed rules
        labels=_choose_labels(request, choice, vendor, is_remote=is_remote),
        device=PlannedDevice.from_vendor(vendor, choice.nproc, is_remote=is_remote),
        unproven=list_unproven(vendor, remote),
        peak_tflops=request.peak_tflops,
        nnodes=choice.nnodes,
        nproc=choice.nproc,
        repeat_index=1,  # of the only launch; ``plan_launch`` sets it if there are several
        repeat_count=choice.repeat,
        data=_describe_data(witness),
        run_dir=str((request.out or RUNS_DIR / run_id).resolve()),
        launcher="local" if remote is None else remote.launcher,
        sample_every_s=request.sample_every,
        witness=witness,
    )


def _choose_labels(
    request: RunRequest, choice: Choice, vendor: Vendor, *, is_remote: bool
) -> list[str]:
    """Return the labels that a reader of the figures must see first.

    Args:
        is_remote: the ranks run on other machines.
    """
    labels = ["self-reported", WITNESSED]  # every run is measured by whoever publishes it
    if choice.recipe.target_value is None:  # no quality is required
        labels.append("performance-only")
    # There are more ranks than cores; the cores of other machines are not known here.
    if vendor.counts_cores and not is_remote and choice.nproc > vendor.count():
        labels.append("oversubscribed")
    if request.peak_tflops is not None:
        labels.append("given-peak")
    return labels


def _describe_data(witness: Witness) -> PlannedData:
    """Return the plan's entry for the data of a user's program, which the program reads itself.

    So nothing is known of the data: their numbers are 0. The entry still tells which launches are
    comparable, by a digest of the program.

    Args:
        witness: the program; ``folder`` is its working directory.
    """
    return PlannedData(
        folder=witness.folder,
        origin="real",  # the other value is for data that a case of Trainmark generates
        layout=WITNESSED,
        content_id=_compute_digest(witness),  # launches of the same work are comparable
        train_samples=0,
        eval_samples=0,
        best_quality=None,
        quality_comparable=False,
    )


def _describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's fields that are known without looking into the program."""
    return {name: getattr(recipe, name) for name in _KNOWN_FIELDS}


def _compute_digest(witness: Witness) -> str:
    """Return a digest of a user's program; only launches with equal digests are comparable.

    Args:
        witness: the program. The digest covers its command, and ``spec``, the content of the file
            given with ``--witness``.
    """
    text = witness.model_dump_json(include={"spec", "command"})
    # 16 digits are enough: two of all programs that are ever compared will not have the same.
    return hashlib.sha256(text.encode()).hexdigest()[:16]
