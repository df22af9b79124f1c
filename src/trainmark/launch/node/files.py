"""Send a node's files through its standard output, and receive them from a job's log.

For engines without a common folder whose logs can be read. A file is a line with its name, size
and digest, then its content as base64 of zlib; markers may stand anywhere in a line, since engines
put prefixes before what a job prints.
"""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass, field
from hashlib import sha256
from typing import IO, TYPE_CHECKING

from trainmark.data.json_documents import written_whole
from trainmark.errors import EnvironmentFault
from trainmark.rank.events import node_file, rank_file, telemetry_file
from trainmark.rank.worker import log_file, stacks_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from trainmark.plan.plan import Plan

_CHUNK_BYTES = 3 << 14  # some engines cut lines above 256 KiB
_LARGEST_BYTES = 1 << 34
_MARK = re.compile(
    r"TRAINMARK-(?:FILE (?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,99}) (?P<bytes>\d{1,11}) "
    r"(?P<digest>[0-9a-f]{64})|DATA (?P<data>[A-Za-z0-9+/=]+)|(?P<end>END) (?P<files>\d{1,6}))\s*$"
)


def names_of(node: int, plan: Plan) -> list[str]:
    """Return the files that a node may write."""
    ranks = range(node * plan.nproc, (node + 1) * plan.nproc)
    own = [node_file(node), telemetry_file(node), f"log.node{node}.txt"]
    return own + [name(rank) for rank in ranks for name in (rank_file, log_file, stacks_file)]


def send(run_dir: Path, node: int, plan: Plan, stream: IO[str]) -> None:
    """Write the files of ``node`` that exist and are not empty to ``stream``."""
    found = [run_dir / name for name in names_of(node, plan)]
    found = [path for path in found if path.is_file() and path.stat().st_size]
    for path in found:
        with path.open("rb") as file:
            digest, size = sha256(), 0
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
            stream.write(f"TRAINMARK-FILE {path.name} {size} {digest.hexdigest()}\n")
            file.seek(0)
            for data in _packed(file):
                for start in range(0, len(data), _CHUNK_BYTES):
                    text = base64.b64encode(data[start : start + _CHUNK_BYTES]).decode()
                    stream.write(f"TRAINMARK-DATA {text}\n")
    stream.write(f"TRAINMARK-END {len(found)}\n")
    stream.flush()


def _packed(file: IO[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj()
    while chunk := file.read(1 << 20):
        yield packer.compress(chunk)
    yield packer.flush()


@dataclass(slots=True)
class _Incoming:
    """A file that is being received."""

    name: str
    size: int
    digest: str
    content: bytearray = field(default_factory=bytearray)
    unpacker: zlib._Decompress = field(default_factory=zlib.decompressobj)

    def take(self, text: str) -> None:
        left = self.size - len(self.content) + 1  # one more shows a file longer than it says
        self.content += self.unpacker.decompress(base64.b64decode(text), left)

    def whole(self) -> bool:
        return len(self.content) == self.size and sha256(self.content).hexdigest() == self.digest


def receive(lines: Iterable[str], run_dir: Path, *, expected: Iterable[str]) -> list[str]:
    """Write the files in a node's log into ``run_dir``; return their names.

    Args:
        lines: of one node's log, or of several, one after another.
        expected: names that are taken; others are ignored.

    Raises:
        EnvironmentFault: the log lacks its end or a part of a file; whole files were written.
    """
    wanted, written = set(expected), []
    current: _Incoming | None = None
    damaged: list[str] = []

    def close() -> None:
        if current is None or current.name not in wanted:
            return
        if not current.whole():
            damaged.append(current.name)
            return
        with written_whole(run_dir / current.name) as file:
            file.write(current.content)
        written.append(current.name)

    seen, announced = 0, -1
    for line in lines:
        mark = _MARK.search(line)
        if mark is None:
            continue
        if mark["name"]:
            close()
            seen += 1
            current = _Incoming(
                mark["name"], min(int(mark["bytes"]), _LARGEST_BYTES), mark["digest"]
            )
        elif mark["data"] and current is not None:
            try:
                current.take(mark["data"])
            except (ValueError, zlib.error):
                current.digest = ""  # damaged
        elif mark["end"]:
            close()
            current, announced = None, max(announced, 0) + int(mark["files"])
    if damaged or seen != announced:
        what = f"damaged: {', '.join(damaged)}" if damaged else "files or the end are missing"
        raise EnvironmentFault(
            f"files in a node's log are not whole: {what}",
            where=str(run_dir),
            rule="the engine cut the log, or the node ended before it sent its files",
            remedy="use a folder that all nodes see (docs/launchers.md)",
        )
    return written
