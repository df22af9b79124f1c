"""Every check of ``trainmark doctor``, and their run within bounds."""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.devices import choose
from trainmark.doctor import case, devices, disk, host, network, packages
from trainmark.doctor.subject import Conditions, Subject, judged
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.planning import case_key
from trainmark.planning.requests import read_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainmark.protocols import Condition

    Check = Callable[[Subject], Conditions]

QUICK_S, FULL_S = 9.0, 58.0  # for everything but the start of the program, half a second
_CHECK_S = 15.0  # for one check, longer than the bound of any vendor's tool
# Without persistence mode NVIDIA's library takes about a second for each card.
_QUICK_CHOICE_S, _CHOICE_S = 8.0, 20.0

# A check's code is its name, its group its module. What may hang comes last.
CHECKS: tuple[Check, ...] = (
    host.memory, host.swap, host.cores, host.governor, host.shared_memory, host.open_files,
    host.strays, host.load, packages.packages, packages.package_pairs, network.ports,
    network.host_name, disk.out_folder, devices.device, devices.driver, devices.precisions,
    host.numa, host.threads, devices.occupants, devices.device_state, devices.monitor, case.data,
)  # fmt: skip
SLOW: tuple[Check, ...] = (disk.out_speed, disk.data_speed, devices.torch)


@dataclass(frozen=True, slots=True)
class Found:
    """What an examination found: the document of ``--json``.

    Args:
        device: the vendor's name; without a vendor as the user named it.
        exit_code: 0 if nothing was found, 1 if something spoils figures, 2 if something stops a
            run.
        left_out: codes of the checks that were not made.
    """

    device: str | None
    nproc: int
    exit_code: int
    checks: list[Condition]
    left_out: list[str]
    schema_version: int = 1


def subject_of(
    case_word: str | None, *, recipe: str | None, device: str | None, nproc: int | None,
    data: Path | None, out: Path, quick: bool,
) -> Subject:  # fmt: skip
    """Return what is to be examined.

    Raises:
        UsageError: an unknown case, recipe or device, or a recipe without a case.
    """
    limit_s, choice_s = (QUICK_S, _QUICK_CHOICE_S) if quick else (FULL_S, _CHOICE_S)
    end_s, request, vendor, fault = time.monotonic() + limit_s, None, None, None
    if case_word is None and recipe is not None:
        raise UsageError("a recipe without its case", where="--recipe", remedy="name the case too")
    if case_word is not None:
        real = data is not None
        request = read_request(case_word, recipe_name=recipe, real_data=real, nproc=nproc)
        nproc = request.nproc
        device = device or case_key.vendor_of(request.hardware)
    try:
        vendor = bounded(lambda: choose(device), choice_s)
    except EnvironmentFault as error:
        fault = error
    except TimeoutError as error:
        remedy = "see why the driver is slow; is its persistence mode on?"
        fault = EnvironmentFault(f"devices cannot be counted: {error}", remedy=remedy)
    if nproc is None:
        nproc = 1 if vendor is None or vendor.counts_cores else vendor.count()
    return Subject(
        vendor=vendor, fault=fault, device=device, nproc=nproc, request=request, out=out,
        data=data, quick=quick, end_s=end_s,
    )  # fmt: skip


def examine(subject: Subject, checks: Sequence[Check] = (*CHECKS, *SLOW)) -> Found:
    """Make each check in turn; one that fails or hangs gives ``unknown``."""
    others = set(psutil.Process().children(recursive=True))
    found = []
    left_out = [check for check in checks if subject.quick and check in SLOW]
    for check in checks:
        if check in left_out:
            continue
        limit_s = devices.OPENING_S + 1 if check is devices.torch else _CHECK_S
        limit_s = min(limit_s, max(0.1, subject.end_s - time.monotonic()))
        for one in _made(check, subject, limit_s):
            group, code = check.__module__.rpartition(".")[2], one.code or check.__name__
            found.append(replace(one, code=code, group=group))
    for child in set(psutil.Process().children(recursive=True)) - others:
        with suppress(psutil.NoSuchProcess):
            child.kill()  # of a check that ran out of time
    severities = {one.severity for one in found}
    return Found(
        device=subject.device if subject.vendor is None else subject.vendor.name,
        nproc=subject.nproc,
        exit_code=2 if "stops" in severities else 1 if "spoils" in severities else 0,
        checks=found,
        left_out=[check.__name__ for check in left_out],
    )


def _made(check: Check, subject: Subject, limit_s: float) -> list[Condition]:
    found: list[Condition] = []
    try:
        bounded(lambda: found.extend(check(subject)), limit_s)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
        ours = isinstance(error, (TrainmarkError, TimeoutError))
        what = str(getattr(error, "what", error)) if ours else f"{type(error).__name__}: {error}"
        remedy = getattr(error, "remedy", None) or "see why it cannot be read here"
        found.append(judged(what, remedy, unknown=True))
    return found


def bounded(work: Callable[[], Any], limit_s: float) -> Any:
    """Return what ``work`` returns, or raise what it raises.

    Raises:
        TimeoutError: it takes longer than ``limit_s``; it is left behind in its thread.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return future.result(limit_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer in {limit_s:.0f} s") from None
