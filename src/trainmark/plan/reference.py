"""Published and measured reference figures, with their sources.

Owns the form of a case's ``reference.toml`` and the checks that need only the printed cells.
Cells stay as printed, character by character: a published figure is corrected by a remark,
never by changing it.

Evidence levels: ``A`` measured, with a record that can be checked; ``B`` published with
logs or raw data; ``C`` published figures alone; ``unverified`` second-hand.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt, ValidationError

from trainmark import cases
from trainmark.data.documents import Frozen
from trainmark.errors import RecordError
from trainmark.spec import Text  # noqa: TC001 - pydantic reads it at run time

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE_FILE = "reference.toml"
REFERENCE = "reference:"  # begins the word for a case's published rows
EvidenceLevel = Literal["A", "B", "C", "unverified"]
# Passes over the data that differ by more than this are different amounts of work.
SAME_WORK_RATIO = 1.1


class Source(Frozen):
    """The source of rows; ``date`` is ISO 8601, None if the source has no date."""

    id: str
    text: Text
    url: str | None = None
    date: str | None = None
    evidence: EvidenceLevel
    remark: Text | None = None


class _Row(Frozen):
    """What a row of ``reference.toml`` and a ``Reference`` have in common.

    ``cells_en`` replaces cells whose print is not English, for the English page only.
    """

    kind: Literal["published", "measured"] = "published"
    configuration: str
    device: str
    world: Annotated[str, Field(pattern=r"^[1-9]\d*x[1-9]\d*$")]
    precision: str
    cells_en: dict[str, str] = Field({})


class _PrintedRow(_Row):
    """A row of ``reference.toml``: the id of its source, cells in the order of the columns."""

    source: str
    cells: list[str]


class _File(Frozen):
    """A whole ``reference.toml``; ``samples_per_pass`` is the training rows of the data set."""

    columns: list[str]
    samples_per_pass: PositiveInt | None = None
    source: list[Source]
    reference: list[_PrintedRow]


class Reference(_Row):
    """One row of figures with its provenance; ``cells`` by column header, as printed."""

    source: Source
    cells: dict[str, str]

    @property
    def fix_hp(self) -> str:
        """Return the changed hyper-parameters as printed."""
        return self.cells.get("fix_hp", "")

    @property
    def nnodes(self) -> int:
        """Return the machines of the world."""
        return int(self.world.split("x")[0])

    @property
    def nproc(self) -> int:
        """Return the devices a machine."""
        return int(self.world.split("x")[1])


class References(Frozen):
    """All rows of a case under the headers they were printed with."""

    columns: tuple[str, ...] = ()
    samples_per_pass: PositiveInt | None = None
    rows: tuple[Reference, ...] = ()


def of_case(name: str) -> References:
    """Return the references of the case called ``name``; none when it has no such file.

    Raises:
        RecordError: the file has unknown keys or rows that do not fit.
        UsageError: no such case.
    """
    if name not in cases.names():
        name = cases.load(name).name
    path = cases.folder(name) / REFERENCE_FILE
    return read(path) if path.is_file() else References()


def read(path: Path) -> References:
    """Read a ``reference.toml``.

    Raises:
        RecordError: not TOML, unknown keys, a row whose cells do not fit the columns, or a
            source that is not there.
    """
    try:
        file = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        # A misspelt key is also a missing one: the misspelling says more.
        first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"])
        raise RecordError(
            f"key {key}: {first['msg']}",
            where=_place(path),
            rule=f"top-level keys are {', '.join(_File.model_fields)}; "
            f"a reference has {', '.join(_PrintedRow.model_fields)}",
        ) from None
    except (OSError, ValueError) as error:
        raise RecordError(
            f"cannot be read: {error}", where=_place(path), rule="it is TOML in UTF-8"
        ) from None
    sources = {source.id: source for source in file.source}
    rows = tuple(_row(path, file, sources, index) for index in range(len(file.reference)))
    return References(
        columns=tuple(file.columns), samples_per_pass=file.samples_per_pass, rows=rows
    )


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _row(path: Path, file: _File, sources: dict[str, Source], index: int) -> Reference:
    printed = file.reference[index]
    where = f"{_place(path)}, reference {index + 1}"
    if len(printed.cells) != len(file.columns):
        raise RecordError(
            f"{len(printed.cells)} cells",
            where=where,
            rule=f"columns names {len(file.columns)}: {', '.join(file.columns)}",
        )
    if printed.source not in sources:
        raise RecordError(
            f"unknown source {printed.source!r}",
            where=where,
            remedy=f"sources are {', '.join(sorted(sources)) or 'missing'}",
        )
    strange = sorted(set(printed.cells_en) - set(file.columns))
    if strange:
        raise RecordError(
            f"cells_en names {strange[0]!r}",
            where=where,
            rule=f"columns are {', '.join(file.columns)}",
        )
    return Reference(
        source=sources[printed.source],
        cells=dict(zip(file.columns, printed.cells, strict=True)),
        **printed.model_dump(exclude={"source", "cells"}),
    )
