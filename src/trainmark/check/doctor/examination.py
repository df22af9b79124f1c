"""Every check of ``trainmark doctor``, and their run within bounds."""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from trainmark.check.doctor import case, devices, disk, host, network, packages
from trainmark.check.doctor.subject import Conditions, Subject, judged
from trainmark.devices import choose
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.plan import case_key
from trainmark.plan.choosing import choose as choose_work
from trainmark.plan.request import RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainmark.protocols import Condition, Vendor

    Check = Callable[[Subject], Conditions]

T = TypeVar("T")
QUICK_S, FULL_S = 8.5, 58.0  # for everything but the start of the program, a second
_CHECK_S = 15.0  # for one check, longer than the bound of any vendor's tool
# Without persistence mode NVIDIA's library takes about a second for each card.
_QUICK_CHOICE_S, _CHOICE_S = 7.5, 20.0

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
class Examination:
    """All conditions of a machine: the document of ``--json``.

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
    case_word: str | None, *, out: Path, quick: bool, recipe: str | None = None,
    device: str | None = None, nproc: int | None = None, data: Path | None = None,
) -> Subject:  # fmt: skip
    """Return what is to be examined.

    Raises:
        UsageError: an unknown case, recipe or device, or a recipe without a case.
    """
    limit_s, choice_s = (QUICK_S, _QUICK_CHOICE_S) if quick else (FULL_S, _CHOICE_S)
    end_s, choice, vendor, fault = time.monotonic() + limit_s, None, None, None
    if case_word is None and recipe is not None:
        raise UsageError("a recipe without its case", where="--recipe", remedy="name the case too")
    if case_word is not None:
        choice = choose_work(RunRequest.of(case=case_word, recipe=recipe, data=data, nproc=nproc))
        nproc = choice.nproc
        device = device or case_key.vendor_of(choice.hardware)
    try:
        vendor, here = _bounded(lambda: _counted(choose(device)), choice_s)
    except UsageError:
        raise
    except EnvironmentFault as error:
        fault = error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
        what = f"the devices of {device or 'a vendor'} cannot be counted: {_reason(error)}"
        remedy = "see why the driver is slow; is its persistence mode on?"
        fault = EnvironmentFault(what, remedy=remedy)
    if nproc is None:
        nproc = 1 if vendor is None or vendor.counts_cores else here
    return Subject(
        vendor=vendor, fault=fault, device=device, nproc=nproc, choice=choice, out=out,
        data=data, quick=quick, end_s=end_s,
    )  # fmt: skip


def _counted(vendor: Vendor) -> tuple[Vendor, int]:
    return vendor, vendor.count()


def examine(subject: Subject, checks: Sequence[Check] = (*CHECKS, *SLOW)) -> Examination:
    """Make each check in turn; one that fails or hangs gives ``unknown``."""
    found = []
    left_out = [check for check in checks if subject.quick and check in SLOW]
    for check in checks:
        if check not in left_out:
            limit_s = devices.OPENING_S + 1 if check is devices.torch else _CHECK_S
            for one in _made(check, subject, limit_s):
                group, code = check.__module__.rpartition(".")[2], one.code or check.__name__
                found.append(replace(one, code=code, group=group))
    severities = {one.severity for one in found}
    return Examination(
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
        _bounded(lambda: found.extend(check(subject)), min(limit_s, left_s))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
        remedy = getattr(error, "remedy", None) or "see why it cannot be read here"
        found.append(judged(_reason(error), remedy, unknown=True))
    return found


def _reason(error: BaseException) -> str:
    if isinstance(error, TrainmarkError):
        return error.what
    return str(error) if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"


def _bounded(work: Callable[[], T], limit_s: float) -> T:
    """Return what ``work`` returns, or raise what it raises.

    Raises:
        TimeoutError: it takes longer; it is left behind in its thread, as no signal ends a driver
            that hangs.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    if not wait([future], limit_s).done:
        raise TimeoutError(f"no answer in {limit_s:.1f} s")
    return future.result()
