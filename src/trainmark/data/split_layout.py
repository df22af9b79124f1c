"""Find the files of each split in a data folder.

Owns which of the forms that a case knows a folder has, and the errors where a split is
missing, empty or no regular file. Must not know what the files hold: forms, rule and way out
are the case's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data.input_files import file_bytes, readable, split_files
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """The form that a folder has, and the files of each split in order."""

    kind: str
    files: dict[str, list[Path]]


def one_file(place: Path, name: str) -> list[Path]:
    """Return the file ``name`` of ``place``, if it is there."""
    file = place / name
    return [file] if file.exists() else []


def numbered_files(place: Path, name: str) -> list[Path]:
    """Return the file ``name`` of ``place``, or its numbered parts in order.

    Raises:
        DataError: a part is missing, or there twice.
    """
    split, _, ending = name.rpartition(".")
    return split_files(place, split, ending)


@dataclass(frozen=True, slots=True)
class Form:
    """One form in which a folder can hold its splits.

    Args:
        kind: as records name it.
        names: names of each split's files, the first that is there is used.
        folders: where below the data folder they can lie, the first that has some is used.
        find: returns the files of a name in a folder, none where there are none.
    """

    kind: str
    names: Mapping[str, Sequence[str]]
    folders: Sequence[str] = (".",)
    find: Callable[[Path, str], list[Path]] = one_file

    def files_in(self, place: Path) -> dict[str, list[Path]]:
        """Return the files of each split that lie right in ``place``."""
        return {
            split: next(filter(None, (self.find(place, name) for name in names)), [])
            for split, names in self.names.items()
        }


def find_layout(folder: Path, forms: Sequence[Form], *, rule: str, remedy: str) -> Layout:
    """Find the splits of ``folder`` in the first of ``forms`` that it has.

    Args:
        rule: what a data folder holds, as an error says it.
        remedy: the way out, as an error says it.

    Raises:
        DataError: no such folder, no form, only one split, or a file that is empty or cannot
            be read.
    """
    if not folder.is_dir():
        raise DataError("no such folder", where=str(folder), remedy=f"check --data, or {remedy}")
    for form in forms:
        for place in (folder / name for name in form.folders):
            layout = complete_layout(form, place, rule=rule, remedy=remedy)
            if layout is not None:
                return layout
    raise DataError("no data files", where=str(folder), rule=rule, remedy=remedy)


def complete_layout(form: Form, place: Path, *, rule: str, remedy: str) -> Layout | None:
    """Return the splits that lie right in ``place``, none where it has no file of the form.

    Raises:
        DataError: one split is missing, or a file is empty or cannot be read.
    """
    files = form.files_in(place)
    found = [file for split in files.values() for file in split]
    if not found:
        return None
    for split, names in form.names.items():
        if not files[split]:
            raise DataError(
                f"no {split} split beside {found[0].name}",
                where=f"{place}, {' or '.join(names)}",
                rule=rule,
                remedy=f"add the file, or {remedy}",
            )
    for file in found:
        refuse_unreadable(file, rule=rule, remedy=remedy)
    return Layout(form.kind, files)


def refuse_unreadable(file: Path, *, rule: str, remedy: str) -> None:
    """Refuse a file that is missing, empty, not to be read, or no regular file."""
    with readable(file, rule=rule, remedy=remedy):
        empty = file_bytes(file) == 0
    if empty:
        raise DataError("the file is empty (0 bytes)", where=str(file), rule=rule, remedy=remedy)
