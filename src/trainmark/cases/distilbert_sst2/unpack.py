"""Unpack archives without ever leaving the folder.

Owns the check of every member before the first byte is written.
"""

from __future__ import annotations

import errno
import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from trainmark.errors import DataError, EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
# Besides damage: encrypted members and unknown methods (RuntimeError and its child
# NotImplementedError), names too long or in each other's way, gzip sums (OSError).
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError)
MEMBER_RULE = "members are plain files and folders below the archive's own top"
MEMBER_REMEDY = "fetch the archive from its publisher again, or unpack it by hand and look at it"


def is_archive(file: Path) -> bool:
    """Tell whether the name says archive."""
    return file.is_file() and file.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack ``archive`` into ``folder``, which exists.

    Raises:
        DataError: a damaged archive, or a member that is a link, a device, or lies outside.
        EnvironmentFault: the disk has less room than the archive says it needs.
    """
    try:
        if archive.name.lower().endswith(".zip"):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentFault(
                "the disk became full while unpacking",
                where=str(archive),
                remedy="choose a --data folder on a larger disk",
            ) from None
        raise DataError(
            f"not readable as an archive: {error}", where=str(archive), remedy=MEMBER_REMEDY
        ) from None


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            mode = member.external_attr >> 16
            plain = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR)
            _refuse_member(archive, member.filename, plain=plain)
        _refuse_too_large(archive, folder, sum(item.file_size for item in opened.infolist()))
        opened.extractall(folder)


def _unpack_tar(archive: Path, folder: Path) -> None:
    if archive.name.lower().endswith("gz"):
        _read_to_the_end(archive)
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        for member in members:
            _refuse_member(archive, member.name, plain=member.isfile() or member.isdir())
        _refuse_too_large(archive, folder, sum(member.size for member in members))
        opened.extractall(folder, filter="data")


def _read_to_the_end(archive: Path) -> None:
    """Have gzip check its own sums: tarfile stops before them and takes altered bytes."""
    with gzip.open(archive) as stream:
        while stream.read(1 << 20):
            pass


def _refuse_member(archive: Path, name: str, *, plain: bool) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    fault = None
    if path.is_absolute() or ":" in path.parts[:1]:
        fault = "is an absolute path"
    elif ".." in path.parts:
        fault = "leads out of the folder"
    elif not plain:
        fault = "is a link or a special file"
    if fault:
        raise DataError(
            f"member {name!r} {fault}",
            where=str(archive),
            rule=MEMBER_RULE,
            remedy=MEMBER_REMEDY,
        )


def _refuse_too_large(archive: Path, folder: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes > free_bytes:
        raise EnvironmentFault(
            f"unpacking needs {size_bytes:,} bytes, the disk has {free_bytes:,} free",
            where=str(archive),
            remedy="choose a --data folder on a larger disk",
        )
