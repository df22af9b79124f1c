"""Build archives field by field, sound but for what a test changes."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

DEFLATED, STORED = 8, 0
REGULAR_FILE = 0o100644 << 16


@dataclass
class Item:
    """An entry; ``local`` and ``central`` are fields that differ in one of its headers."""

    name: str | bytes
    content: bytes
    method: int = DEFLATED
    told: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    central: dict[str, int] = field(default_factory=dict)
    extra: bytes = b""
    comment: bytes = b""
    data: bytes | None = None
    after: bytes = b""  # a gap

    @property
    def raw(self) -> bytes:
        return self.name.encode() if isinstance(self.name, str) else self.name

    def packed(self) -> bytes:
        if self.data is not None:
            return self.data
        if self.method == STORED:
            return self.content
        worker = zlib.compressobj(-1, zlib.DEFLATED, -15)  # as zipfile
        return worker.compress(self.content) + worker.flush()

    def fields(self) -> dict[str, int]:
        return {
            "version": 20, "flags": 0, "method": self.method, "time": 0, "date": 33,
            "crc": zlib.crc32(self.content), "packed": len(self.packed()),
            "size": len(self.content), "system": 3, "disk": 0, "internal": 0,
            "external": REGULAR_FILE,
        } | self.told  # fmt: skip


def _local(item: Item) -> bytes:
    f = item.fields() | item.local
    head = struct.pack("<4s5H3L2H", b"PK\3\4", f["version"], f["flags"], f["method"], f["time"],
                       f["date"], f["crc"], f["packed"], f["size"], len(item.raw),
                       len(item.extra))  # fmt: skip
    return head + item.raw + item.extra + item.packed() + item.after


def _central(item: Item, offset: int) -> bytes:
    f = item.fields() | item.central
    head = struct.pack("<4s6H3L5H2L", b"PK\1\2", f["system"] << 8 | 20, f["version"], f["flags"],
                       f["method"], f["time"], f["date"], f["crc"], f["packed"], f["size"],
                       len(item.raw), len(item.extra), len(item.comment), f["disk"], f["internal"],
                       f["external"], f.get("offset", offset))  # fmt: skip
    return head + item.raw + item.extra + item.comment


def built(items: list[Item], *, before: bytes = b"", between: bytes = b"", **end: Any) -> bytes:
    """Return an archive of ``items``; ``end`` changes fields of its last record."""
    data, directory = before, b""
    for item in items:
        directory += _central(item, len(data))
        data += _local(item)
    told = {"count": len(items), "length": len(directory), "start": len(data), "comment": b""} | end
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, told["count"], told["count"], told["length"],
                       told["start"], len(told["comment"]))  # fmt: skip
    return data + directory + between + last + told["comment"]


def manifest(items: list[Item], **other: Any) -> bytes:
    """Return the manifest that fits ``items``."""
    packed = b"".join(_local(item) for item in items)
    files = [
        {"name": item.name if isinstance(item.name, str) else item.name.decode("latin-1"),
         "bytes": item.fields()["size"], "sha256": sha256(item.content).hexdigest()}
        for item in items
    ]  # fmt: skip
    told = {"schema_version": 1, "suite": {"name": "trainmark", "version": "0.1.0"},
            "files": files, "packed_bytes": len(packed),
            "packed_sha256": sha256(packed).hexdigest()}  # fmt: skip
    return json.dumps(told | other).encode()


def forged(path: Path, items: list[Item], text: bytes | None = None, **how: Any) -> Path:
    """Write a bundle of ``items`` whose manifest and digests are right."""
    text = manifest(items) if text is None else text
    path.write_bytes(built([*items, Item("manifest.json", text, STORED)], **how))
    return path
