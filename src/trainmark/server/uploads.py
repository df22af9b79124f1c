"""Uploads over HTTP: a bundle is received within bounds, and everything is told in the log."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import IO, TYPE_CHECKING

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPBearer
from starlette.requests import ClientDisconnect

from trainmark.devices.vendors.cpu import usable_cores
from trainmark.errors import RecordError, UsageError
from trainmark.library.bundle.archive import ENDING
from trainmark.server.changes import Changes
from trainmark.server.client import MEDIA_TYPE, Stored
from trainmark.server.data import REFUSALS
from trainmark.server.examining import BUNDLE, full
from trainmark.server.intake import Intake
from trainmark.server.refused import Refused
from trainmark.server.tokens import Tokens

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.library.store.index import Index
    from trainmark.server.serving import Serving

_MOST_AT_ONCE = 8  # uploads that are received or wait for their verification
_RETRY_S = 2
_PATIENCE_S, _SLOWEST_BYTES_PER_S = 30, 20_000


class Uploads:
    """What uploads to one server share; ``app.state.uploads``.

    Args:
        folder: the data folder.
        most_bytes: size of the largest bundle.
    """

    def __init__(self, folder: Path, index: Index, *, most_bytes: int) -> None:
        self.tokens, self.changes, self.most_bytes = Tokens(folder), Changes(folder), most_bytes
        self.intake = Intake(folder, index, self.changes)
        self.intake.recover()
        self._examiners = ThreadPoolExecutor(max(1, usable_cores() // 2), "examine")
        self._under_way = 0

    async def admitted(self, request: Request) -> str:
        """Return the name of the token of a request that may upload.

        Raises:
            Refused: it may not.
        """
        given = request.headers.get("authorization")
        return (await asyncio.to_thread(self.tokens.admitted, given, "upload")).name

    async def take(self, request: Request) -> tuple[Stored, bool]:
        """Receive, verify and store the body of a request.

        Raises:
            Refused: it is too large or too slow, does not verify, or too many come at once; its
                token was revoked meanwhile.
        """
        if request.headers.get("content-type", "").lower() != MEDIA_TYPE:
            raise Refused(415, "not the type of a bundle", rule=f"Content-Type: {MEDIA_TYPE}")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.most_bytes:
            raise self._too_large()
        if self._under_way >= _MOST_AT_ONCE:
            again = {"Retry-After": str(_RETRY_S)}
            raise Refused(503, "too many uploads at once", headers=again, remedy="send it later")
        self._under_way += 1
        try:
            staged = await asyncio.to_thread(self.intake.stage)
            try:
                with (staged.folder / BUNDLE).open("xb") as file:
                    digest = await self._received(request, file)
                token = await self.admitted(request)  # a slow one takes hours
            except BaseException:
                staged.remove()
                raise
            loop = asyncio.get_running_loop()
            # In one piece: should this task be cancelled, it still ends whole.
            work = partial(self.intake.take, staged, digest, token)
            return await asyncio.shield(loop.run_in_executor(self._examiners, work))
        except OSError as error:
            raise full(error) from error
        finally:
            self._under_way -= 1

    async def _received(self, request: Request, file: IO[bytes]) -> str:
        """Write the body to ``file`` and return its digest."""
        found, size, start = sha256(), 0, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_PATIENCE_S) as limit:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > self.most_bytes:
                        raise self._too_large()
                    found.update(chunk)
                    await asyncio.to_thread(file.write, chunk)
                    limit.reschedule(start + _PATIENCE_S + size / _SLOWEST_BYTES_PER_S)
        except TimeoutError:
            raise Refused(408, f"{size:,} bytes came too slowly") from None
        except ClientDisconnect:
            raise Refused(400, f"the connection ended after {size:,} bytes") from None
        return found.hexdigest()

    def _too_large(self) -> Refused:
        return Refused(413, "too large", rule=f"at most {self.most_bytes:,} bytes")


def uploads_of(serving: Serving) -> Uploads | None:
    """Return what takes uploads; None where the server has no folder that it may write.

    Raises:
        UsageError: the data folder lies within the store's.
    """
    folder, top = serving.data, serving.database.folder
    if folder is None or (folder.exists() and not os.access(folder, os.W_OK)):
        return None
    if top is not None and top.resolve() in folder.resolve().parents:
        rule = "the data folder is the store's, or outside of it"
        raise UsageError("the index would follow it in part", where=str(folder), rule=rule)
    return Uploads(folder, serving.index, most_bytes=serving.settings.max_upload_bytes)


_FILE = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
router = APIRouter(responses=REFUSALS)


@router.post(
    "/api/runs",
    status_code=201,
    response_model=Stored,
    responses={200: {"model": Stored, "description": "It is stored already."}},
    dependencies=[Depends(HTTPBearer(auto_error=False))],  # for the document; asked for below
    max_body_size=sys.maxsize,  # what may be sent is said only to who may send
    openapi_extra={"requestBody": {"required": True, "content": _FILE}},
)
async def upload(request: Request) -> JSONResponse:
    """Store a bundle that verifies, made by `trainmark bundle`; answered when it is on the disk."""
    uploads: Uploads | None = request.app.state.uploads
    if uploads is None:
        raise Refused(403, "this server takes no uploads", remedy="start it with --data FOLDER")
    token, count = None, request.app.state.serving.metrics.upload
    try:
        token = await uploads.admitted(request)
        receipt, new = await uploads.take(request)
    except Refused as error:
        count("refused")
        if token is not None:
            told = partial(uploads.changes.add, "upload", "refused", token=token)
            await asyncio.to_thread(told, status=error.status, what=error.what)
        raise
    count("stored" if new else "known")
    status = 201 if new else 200
    return JSONResponse(receipt.model_dump(), status, {"Location": receipt.runs[0].page})


@router.get(
    "/api/runs/{run_id:path}/bundle",
    response_class=FileResponse,
    responses={200: {"content": _FILE}},
)
def bundle(run_id: str, request: Request) -> FileResponse:
    """Return the bundle that brought a run, as it was sent."""
    uploads: Uploads | None = request.app.state.uploads
    file = uploads and uploads.intake.bundle(run_id)
    if not file:
        raise RecordError("no bundle of this run", where=run_id.replace("/", "_")[:200])
    return FileResponse(file, media_type=MEDIA_TYPE, filename=f"{run_id}{ENDING}")
