"""Receive, verify and store bundles in the data folder, completely or not at all.

The folder of a bundle is named by its SHA-256. It contains the bundle as it was sent, and the
unpacked runs, which the index finds like other runs.
"""

from __future__ import annotations

import tempfile
import threading
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from trainmark.errors import EnvironmentFault, TrainmarkError
from trainmark.pages.site.views import get_run_path
from trainmark.record import record
from trainmark.record.messages import render
from trainmark.results.archive import ENDING, unpack
from trainmark.results.bundle import check_bundle
from trainmark.results.store.query import list_runs
from trainmark.server.client import MEDIA_TYPE, StoredBundle, StoredRun
from trainmark.server.serving import LOG, RefusedRequestError

if TYPE_CHECKING:
    from starlette.requests import Request

    from trainmark.server.serving import Serving

BUNDLE = f"bundle{ENDING}"
_MAX_UNPACKED_BYTES = 4 << 30
_VERIFY_LOCK = threading.Lock()  # held while a bundle is verified


async def store_upload(request: Request, serving: Serving) -> tuple[StoredBundle, bool]:
    """Receive, verify and store the bundle in the body of a request.

    Returns:
        The stored bundle, and whether it is new.

    Raises:
        RefusedRequestError: the request has no valid token, the bundle is too large or does not
            verify, one of its runs is stored already, or the disk is full.
    """
    authorization = request.headers.get("authorization")
    token_name = await run_in_threadpool(serving.tokens.authenticate, authorization)
    if request.headers.get("content-type", "").lower() != MEDIA_TYPE:
        raise RefusedRequestError(
            415, "wrong content type for a bundle", rule=f"the Content-Type must be {MEDIA_TYPE}"
        )
    try:
        with tempfile.TemporaryDirectory(dir=serving.incoming) as folder:
            digest = await _receive_body(request, Path(folder), serving.max_upload_bytes)
            stored, is_new = await run_in_threadpool(_store_bundle, serving, Path(folder), digest)
    except OSError as error:
        LOG.warning("%s", error)
        what = "the server cannot store the bundle; its disk may be full"
        raise RefusedRequestError(507, what, fix="contact the operator of the server") from None
    # A warning, so that the operator has it also where logging is not set up for ``info``:
    # ``serve_until_signal`` sets that up, an application that is made by ``create_app`` does not.
    LOG.warning("upload %s with token %s: %s", digest, token_name, "new" if is_new else "known")
    return stored, is_new


async def _receive_body(request: Request, folder: Path, max_bytes: int) -> str:
    """Write the body of a request to the file ``BUNDLE`` in ``folder``, and return its SHA-256.

    Raises:
        RefusedRequestError: the body is too large, or the connection ended.
    """
    rule = f"at most {max_bytes:,} bytes are accepted"
    announced_bytes = int(request.headers.get("content-length") or 0)
    if announced_bytes > max_bytes:
        raise RefusedRequestError(413, "the upload is too large", rule=rule)
    digest = sha256()
    size = 0
    with (folder / BUNDLE).open("xb") as file:
        try:
            async for chunk in request.stream():
                size += len(chunk)
                # Checked here too, because a client may announce no size.
                if size > max_bytes:
                    raise RefusedRequestError(413, "the upload is too large", rule=rule)
                digest.update(chunk)
                await run_in_threadpool(file.write, chunk)
        except ClientDisconnect:
            raise RefusedRequestError(400, f"the connection ended after {size:,} bytes") from None
    return digest.hexdigest()


def _store_bundle(serving: Serving, folder: Path, digest: str) -> tuple[StoredBundle, bool]:
    """Verify the bundle in ``folder``, whose runs must be new, and move it into the data folder.

    Args:
        folder: the temporary folder that received the upload.
        digest: SHA-256 of the bundle, which names its folder. If there is such a folder already,
            nothing is verified or moved.

    Returns:
        The stored bundle, and whether it is new.
    """
    target = serving.data / digest
    # One bundle at a time: verifying keeps a core busy, and no other bundle may store the same run
    # between the check of the run ids and ``rename``.
    with _VERIFY_LOCK:
        is_new = not target.exists()
        if is_new:
            # The bundle before this one was stored, but its request may not have updated the index.
            serving.index.refresh()
            for run_id in _verify_bundle(folder):
                stored_runs = list_runs(serving.index, [f"run_id={run_id}"], columns=["run_id"])
                if stored_runs.total > 0:
                    raise RefusedRequestError(
                        409,
                        "the run already exists in another bundle",
                        where=run_id,
                        rule="runs are never overwritten",
                    )
            folder.chmod(0o755)  # as other folders of runs; a temporary folder is private
            folder.rename(target)
            folder.mkdir()  # because the caller removes the temporary folder
    serving.refresh()  # so that the runs have pages when the client gets their addresses
    run_ids = [record.read_record(file).run_id for file in sorted(target.rglob(record.RECORD_FILE))]
    runs = [StoredRun(run_id=run_id, page=f"/{get_run_path(run_id)}") for run_id in run_ids]
    return StoredBundle(digest=digest, runs=runs), is_new


def _verify_bundle(folder: Path) -> list[str]:
    """Unpack the bundle in ``folder`` there, check it, and return the run ids of its launches.

    Raises:
        RefusedRequestError: it is damaged, cannot be verified, or does not fit on the disk.
    """
    try:
        bundle = unpack(folder / BUNDLE, folder, max_bytes=_MAX_UNPACKED_BYTES)
        faults = [x for x in check_bundle(bundle) if x.state in ("broken", "unverifiable")]
        run_ids = [
            record.read_record(folder / launch_path).run_id for launch_path in bundle.launches
        ]
    except EnvironmentFault as error:
        raise RefusedRequestError(507, error.what) from None
    except TrainmarkError as error:
        # The client must not see the server's own paths: names in the bundle remain.
        where = (error.where or "").replace(f"{folder}/", "").removeprefix(f"{BUNDLE}: ")
        raise RefusedRequestError(422, error.what, where=where, rule=error.rule) from None
    if faults:
        fault = faults[0]  # the answer names only the first one
        what = f"the bundle cannot be verified: {render(fault.sentences[0], 'en')}"
        # The check that failed, such as ``record``, and the launch, if it is a check of a launch.
        where = f"{fault.name} {fault.place}".strip()
        fix = (
            "`trainmark verify` lists all faults; pack the bundle with the version of Trainmark "
            "that the server runs"
        )
        raise RefusedRequestError(422, what, where=where, fix=fix)
    return run_ids
