"""Tell which optimizers are stepping now, although torch reports no end of a step that failed."""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer


class SteppingOptimizers(threading.local):
    """The optimizers that are stepping now in the current thread: one may step others.

    Torch reports the start and the end of each step, but not the end of one that raised an
    exception. If the program catches it, another optimizer may step next, which is not stepped by
    the failed one.

    Attributes:
        _references: weak references to the optimizers, the outermost first. Some of them may have
            failed, and the program may delete them to free their memory.
    """

    def __init__(self) -> None:
        self._references: list[weakref.ref[Optimizer]] = []

    def start(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer is about to step; return whether no other one steps it."""
        self._drop_failed()
        self._references.append(weakref.ref(optimizer))
        return len(self._references) == 1

    def end(self, optimizer: Optimizer) -> bool:
        """Note that an optimizer has stepped; return whether no other one stepped it."""
        # Those after it were stepped within its step. If one is still there, it has failed, and
        # this optimizer has caught its exception.
        while self._references:
            if self._references.pop()() is optimizer:
                break
        return not self._references

    def find_outermost(self) -> Optimizer | None:
        """Return the optimizer that is stepping, and is not stepped by another one; None: none."""
        self._drop_failed()
        return self._references[0]() if self._references else None

    def _drop_failed(self) -> None:
        """Forget optimizers whose step has raised an exception."""
        if self._references:  # only in a step of another one, or after an exception
            self._references = [
                reference for reference in self._references if _is_method_running(reference())
            ]


def _is_method_running(instance: Any | None) -> bool:
    """Tell whether the current thread is in a method of an object; None: the object is deleted.

    The method is found by the name of its first argument, ``self``. Both torch's function around
    the step of an optimizer and the step itself have a variable of this name.
    """
    if instance is None:
        return False
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_locals.get("self") is instance:
            return True
        frame = frame.f_back
    return False
