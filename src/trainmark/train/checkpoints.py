"""Checkpoints: a published one is read on the host, those of a long training are saved and loaded.

Must not execute code from a published file: pickles are read with ``weights_only``. Names and
shapes are compared by ``data.model_folder``, which reads safetensors without torch.

``Checkpoints`` owns what a next-token job needs to go on exactly: weights, optimizer, loss scale,
random numbers and its place in the data. Each rank writes its shards; ranks in another number can
read them. Torch's format keeps pickles: load only what a run of one's own has written.

Torch is imported where it is used: the launcher asks for shapes.
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


def read_state(file: Path, fault: Fault) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of one that torch saved, by their keys.

    They are mapped: numbers are read when they are used.

    Args:
        fault: says what a valid checkpoint is, and the fix.

    Raises:
        DataError: the file is missing or damaged, or holds more than tensors by name.
    """
    import torch
    from safetensors.torch import load_file

    refuse_unreadable(file, fault)
    try:
        whole = load_file(file) if file.suffix == ".safetensors" else _read_pickle(file)
    except Exception as error:  # noqa: BLE001  the libraries raise whatever damage leads to
        reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        what = f"damaged: {reason}"
        if isinstance(error, UnpicklingError):  # torch's message advises to allow code
            what = "not readable as weights alone, without executing code in it"
        raise fault(what, where=str(file)) from None
    state = whole.get("module", whole) if isinstance(whole, dict) else None
    if not isinstance(state, dict) or not all(isinstance(x, torch.Tensor) for x in state.values()):
        rule = "every entry of a checkpoint is a tensor"
        raise fault("no tensors by name", where=f"{file}, module", rule=rule)
    return state


def _read_pickle(file: Path) -> Any:
    import torch

    # A training checkpoint may hold the state of numpy's random generator: arrays, not code.
    rebuild: Any = np.ndarray.__reduce__(np.zeros(1, np.uint32))[0]
    arrays = [
        (rebuild, "numpy.core.multiarray._reconstruct"),
        rebuild,
        np.ndarray,
        np.dtype,
        type(np.dtype(np.uint32)),
    ]
    with file.open("rb") as stream:
        zipped = stream.read(4) == b"PK\x03\x04"  # torch's format since 1.6
    with torch.serialization.safe_globals(arrays):
        # With mmap, the optimizer's state in the same file is not read.
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)


def described(file: Path, state: Mapping[str, Tensor]) -> list[StoredTensor]:
    """Return the tensors of ``file`` as ``data.model_folder.ModelWeights`` compares them."""
    return [StoredTensor(file, key, tuple(item.shape)) for key, item in state.items()]


def stored_weights(file: Path, fault: Fault) -> list[StoredTensor]:
    """Return the tensors of a checkpoint without reading their numbers.

    Torch is imported for a file that torch saved only, so that the launcher can ask.

    Raises:
        DataError: as ``read_state``.
    """
    if file.suffix == ".safetensors":
        return list_stored_tensors(file, fault)
    return described(file, read_state(file, fault))


class Checkpoints:
    """The checkpoints of one launch; a job of another kind has none.

    Args:
        folder: of this launch's checkpoints; the last complete one is kept.
        span: makes the context whose time is that of a checkpoint.
    """

    def __init__(
        self,
        job: NextTokenJob | Any,
        context: JobContext,
        folder: Path,
        span: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        import torch

        self.begin = Progress()
        self._every: int | None = getattr(context.recipe, "checkpoint_every_steps", None)
        self._job, self._folder, self._span = job, folder, span
        self._first = context.rank == 0
        self._random = f"random of rank {context.rank} of {context.world_size}"
        self._alone = context.world_size == 1
        self._saved, self._place = 0, folder
        self._pending: Any = None  # a Future
        # Torch saves in a thread, whose collectives must not meet those of the steps.
        wanted = self._every is not None and not self._alone
        self._group = torch.distributed.new_group(backend="gloo") if wanted else None

    def load(self, place: Path, begin: Progress) -> None:
        """Bring the job, before its first step, to the state of a checkpoint after ``begin``.

        Raises:
            DataError: it is damaged, or of another model.
        """
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        with self._span("checkpoint"):
            state = self._state()
            try:
                reader = FileSystemReader(place)
                if f"{self._random}.0" not in reader.read_metadata().state_dict_metadata:
                    del state[self._random]  # of other ranks: theirs are drawn anew
                load(state, storage_reader=reader, no_dist=self._alone)
            except (Exception, CheckpointException) as error:  # noqa: BLE001  whatever damage leads to
                cause = _first_failure(error)
                raise DataError(
                    f"cannot be loaded: {str(cause).partition(chr(10))[0] or type(cause).__name__}",
                    where=str(place),
                    rule="a complete checkpoint of the same model",
                    fix="remove this folder: a run then goes on from the one before, if any",
                ) from None
            job = self._job
            set_state_dict(
                job.model,
                job.stepper.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            for generator, drawn in zip(
                self._generators(), state.get(self._random, ()), strict=False
            ):
                generator.set_rng_state(drawn)
            job.go_on(begin, state["scale"])
        self.begin, self._saved = begin, begin.steps

    def save(self, progress: Progress) -> None:
        """Begin to save where a window begins, if as many steps have passed; see ``Schedule``."""
        interval = self._every
        if interval is None or progress.steps // interval == self._saved // interval:
            return
        from torch.distributed.checkpoint.state_dict_saver import async_save

        with self._span("checkpoint"):
            self._wait()
            self._saved, before = progress.steps, self._place
            self._place = self._folder / f"step-{progress.steps}"
            if self._first:
                for old in self._folder.glob("step-*"):
                    if old != before:
                        shutil.rmtree(old)
                self._place.mkdir(parents=True, exist_ok=True)  # by a writer
                (self._place / PROGRESS_FILE).write_text(json.dumps(asdict(progress)))
            self._pending = async_save(
                self._state(),
                checkpoint_id=self._place,
                process_group=self._group,
                no_dist=self._alone,
            )

    def close(self) -> None:
        """Wait for what is being saved."""
        if self._pending is not None:
            with self._span("checkpoint"):
                self._wait()

    def _wait(self) -> None:
        if self._pending is None:
            return
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            self._pending.result()
        except CheckpointException as error:  # no Exception: a rank would end without a report
            raise _first_failure(error) from None
        self._pending = None

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._job.model, self._job.stepper.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scale": self._job.stepper.scaler.state(),
            self._random: [x.get_rng_state() for x in self._generators()],
        }

    def _generators(self) -> list[Any]:
        import torch

        kind = self._job.stepper.device.type
        return [torch] if kind == "cpu" else [torch, torch.get_device_module(kind)]


def _first_failure(error: BaseException) -> BaseException:
    """Return what a rank failed with, where torch has collected the failures of all."""
    failures = list(getattr(error, "failures", {}).values())
    return failures[0][0] if failures else error
