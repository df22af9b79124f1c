"""What a server is told once, when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one server.

    Args:
        store: folder of runs or URL of a database, as ``Database`` takes it.
        data: folder for what the server keeps itself: tokens, uploads, the log of changes; None:
            the store's folder, and nothing is kept where the store is a URL.
        read: who may read: everybody, or whoever has a token with the scope ``read``.
        host_names: names under which the server answers; none: any.
        rate: requests a second that one address may make over a longer time; 0: any number.
        max_upload_bytes: size of the largest bundle.
        refresh_s: seconds between two looks at the store's folder.
    """

    store: str | None = None
    data: Path | None = None
    read: Literal["public", "token"] = "public"
    host_names: tuple[str, ...] = ()
    rate: float = 20.0
    max_upload_bytes: int = 256 << 20
    refresh_s: float = 3.0
