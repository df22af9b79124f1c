"""Convert records and printed rows to the form that the rules of an audit read.

Owns how the words of a printed row are understood: the precision that it declares, and the workload
that it names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.published.audit.subject import AuditSubject
from trainmark.published.audit.workloads import (
    FLOPS_ADAPTERS_TRAINED,
    Workload,
    find_row_workload,
    trains_adapters,
)

if TYPE_CHECKING:
    from trainmark.record.record import Record
    from trainmark.record.work import Row

# Words of pages for the precision of matmuls, in the words of recipes.
_PRECISION_BY_WORD = {
    **dict.fromkeys(("amp", "mixed", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    "tf32": "tf32",
    **dict.fromkeys(("fp32", "float32"), "fp32"),
    **dict.fromkeys(("fp8", "mxfp8"), "fp8"),
    **dict.fromkeys(("fp4", "mxfp4", "nvfp4"), "fp4"),
}
# Words for mixed precision. Another word may say which one it is; else it has 16 bits.
_MIXED_WORDS = ("amp", "mixed")


def view_record(record: Record, place: str) -> AuditSubject:
    """Return a record in the form in which the rules of an audit read it.

    The figures of a record were checked when it was read, so that only its label is copied: the key
    that its plan has for case, vendor and numbers of nodes and devices.

    Args:
        record: the result of a launch of this program.
        place: file or folder from which the record was read, as findings name it.
    """
    return AuditSubject(file=place, configuration=record.plan.case_key, record=record)


def view_row(row: Row) -> AuditSubject:
    """Return a printed row in the form in which the rules of an audit read it.

    Args:
        row: of a table that others published.
    """
    # A figure without a value is one for which the page prints `OOM` or `-`.
    figures = {name: x.value for name, x in row.figures.items() if x.value is not None}
    name = row.case or row.model or row.file  # rows without a name count as one model of their file
    # The page claims what its column prints, even if the importer has found another precision.
    printed_precision = row.cells.get("precision") or row.precision or ""
    words = re.findall(r"[a-z]+\d*", printed_precision.lower())
    precision_words = [word for word in words if word in _PRECISION_BY_WORD]
    # Words such as `amp` say only that the precision is mixed: `bf16` beside them says which it is.
    # Alone, they give `fp16`, and ``is_mixed`` says that `bf16` may be meant as well.
    exact_words = [word for word in precision_words if word not in _MIXED_WORDS]
    return AuditSubject(
        file=row.file,
        line=row.line,
        # `row.table` is the line at which the table begins. With the model's name: only rows of one
        # model in a table are compared with each other.
        table=(row.file, row.table, name),
        configuration=row.configuration,
        name=name,
        world_size=row.world_size,
        device=row.device,
        precisions=tuple(_PRECISION_BY_WORD[word] for word in exact_words or precision_words),
        is_mixed=bool(precision_words) and not exact_words,
        printed_figures=figures,
        workload=_find_workload(row),
        row=row,
    )


def _find_workload(row: Row) -> Workload:
    """Return what is known of a row's model: its size, its FLOPs and its data.

    If the row trains only adapters, its possible FLOPs per parameter include those of adapters.
    """
    workload = find_row_workload(row)
    # Without a number of parameters, FLOPs per parameter are of no use.
    if not workload.parameter_billions or not trains_adapters(row):
        return workload
    flops_per_parameter = workload.flops_per_parameter
    # The model's own FLOPs per parameter stay possible: a page may compute with them all the same.
    if FLOPS_ADAPTERS_TRAINED not in flops_per_parameter:
        flops_per_parameter = (*flops_per_parameter, FLOPS_ADAPTERS_TRAINED)
    return workload.model_copy(update={"flops_per_parameter": flops_per_parameter})
