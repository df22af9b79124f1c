"""Print what ``trainmark run --dry-run`` shows: a summary of the plan, or all of it as JSON."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer
from pydantic_core import to_jsonable_python

from trainmark import cases, devices
from trainmark.cli.output import (
    format_count,
    format_path,
    print_json,
    print_lines,
    print_text,
    shorten_path,
)
from trainmark.launch import series
from trainmark.launch.local import build_rank_command
from trainmark.launch.submission import build_command
from trainmark.pages import cells
from trainmark.pages.document import Facts, build_table
from trainmark.pages.results import build_series_table, to_series_json
from trainmark.pages.terminal import show
from trainmark.plan.plan import UNCHECKED
from trainmark.plan.recipes import compute_step_samples, format_fix_hp, get_ranks_per_model
from trainmark.plan.resolving import list_launches
from trainmark.record.work import describe_planned_work, find_differences
from trainmark.results.earlier_runs import read_newest_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.launch.cluster import Cluster
    from trainmark.launch.series import SeriesEntry
    from trainmark.pages.document import Table
    from trainmark.plan.plan import Plan


def print_dry_run(plan: Plan, cluster: Cluster, *, as_json: bool) -> None:
    """Print the plan and its command, or the script that submits it, without starting it."""
    # 0: the launcher itself starts the ranks, on this machine. Otherwise one process on each node
    # starts them.
    if plan.node_processes == 0:
        _print_local_dry_run(plan, as_json=as_json)
    else:
        _print_submission_dry_run(plan, cluster, as_json=as_json)


def _print_local_dry_run(plan: Plan, *, as_json: bool) -> None:
    """Print the plan of a run on this machine, and the command of its ranks or its program."""
    if plan.witness is None:
        argv = build_rank_command("python", plan.run_dir)
    else:  # a user's own program, which the run starts and observes
        argv = list(plan.witness.command)
    if as_json:
        print_json({"plan": plan.model_dump(mode="json"), "command": argv}, indent=2)
        return
    typer.echo(_format_summary(plan))
    if plan.witness is None:  # the summary names the command of a user's own program
        print_text(f"each rank: {shlex.join(argv)}")
    print_text("nothing was started; --json prints the whole plan", err=True)


def _print_submission_dry_run(plan: Plan, cluster: Cluster, *, as_json: bool) -> None:
    """Print the script that submits a run to other machines, and the plan.

    The script goes to standard output, the plan to standard error.
    With ``as_json``, both are one document on standard output.
    """
    first_launch = list_launches(plan)[0]  # its own plan, with its run directory
    script = build_command(first_launch, cluster).render_script(Path(first_launch.run_dir))
    if as_json:
        print_json({"plan": first_launch.model_dump(mode="json"), "script": script}, indent=2)
        return
    typer.echo(_format_summary(plan), err=True)
    if plan.repeat_count > 1:
        print_text(
            f"the first of {plan.repeat_count} launches; they run one after another", err=True
        )
    print_text(script)
    print_text(
        f"to wait for the job: trainmark run --attach {shlex.quote(first_launch.run_dir)}",
        err=True,
    )


def _format_summary(plan: Plan) -> str:
    """Return what a run will do, as lines for a terminal; control characters are escaped."""
    return show([Facts(tuple(describe_plan(plan)))])


def describe_plan(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a run will do, as pairs of a name and a sentence."""
    if plan.witness is not None:  # a user's own program, which has no case, recipe or data
        yield "program", shlex.join(plan.witness.command)
        yield "started in", plan.witness.folder
        # A program such as torchrun is started once on each machine, and starts the ranks there.
        # Any other is started once for each rank.
        yield "starts", "all ranks of a machine" if plan.witness.starts_ranks else "each rank"
    else:
        yield from _describe_case(plan)
    yield "device", _describe_device(plan)
    if plan.witness is None:
        yield "data", _describe_data(plan)
        yield "steps", _describe_steps(plan)
    target = plan.target
    if target is not None:
        sign = ">=" if target.higher_is_better else "<="
        yield "target", f"{target.metric} {sign} {target.value:g}, which ends the run"
    memory = _describe_memory(plan) if plan.witness is None else ""
    if memory:
        yield "memory", memory
    yield "time", _describe_time(plan)
    if plan.repeat_count > 1:
        yield "launches", f"{plan.repeat_count}, one after another"
    yield "folder", format_path(Path(plan.run_dir))


def _describe_case(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what is trained, and how it differs from the case's own recipe."""
    yield "case", f"{plan.case}, {plan.about.title.en}, recipe {plan.recipe_name}"
    # `fix_hp` has the fields that the closed rules let a user change; `extra` has those that only
    # the open rules let a user change.
    changed = format_fix_hp(plan.fix_hp | plan.extra) or "nothing"
    yield "changed", f"{changed} (compared with {plan.compared_with}; {plan.rules} rules)"


def _describe_device(plan: Plan) -> str:
    """Return the devices, the ranks and the precision."""
    products = ", ".join(dict.fromkeys(plan.device.product_names))
    device = f"{plan.device.vendor} ({products})" if products else plan.device.vendor
    if plan.nnodes > 1:
        ranks = f"{plan.nnodes} x {plan.nproc} ranks"
    else:
        ranks = "1 rank" if plan.nproc == 1 else f"{plan.nproc} ranks"
    return f"{device}, {ranks}, {plan.recipe['precision']}"


def _describe_data(plan: Plan) -> str:
    """Return where the data comes from and how many samples it has, if it could be checked."""
    data = plan.data
    if data.layout == UNCHECKED:
        return f"{data.folder}, which is not on this machine and was not checked"
    counts = f"{data.train_samples:,} training and {data.eval_samples:,} evaluation samples"
    origin = "generated by the case" if data.origin == "generated" else f"{data.folder}"
    return f"{origin}: {counts}"


def _describe_steps(plan: Plan) -> str:
    """Return the samples of an optimizer step, and how many steps there are at most."""
    recipe = plan.recipe
    samples_per_step = compute_step_samples(recipe, plan.world_size)
    samples = f"{samples_per_step:,} samples a step"
    if recipe["grad_accum_steps"] > 1 or plan.world_size > 1:
        # Ranks that share one model by tensor parallelism train the same samples.
        ranks_per_model = get_ranks_per_model(recipe)
        trainers = f"{plan.world_size} ranks"
        if ranks_per_model > 1:
            num_models = plan.world_size // ranks_per_model
            trainers = f"{format_count(num_models, 'model')} of {ranks_per_model} ranks"
        samples += (
            f" ({recipe['micro_batch_size']} x {recipe['grad_accum_steps']} micro-batches x "
            f"{trainers})"
        )
    limits = format_count(recipe["max_epochs"], "epoch")
    if plan.data.train_samples:  # 0: the data could not be checked
        steps_per_epoch = max(1, round(plan.data.train_samples / samples_per_step))
        limits += f" of about {format_count(steps_per_epoch, 'step')}"
    if recipe["max_steps"] is not None:
        limits += f" and {format_count(recipe['max_steps'], 'step')}"
    return f"{samples}; at most {limits}"


def _describe_memory(plan: Plan) -> str:
    """Return the memory that a rank needs and that it can have.

    Empty: the memory is not known, or the case has no ``check_fit`` to compare it with.
    """
    if plan.node_processes > 0:  # the devices are on other machines
        return ""
    vendor = devices.list_vendors().get(plan.device.vendor)
    memory = vendor.rank_memory(plan.nproc) if vendor else None
    if memory is None or not hasattr(cases.import_part(plan.case, "data"), "check_fit"):
        return ""
    # Returns the bytes needed. It would raise an error if they were more than a rank can have, but
    # such a plan was refused when it was made.
    needed_bytes = cases.check_fit(
        plan.case, Path(plan.data.folder), plan.load_recipe(), plan.world_size, memory
    )
    available = f"{memory.rank_bytes / cells.GIB:.1f} GiB available per rank"
    if needed_bytes is None:  # the case predicts none
        return available
    return f"at least {needed_bytes / cells.GIB:.1f} GiB per rank; {available}"


def _describe_time(plan: Plan) -> str:
    """Return the time limit, and the time of the newest run of the same work."""
    limit = f"limit {cells.format_duration(plan.recipe['timeout_s'])}"
    earlier = _find_earlier_run(plan, store=Path(plan.run_dir).parent)
    if earlier is None:
        return f"unknown before a run; {limit}"
    return f"{cells.format_duration(earlier.took_s)} in an earlier run ({earlier.run_id}); {limit}"


class EarlierRun(NamedTuple):
    """A run of the same work that passed."""

    run_id: str
    took_s: float


def _find_earlier_run(plan: Plan, store: Path) -> EarlierRun | None:
    """Return the newest run of the same work in the folder ``store``; None if there is none."""
    # A new plan may hold a value in another type than a record that was read from JSON. Both are
    # converted to JSON values, so that equal ones compare equal.
    planned_work = to_jsonable_python(describe_planned_work(plan))
    for _, launches_of_run in read_newest_runs(store):  # the newest first
        for record in launches_of_run:
            took_s = record.figure("e2e_time")
            work = to_jsonable_python(describe_planned_work(record.plan))
            is_same_work = not find_differences(planned_work, work)
            if took_s is not None and record.passed and is_same_work:
                return EarlierRun(record.run_id, took_s)
    return None


class PlannedLaunch(NamedTuple):
    """A launch of a plan file that is to be done.

    Args:
        name: name of the entry.
        launch: number of this launch among those of its entry, from 1.
        launches: number of launches of the entry.
        run_dir: the run directory.
        expected_s: time of an earlier launch of the same work; None: there is none.
        limit_s: time limit of the launch.
    """

    name: str
    launch: int
    launches: int
    run_dir: Path
    expected_s: float | None
    limit_s: float


def list_planned_launches(entries: Sequence[SeriesEntry]) -> list[PlannedLaunch]:
    """Return the launches that the entries of a plan file still need, in the order they start."""
    expected_s_by_entry: dict[str, float | None] = {}
    planned = []
    for entry, plan in series.order_launches(entries):  # `plan` is that of one launch
        if entry.name not in expected_s_by_entry:  # all launches of an entry do the same work
            assert entry.plan is not None, "a skipped entry has no launch"
            # The folder with the runs of this plan file is searched first, then its parent, where
            # the user's other runs are. The folder is read from the entry's plan, because the plan
            # of a single launch may name a folder one level deeper (`ENTRY/r2`).
            folder = Path(entry.plan.run_dir).parent
            earlier = _find_earlier_run(plan, folder) or _find_earlier_run(plan, folder.parent)
            expected_s_by_entry[entry.name] = None if earlier is None else earlier.took_s
        planned.append(
            PlannedLaunch(
                name=entry.name,
                launch=plan.repeat_index,
                launches=plan.repeat_count,
                run_dir=shorten_path(Path(plan.run_dir)),
                expected_s=expected_s_by_entry[entry.name],
                limit_s=float(plan.recipe["timeout_s"]),
            )
        )
    return planned


def print_series_dry_run(
    entries: Sequence[SeriesEntry], *, name: str, exit_code: int, as_json: bool
) -> None:
    """Print the state of a plan file's entries, then the order and time of the remaining launches.

    Nothing is started.

    Args:
        name: of the plan file.
        exit_code: of this command, for the JSON; 2 if this machine can run none of the entries.
    """
    planned = list_planned_launches(entries)
    if as_json:
        document = to_series_json(entries, name=name, exit_code=exit_code, format_path=format_path)
        order = [launch._asdict() | {"run_dir": str(launch.run_dir)} for launch in planned]
        print_json(document | {"launches_to_do": order})
        return
    # Its text is escaped already.
    typer.echo(build_series_table(entries, format_path=format_path))
    if planned:
        typer.echo(f"\n{show([_build_order_table(planned)])}")
    print_lines([f"launches to do: {len(planned)}{_format_total_time(planned)}"])
    print_text("nothing was started", err=True)


def _build_order_table(planned: Sequence[PlannedLaunch]) -> Table:
    """Return a table with a row for each launch, in the order in which they start."""
    rows = [
        (
            str(number),
            launch.name,
            f"{launch.launch}/{launch.launches}",
            "not known" if launch.expected_s is None else cells.format_duration(launch.expected_s),
        )
        for number, launch in enumerate(planned, start=1)
    ]
    return build_table(("order", "run", "launch", "time"), rows)


def _format_total_time(planned: Sequence[PlannedLaunch]) -> str:
    """Return the time of all launches as the end of a sentence; empty: there is no launch."""
    expected_s = [launch.expected_s for launch in planned if launch.expected_s is not None]
    # Time limits of the launches for which there is no earlier run.
    limits_s = [launch.limit_s for launch in planned if launch.expected_s is None]
    text = ""
    if expected_s:
        count = f" for {len(expected_s)} of them" if limits_s else ""
        text += f"; about {cells.format_duration(sum(expected_s))}{count}, as in earlier runs"
    if limits_s:
        subject = "the others are" if expected_s else "their time is"
        limit = cells.format_duration(sum(limits_s))
        text += f"; {subject} unknown before a run, at most {limit} in all"
    return text
