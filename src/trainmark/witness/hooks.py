"""Hook torch in a program that is measured.

Owns which calls of torch are hooked. Each hook does the program's call unchanged, and tells the
rank what happened; an error of the probe ends the probe, not the program.
"""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.witness import RUN_DIR_VARIABLE
from trainmark.witness.process import clock, watch_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from trainmark.witness.process import WitnessedProcess
    from trainmark.witness.rank import WitnessedRank

process: WitnessedProcess | None = None  # this one, once torch is hooked
_depth = threading.local()  # of calls that call themselves for parts of a model


def install(start_ns: int) -> None:
    """Hook torch, which the program has just imported.

    Args:
        start_ns: when this process started.
    """
    global process  # noqa: PLW0603 - there is one process
    import torch

    process = watch_process(Path(os.environ[RUN_DIR_VARIABLE]), start_ns)
    _hook_optimizers(torch)
    _hook_backward(torch)
    _hook_loaders(torch)
    _hook_pauses(torch)
    _hook_exit()


def _tell(call: Callable[[WitnessedProcess], object]) -> None:
    """Tell the process something; an error of the probe ends it."""
    if process is None or not process.is_watching:
        return
    try:
        call(process)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs on
        process.report_probe_error(error)


def _tell_rank(call: Callable[[WitnessedRank], object]) -> None:
    """Tell the rank something, if this process is one already."""
    if process is not None and process.rank is not None:
        rank = process.rank
        _tell(lambda _: call(rank))


def _hook_optimizers(torch: Any) -> None:
    from torch.optim import optimizer

    def before(stepping: Any, _args: Any, _kwargs: Any) -> None:
        _tell(lambda watched: watched.before_optimizer(stepping))

    def after(stepping: Any, _args: Any, _kwargs: Any) -> None:
        _tell(lambda watched: watched.after_optimizer(stepping))

    del torch
    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def _hook_backward(torch: Any) -> None:
    backward = torch.autograd.backward

    def begin(watched: WitnessedProcess, tensors: Any) -> None:
        rank = watched.rank or watched.claim(torch)
        if rank is None:
            return
        first = tensors[0] if isinstance(tensors, tuple | list) else tensors
        is_loss = isinstance(first, torch.Tensor) and first.numel() == 1
        rank.backward(first.detach().reshape(()) if is_loss else None)

    @functools.wraps(backward)
    def hooked(tensors: Any, *args: Any, **kwargs: Any) -> None:
        _tell(lambda watched: begin(watched, tensors))
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = hooked


def _hook_loaders(torch: Any) -> None:
    from torch.utils.data import dataloader

    del torch
    kind: Any = dataloader._BaseDataLoaderIter
    fetch = kind.__next__

    @functools.wraps(fetch)
    def hooked(iterator: Any) -> Any:
        watched = process
        if watched is None or not watched.is_watching:
            return fetch(iterator)
        rank = watched.rank
        watched.fetched_ns = clock()
        before = watched.fetched_ns if rank is None else rank.device.mark()
        batch = fetch(iterator)
        dataset = id(getattr(iterator, "_dataset", iterator))
        if rank is None:
            watched.early_batch = (dataset, batch, id(iterator))
        else:
            marks = (before, rank.device.mark())
            _tell_rank(lambda rank: rank.batches.add(dataset, batch, marks, iterator=id(iterator)))
        return batch

    kind.__next__ = hooked


def _hook_pauses(torch: Any) -> None:
    module = torch.nn.Module
    set_mode, load, save = module.train, module.load_state_dict, torch.save

    @functools.wraps(set_mode)
    def hooked_mode(self: Any, mode: bool = True) -> Any:
        if getattr(_depth, "calls", 0) == 0:
            _tell_rank(lambda rank: _change_mode(rank, self, is_training=mode))
        _depth.calls = getattr(_depth, "calls", 0) + 1
        try:
            return set_mode(self, mode)
        finally:
            _depth.calls -= 1

    @functools.wraps(load)
    def hooked_load(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell_rank(lambda rank: rank.weights.note_replaced())
        return load(self, *args, **kwargs)

    @functools.wraps(save)
    def hooked_save(*args: Any, **kwargs: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            _tell_rank(lambda rank: rank.pause("checkpoint"))
        save(*args, **kwargs)
        if is_main:
            _tell_rank(lambda rank: rank.resume_after("checkpoint"))

    module.train, module.load_state_dict, torch.save = hooked_mode, hooked_load, hooked_save


def _change_mode(rank: WitnessedRank, module: Any, *, is_training: bool) -> None:
    """Take that the model that is trained goes to evaluation, or back."""
    trained = next((x for x in module.parameters() if x.requires_grad), None)
    if trained is None or not rank.weights.has(trained):
        return  # a teacher, or a metric's model
    if is_training:
        rank.resume_after("evaluate")
    else:
        rank.pause("evaluate")


def _hook_exit() -> None:
    leave = os._exit

    @functools.wraps(leave)
    def hooked(status: int) -> NoReturn:
        if process is not None:
            process.finish()
        leave(status)

    os._exit = hooked
