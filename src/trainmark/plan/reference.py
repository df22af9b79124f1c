"""Published and measured reference figures, with their sources.

Defines the form of a case's ``reference.toml`` and the checks that need only the printed cells.
Cells stay as printed, character by character: a published figure is corrected by a remark, never by
changing it. Other fields describe the work as far as the page states or implies it, so that a row
is compared only with runs that did the same work.

Evidence levels: ``A`` measured, with a record that can be checked; ``B`` published with
logs or raw data; ``C`` published figures alone; ``unverified`` second-hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from trainmark import cases
from trainmark.documents import Frozen
from trainmark.errors import RecordError
from trainmark.spec import Text  # noqa: TC001 - pydantic reads it at run time
from trainmark.toml_file import read_toml
from trainmark.validation import describe_error, require_form

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE_FILE = "reference.toml"
REFERENCE = "reference:"  # prefix of the argument that names a case's published rows
EvidenceLevel = Literal["A", "B", "C", "unverified"]
# Numbers of passes over the data that differ by more than this ratio are different work.
SAME_WORK_RATIO = 1.1
_WORLD = r"[1-9]\d*x[1-9]\d*"


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

    Args:
        precision: the precision that really ran; the printed one is among the cells.
        micro_batch_size: samples of a device in a micro-batch; None: the page does not say.
        sample_count: how many times the printed throughput counts each sample.
        cells_en: replaces cells whose print is not English, for the English page only.
    """

    kind: Literal["published", "measured"] = "published"
    configuration: str
    device: str
    world: Annotated[
        str,
        require_form(_WORLD, "NODESxRANKS, such as 1x8"),
        Field(json_schema_extra={"pattern": f"^{_WORLD}$"}),
    ]
    precision: str
    micro_batch_size: PositiveInt | None = None
    sample_count: PositiveInt = 1
    cells_en: dict[str, str] = Field({})


class _PrintedRow(_Row):
    """A row of ``reference.toml``: the id of its source, cells in the order of the columns."""

    source: str
    cells: list[str]


class _ReferenceDocument(Frozen):
    """A whole ``reference.toml``; see ``References``."""

    columns: list[str]
    parameters: PositiveInt | None = None
    seq_length: PositiveInt | None = None
    samples_per_pass: PositiveInt | None = None
    source: list[Source]
    reference: list[_PrintedRow]


class Reference(_Row):
    """One row of figures with its provenance; ``cells`` by column header, as printed."""

    source: Source
    cells: dict[str, str]

    @property
    def fix_hp(self) -> str:
        """Return the hyper-parameters that the row changes, as printed; empty: no such column."""
        return self.cells.get("fix_hp", "")

    @property
    def nnodes(self) -> int:
        """Return the number of machines, which is the 2 of a ``world`` such as ``2x8``."""
        return int(self.world.split("x")[0])

    @property
    def nproc(self) -> int:
        """Return the devices on each machine, which is the 8 of a ``world`` such as ``2x8``."""
        return int(self.world.split("x")[1])


class References(Frozen):
    """All rows of a case under the headers they were printed with.

    Args:
        parameters: size of the case's standard model, which all rows trained.
        seq_length: tokens in a sequence.
        samples_per_pass: training rows in the data set.
    """

    columns: tuple[str, ...] = ()
    parameters: PositiveInt | None = None
    seq_length: PositiveInt | None = None
    samples_per_pass: PositiveInt | None = None
    rows: tuple[Reference, ...] = ()


def read_references(name: str) -> References:
    """Return the references of the case called ``name``; empty if it has no ``reference.toml``.

    Raises:
        RecordError: the file has unknown keys or rows that do not fit.
        UsageError: no such case.
    """
    if name not in cases.list_names():  # it may be an alias
        name = cases.load(name).name
    path = cases.get_folder(name) / REFERENCE_FILE
    return read_reference_file(path) if path.is_file() else References()


def read_reference_file(path: Path) -> References:
    """Read a ``reference.toml``: results of a case to compare with, published or measured.

    A reference is one of them, a row as it was printed, with its source. Besides the rows, the file
    has what they share: the headers of the columns, the number of parameters of the model, the
    tokens in a sequence, and the training samples of one pass over the data.

    Raises:
        RecordError: not TOML, unknown keys, a row whose cells do not fit the columns, or a row
            that names a source that the file does not list.
    """
    try:
        file = _ReferenceDocument.model_validate(read_toml(path))
        rows = tuple(_build_reference(file, number) for number in range(len(file.reference)))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"cannot be read: {describe_error(error)}",
            where=f"{path.parent.name}/{path.name}",
            rule=f"the top-level keys must be {', '.join(_ReferenceDocument.model_fields)}; "
            f"a reference must have {', '.join(_PrintedRow.model_fields)}",
        ) from None
    return References(
        columns=tuple(file.columns),
        parameters=file.parameters,
        seq_length=file.seq_length,
        samples_per_pass=file.samples_per_pass,
        rows=rows,
    )


def _build_reference(file: _ReferenceDocument, number: int) -> Reference:
    """Return row ``number`` (from 0) of a file with its source, its cells by column header.

    Raises:
        ValueError: cells or source do not fit the file.
    """
    row = file.reference[number]
    sources = {source.id: source for source in file.source}
    place = f"reference {number + 1}"
    if len(row.cells) != len(file.columns):
        raise ValueError(f"{place}: {len(row.cells)} cells")
    if row.source not in sources:
        raise ValueError(f"{place}: source {row.source!r}")
    # Translations of cells, by column header.
    unknown_columns = [name for name in row.cells_en if name not in file.columns]
    if unknown_columns:
        raise ValueError(f"{place}: cells_en has unknown columns: {', '.join(unknown_columns)}")
    return Reference(
        source=sources[row.source],
        cells=dict(zip(file.columns, row.cells, strict=True)),
        **row.model_dump(exclude={"source", "cells"}),
    )
