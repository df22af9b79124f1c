"""Hook torch in a program that is measured.

Each hook does the program's call unchanged and reports it to the process or its rank. An error of
the probe ends the probe, not the program.
"""

from __future__ import annotations

import functools
import os
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trainmark.witness import RUN_DIR_VARIABLE
from trainmark.witness.process import EarlyBatch, clock, watch_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from trainmark.witness.process import WitnessedProcess
    from trainmark.witness.rank import WitnessedRank

process: WitnessedProcess | None = None  # this process, after torch was hooked


class _ModeCalls(threading.local):
    """Calls of ``Module.train`` that run now, one within another, in the current thread.

    Each thread has a count of its own, which begins with 0: a call in another thread is not within
    those of this one.
    """

    depth = 0


_mode_calls = _ModeCalls()
_epoch_numbers = count(1)  # for all epochs of all loaders
# The number of the epoch that an iterator of a loader reads; iterators are not kept alive.
_epoch_of_iterator: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def install(start_ns: int) -> None:
    """Hook torch, which the program has just imported.

    Args:
        start_ns: when this process started.
    """
    global process  # noqa: PLW0603 - there is one process
    import torch

    process = watch_process(Path(os.environ[RUN_DIR_VARIABLE]), start_ns)
    _hook_optimizers()
    _hook_backward(torch)
    _hook_loaders()
    _hook_pauses(torch)
    _hook_exit()


def _call_safely(call: Callable[[WitnessedProcess], object]) -> None:
    """Call a function with the process; an error of it ends the probe, not the user's program."""
    if process is None or not process.is_watching:
        return
    try:
        call(process)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs on
        process.report_probe_error(error)


def _call_rank_safely(call: Callable[[WitnessedRank], object]) -> None:
    """Call a function with the rank, if this process is already one.

    Like ``_call_safely``, it ends the probe at an error, instead of the user's program.
    """
    if process is not None and process.rank is not None:
        current_rank = process.rank
        _call_safely(lambda _process: call(current_rank))


def _hook_optimizers() -> None:
    """Report the start and the end of each optimizer's step."""
    from torch.optim import optimizer

    def note_start(stepping_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        _call_safely(lambda watched: watched.note_optimizer_start(stepping_optimizer))

    def note_end(stepping_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        _call_safely(lambda watched: watched.note_optimizer_end(stepping_optimizer))

    optimizer.register_optimizer_step_pre_hook(note_start)
    optimizer.register_optimizer_step_post_hook(note_end)


def _hook_backward(torch: Any) -> None:
    """Report each backward pass with its loss; the first one makes this process a rank.

    A pass within another one is a part of that one: ``torch.utils.checkpoint`` with
    ``use_reentrant=True`` starts one for each block of the model. It is not reported.
    """
    backward = torch.autograd.backward  # ``Tensor.backward`` calls it too

    def note_backward(watched: WitnessedProcess, tensors: Any) -> None:
        """Report the backward pass to the rank, which this process becomes with the first one."""
        rank = watched.rank
        if rank is None:
            rank = watched.claim_rank(torch)
        if rank is None:  # this process cannot be a rank, which ``claim_rank`` has reported
            return
        # A loss is a single number. Of several tensors, only the first can be taken as the loss.
        first_tensor = tensors[0] if isinstance(tensors, tuple | list) else tensors
        is_loss = isinstance(first_tensor, torch.Tensor) and first_tensor.numel() == 1
        rank.note_backward(first_tensor.detach().reshape(()) if is_loss else None)

    @functools.wraps(backward)
    def call_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        # The number of the pass that runs in this thread; -1: none does. A thread of torch's own
        # may run a part of a pass, and has its number too. The function is private to torch.
        if torch._C._current_graph_task_id() == -1:
            _call_safely(lambda watched: note_backward(watched, tensors))
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = call_backward


def _hook_loaders() -> None:
    """Report each batch that a ``DataLoader`` yields, and the time that it takes."""
    from torch.utils.data import dataloader

    iterator_class: Any = dataloader._BaseDataLoaderIter
    fetch = iterator_class.__next__

    @functools.wraps(fetch)
    def call_fetch(iterator: Any) -> Any:
        """Return the next batch, and report it; before this process is a rank, keep it."""
        watched = process
        if watched is None or not watched.is_watching:
            return fetch(iterator)
        is_rank = watched.rank is not None
        watched.last_request_ns = clock()
        # The mark in the device's stream of work before the fetch; empty if this process is no
        # rank. If the mark fails, the hooks stop, and the batch is not reported below.
        start_marks: list[Any] = []
        _call_rank_safely(lambda rank: start_marks.append(rank.device.mark()))
        epoch_number = _number_epoch(iterator)
        batch = fetch(iterator)
        # ``_dataset`` is private to torch. Without it, each epoch counts as a data set of its own.
        dataset_id = id(getattr(iterator, "_dataset", iterator))
        if is_rank:
            _call_rank_safely(
                lambda rank: rank.batches.add(
                    dataset_id,
                    batch,
                    (start_marks[0], rank.device.mark()),
                    epoch_number=epoch_number,
                )
            )
        else:
            watched.early_batch = EarlyBatch(dataset_id, batch, epoch_number)
        return batch

    iterator_class.__next__ = call_fetch


def _number_epoch(iterator: Any) -> int:
    """Return the number of the epoch that an iterator of a loader reads; called before each fetch.

    Each epoch of each loader has its own number. The id of the iterator would not do: torch frees
    the iterator after its epoch, and the next one often gets its id. A loader with persistent
    workers even has the same iterator in all epochs.
    """
    # Batches that the iterator has yielded in this epoch; private to torch.
    num_yielded = getattr(iterator, "_num_yielded", None)
    if iterator not in _epoch_of_iterator or num_yielded == 0:
        _epoch_of_iterator[iterator] = next(_epoch_numbers)
    return _epoch_of_iterator[iterator]


def _hook_pauses(torch: Any) -> None:
    """Report evaluations (``Module.eval``, ``train``), checkpoints, and values that are loaded."""
    module = torch.nn.Module
    set_mode = module.train  # ``Module.eval`` calls it too, with False
    load = module.load_state_dict
    save = torch.save

    @functools.wraps(set_mode)
    def call_set_mode(self: Any, mode: bool = True) -> Any:
        """Report the mode of the outermost module, then set it and that of its submodules."""
        if _mode_calls.depth == 0:  # ``train`` calls itself for each submodule
            _call_rank_safely(lambda rank: _change_mode(rank, self, is_training=mode))
        _mode_calls.depth += 1
        try:
            return set_mode(self, mode)
        finally:
            _mode_calls.depth -= 1

    @functools.wraps(load)
    def call_load(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Report that other values replace those that training steps left, then load them."""
        _call_rank_safely(lambda rank: rank.weights.note_replaced())
        return load(self, *args, **kwargs)

    @functools.wraps(save)
    def call_save(*args: Any, **kwargs: Any) -> None:
        """Save, and report the time as that of a checkpoint."""
        # A checkpoint that another thread saves does not stop the training.
        is_main_thread = threading.current_thread() is threading.main_thread()
        if is_main_thread:
            _call_rank_safely(lambda rank: rank.pause("checkpoint"))
        try:
            save(*args, **kwargs)
        finally:  # also after an error: the program may catch it and train on
            if is_main_thread:
                _call_rank_safely(lambda rank: rank.resume_after("checkpoint"))

    module.train = call_set_mode
    module.load_state_dict = call_load
    torch.save = call_save


def _change_mode(rank: WitnessedRank, module: Any, *, is_training: bool) -> None:
    """Note that a module was set to training or evaluation, if it is the one that is trained."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # The first one stands for all: the optimizers hold it if the module is the one that is trained.
    if not parameters or not rank.weights.has(parameters[0]):
        return  # another model, for example a teacher or that of a metric
    if is_training:
        rank.resume_after("evaluate")
    else:
        rank.pause("evaluate")


def _hook_exit() -> None:
    """Write the results before ``os._exit``, which runs no ``atexit`` functions."""
    exit_at_once = os._exit

    @functools.wraps(exit_at_once)
    def call_exit(status: int) -> NoReturn:
        """Write the rank's results, if this process is one, then exit."""
        if process is not None:
            process.finish()
        exit_at_once(status)

    os._exit = call_exit
