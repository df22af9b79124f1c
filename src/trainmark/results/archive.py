"""Write and unpack the archive of a bundle: a zip file with a manifest of digests.

Must not know the content of the files.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from trainmark import __version__
from trainmark.digests import hash_stream
from trainmark.documents import Frozen
from trainmark.errors import EXIT_FAILED, EnvironmentFault, RecordError, TrainmarkError
from trainmark.record.record import RECORD_FILE, Evidence, Suite
from trainmark.validation import describe_error, find_first_misfit, require_form

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDING = ".trainmark.zip"
MANIFEST_FILE = "manifest.json"
_MAX_ENTRIES = 20_000
_MAX_BYTES = 64 << 30  # of all files of a bundle, unpacked
MAX_FILE_BYTES = 4 << 30  # of a file in a bundle; holes count, because a copy fills them with zeros
_NAME = r"[0-9]{1,5}-[a-z0-9_]{1,64}/(r[0-9]{1,5}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # no space, no space left of the user's share
_FIX = f"pass a bundle, whose name ends in {ENDING}, a run directory or its {RECORD_FILE}"
_ENTRY_DATE = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same input gives the same bytes
# How the files in a bundle may be compressed. Bundles are written with deflate; files without
# compression are accepted, because another program may have packed the same files again.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What ``zipfile`` raises for a damaged archive.
_DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,  # an entry is encrypted, or needs a newer version of the format
    ValueError,  # a name is not valid UTF-8, or an entry begins behind the end of any file
)


class BundleError(RecordError):
    """A file that is not a bundle, or results that cannot be bundled."""


class AlteredError(BundleError):
    """A bundle whose files differ from its manifest."""

    exit_code = EXIT_FAILED


class _UnreadableError(Exception):
    """The archive has no manifest that can be read."""


class PackedFile(Evidence):
    """A file of a bundle with its size and digest."""

    name: Annotated[str, require_form(_NAME, "a name of a file in a bundle")]


class Manifest(Frozen):
    """The files of a bundle with their digests."""

    schema_version: Literal[2] = 2
    suite: Suite
    files: list[PackedFile] = Field(min_length=1, max_length=_MAX_ENTRIES)


def write_archive(file: IO[bytes], folder: Path) -> Manifest:
    """Write all files below a folder as a bundle; the same files give the same bytes."""
    files = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = str(path.relative_to(folder))
            with (
                path.open("rb") as content,
                # ``force_zip64``: the entry is opened before its size is known.
                archive.open(_make_entry(name), "w", force_zip64=True) as out,
            ):
                digest = hash_stream(content).hexdigest()  # reads to the end
                size = content.tell()
                content.seek(0)
                shutil.copyfileobj(content, out)
            files.append(PackedFile(name=name, bytes=size, sha256=digest))
        manifest = Manifest(suite=Suite(version=__version__), files=files)
        archive.writestr(_make_entry(MANIFEST_FILE), manifest.model_dump_json(indent=1))
    return manifest


def _make_entry(name: str) -> zipfile.ZipInfo:
    """Return an entry without the date and the rights of its file.

    So a bundle of the same files has the same bytes, whenever and by whomever it is made.
    """
    info = zipfile.ZipInfo(name, _ENTRY_DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A bundle whose files agree with its manifest, unpacked into ``folder``.

    A bundle has the files of one run or several. A run that was repeated has several launches, each
    with a record.
    """

    folder: Path
    manifest: Manifest

    @property
    def launches(self) -> list[str]:
        """Return the folders of the launches, relative to ``folder``: those that have a record."""
        name_parts = (file.name.rpartition("/") for file in self.manifest.files)
        return [folder for folder, _, file_name in name_parts if file_name == RECORD_FILE]


@contextmanager
def unpack_temporarily(path: Path) -> Iterator[Unpacked]:
    """Unpack a bundle into a temporary folder, which is removed at the end of the block.

    Raises:
        BundleError: it is not a bundle, or is beyond the limits of size.
        AlteredError: its files differ from its manifest.
        EnvironmentFault: it does not fit on the disk, or a file cannot be read or written.
    """
    with tempfile.TemporaryDirectory() as folder:
        bundle = unpack(path, Path(folder))
        try:
            yield bundle
        except TrainmarkError as error:
            if error.where is not None:  # the user knows only the bundle, not its temporary folder
                error.where = error.where.replace(folder, str(path))
            raise


def unpack(path: Path, folder: Path, *, max_bytes: int = _MAX_BYTES) -> Unpacked:
    """Unpack a bundle into an empty folder; after an error the folder may have some files.

    Args:
        max_bytes: largest accepted size of all unpacked files.

    Raises:
        BundleError: it is not a bundle, or is beyond the limits of size.
        AlteredError: its files differ from its manifest.
        EnvironmentFault: it does not fit on the disk, or a file cannot be read or written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _unpack_archive(archive, folder, max_bytes)
    except BundleError as error:
        error.where = f"{path}: {error.where}" if error.where else str(path)
        raise
    except (_UnreadableError, *_DAMAGE_ERRORS) as error:
        raise _make_damage_error(path, str(error)) from None
    except EOFError:  # it has no text
        raise _make_damage_error(path, "the content of an entry ends early") from None
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BundleError(f"not a bundle: {error.strerror}", where=str(path), fix=_FIX) from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # from a seek to an entry's offset, if that is damaged
            raise _make_damage_error(path, "an entry lies outside the file") from None
        what = f"cannot unpack: {error.strerror}"
        if error.errno in _FULL_DISK:
            fix = "set TMPDIR to a folder on another disk"
        else:  # the bundle cannot be read, or the folder cannot be written
            fix = "make the file readable, and TMPDIR a writable folder"
        raise EnvironmentFault(what, where=str(path), fix=fix) from None


def _make_damage_error(path: Path, reason: str) -> BundleError:
    """Return the error of a file that cannot be unpacked as a bundle.

    If it has the name of a bundle, it was altered; otherwise it is a file of another kind.
    """
    if path.name.endswith(ENDING):
        return AlteredError(f"the file was altered or is not a bundle: {reason}", where=str(path))
    return BundleError(f"not a bundle: {reason}", where=str(path), fix=_FIX)


def _unpack_archive(archive: zipfile.ZipFile, folder: Path, max_bytes: int) -> Unpacked:
    """Unpack an open archive, and compare its files with its manifest.

    Args:
        max_bytes: largest accepted size of all unpacked files.

    Raises:
        BundleError: it is beyond the limits of size, or its manifest is of another schema.
        AlteredError: its files differ from its manifest.
        _UnreadableError: it has no manifest, or one that is not JSON; or an entry is compressed
            in a way that bundles are not.
    """
    names = archive.namelist()
    for info in archive.infolist():
        # The decoders of other compressions would raise further errors for damaged content.
        if info.compress_type not in _COMPRESSIONS:
            raise _UnreadableError(
                "an entry uses a compression method that is not allowed in bundles"
            )
    total_bytes = sum(info.file_size for info in archive.infolist())
    if total_bytes > max_bytes:
        raise BundleError(
            f"the bundle takes up {total_bytes:,} bytes when unpacked",
            rule=f"a bundle may take up at most {max_bytes:,} bytes when unpacked",
        )
    if MANIFEST_FILE not in names:
        raise _UnreadableError(f"the archive does not contain {MANIFEST_FILE}")
    manifest = _parse_manifest(archive.read(MANIFEST_FILE))
    expected_names = [*(file.name for file in manifest.files), MANIFEST_FILE]
    if sorted(names) != sorted(expected_names):
        raise AlteredError("the files do not match the manifest")
    # A file of the manifest may also have the name of a folder in which another one is.
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    if len(set(names)) < len(names) or not folders.isdisjoint(names):
        raise AlteredError("the manifest lists files whose paths conflict")
    for file in manifest.files:
        target = folder / file.name  # inside of ``folder``: a manifest allows no other names
        target.parent.mkdir(parents=True, exist_ok=True)
        # ``x``: never over an existing file.
        with archive.open(file.name) as content, target.open("x+b") as out:
            shutil.copyfileobj(content, out)
            size = out.tell()
            out.seek(0)
            digest = hash_stream(out).hexdigest()
            if size != file.bytes or digest != file.sha256:
                raise AlteredError(
                    "the file was altered: its size and SHA-256 do not match the manifest",
                    where=file.name,
                )
    return Unpacked(folder, manifest)


def _parse_manifest(content: bytes) -> Manifest:
    """Return the manifest of a bundle.

    Raises:
        _UnreadableError: it is not JSON.
        BundleError: it is of another schema.
    """
    try:
        return Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        if find_first_misfit(error).kind == "json_invalid":
            raise _UnreadableError(f"{MANIFEST_FILE} in the archive is not JSON") from None
        what = f"not a manifest of this version: {describe_error(error)}"
        raise BundleError(what, where=MANIFEST_FILE) from None
