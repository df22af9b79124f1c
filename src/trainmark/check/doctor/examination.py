"""Every check of ``trainmark doctor``, and their run within bounds."""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.check.doctor import case, devices, disk, host, network, packages
from trainmark.check.doctor.subject import Conditions, Subject, judged
from trainmark.devices import choose
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.launch.stopping import StopRequest
from trainmark.plan import case_key
from trainmark.plan.choosing import choose as choose_work
from trainmark.plan.request import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trainmark.protocols import Condition, Vendor

    Check = Callable[[Subject], Conditions]

QUICK_S, FULL_S = 8.5, 58.0  # for everything but the start of the program, a second
_CHECK_S = 15.0  # for one check, longer than the bound of any vendor's tool
# Without persistence mode NVIDIA's library takes about a second for each card.
_QUICK_CHOICE_S, _CHOICE_S = 7.5, 20.0
_KILL_ROUNDS, _ROUND_S = 5, 0.1
_POLL_S = 0.1

# A check's code is its name, its group its module. What takes no time comes first, then what asks
# disks, the network and the device's vendor, and last what asks all vendors.
CHECKS: tuple[Check, ...] = (
    host.memory, host.swap, host.cores, host.governor, host.shared_memory, host.open_files,
    devices.device, network.ports, host.threads, host.strays, packages.packages,
    packages.package_pairs, host.load, disk.out_folder, disk.data_folder, network.host_name,
    devices.precisions, host.numa, devices.occupants, devices.device_state, devices.monitor,
    devices.driver, case.data,
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
    case_word: str | None, *, out: Path, quick: bool, stop: StopRequest | None = None,
    recipe: str | None = None, device: str | None = None, nproc: int | None = None,
    data: Path | None = None,
) -> Subject:  # fmt: skip
    """Return what is to be examined.

    Raises:
        UsageError: an unknown case, recipe or device, or a recipe without a case.
    """
    limit_s, choice_s = (QUICK_S, _QUICK_CHOICE_S) if quick else (FULL_S, _CHOICE_S)
    end_s, choice, vendor, fault = time.monotonic() + limit_s, None, None, None
    stop = stop or StopRequest()
    if case_word is None and recipe is not None:
        raise UsageError("a recipe without its case", where="--recipe", remedy="name the case too")
    if case_word is not None:
        choice = choose_work(RunRequest.of(case=case_word, recipe=recipe, data=data, nproc=nproc))
        nproc = choice.nproc
        device = device or case_key.vendor_of(choice.hardware)
    try:
        vendor, here = bounded(lambda: _counted(choose(device)), choice_s, stop)
    except UsageError:
        raise
    except EnvironmentFault as error:
        fault = error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
        what = f"the devices of {device or 'a vendor'} cannot be counted: {_said(error)}"
        remedy = "see why the driver is slow; is its persistence mode on?"
        fault = EnvironmentFault(what, remedy=remedy)
    if nproc is None:
        nproc = 1 if vendor is None or vendor.counts_cores else here
    return Subject(
        vendor=vendor, fault=fault, device=device, nproc=nproc, choice=choice, out=out,
        data=data, quick=quick, end_s=end_s, stop=stop,
    )  # fmt: skip


def _counted(vendor: Vendor) -> tuple[Vendor, int]:
    return vendor, vendor.count()


@contextmanager
def children_ended() -> Iterator[None]:
    """Kill the processes that the block started and left."""
    others = set(psutil.Process().children(recursive=True))
    try:
        yield
    finally:
        for _ in range(_KILL_ROUNDS):  # a check left behind in its thread may start another one
            left = set(psutil.Process().children(recursive=True)) - others
            if not left:
                break
            for child in left:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            time.sleep(_ROUND_S)


def examine(subject: Subject, checks: Sequence[Check] = (*CHECKS, *SLOW)) -> Found:
    """Make each check in turn; one that fails or hangs gives ``unknown``."""
    found = []
    left_out = [check for check in checks if subject.quick and check in SLOW]
    for check in checks:
        if check in left_out or subject.stop.signal_name:
            continue
        limit_s = devices.OPENING_S + 1 if check is devices.torch else _CHECK_S
        for one in _made(check, subject, limit_s):
            group, code = check.__module__.rpartition(".")[2], one.code or check.__name__
            found.append(replace(one, code=code, group=group))
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
    left_s = subject.end_s - time.monotonic()
    if left_s <= 0:
        what = "not examined: time ran out"
        return [judged(what, "see above what took it; --quick has less of it", unknown=True)]
    try:
        bounded(lambda: found.extend(check(subject)), min(limit_s, left_s), subject.stop)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
        what, vendor = _said(error), subject.vendor
        if isinstance(error, TimeoutError) and left_s < limit_s:
            what += ", then time ran out"
        if vendor and check.__module__ == devices.__name__ and check is not devices.driver:
            what = f"{vendor.name}: {what}"
        remedy = getattr(error, "remedy", None) or "see why it cannot be read here"
        found.append(judged(what, remedy, unknown=True))
    return found


def _said(error: BaseException) -> str:
    if isinstance(error, (TrainmarkError, TimeoutError)):
        return str(getattr(error, "what", error))
    return f"{type(error).__name__}: {error}"


def bounded(work: Callable[[], Any], limit_s: float, stop: StopRequest) -> Any:
    """Return what ``work`` returns, or raise what it raises.

    Raises:
        TimeoutError: it takes longer than ``limit_s``, or ``stop`` came to hold a signal; it is
            left behind in its thread.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            future.set_exception(error)

    end_s = time.monotonic() + limit_s
    Thread(target=run, daemon=True).start()
    while not future.done():
        if stop.signal_name or time.monotonic() >= end_s:
            raise TimeoutError(f"no answer in {limit_s:.1f} s")
        wait([future], _POLL_S)
    return future.result()
