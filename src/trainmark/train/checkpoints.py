"""Read published checkpoints on the host; save and load the checkpoints of a training.

No code of a published file is executed: pickles are read with ``weights_only``. Names and shapes
are compared by ``data.model_folder``, which reads safetensors without torch.

``Checkpoints`` has everything that a next-token job needs to continue exactly: weights, optimizer,
loss scale, random states and its place in the data. Each rank writes its shards; another number of
ranks can read them. Torch's format has pickles: load only files that your own runs have written.

Torch is imported inside functions, because the launcher uses this module for shapes.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.model_folder import StoredTensor, list_stored_tensors
from trainmark.data.splits import refuse_unreadable
from trainmark.errors import DataError
from trainmark.protocols import Progress
from trainmark.protocols.job import PROGRESS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import Tensor

    from trainmark.errors import Fault
    from trainmark.protocols import JobContext
    from trainmark.train.next_token import NextTokenJob


def read_state(file: Path, make_error: Fault) -> dict[str, Tensor]:
    """Return the tensors of a file of safetensors or of torch, by their keys.

    The file is memory-mapped: numbers are read when they are used. Only files in torch's format
    before 1.6 are read whole. The libraries are imported here, because the launcher uses this
    module without torch.

    Args:
        make_error: makes a ``DataError`` with the fix of the case and with the case's rule, which
            says what files a checkpoint must have. If the file has values other than tensors, the
            rule is replaced by one that says that every value must be a tensor.

    Raises:
        DataError: the file is missing or damaged, or has values other than tensors.
    """
    import torch
    from safetensors.torch import load_file

    refuse_unreadable(file, make_error)
    try:
        content = load_file(file) if file.suffix == ".safetensors" else _read_pickle(file)
    except Exception as error:  # noqa: BLE001  the libraries raise whatever damage leads to
        raise make_error(_describe_read_error(error), where=str(file)) from None
    where = str(file)  # for the error
    state = content
    # A training checkpoint has the weights under ``module``, beside the optimizer's state.
    if isinstance(content, dict) and "module" in content:
        where = f"{file}, module"
        state = content["module"]
    if not isinstance(state, dict) or not all(isinstance(x, torch.Tensor) for x in state.values()):
        rule = "every entry of a checkpoint must be a tensor"
        raise make_error("the file contains no named tensors", where=where, rule=rule)
    return state


def _describe_read_error(error: Exception) -> str:
    """Return what is wrong with a file of weights, by the error that a library raised for it."""
    # The words of torch for a byte that is no instruction of a pickle, as in a file of text.
    is_no_pickle = isinstance(error, UnpicklingError) and "Unsupported operand" in str(error)
    # The text of a LookupError is only a key: an instruction of the pickle uses what is not there.
    if is_no_pickle or isinstance(error, LookupError):
        return "damaged, or not a file that torch.save wrote"
    if isinstance(error, UnpicklingError):  # torch's own message advises to allow code
        return "the file contains more than weights, and loading it would execute code"
    first_sentence = str(error).partition(". ")[0].partition("\n")[0]
    return f"damaged: {first_sentence or type(error).__name__}"


def _read_pickle(file: Path) -> Any:
    """Return the content of a file that ``torch.save`` wrote, without executing its code.

    Admits tensors, plain Python values, and numpy's arrays: a training checkpoint may hold the
    state of numpy's random generator, which is an array.
    """
    import torch

    # The private function with which numpy rebuilds a pickled array; a pickle names it.
    rebuild_array: Any = np.ndarray.__reduce__(np.zeros(1, np.uint32))[0]
    admitted = [
        rebuild_array,
        (rebuild_array, "numpy.core.multiarray._reconstruct"),  # its name in files of numpy 1
        np.ndarray,
        np.dtype,
        type(np.dtype(np.uint32)),  # the type of the generator's numbers
    ]
    with file.open("rb") as stream:
        is_zip = stream.read(4) == b"PK\x03\x04"  # torch's format since 1.6; only it can be mapped
    with torch.serialization.safe_globals(admitted):
        # With mmap, the optimizer's state in the same file is not read.
        return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)


def describe_tensors(file: Path, state: Mapping[str, Tensor]) -> list[StoredTensor]:
    """Return the tensors of ``file`` as ``data.model_folder.ModelWeights`` compares them."""
    return [StoredTensor(file, key, tuple(item.shape)) for key, item in state.items()]


def list_stored_weights(file: Path, make_error: Fault) -> list[StoredTensor]:
    """Return the names and shapes of a checkpoint's tensors.

    Does not read their numbers, unless the file is in torch's format before 1.6. Torch is imported
    only for a file that torch saved: the launcher calls this too, and does without torch if it can.

    Args:
        make_error: makes the error, with the case's rule and fix.

    Raises:
        DataError: the file is missing or damaged, or has values other than tensors.
    """
    if file.suffix == ".safetensors":
        return list_stored_tensors(file, make_error)
    return describe_tensors(file, read_state(file, make_error))


class Checkpoints:
    """The checkpoints of one launch; a job that is no ``NextTokenJob`` never has any.

    Torch is imported inside the methods: the launcher imports this module and does without torch.

    Args:
        job: a ``NextTokenJob`` has the model, and the stepper with the optimizer and the loss
            scaler. The worker also gives jobs of other cases, of which nothing is used here.
        folder: folder of the launch's checkpoints; the last complete one is kept.
        open_span: makes a context whose time is reported as the span of that name.

    Attributes:
        begin: progress of the checkpoint from which the launch continued.
    """

    def __init__(
        self,
        job: NextTokenJob | Any,
        context: JobContext,
        folder: Path,
        open_span: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        import torch

        # The progress from which this launch continues: nothing is trained, unless ``load`` sets
        # that of a checkpoint.
        self.begin = Progress()
        # Steps between two checkpoints; None: none are saved. Not every recipe has the field.
        self._interval: int | None = getattr(context.recipe, "checkpoint_every_steps", None)
        self._job = job
        self._folder = folder  # of all checkpoints of this launch
        self._open_span = open_span  # makes a context whose time is reported as a span of this name
        self._is_first_rank = context.rank == 0
        # The key of the random states of this rank in a checkpoint. It has the number of ranks, so
        # that no rank loads a state of a run that shared its work among another number.
        self._random_key = f"random of rank {context.rank} of {context.world_size}"
        self._is_single_rank = context.world_size == 1  # then torch must not call collectives
        self._saved_steps = 0  # steps at the last checkpoint
        self._last_folder: Path | None = None  # of the last checkpoint that this launch saved
        self._pending: Any = None  # the Future of a checkpoint that is being saved
        # Torch saves in a thread. In one group, its collectives would mix with those of the
        # training, so they have a group of their own; torch asks for one of the CPU.
        needs_group = self._interval is not None and not self._is_single_rank
        self._group = torch.distributed.new_group(backend="gloo") if needs_group else None

    def load(self, checkpoint: Path, begin: Progress) -> None:
        """Load a checkpoint into the job, before its first step.

        Args:
            checkpoint: its folder.
            begin: progress of the training at the checkpoint.

        Raises:
            DataError: the checkpoint is damaged, or of another model.
        """
        from torch.distributed.checkpoint.state_dict import set_state_dict

        with self._open_span("checkpoint"):
            state = self._read_state(checkpoint)
            job = self._job
            set_state_dict(
                job.model,
                job.stepper.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            if self._random_key in state:  # else the number of ranks has changed
                generators = self._list_generators()
                for generator, generator_state in zip(
                    generators, state[self._random_key], strict=True
                ):
                    generator.set_rng_state(generator_state)
            job.resume_from(begin, state["scale"])
        self.begin = begin
        self._saved_steps = begin.steps

    def _read_state(self, checkpoint: Path) -> dict[str, Any]:
        """Return the state in a checkpoint; each rank reads its own shards of the tensors.

        Random states are left out if the number of ranks has changed: they belong to ranks.

        Raises:
            DataError: the checkpoint is damaged, or of another model.
        """
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        state = self._collect_state()
        try:
            reader = FileSystemReader(checkpoint)
            # The key contains the number of ranks: a checkpoint of another number lacks it. The
            # value is a list, whose items torch names by their numbers: look for the first one.
            if f"{self._random_key}.0" not in reader.read_metadata().state_dict_metadata:
                del state[self._random_key]
            load(state, storage_reader=reader, no_dist=self._is_single_rank)  # overwrites ``state``
        # Torch raises whatever the damage leads to. A CheckpointException is no Exception, but
        # derives from BaseException.
        except (Exception, CheckpointException) as error:  # noqa: BLE001
            cause = _find_first_failure(error)
            first_line = str(cause).partition("\n")[0]
            raise DataError(
                f"cannot be loaded: {first_line or type(cause).__name__}",
                where=str(checkpoint),
                rule="the folder must be a complete checkpoint of the same model",
                fix=(
                    "remove this folder, so that the run continues from the previous "
                    "checkpoint, if there is one"
                ),
            ) from None
        return state

    def save(self, progress: Progress) -> None:
        """Begin to save a checkpoint if it is due; called before each window.

        It is due if a multiple of the interval was reached since the last checkpoint.
        """
        interval = self._interval
        if interval is None or progress.steps // interval == self._saved_steps // interval:
            return
        from torch.distributed.checkpoint.state_dict_saver import async_save

        with self._open_span("checkpoint"):
            self._wait()
            self._saved_steps = progress.steps
            previous_folder = self._last_folder
            new_folder = self._folder / f"step-{progress.steps}"
            self._last_folder = new_folder
            if self._is_first_rank:
                # The previous checkpoint stays until the new one is complete; the one before it was
                # kept for the same reason, and is removed now. The first checkpoint of a launch
                # finds no other, because each launch has a new folder.
                for folder in self._folder.glob("step-*"):
                    # Another rank may have made the new folder already.
                    if folder not in (previous_folder, new_folder):
                        shutil.rmtree(folder)
                new_folder.mkdir(parents=True, exist_ok=True)
                # This file may be written before the tensors: it does not mark the checkpoint as
                # complete. Torch's own file, written last, does.
                (new_folder / PROGRESS_FILE).write_text(json.dumps(asdict(progress)))
            self._pending = async_save(
                self._collect_state(),
                checkpoint_id=new_folder,
                process_group=self._group,
                no_dist=self._is_single_rank,
            )

    def close(self) -> None:
        """Wait until the last checkpoint is saved."""
        if self._pending is not None:  # else a span without any work would be reported
            with self._open_span("checkpoint"):
                self._wait()

    def _wait(self) -> None:
        """Wait until the checkpoint that is being saved is complete; raise its error."""
        if self._pending is None:
            return
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            self._pending.result()
        except CheckpointException as error:
            # Raise the error that caused it instead. A CheckpointException derives from
            # BaseException, not from Exception: the rank would end without reporting a failure.
            raise _find_first_failure(error) from None
        self._pending = None

    def _collect_state(self) -> dict[str, Any]:
        """Return the tensors that a checkpoint holds; each rank has its own shards of them.

        ``scale`` is the state of the loss scaler. The progress is not among them: it has a file of
        its own.
        """
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._job.model, self._job.stepper.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scale": self._job.stepper.scaler.read_state(),
            self._random_key: [x.get_rng_state() for x in self._list_generators()],
        }

    def _list_generators(self) -> list[Any]:
        """Return the random generators that training uses, on the host and the device.

        They are modules with ``get_rng_state`` and ``set_rng_state``, such as ``torch``,
        and torch's module of an accelerator's device type.
        """
        from trainmark.train.replay import list_generator_modules

        return list_generator_modules(self._job.stepper.device)


def _find_first_failure(error: BaseException) -> BaseException:
    """Return the error of the first rank that failed, or else ``error`` itself.

    The ``CheckpointException`` of torch has the errors of all ranks that failed in ``failures``.
    """
    failures = list(getattr(error, "failures", {}).values())  # each an error and its traceback
    return failures[0][0] if failures else error
