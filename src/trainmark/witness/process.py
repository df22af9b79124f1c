"""Find out whether this process is a rank of a witnessed run, and report how it ends.

A process becomes a rank with its first backward pass; its number is that of its process group or
environment. A process without a backward pass writes nothing, unless the launcher started it as a
rank. Nothing here may keep the program from running: an error of the probe ends the probe.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.events.schema import EventWriter, name_rank_file
from trainmark.protocols import Counts
from trainmark.rank.failure import describe_failure
from trainmark.witness import RUN_DIR_VARIABLE
from trainmark.witness.stepping import SteppingOptimizers

if TYPE_CHECKING:
    from trainmark.protocols import Device
    from trainmark.witness.rank import StatedStep, WitnessedRank

clock = time.perf_counter_ns  # of all events of this process
_MAX_TEXT_CHARS = 4_000  # of an error of the probe


class EarlyBatch(NamedTuple):
    """A batch that was read before the process became a rank.

    Args:
        dataset_id: id of its data set.
        epoch_number: number of the epoch that the loader reads; each has its own.
    """

    dataset_id: int
    batch: Any
    epoch_number: int


class WitnessedProcess:
    """A process of the user's program: it is a rank, may become one, or never will.

    It becomes a rank with its first backward pass.

    Args:
        run_dir: folder of the run, with a file of events for each rank.
        start_ns: time at which the process started.

    Attributes:
        rank: the rank that this process is; None: it is not a rank.
        last_request_ns: time at which the program last asked for a batch.
        early_batch: the last batch before the process became a rank; None: there was none.
        _stepping: the optimizers that are stepping now.
        _is_watching: whether the hooks in torch still report to this object.
        _events: writes the file of the rank; None: the process has not claimed to be a rank.
        _pid: id of this process, by which a forked child knows that it is another one.
    """

    def __init__(self, run_dir: Path, start_ns: int) -> None:
        self.run_dir = run_dir
        self.start_ns = start_ns  # when this process started
        self.rank: WitnessedRank | None = None  # None: this process is not a rank, or not yet
        self.last_request_ns = 0  # when the program last asked for a batch; 0: it has not
        # The last batch that was read before this process is a rank; None: none was read.
        self.early_batch: EarlyBatch | None = None
        self._stepping = SteppingOptimizers()
        # False: this process was refused as a rank, the probe or the program failed, or the rank's
        # results were written.
        self._is_watching = True
        self._pid = os.getpid()  # a forked child has another one
        self._events: EventWriter | None = None  # None: this process has not claimed to be a rank

    @property
    def is_watching(self) -> bool:
        """Tell whether the hooks still report to this process.

        They stop if it is refused as a rank, if the probe or the program fails, and when the rank's
        results are written.
        """
        return self._is_watching

    def stop(self) -> None:
        """Stop watching this process."""
        self._is_watching = False
        self.rank = None

    def become_child(self) -> None:
        """Reset the state in a forked child, which is no rank until it trains itself.

        Its parent writes the events of the rank.
        """
        self.rank = None
        self._events = None
        self._pid = os.getpid()

    def claim_rank(self, torch_module: Any) -> WitnessedRank | None:
        """Become a rank and return it.

        None: another process is the rank with this number, or the program has another number of
        ranks than planned.
        """
        plan = json.loads((self.run_dir / "plan.json").read_bytes())
        rank_number, world_size = _find_rank(torch_module)
        planned_world_size = plan["nnodes"] * plan["nproc"]
        # Of several processes with this number, the one that creates the file is the rank.
        if not _create_file(self.run_dir / name_rank_file(rank_number)):
            self._refuse(rank_number, "witness_rank_twice", rank=rank_number)
            return None
        events = EventWriter(self.run_dir / name_rank_file(rank_number), clock)
        self._events = events
        # The first backward pass of the program calls this method. Training began with the request
        # for the batch of this pass, which is the last request so far. Without a request, training
        # begins now.
        training_start_ns = self.last_request_ns or clock()
        events.emit("start", t_ns=self.start_ns, pid=self._pid)
        events.emit("span", name="init", start_ns=self.start_ns, end_ns=training_start_ns)
        # Refused only now, after the file was made: the record takes the reason from the files of
        # the planned ranks. If the program has more ranks than planned, the planned ones are
        # refused here as well, so that one of these files has the reason.
        if rank_number >= planned_world_size or world_size != planned_world_size:
            self._refuse(rank_number, "witness_world", ranks=world_size, planned=planned_world_size)
            return None
        device = _open_device(torch_module, plan)
        _emit_facts(events, device, torch_module)
        self.rank = _build_rank(plan, world_size, rank_number, events, device)
        self.rank.begin(training_start_ns)
        if self.early_batch is not None:
            early = self.early_batch
            mark = device.mark()  # twice, as start and end: how long the fetch took is not known
            self.rank.batches.add(
                early.dataset_id, early.batch, (mark, mark), epoch_number=early.epoch_number
            )
            self.early_batch = None
        # An optimizer that is stepping does this backward pass in its step, by a closure.
        stepping_optimizer = self._stepping.find_outermost()
        if stepping_optimizer is not None:
            self.rank.note_optimizer_start(stepping_optimizer)
        _save_stacks_on_signal(self.run_dir, rank_number)
        atexit.register(self.finish)
        return self.rank

    def note_optimizer_start(self, optimizer: Any) -> None:
        """Note that an optimizer is about to step.

        It is reported to the rank, unless another optimizer steps it: the step of that one counts.
        """
        is_outermost = self._stepping.start(optimizer)
        # Its step may call a closure that does the first backward pass. That makes this process a
        # rank, to which ``claim_rank`` then reports the optimizer.
        if is_outermost and self.rank is not None:
            self.rank.note_optimizer_start(optimizer)

    def note_optimizer_end(self, optimizer: Any) -> None:
        """Note that an optimizer has stepped; report it unless another one stepped it."""
        is_outermost = self._stepping.end(optimizer)
        if is_outermost and self.rank is not None:
            self.rank.note_optimizer_end(optimizer)

    def _refuse(self, rank_number: int, code: str, **args: int) -> None:
        """Report why this process is not measured; the program continues.

        Args:
            rank_number: number of the rank that this process wanted to become.
            code: code of the message that tells why.
            args: values for the placeholders of that message.
        """
        self.stop()
        # Without a writer, another process is the rank with this number: the error is appended to
        # the file of that rank.
        events = self._events or EventWriter(self.run_dir / name_rank_file(rank_number), clock)
        events.emit("error", **_make_witness_error(code, **args))

    def finish(self) -> None:
        """Write the rank's results; further calls, and calls in forked children, write nothing."""
        rank = self.rank
        if rank is None or os.getpid() != self._pid:
            return
        # It sets ``self.rank`` to None, so that a further call writes nothing: the functions of
        # ``atexit`` include this method, and ``os._exit`` calls it too.
        self.stop()
        if rank.steps == 0:
            with suppress(OSError):  # the disk may be full; the program ends as without the probe
                rank.events.emit("error", **_make_witness_error("witness_no_step"))
            return
        try:
            rank.finish()
        except Exception as error:  # noqa: BLE001 - an error of the probe is no error of the program
            self.report_probe_error(error)

    def report_failure(self, error: BaseException) -> None:
        """Report the exception that ends the program."""
        rank = self.rank
        if rank is None:
            return
        self.stop()  # the hooks write no further events
        with suppress(OSError):
            rank.events.emit("error", **describe_failure(error, "train"))

    def report_probe_error(self, error: BaseException) -> None:
        """Report an error of the probe itself, and stop watching.

        It is written to the rank's file; if this process has claimed no rank, it is printed.
        """
        self.stop()
        if self._events is None:
            sys.stderr.write(f"trainmark: the probe failed: {type(error).__name__}: {error}\n")
            return
        report = describe_failure(error, "witness")
        text = f"{type(error).__name__}: {error}"[:_MAX_TEXT_CHARS]
        # The message says that the probe has failed, and not the program.
        report["message"] = {"code": "witness_failed", "args": {"text": text}}
        with suppress(OSError):
            self._events.emit("error", **report)


_current: WitnessedProcess | None = None  # this process, after torch was hooked


def watch_process(run_dir: Path, start_ns: int) -> WitnessedProcess:
    """Create the object that watches this process and its forked children, and return it.

    Args:
        start_ns: time at which the process started.
    """
    global _current  # noqa: PLW0603 - there is one process
    _current = WitnessedProcess(run_dir, start_ns)
    os.register_at_fork(after_in_child=_current.become_child)
    return _current


def _create_file(path: Path) -> bool:
    """Create a file; return False if it exists already. Of several processes, one gets True."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _find_rank(torch_module: Any) -> tuple[int, int]:
    """Return the number of this rank, and the number of ranks."""
    distributed = torch_module.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    # Without a process group: the variables of the process that started this one, else one rank.
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def _open_device(torch_module: Any, plan: dict[str, Any]) -> Device:
    """Return the current device of the program, without changing its settings."""
    from trainmark import devices

    vendor = devices.choose_vendor(plan["device"]["vendor"])
    if hasattr(vendor, "attach"):  # a vendor has it if its ``open`` changes settings
        attached: Device = vendor.attach()
        return attached
    device_index = torch_module.accelerator.current_device_index()
    ranks_here = plan["nproc"]  # number of ranks on this node
    return vendor.open(device_index, ranks_here)


def _emit_facts(events: EventWriter, device: Device, torch_module: Any) -> None:
    """Emit what the device and torch are set to."""
    from trainmark.rank.worker import read_precision_flags

    collective = None  # backend of the process group; None: the program has none
    distributed = torch_module.distributed
    if distributed.is_available() and distributed.is_initialized():
        collective = str(distributed.get_backend())
    events.emit(
        "facts",
        device=device.describe(),
        memory_scope=device.memory().scope,  # memory of the whole device, or of this process
        precision_flags=read_precision_flags(device.torch_type),
        collective=collective,
    )


def _build_rank(
    plan: dict[str, Any], world_size: int, rank_number: int, events: EventWriter, device: Device
) -> WitnessedRank:
    """Return a rank that measures this process as the plan describes."""
    from trainmark.witness.batches import BatchCounter
    from trainmark.witness.flops import FlopCounter, count_graphs
    from trainmark.witness.rank import WitnessedRank
    from trainmark.witness.weights import TrainedWeights

    spec = plan["witness"]["spec"]
    # Without [batch] in the file, rows are samples, and ``BatchCounter`` finds out whether the
    # batch has tokens.
    dimensions = spec["batch"] or {"samples": 0, "tokens": None}
    return WitnessedRank(
        stated=read_stated_step(spec, world_size=world_size, rank=rank_number),
        events=events,
        device=device,
        clock=clock,
        weights=TrainedWeights(clock),
        flops=FlopCounter(),  # FLOPs of one step
        batches=BatchCounter(
            sample_dimension=dimensions["samples"], token_dimension=dimensions["tokens"]
        ),
        count_graphs=count_graphs,  # of torch.compile: a new one shows time for compiling
    )


def read_stated_step(spec: dict[str, Any], *, world_size: int, rank: int) -> StatedStep:
    """Return the step that the file of ``--witness`` describes, for one rank.

    The file states the samples, sequences and tokens of all ranks together. Each rank is assumed to
    train an equal share of them.

    Args:
        spec: a ``plan.witness.WitnessSpec`` as JSON values.
    """
    from trainmark.witness.rank import StatedStep

    step = spec["step"]
    counts = None
    if step is not None:
        tokens = _compute_share(step["tokens"] or 0, world_size, rank)
        counts = Counts(
            samples=_compute_share(step["samples"], world_size, rank),
            # Unless the file says otherwise, each sample is one sequence.
            sequences=_compute_share(step["sequences"] or step["samples"], world_size, rank),
            tokens=tokens,
            tokens_padded=tokens,  # the file does not tell how many are padding
        )
    flops_per_sample = spec["flops_per_sample"]
    # FLOPs per sample can be stated only if those per token are ``auto``.
    if spec["flops_per_token"] == "auto":
        flops_per_unit = flops_per_sample  # None if neither is stated: torch counts those of a step
    else:
        flops_per_unit = spec["flops_per_token"]
    return StatedStep(
        counts=counts,
        samples_of_all=0 if step is None else step["samples"],  # 0: the file does not say it
        flops_per_unit=flops_per_unit,
        # What ``flops_per_unit`` is multiplied by; without meaning if that is None.
        unit="tokens" if flops_per_sample is None else "samples",
        optimizers=spec["optimizers"],
        warmup_steps=spec["warmup_steps"],
        window_steps=spec["window_steps"],
        target_loss=spec["target_loss"],
    )


def _compute_share(total: int, world_size: int, rank: int) -> int:
    """Return a rank's part of a total; the parts differ by 1 at most and add up to it."""
    remainder = total % world_size
    return total // world_size + (1 if rank < remainder else 0)


def _save_stacks_on_signal(run_dir: Path, rank_number: int) -> None:
    """From now on, save the stacks of this rank's threads when the launcher sends the signal."""
    from trainmark.rank.contract import STACKS_SIGNAL, format_stacks_name

    path = run_dir / format_stacks_name(rank_number)
    file = path.open("w")  # stays open until the process ends
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)


def _make_witness_error(code: str, **args: int) -> dict[str, Any]:
    """Return the fields of the event ``error`` for a program that cannot be measured.

    The event describes an exception. Here there is none: its type and traceback are empty.
    """
    return {
        "kind": "witness",
        "type": "",
        "message": {"code": code, "args": args},
        "place": "witness",
        "traceback": "",
    }


def report_untrained(start_ns: int) -> None:
    """Report that the rank's process ends without training, unless another process trained.

    The program may train in a process that this one starts.
    """
    run_dir = Path(os.environ[RUN_DIR_VARIABLE])
    rank_number = int(os.environ["RANK"])
    if not _create_file(run_dir / name_rank_file(rank_number)):
        return  # another process of the program has become the rank
    events = EventWriter(run_dir / name_rank_file(rank_number), clock)
    events.emit("start", t_ns=start_ns, pid=os.getpid())
    # None: torch was never hooked in this process.
    code = "witness_no_torch" if _current is None else "witness_no_backward"
    events.emit("error", **_make_witness_error(code))


def report_failure(error: BaseException, start_ns: int) -> None:
    """Report the exception that ends the program, also if it has not trained yet."""
    if _current is not None and _current.rank is not None:
        _current.report_failure(error)
        return
    run_dir = Path(os.environ[RUN_DIR_VARIABLE])
    rank_number = int(os.environ["RANK"])
    # If the file exists, another process of the program is the rank, and this one is not reported.
    if _create_file(run_dir / name_rank_file(rank_number)):
        events = EventWriter(run_dir / name_rank_file(rank_number), clock)
        events.emit("start", t_ns=start_ns, pid=os.getpid())
        events.emit("error", **describe_failure(error, "program"))
