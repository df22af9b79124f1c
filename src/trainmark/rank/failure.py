"""Describe the failure of a rank for the record: kind, message, place, traceback.

It must work when little else does, for example on a full disk.
"""

from __future__ import annotations

import errno
import traceback
from typing import Any

# Exit code of a rank whose disk is full: its event file cannot hold the report.
DISK_FULL_EXIT = errno.ENOSPC
_MAX_TEXT = 4000  # characters of a message
_MAX_TRACEBACK = 8000  # characters, the last ones
# Errors whose text is a key, a code or a condition, which needs the name of the error.
_TERSE_ERRORS = (
    AssertionError,
    GeneratorExit,
    KeyboardInterrupt,
    LookupError,
    StopIteration,
    SystemExit,
)


def classify_error(error: BaseException) -> str:
    """Return the kind of a failure: ``oom``, ``disk_full``, ``error``, or a ``RunError``'s kind."""
    from trainmark.errors import RunError, escape_controls

    if isinstance(error, RunError):
        return error.kind
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    text = escape_controls(error)
    out_of_memory = (
        isinstance(error, MemoryError)
        # Torch's error, by its name: this module does not import torch.
        or type(error).__name__ == "OutOfMemoryError"
        # torch raises a plain RuntimeError when the host allocator fails.
        or "DefaultCPUAllocator: can't allocate memory" in text
        or "DefaultCPUAllocator: not enough memory" in text
    )
    return "oom" if out_of_memory else "error"


def _describe_error(error: BaseException) -> dict[str, Any]:
    """Return what an exception says as a message of a record.

    Such a message has the code of its text (``code``) and the values that it shows (``args``).
    A ``RunError`` has both, the values as ``details``.
    """
    from trainmark.errors import RunError, TrainmarkError, escape_controls
    from trainmark.spec import message

    if isinstance(error, RunError):
        return {"code": error.code, "args": error.details}
    if isinstance(error, TrainmarkError):
        # The text without the fix, which is an argument of its own.
        fault = TrainmarkError(error.what, where=error.where, rule=error.rule)
        return message("fault", text=str(fault)[:_MAX_TEXT], fix=error.fix).as_dict()
    text = escape_controls(error).strip()
    # The text of some errors is only a key or a code, such as ``101`` of a KeyError.
    if not text or isinstance(error, _TERSE_ERRORS):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return message("exception", text=text[:_MAX_TEXT]).as_dict()


def describe_failure(error: BaseException, place: str) -> dict[str, Any]:
    """Return the description of a failure that a record has.

    Args:
        place: the part of the run in which the error occurred, such as ``train``.
    """
    from trainmark.errors import escape_controls

    return {
        "kind": classify_error(error),
        "type": type(error).__name__,
        "message": _describe_error(error),
        "place": place,
        # Of a long traceback its end, which has the line that raised the error.
        "traceback": escape_controls("".join(traceback.format_exception(error)))[-_MAX_TRACEBACK:],
    }
