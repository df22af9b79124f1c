"""Describe the failure of a rank for the record: kind, message, place, traceback.

Must work when little else does: on a full disk, with an exception that cannot be printed, on a
device that is lost.
"""

from __future__ import annotations

import errno
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.protocols import Device

# Exit code of a rank whose disk is full: its event file cannot hold the report.
DISK_FULL_EXIT = errno.ENOSPC


def error_kind(error: BaseException) -> str:
    """Return the kind of a failure: ``oom``, ``disk_full``, ``error``, or a ``RunError``'s."""
    from trainmark.errors import RunError

    if isinstance(error, RunError):
        return error.kind
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    text = _text(error)
    out_of_memory = (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        # torch raises a plain RuntimeError when the host allocator fails.
        or "DefaultCPUAllocator: can't allocate memory" in text
        or "DefaultCPUAllocator: not enough memory" in text
    )
    return "oom" if out_of_memory else "error"


def _text(error: BaseException) -> str:
    """Return an exception's text as UTF-8 can hold it, also where its own method raises."""
    from trainmark.errors import escaped

    try:
        return escaped(error)
    except Exception:  # noqa: BLE001 - the failure must be recorded, whatever raised it
        return f"no text: str() of the {type(error).__name__} raises"


def _message_of(error: BaseException) -> dict[str, Any]:
    """Return an exception's message as code and arguments."""
    from trainmark.errors import RunError, TrainmarkError
    from trainmark.spec import message

    if isinstance(error, RunError):
        return {"code": error.code, "args": error.details}
    if isinstance(error, TrainmarkError):
        fault = TrainmarkError(error.what, where=error.where, rule=error.rule)
        return message("fault", text=str(fault)[:4000], remedy=error.remedy).as_dict()
    return message("exception", text=_text(error).strip()[:4000]).as_dict()


def _with_memory(described: dict[str, Any], device: Device) -> dict[str, Any]:
    """Return the message of an exhausted memory with the most that was in use until then."""
    from trainmark.spec import message

    use = device.memory()
    peak = use.used_bytes if use.allocator_peak_bytes is None else use.allocator_peak_bytes
    if peak is None or use.total_bytes is None or described["code"] != "exception":
        return described
    text = described["args"]["text"]
    gib = {"peak_gib": peak / 2**30, "total_gib": use.total_bytes / 2**30}
    return message("out_of_memory", text=text, **gib).as_dict()


def error_report(error: BaseException, place: str, device: Device | None = None) -> dict[str, Any]:
    """Describe a failure for the record; ``device`` tells the memory that was in use."""
    from trainmark.errors import escaped

    kind, described = error_kind(error), _message_of(error)
    if kind == "oom" and device is not None:
        # A device that fails once more leaves the message as it is.
        with suppress(Exception):
            described = _with_memory(described, device)
    return {
        "kind": kind,
        "type": type(error).__name__,
        "message": described,
        "place": place,
        "time_s": time.time(),
        "traceback": escaped("".join(traceback.format_exception(error)))[-8000:],
    }
