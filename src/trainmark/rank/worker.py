"""The process of a rank: build the job that the plan names, and run the measured loop.

The launcher starts it as ``python -m trainmark.rank.worker RUN_DIR``. It emits the spans around the
loop and the report of a failure. It knows no case and no vendor.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.events.schema import EventWriter, name_rank_file
from trainmark.rank.contract import (
    DATA_VARIABLE,
    NODE_VARIABLE,
    STACKS_SIGNAL,
    format_log_name,
    format_stacks_name,
)
from trainmark.rank.failure import DISK_FULL_EXIT, describe_failure
from trainmark.rank.parent import PARENT_VARIABLE, die_with_parent
from trainmark.rank.process_group import join_ranks, leave_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainmark.plan.plan import Plan
    from trainmark.protocols import Device, Job, JobContext, MatmulRate, Vendor
    from trainmark.rank.loop import LoopResult
    from trainmark.rank.parameters import ParameterCheck
    from trainmark.rank.replay import WindowReplay
    from trainmark.rank.watch import StepWatch
    from trainmark.recipe import Recipe
    from trainmark.train.checkpoints import Checkpoints
    from trainmark.train.trained_rows import TrainedRows

clock = time.perf_counter_ns  # of all times that a rank reports
# The first matrix of an adapter has a zero gradient until the second matrix is no longer 0. That
# takes one step with a learning rate above 0, which is the second or third.
_NUM_GRADIENT_CHECKS = 5
ARTIFACTS_DIR = "artifacts"  # folder in the run directory for files that a job saves


class RankReporter:
    """A rank's event file, and where the rank is now, for error reports.

    A span is an event with the time of a named part of the run.

    Attributes:
        events: writes the event file.
        place: the current span or phase.
    """

    def __init__(self, run_dir: Path, rank: int) -> None:
        self.events = EventWriter(run_dir / name_rank_file(rank), clock)
        self.place = "start"  # where the rank is, for the report of an error

    def enter(self, place: str) -> None:
        """Note where the rank is, for the report of an error."""
        self.place = place

    @contextmanager
    def emit_span(self, name: str) -> Iterator[None]:
        """Emit a span with the time of the block, and note ``name`` as the place of errors.

        It stays the place after the block, until the rank enters another one.
        """
        self.place = name
        start_ns = clock()
        try:
            yield
        except BaseException:
            with suppress(OSError):  # report the failure itself, not a full disk
                self.events.emit("span", name=name, start_ns=start_ns, end_ns=clock())
            raise
        self.events.emit("span", name=name, start_ns=start_ns, end_ns=clock())


def _wait_for_nobody() -> None:
    """Do nothing: a run with a single rank waits for no others."""


def _join_run(backend: str, device: Device, run_timeout_s: float) -> Callable[[], None]:
    """Join the other ranks; return the function that waits for all of them."""
    import torch

    # The launcher ends a run that hangs after ``run_timeout_s``. A collective must not fail before.
    join_ranks(backend, device, timeout_s=2 * run_timeout_s)
    barrier: Callable[[], None] = torch.distributed.barrier
    return barrier


def read_precision_flags(torch_type: str) -> dict[str, Any]:
    """Return the flags of torch that decide in which precision matmuls run, by name.

    Args:
        torch_type: torch's name of the type of the device, such as ``cpu``.
    """
    import torch

    return {
        "float32_matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "autocast": torch.is_autocast_enabled(torch_type),
    }


class _RankSetup(NamedTuple):
    """A rank whose device is open, before its data and its model are built."""

    plan: Plan
    recipe: Recipe
    vendor: Vendor
    device: Device
    barrier: Callable[[], None]  # waits for all ranks
    precision_flags: Mapping[str, Any]  # what the device has set for the recipe's precision
    torch_flags: Mapping[str, Any]  # torch's own flags of precision, after the device has set them


class _PreparedRank(NamedTuple):
    """A rank whose job is built."""

    plan: Plan
    context: JobContext
    job: Job
    checkpoints: Checkpoints
    barrier: Callable[[], None]  # waits for all ranks
    torch_flags: Mapping[str, Any]  # torch's flags of precision before the job was built


class _TrainedRank(NamedTuple):
    """What the measured loop leaves to report."""

    outcome: LoopResult
    parameters: ParameterCheck
    first_step_watch: StepWatch  # what was counted in the first step
    trained_rows: TrainedRows  # notes about rows of the first epoch


def run_rank(reporter: RankReporter, run_dir: Path, number: int, local_rank: int) -> None:
    """Build the job of the plan in ``run_dir`` and run it as rank ``number``.

    Args:
        local_rank: number of the rank on its node.
    """
    prepared = _prepare_rank(reporter, run_dir, number, local_rank)
    trained_rank = _run_loop(reporter, prepared)
    if hasattr(prepared.job, "save"):  # a job need not have it; it saves what was trained
        with reporter.emit_span("checkpoint"):
            prepared.job.save(run_dir / ARTIFACTS_DIR)
            prepared.barrier()  # the first rank writes; the others wait in the same span
    _report_results(reporter, prepared, trained_rank)
    with reporter.emit_span("finish"):
        if prepared.plan.world_size > 1:
            leave_ranks()


def _prepare_rank(
    reporter: RankReporter, run_dir: Path, number: int, local_rank: int
) -> _PreparedRank:
    """Open the device, join the other ranks, build data and model, and emit the facts.

    Args:
        number: of this rank among all ranks.
        local_rank: its number on its node.
    """
    with reporter.emit_span("init"):
        from trainmark import cases
        from trainmark.plan.plan import CHECKPOINTS_DIR
        from trainmark.train.checkpoints import Checkpoints

        setup = _open_device(run_dir, local_rank)
        plan = setup.plan
        job_module = cases.import_part(plan.case, "job")
    with reporter.emit_span("preflight"):
        # ``context`` is what the job gets to know of this rank, ``matmul`` the rate of its device.
        # Ranks with other packages, or with too little memory, are refused.
        context, matmul = _check_ranks(reporter, setup, number)
    with reporter.emit_span("data_build"):
        data = job_module.load_data(context)
    with reporter.emit_span("model_build"):
        job = job_module.build(context, data)
    checkpoints = Checkpoints(job, context, run_dir / CHECKPOINTS_DIR, reporter.emit_span)
    if plan.resumed is not None:
        checkpoints.load(Path(plan.resumed.checkpoint), plan.resumed.progress)
    # If the job fails to compute its facts, the error is reported as one of ``model_build``.
    reporter.enter("model_build")
    collective = setup.vendor.collective_library() if plan.world_size > 1 else None
    _emit_facts(
        reporter,
        context,
        job,
        matmul,
        precision_flags=setup.precision_flags,
        collective=collective,
    )
    return _PreparedRank(plan, context, job, checkpoints, setup.barrier, setup.torch_flags)


def _open_device(run_dir: Path, local_rank: int) -> _RankSetup:
    """Read the plan, open the device in the recipe's precision, and join the other ranks.

    Args:
        local_rank: number of the rank on its node.
    """
    import torch

    from trainmark import devices
    from trainmark.plan.plan import Plan
    from trainmark.torch_version import refuse_missing_features

    plan = Plan.read(run_dir)
    recipe = plan.load_recipe()
    vendor = devices.choose_vendor(plan.device.vendor)
    # Checked here too, because the nodes may have another torch than the machine that planned.
    refuse_missing_features(recipe, vendor, plan.world_size)
    device = vendor.open(local_rank, plan.nproc)
    barrier = _wait_for_nobody
    if plan.world_size > 1:
        barrier = _join_run(vendor.collective_backend, device, recipe.timeout_s)
    # What the vendor's code has set, such as ``autocast``.
    precision_flags = device.set_precision(recipe.precision)
    # What torch itself reports now; ``_report_results`` compares it with that after training.
    torch_flags = read_precision_flags(device.torch_type)
    torch.manual_seed(recipe.seed)
    return _RankSetup(plan, recipe, vendor, device, barrier, precision_flags, torch_flags)


def _check_ranks(
    reporter: RankReporter, setup: _RankSetup, number: int
) -> tuple[JobContext, MatmulRate]:
    """Check that the ranks can train together, and measure the matmul rate of this one's device.

    Args:
        number: of this rank among all ranks.

    Returns:
        What the job gets to know of this rank, and the matmul rate.
    """
    from trainmark.protocols import JobContext
    from trainmark.rank.agreement import agree_on_memory, refuse_other_packages
    from trainmark.rank.preflight import measure_matmul

    plan = setup.plan
    setup.barrier()  # so that all ranks emit the next event at the same moment
    reporter.events.emit("synced", unix_ns=time.time_ns())  # aligns the clocks of nodes
    # The process of the node has put the versions of its packages into this variable.
    refuse_other_packages(os.environ.get(NODE_VARIABLE), plan.nnodes)
    matmul = measure_matmul(setup.device, setup.recipe.precision)
    # A node may have the data in another folder than the machine that planned.
    data_dir = Path(os.environ.get(DATA_VARIABLE) or plan.data.folder)
    context = JobContext(
        recipe=setup.recipe,
        data_dir=data_dir,
        rank=number,
        world_size=plan.world_size,
        device=setup.device,
        # The smallest memory of any rank, the same on all. Raises if the recipe needs more with the
        # data in this folder.
        memory=agree_on_memory(plan, setup.recipe, setup.vendor, setup.device, data_dir),
    )
    return context, matmul


def _emit_facts(
    reporter: RankReporter,
    context: JobContext,
    job: Job,
    matmul: MatmulRate,
    *,
    precision_flags: Mapping[str, Any],
    collective: str | None,
) -> None:
    """Emit the facts of the device and the job that are known before training.

    Args:
        matmul: measured rate of large matmuls, and ``swing``: how much less time the faster half of
            the measurement took than the slower half, as a share of the slower half's time.
        precision_flags: what the device has set for the recipe's precision.
        collective: name and version of the library of collectives; None: there is one rank.
    """
    from trainmark.protocols import Counts

    recipe = context.recipe
    device = context.device
    # Samples of a step on this rank, each with one sequence.
    rows = recipe.micro_batch_size * recipe.grad_accum_steps
    # Of sequences that are full, without padding. 0: a case without tokens.
    tokens = rows * getattr(recipe, "seq_length", 0)
    reporter.events.emit(
        "facts",
        device=device.describe(),
        memory_scope=device.memory().scope,  # whose memory is read: the device's or the process's
        precision_flags=precision_flags,
        attention_flags=device.attention_flags() if hasattr(device, "attention_flags") else {},
        matmul_flops_per_second=matmul.flops_per_second,
        matmul_swing=matmul.swing,
        steps_per_epoch=job.steps_per_epoch,
        step_flops=job.model_flops(
            Counts(samples=rows, sequences=rows, tokens=tokens, tokens_padded=tokens)
        ),
        samples_per_epoch=getattr(job, "samples_per_epoch", None),
        collective=collective,
    )


def _run_loop(reporter: RankReporter, prepared: _PreparedRank) -> _TrainedRank:
    """Run the measured loop; return what it leaves to report.

    The check of the parameters compares them before and after windows: they must change by training
    alone. The watch of the first window, which has one step, counts the FLOPs of matmuls, and notes
    the precision in which they ran.
    """
    from trainmark.rank.agreement import refuse_other_quality
    from trainmark.rank.loop import MeasuredLoop, Schedule
    from trainmark.rank.watch import StepWatch
    from trainmark.train.parallel import count_compiled_graphs
    from trainmark.train.read_ahead import iterate_batches
    from trainmark.train.trained_rows import TrainedRows

    plan, context, job, checkpoints, barrier, _torch_flags = prepared
    recipe = context.recipe
    device = context.device
    with reporter.emit_span("check"):
        trained = job.trained_parameters()
        parameters = _start_parameter_check(job, trained)
    # The thread that reads batches notes rows here; by their keys the loop finds trained rows among
    # those of an evaluation.
    trained_rows = TrainedRows()
    first_step_watch = StepWatch(partial(read_precision_flags, device.torch_type))
    outcome = MeasuredLoop(
        job=job,
        open_batches=partial(
            iterate_batches,
            job,
            device,
            depth=recipe.read_ahead_batches,
            note_batch=trained_rows.note_batch,
        ),
        trained_keys=trained_rows.keys,
        check_agreement=partial(refuse_other_quality, context.world_size),
        schedule=Schedule.from_recipe(recipe, plan.target, earlier_steps=checkpoints.begin.steps),
        begin=checkpoints.begin,
        save=checkpoints.save,
        device=device,
        clock=clock,
        barrier=barrier,
        emit=reporter.events.emit,
        stages=context.stages,  # times of parts of a step, such as an exchange between ranks
        enter=reporter.enter,
        parameters=parameters,
        # Repeats some windows from the same state, whose results must be the same bit by bit.
        replay=_make_replay(job, context, trained) if recipe.replay_every_windows else None,
        count_graphs=count_compiled_graphs if recipe.compile else lambda: None,
        # The watch would change what torch compiles.
        first_window=nullcontext() if recipe.compile else first_step_watch,
    ).run()
    checkpoints.close()  # waits until the last one is saved
    parameters.gradients.close()  # removes its hook on optimizer steps
    return _TrainedRank(outcome, parameters, first_step_watch, trained_rows)


def _start_parameter_check(job: Job, trained: Mapping[str, Any]) -> ParameterCheck:
    """Return the check of a job's trained parameters, which has recorded their initial state.

    Args:
        trained: the trained parameters, by name.
    """
    from trainmark.rank.parameters import ParameterCheck
    from trainmark.train.parameters import GradientWatch, TensorDigest

    parameters = ParameterCheck(
        digest=TensorDigest(trained),
        gradients=GradientWatch(trained, num_steps=_NUM_GRADIENT_CHECKS),
        # The method, which each check calls: how many steps should have changed parameters.
        updates=job.updates,
        clock=clock,
    )
    parameters.start()
    return parameters


def _make_replay(job: Any, context: JobContext, trained: Mapping[str, Any]) -> WindowReplay:
    """Return the object that repeats windows of a job; planning has checked that it can.

    Args:
        trained: the trained parameters, by name.
    """
    from trainmark.rank.replay import WindowReplay
    from trainmark.train.replay import StepDigests, StepperState
    from trainmark.train.stepper import add_over_ranks

    def is_on_any_rank(flag: bool) -> bool:
        """Return whether the flag is set on any rank; every rank must call it."""
        world_size = context.world_size
        (count,) = add_over_ranks(int(flag), world_size=world_size, device=job.stepper.device)
        return count > 0

    return WindowReplay(
        every_windows=context.recipe.replay_every_windows,
        job=job,
        device=context.device,
        state=StepperState(job.stepper),
        digests=StepDigests(trained, job.stepper),
        is_on_any_rank=is_on_any_rank,
    )


def _report_results(
    reporter: RankReporter, prepared: _PreparedRank, trained_rank: _TrainedRank
) -> None:
    """Emit, after training, the checks of the parameters and the results of the rank.

    The results are the facts of the job, memory, changes of the precision and counted FLOPs.
    """
    job = prepared.job
    device = prepared.context.device
    first_step_watch = trained_rank.first_step_watch
    precision = prepared.context.recipe.precision
    # The job may have changed flags of torch after the device had set them.
    current_flags = read_precision_flags(device.torch_type)
    precision_changes = [
        f"{name}: {value} -> {current_flags[name]}"
        for name, value in prepared.torch_flags.items()
        if current_flags[name] != value
    ]
    precision_changes += first_step_watch.list_changes(prepared.torch_flags, precision)
    # The calls of the job are timed apart from the check of the parameters, which comes after them
    # to detect changes by any of them. What follows the check is timed as ``finish`` again.
    with reporter.emit_span("finish"):
        facts = dict(job.facts())
        updates = job.updates()  # number of steps that should have changed parameters
    with reporter.emit_span("check"):
        reporter.events.emit("parameters", updates=updates, **trained_rank.parameters.end())
    with reporter.emit_span("finish"):
        memory = device.memory()
        reporter.events.emit(
            "result",
            job=facts,
            allocator_peak_bytes=memory.allocator_peak_bytes,
            used_bytes=memory.used_bytes,
            # Of rows of the first epoch, to find repeated ones.
            rows=trained_rank.trained_rows.digests,
            # Whether an evaluation did not tell which rows it scored.
            evaluation_unchecked=trained_rank.outcome.evaluation_unchecked,
            precision_changed=precision_changes,
            flops_counted=sum(first_step_watch.flops.values()) or None,  # None: not watched
            attention=sorted(first_step_watch.attention),
        )


def main(run_dir: Path) -> int:
    """Run the rank that the environment names; return its exit code."""
    number = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    if PARENT_VARIABLE in os.environ:  # the supervisor sets it for each rank that it starts
        die_with_parent(int(os.environ[PARENT_VARIABLE]))
    log = os.open(run_dir / format_log_name(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)  # standard output
    os.dup2(log, 2)  # standard error
    with (run_dir / format_stacks_name(number)).open("w") as stacks:
        # When a run hangs, the launcher sends this signal and reads the stacks from the file.
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        reporter = RankReporter(run_dir, number)
        reporter.events.emit("start", pid=os.getpid())
        try:
            run_rank(reporter, run_dir, number, local_rank)
            reporter.events.emit("end")
        except BaseException as error:  # noqa: BLE001 - a job may also raise SystemExit
            report = describe_failure(error, reporter.place)
            with suppress(OSError):  # the disk is full: the launcher knows the exit code
                reporter.events.emit("error", **report)
                sys.stderr.write(report["traceback"])
            return DISK_FULL_EXIT if report["kind"] == "disk_full" else 1
        finally:
            faulthandler.unregister(STACKS_SIGNAL)
    return 0


if __name__ == "__main__":
    # Skip the interpreter's slow teardown of torch: everything is on disk by now.
    code = main(Path(sys.argv[1]))
    with suppress(OSError):  # the disk may be full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
