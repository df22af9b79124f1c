"""One view of a record and of a row that others printed, so that one rule judges both.

Owns how what a page prints is understood: the precision it declares, its device's published
figures, how far a number is rounded, and what ``workloads.toml`` knows of its model.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from trainmark.data.documents import Frozen
from trainmark.devices import peaks
from trainmark.plan import reference
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trainmark.record.record import Record
    from trainmark.record.work import Row

RATES = ("p_core", "p_train", "p_whole", "final_result")
TIMES = ("e2e_time", "train_time")
# End-to-end time contains starting and loading; no page prints how long they took.
STARTING_S = 300.0
# Words of pages for the precision of matmuls, in the words of recipes.
_PRECISIONS = {"amp": "fp16", "fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp32": "fp32",
               "fp8": "fp8", "mxfp8": "fp8", "fp4": "fp4", "mxfp4": "fp4",
               "nvfp4": "fp4"}  # fmt: skip
_NUMBER = re.compile(r"\d+(?:\.(\d+))?")


class Workload(Frozen):
    """What is known of a model that a page names, each with its source in ``workloads.toml``.

    Args:
        names: as pages print the model, in lower case, with one space for each ``-`` and ``_``.
        case: that is the same workload; the size of its data set is the case's.
        samples_per_pass: training samples of its data set.
        epochs: passes over them that its configuration allows.
        flops_per_sample: model FLOPs to train on one sample.
        parameters: in billions, the size in the model's name first.
        flops_per_parameter: of a token: 6 trains all, 4 trains adapters, 2 trains none of them.
    """

    names: tuple[str, ...] = ()
    case: str | None = None
    source: str = ""
    samples_per_pass: int | None = None
    epochs: int | None = None
    flops_per_sample: float | None = None
    parameters: tuple[float, ...] = ()
    flops_per_parameter: tuple[float, ...] = (6.0,)


@dataclass(slots=True, kw_only=True)
class Subject:
    """What rules read of one launch or one printed row; None: not known.

    Args:
        name: of the case, else of the model as printed.
        table: what stands side by side has the same, of one workload; None: a record.
        precisions: those that are named, in the words of recipes.
        printed: figures that are known, in the units of a record's figures.
        record: a launch; its figures were held against each other when it was read.
    """

    file: str
    line: int = 0
    configuration: str
    name: str = ""
    table: tuple[str, int, str] | None = None
    world_size: int | None = None
    device: str | None = None
    precisions: tuple[str, ...] = ()
    printed: dict[str, float] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    record: Record | None = None
    row: Row | None = None

    @property
    def changes(self) -> Mapping[str, str]:
        """What a row's label says of batch and recipe."""
        return self.row.changes if self.row else {}

    @property
    def figures(self) -> dict[str, float]:
        """The figures that are above zero."""
        return {name: value for name, value in self.printed.items() if value > 0}

    @property
    def precision(self) -> str | None:
        """The precision that is declared; None: none, or a mixture without a single peak."""
        alone = not {"fp4", "fp8"} & {*self.precisions}
        return self.precisions[0] if len({*self.precisions}) == 1 and alone else None

    def rounding(self, *names: str) -> float:
        """Return half a unit of the last digit of printed figures, as shares of them, summed."""
        told = self.row.figures if self.row else {}
        found = (_NUMBER.search(told[x].raw.replace(",", "")) for x in names if x in told)
        printed = ((float(text[0]), len(text[1] or "")) for text in found if text)
        return sum(0.5 * 0.1**digits / number for number, digits in printed if number)

    def published(self, figure: str) -> list[float]:
        """Return a figure of ``peaks.toml`` for all products that the device's name can mean."""
        return [row[figure] for row in _products(self.device or "") if figure in row]

    def lacks(self, precision: str) -> bool:
        """Tell whether the device has peaks, and none in a precision."""
        rows = _products(self.device or "")
        known = any({"fp32_tflops", "fp16_tflops"} <= row.keys() for row in rows)
        has = (f"{precision}_tflops" in row or precision in row.get("also", ()) for row in rows)
        return known and not any(has)

    def dense_peaks(self) -> list[float]:
        """Return the dense peaks of the declared precision, in FLOP/s."""
        return [tflops * 1e12 for tflops in self.published(f"{self.precision}_tflops")]

    def rate_per_device(self) -> tuple[str, float]:
        """Return the name of the throughput that waits least, and what a device has of it; or 0."""
        for name in RATES if self.world_size else ():
            if name in self.figures:
                return name, self.figures[name] / (self.world_size or 1)
        return "token/p/s", self.figures.get("token/p/s", 0.0)

    def flops_per_device(self) -> float:
        """Return model FLOP/s of a device, as the workload needs; or 0."""
        known, (name, rate) = self.workload, self.rate_per_device()
        per_token = min(known.parameters, default=0) * 1e9 * min(known.flops_per_parameter)
        return rate * (per_token if name == "token/p/s" else known.flops_per_sample or 0.0)

    def samples_bounds(self) -> tuple[float, float]:
        """Return the least and most samples that end-to-end time and ``p_whole`` imply; or 0."""
        seconds, rate = (self.figures.get(name, 0.0) for name in ("e2e_time", "p_whole"))
        return max(0.0, seconds - STARTING_S) * rate, seconds * rate


Subjects = Sequence[Subject]
Hits = Iterator[tuple[Subject, Message]]  # what a rule yields


def grouped(
    subjects: Iterable[Subject], keys: Callable[[Subject], Iterable[object]]
) -> list[list[Subject]]:
    """Return the subjects of each key together; one with several keys is in several groups."""
    groups: dict[object, list[Subject]] = defaultdict(list)
    for one in subjects:
        for key in keys(one):
            groups[key].append(one)
    return [*groups.values()]


def of_record(record: Record, place: str) -> Subject:
    """Return the view of a record that was read from ``place``."""
    return Subject(file=place, configuration=record.plan.case_key, record=record)


def of_row(row: Row) -> Subject:
    """Return the view of a printed row."""
    figures = {name: x.value for name, x in row.figures.items() if x.value is not None}
    name = row.case or row.model or row.file
    # What the page prints is what it claims, also where the reader knows better.
    words = re.findall(r"[a-z]+\d*", (row.cells.get("precision") or row.precision or "").lower())
    return Subject(
        file=row.file, line=row.line, table=(row.file, row.table, name),
        configuration=row.configuration, name=name, world_size=row.world_size, device=row.device,
        precisions=tuple(_PRECISIONS[word] for word in words if word in _PRECISIONS),
        printed=figures, workload=workload_of(row.case, row.model), row=row,
    )  # fmt: skip


@cache
def _products(device: str) -> list[dict[str, Any]]:
    """Return the peaks of each product whose name, or whose family's name, ``device`` has."""
    words = [f"{word}-" for word in (device.lower(), *device.lower().split()) if word]
    return [
        row
        for row in peaks.table()["peak"]
        if device in row["names"] or f"{row['accelerator']}-".lower().startswith(tuple(words))
    ]


@cache
def workload_of(case: str | None, model: str) -> Workload:
    """Return what is known of a case, or of the model with a printed name."""
    plain = re.sub(r"[\s_-]+", " ", model).strip().lower()
    found = (x for x in workloads() if plain in x.names or (case is not None and x.case == case))
    known = next(found, Workload())
    rows = reference.of_case(known.case).samples_per_pass if known.case else known.samples_per_pass
    return known.model_copy(update={"samples_per_pass": rows})


@cache
def workloads() -> list[Workload]:
    """Return what ``workloads.toml`` holds."""
    text = files("trainmark.judge.audit").joinpath("workloads.toml").read_text("utf-8")
    found = tomllib.loads(text)
    return [Workload.model_validate(entry) for entry in (*found["workload"], *found["sizes"])]
