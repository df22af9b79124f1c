"""Make and open the folder of an acceptance, with its request, its plans and its lock.

The same command in the same folder measures what is missing.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.acceptance.request import AcceptRequest
from trainmark.documents import write_atomically
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch import run_dir
from trainmark.plan.resolving import resolve
from trainmark.record.record import ACCEPTANCE_PLANS_DIR, ACCEPTANCE_REQUEST_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.plan.choosing import RemoteTarget
    from trainmark.plan.plan import Plan

LOGS_DIR = "logs"  # what ranks print, by node
DEFAULT_DIR = Path("acceptances")
# Options that may differ from those of the first session: they do not change what is measured.
_FREE_TO_CHANGE = {
    "out",
    "phases",
    "rounds",
    "repeats",
    "join",
    "deadline",
    "worse_by",
    "rates_worse_by",
    "baseline",
}


def choose_folder(request: AcceptRequest) -> Path:
    """Return the folder of an acceptance, which may not be there yet."""
    if request.out is not None:
        return request.out.resolve()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return (DEFAULT_DIR / f"{stamp}-{secrets.token_hex(3)}").resolve()


@contextmanager
def open_folder(folder: Path, request: AcceptRequest) -> Iterator[None]:
    """Hold the lock of a folder, which is new or has an earlier session of the same request.

    Raises:
        UsageError: an earlier session there did other work.
        EnvironmentFault: another command holds the lock, the path is no folder, or the folder has
            files but no earlier session, or it cannot be written.
    """
    # The stack lets the handlers below cover the locking alone, and not the block of the caller.
    with ExitStack() as stack:
        try:
            _refuse_used(folder)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_dir.lock_folder(folder))
        except BlockingIOError:
            raise EnvironmentFault(
                "another process is measuring in this folder",
                where=str(folder),
                fix="wait until the other process ends",
            ) from None
        except OSError as error:
            raise run_dir.build_write_fault(folder, error) from error
        refuse_other_request(folder, request)
        yield


def refuse_unusable_folder(folder: Path, request: AcceptRequest) -> None:
    """Refuse a folder that ``open_folder`` would refuse, and write nothing.

    A folder that another process has locked, or that cannot be written, is not refused.

    Raises:
        UsageError: an earlier session there did other work.
        EnvironmentFault: the path is no folder, or has files but no earlier session.
    """
    _refuse_used(folder)
    refuse_other_request(folder, request)


def _refuse_used(folder: Path) -> None:
    """Refuse a path that is a file, or a folder that has files but no earlier session.

    Raises:
        EnvironmentFault: it is one of them.
    """
    if not (folder / ACCEPTANCE_REQUEST_FILE).exists():
        run_dir.refuse_used(folder)


def refuse_other_request(folder: Path, request: AcceptRequest) -> None:
    """Refuse to measure other work in a folder than its earlier sessions did.

    All sessions of a folder are judged together, so that their times must be comparable.

    Raises:
        UsageError: an option differs, or the request of the earlier sessions cannot be read.
    """
    path = folder / ACCEPTANCE_REQUEST_FILE
    if not path.exists():
        return
    try:
        earlier_request = AcceptRequest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise UsageError(
            f"the options of the acceptance test cannot be read: {str(error).splitlines()[0]}",
            where=str(path),
            rule="`trainmark accept` can only continue an acceptance test that it started",
            fix="choose another --out",
        ) from None
    for name in AcceptRequest.model_fields:
        earlier_value = getattr(earlier_request, name)
        value = getattr(request, name)
        # Options that are free to change do not change what is measured.
        if name not in _FREE_TO_CHANGE and earlier_value != value:
            raise UsageError(
                f"{name} changed from {_describe_value(earlier_value)} to {_describe_value(value)}",
                where=str(folder),
                rule="a second `trainmark accept` in the same folder must measure the same work",
                fix="repeat the first command, or choose another --out",
            )


def _describe_value(value: Any) -> str:
    """Return the value of an option as a user would write it."""
    if value is None or value == {}:
        return "none"
    if isinstance(value, dict):  # the option ``overrides``: recipe fields to change
        return " ".join(f"{name}={text}" for name, text in value.items())
    return str(value)


def resolve_plans(
    request: AcceptRequest,
    worlds: Iterable[tuple[int, int]],
    remote: RemoteTarget | None = None,
    *,
    dry_run: bool = False,
) -> list[Plan]:
    """Return the plan of a training for each size of a team; write nothing.

    A team is a number of devices that train together.

    Args:
        worlds: sizes of teams: the number of nodes and the number of devices per node.
        remote: the machines of a launcher; None: this one.
        dry_run: the plans are only shown; data that this machine cannot see is then not checked.
    """
    plans: list[Plan] = []
    for num_nodes, nproc in dict.fromkeys(worlds):  # each size once
        # All teams train by the recipe of the first size. None: the request names it, or planning
        # chooses it.
        recipe = plans[0].recipe_name if plans else None
        run_request = request.make_run_request(nnodes=num_nodes, nproc=nproc, recipe=recipe)
        plans.append(resolve(run_request, remote=remote, dry_run=dry_run))
    return plans


def get_plan_folder(folder: Path, nproc: int) -> Path:
    """Return the folder of the plan of a team: devices that train together, ``nproc`` on each node.

    It has the plan of a team on one node. A team on several nodes uses the same plan, because its
    own would differ only in the number of nodes.

    Args:
        folder: of the acceptance.
    """
    return folder / ACCEPTANCE_PLANS_DIR / f"{nproc}-devices"


def save_request(folder: Path, request: AcceptRequest, plans: Iterable[Plan]) -> None:
    """Write the plans of teams on one node, then the request.

    It is called after all checks: a folder with a request has passed them.
    """
    for plan in plans:
        # A team on several nodes uses the plan of one node: only the number of nodes differs.
        if plan.nnodes == 1:
            path = get_plan_folder(folder, plan.nproc)
            path.mkdir(parents=True, exist_ok=True)
            plan.save(path)
    with write_atomically(folder / ACCEPTANCE_REQUEST_FILE) as file:
        file.write(request.model_dump_json(indent=2).encode() + b"\n")
