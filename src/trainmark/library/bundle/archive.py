"""The archive of a bundle: a zip file of one exact form, written and read within bounds.

Entries lie one behind the other from the first byte on, the manifest and its signature last, then
the directory. Every header is what name, size and checksum of its entry make it: no byte is free
to differ, and no other reader of zip files sees other content. Must not know what the files mean.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from trainmark.data import json_documents
from trainmark.data.json_documents import Frozen
from trainmark.data.regular_file import open_regular
from trainmark.errors import EXIT_FAILED, EnvironmentFault, RecordError, TrainmarkError
from trainmark.record.record import RECORD_FILE, Evidence, Suite
from trainmark.record.shapes import Count  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENDING = ".trainmark.zip"
MANIFEST_FILE, SIGNATURE_FILE = "manifest.json", "manifest.json.sig"
MOST_BYTES = 2**31 - 1  # larger ones would need another form of zip
MOST_ENTRIES, MOST_STORED_BYTES = 20_000, 16 << 20
# Events become a tenth to a fortieth; deflate alone could reach a thousandth.
MOST_RATIO, SMALL_BYTES, MOST_UNPACKED_BYTES = 200, 64 << 20, 64 << 30
_CHUNK = 1 << 18
_NAME = (
    r"^[0-9]{1,5}-[a-z0-9_]{1,64}/(r[0-9]{1,5}/)?(index/[A-Za-z0-9][A-Za-z0-9._-]{0,150}"
    r"|[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(jsonl?|txt|sh|sbatch|yaml|md|html))$"
)

# APPNOTE.TXT 6.3.10, 4.3.7, 4.3.12 and 4.3.16, https://pkware.com/appnote (2026-11-22)
_LOCAL, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LAST_BYTES = 20 + _END.size  # with what leads to another directory in the 64-bit form
_VERSION, _UNIX, _REGULAR_FILE = 20, 3, 0o100644 << 16
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that zip has: the same input gives the same bytes
_TIME_AND_DAY = (0, 1 << 5 | 1)
_NO_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, ArithmeticError, EOFError, ValueError)


class BundleError(RecordError):
    """A file that is no bundle, or results that cannot be bundled."""


class AlteredError(BundleError):
    """A bundle whose bytes are not those that its checksums and its manifest tell."""

    exit_code = EXIT_FAILED


class DiskFullFault(EnvironmentFault):
    """A bundle that does not fit on the disk where it is unpacked."""


class PackedFile(Evidence):
    """A file of a bundle."""

    name: Annotated[str, Field(pattern=_NAME)]


class Manifest(Frozen):
    """What a bundle holds; all else in its archive follows from this.

    Args:
        packed_bytes: of the archive before the manifest, whose digest is ``packed_sha256``.
    """

    schema_version: Literal[1] = 1
    suite: Suite
    files: list[PackedFile] = Field(min_length=1, max_length=MOST_ENTRIES)
    packed_bytes: Count
    packed_sha256: str

    @model_validator(mode="after")
    def _one_place_each(self) -> Self:
        places = {file.name.casefold() for file in self.files}
        folders = {str(folder) for name in places for folder in Path(name).parents}
        if len(places) < len(self.files) or places & folders:
            raise ValueError("two names are one place")
        if not any(name.endswith(f"/{RECORD_FILE}") for name in places):
            raise ValueError("no run in it")
        return self


def _method(name: str) -> int:
    """Return how an entry is compressed: not at all where no digest is over its packed bytes."""
    return zipfile.ZIP_DEFLATED if "/" in name else zipfile.ZIP_STORED


def add(archive: zipfile.ZipFile, name: str, content: Iterable[bytes]) -> PackedFile:
    """Write an entry and return its name, size and digest; one at the top is not compressed.

    Raises:
        BundleError: the archive would be larger than it may be.
    """
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system, info.external_attr = _UNIX, _REGULAR_FILE
    info.compress_type = _method(name)
    size, found = 0, sha256()
    with archive.open(info, "w") as file:
        for chunk in content:
            size += len(chunk)
            if size > MOST_BYTES:
                raise BundleError("larger than 2 GiB", where=name, remedy="bundle fewer runs")
            found.update(chunk)
            file.write(chunk)
    return PackedFile.model_construct(name=name, bytes=size, sha256=found.hexdigest())


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A bundle whose files agree with its manifest, unpacked into ``folder``.

    Args:
        content: of the manifest, which is what is signed.
    """

    folder: Path
    manifest: Manifest
    content: bytes
    signature: bytes | None

    @property
    def launches(self) -> list[str]:
        """Return the folders of the launches, below ``folder``."""
        names = (file.name.rpartition("/") for file in self.manifest.files)
        return [folder for folder, _, name in names if name == RECORD_FILE]


@contextmanager
def unpacked(path: Path) -> Iterator[Unpacked]:
    """Unpack a bundle into a temporary folder, which is removed at the end of the block.

    Raises:
        BundleError: it is not a bundle, or beyond what one may hold.
        AlteredError: its bytes are not those of its manifest.
        EnvironmentFault: it does not fit on the disk.
    """
    with tempfile.TemporaryDirectory() as place:
        found = unpack(path, Path(place))
        try:
            yield found
        except TrainmarkError as error:
            error.where = error.where and error.where.replace(place, str(path))
            raise


def unpack(path: Path, folder: Path, *, most_bytes: int = MOST_UNPACKED_BYTES) -> Unpacked:
    """Unpack a bundle into an empty folder, which may be left with some of it.

    Args:
        most_bytes: that it may have unpacked.

    Raises:
        BundleError: it is not a bundle, or beyond what one may hold.
        AlteredError: its bytes are not those of its manifest.
        DiskFullFault: it does not fit on the disk.
    """
    try:
        with open_regular(path) as file:
            return _unpack(file, folder, most_bytes)
    except BundleError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise type(error)(error.what, where=where, rule=error.rule) from None
    except (*_NO_ZIP, RuntimeError, FileNotFoundError) as error:
        raise BundleError(f"not a bundle: {error}", where=str(path)) from None


def _unpack(file: IO[bytes], folder: Path, most_bytes: int) -> Unpacked:
    _refuse_unbounded(file)
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        _refuse_other_forms(file, infos)
        names = [info.filename for info in infos]
        signed = names[-2:] == [MANIFEST_FILE, SIGNATURE_FILE]
        signature = _stored(archive, infos.pop()) if signed else None
        if MANIFEST_FILE not in names[-1 - signed :]:
            raise BundleError(f"it ends without {MANIFEST_FILE}")
        end = infos[-1].header_offset
        content = _stored(archive, infos.pop())
        manifest = _manifest(content)
        told = [(listed.name, listed.bytes) for listed in manifest.files]
        if [(info.filename, info.file_size) for info in infos] != told:
            raise AlteredError("its entries are not those of its manifest")
        _refuse_bombs(end, sum(info.file_size for info in infos), folder, most_bytes)
        file.seek(0)
        if (end, digest(file, end)) != (manifest.packed_bytes, manifest.packed_sha256):
            raise AlteredError("altered: its files are not those of its manifest")
        for info, listed in zip(infos, manifest.files, strict=True):
            target, found = folder / listed.name, sha256()
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                for piece in _inflated(file, info):
                    found.update(piece)
                    out.write(piece)
            if found.hexdigest() != listed.sha256:
                raise AlteredError("altered: not its digest", where=listed.name)
    return Unpacked(folder, manifest, content, signature)


def _refuse_unbounded(file: IO[bytes]) -> None:
    """Refuse an archive whose directory alone could fill the memory."""
    size = os.fstat(file.fileno()).st_size
    last = os.pread(file.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
    count, length = _END.unpack(last[-_END.size :])[4:6]
    if size > MOST_BYTES or count > MOST_ENTRIES or length > 300 * count or last[:2] == b"PK":
        raise BundleError(
            f"{size:,} bytes, its directory {length:,} for {count:,} entries",
            rule=f"a bundle has {MOST_BYTES:,} bytes and {MOST_ENTRIES:,} entries at most",
        )


def _refuse_other_forms(file: IO[bytes], infos: list[zipfile.ZipInfo]) -> None:
    """Compare every header with the one form that it can have.

    Links, encryption, extra fields, comments, gaps, and bytes before or behind are other forms.
    """
    end, directory = 0, bytearray()
    for info in infos:
        name = info.filename.encode("ascii")  # which zipfile ends at a NUL; the header does not
        sizes = (info.CRC, info.compress_size, info.file_size, len(name), 0)
        told = (_VERSION, 0, _method(info.filename), *_TIME_AND_DAY, *sizes)
        header = _LOCAL.pack(b"PK\3\4", *told) + name
        if os.pread(file.fileno(), len(header), end) != header:
            where = f"entry {info.orig_filename!r} at byte {end}"
            raise BundleError("its header is not of the form of a bundle's", where=where)
        more = (_UNIX << 8 | _VERSION, *told, 0, 0, 0, _REGULAR_FILE, end)
        directory += _CENTRAL.pack(b"PK\1\2", *more) + name
        end += len(header) + info.compress_size
    count, length = len(infos), len(directory)
    directory += _END.pack(b"PK\5\6", 0, 0, count, count, length, end, 0)
    if os.pread(file.fileno(), len(directory) + 1, end) != directory:
        raise BundleError("its directory is not of the form of a bundle's", where=f"byte {end}")


def _refuse_bombs(size: int, total: int, folder: Path, most_bytes: int) -> None:
    if total > min(max(SMALL_BYTES, MOST_RATIO * size), most_bytes):
        rule = f"at most {MOST_RATIO} times as many, and {most_bytes:,}"
        raise BundleError(f"{size:,} bytes would become {total:,}", rule=rule)
    if shutil.disk_usage(folder).free < total:
        remedy = "set TMPDIR to a folder on another disk"
        raise DiskFullFault(f"{total:,} bytes do not fit", where=str(folder), remedy=remedy)


def _manifest(signed: bytes) -> Manifest:
    try:
        json_documents.parse(signed)
        return Manifest.model_validate_json(signed, strict=True)
    except ValueError as error:
        first = " ".join(str(error).splitlines()[:3])
        raise BundleError(f"no manifest of this version: {first}", where=MANIFEST_FILE) from None


def _stored(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the content of the manifest or its signature."""
    if info.file_size > MOST_STORED_BYTES:
        rule = f"{MOST_STORED_BYTES:,} bytes at most"
        raise BundleError(f"{info.file_size:,} bytes", where=info.filename, rule=rule)
    try:
        return archive.read(info)
    except zipfile.BadZipFile:
        raise AlteredError("altered: not its checksum", where=info.filename) from None


def _inflated(file: IO[bytes], info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of an entry, whose packed bytes must hold no less and no more.

    ``zipfile`` would stop where the told size is reached, whatever follows.
    """
    inflater, left, size, crc = zlib.decompressobj(-zlib.MAX_WBITS), info.compress_size, 0, 0
    file.seek(info.header_offset + _LOCAL.size + len(info.filename))
    while left and size <= info.file_size and (packed := file.read(min(left, _CHUNK))):
        left -= len(packed)
        while size <= info.file_size and (piece := inflater.decompress(packed, _CHUNK)):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
            packed = inflater.unconsumed_tail
            yield piece
    if not inflater.eof or inflater.unused_data or size != info.file_size:
        raise AlteredError("altered: not the size that it tells", where=info.filename)
    if crc != info.CRC:  # by which other readers refuse it
        raise AlteredError("altered: not its checksum", where=info.filename)


def digest(file: IO[bytes], size: int) -> str:
    """Return the SHA-256 of the next ``size`` bytes."""
    found = sha256()
    while size > 0 and (chunk := file.read(min(size, _CHUNK))):
        found.update(chunk)
        size -= len(chunk)
    return found.hexdigest()
