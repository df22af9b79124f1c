"""A common view of records and printed rows, so that one rule can judge both.

Owns how a printed row is understood: the precision that it declares, the published figures of its
device, the rounding of its numbers, and the rates, FLOPs and samples that follow from its figures.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.devices import peaks
from trainmark.judge.audit.workloads import (
    SHORTEST_SEQUENCE,
    Workload,
    sequence_of,
    trains_adapters,
    workload_of_row,
)
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trainmark.record.record import Record
    from trainmark.record.work import Row

SAMPLE_RATES = ("p_core", "p_train", "p_whole")
RATES = (*SAMPLE_RATES, "final_result")
TIMES = ("e2e_time", "train_time", "step_time")
TOKEN_RATES = ("token/p/s", "p_train_tokens")
# End-to-end time contains starting and loading; no page prints how long they took.
STARTING_S = 300.0
# Words of pages for the precision of matmuls, in the words of recipes.
_PRECISIONS = {
    **dict.fromkeys(("amp", "mixed", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    "tf32": "tf32",
    **dict.fromkeys(("fp32", "float32"), "fp32"),
    **dict.fromkeys(("fp8", "mxfp8"), "fp8"),
    **dict.fromkeys(("fp4", "mxfp4", "nvfp4"), "fp4"),
}
# Mixed precision: another word may say which one; else it has 16 bits.
_MIXED = ("amp", "mixed")
_SIXTEEN_BITS = ("fp16", "bf16")
# Settings that may be tuned to the number of devices.
_TUNED = (
    "micro_batch_size", "global_batch_size", "global_batch_tokens", "batch_size", "bs", "lr",
    "grad_accum_steps", "learning_rate",
)  # fmt: skip
_DATA_SHEETS = ("A", "B")  # evidence of a published figure: a vendor's document or data sheet
_NUMBER = re.compile(r"\d+(?:\.(\d+))?")
_COUNT = re.compile(r"[0-9][0-9,]*")
_APPROXIMATE = ("~", "≈")


class Peak(NamedTuple):
    """A dense peak that bounds a device: FLOP/s, and whether a data sheet says it."""

    flops: float
    precision: str
    is_sure: bool


@dataclass(slots=True, kw_only=True)
class AuditSubject:
    """The facts of one launch or one printed row that rules read; None: not known.

    Args:
        name: of the case, else of the model as printed.
        table: rows of one table and workload have the same key; None: a record.
        precisions: those that are named, in the words of recipes.
        is_mixed: mixed precision with 16 bits of either kind.
        printed: figures that are known, in the units of a record's figures.
        record: a launch, whose figures were checked when it was read.
    """

    file: str
    line: int = 0
    configuration: str
    name: str = ""
    table: tuple[str, int, str] | None = None
    world_size: int | None = None
    device: str | None = None
    precisions: tuple[str, ...] = ()
    is_mixed: bool = False
    printed: dict[str, float] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    record: Record | None = None
    row: Row | None = None

    @property
    def changes(self) -> Mapping[str, str]:
        """The batch, recipe and other settings of a row."""
        return self.row.changes if self.row else {}

    @property
    def figures(self) -> dict[str, float]:
        """The figures that are above zero."""
        return {name: value for name, value in self.printed.items() if value > 0}

    @property
    def precision(self) -> str | None:
        """The precision that is declared; None: none, or a mixture without a single peak."""
        return self.precisions[0] if len({*self.precisions}) == 1 else None

    @property
    def sequence(self) -> int | None:
        """Tokens of a sample; if the row does not print them, a lower bound."""
        is_named, length = sequence_of(self.changes)
        if is_named:
            return length
        standard = self.workload.sequence_length
        if standard is None:
            return None
        return standard if self._is_standard else min(standard, SHORTEST_SEQUENCE)

    @property
    def _is_standard(self) -> bool:
        """Whether a row is of a known case, or of a form that lists the changes of each row."""
        if self.row is None:
            return False
        return self.row.case is not None or "fix_hp" in self.row.cells

    @property
    def work_settings(self) -> tuple[tuple[str, str], ...]:
        """The settings of a row in a foreign table, without batch and learning rate.

        Rows of forms that list the changes of each row differ only in these two.
        """
        if self.row is None or "fix_hp" in self.row.cells:
            return ()
        return tuple(sorted(item for item in self.changes.items() if item[0] not in _TUNED))

    def setting(self, name: str) -> float | None:
        """Return a setting that is one number; None: the row does not print it."""
        text = self.changes.get(name, "")
        return float(text.replace(",", "")) if _COUNT.fullmatch(text) else None

    def unit_of_last_digit(self, name: str) -> float:
        """Return a unit of the last digit of a printed figure: 0.1 of ``23.4``, 1 of ``0``."""
        text = self.row.figures[name].raw if self.row and name in self.row.figures else ""
        match = _NUMBER.search(text.replace(",", ""))
        return 0.1 ** len(match[1] or "") if match else 0.0

    def rounding(self, *names: str) -> float:
        """Return half a unit of the last digit of printed figures, as shares of them, summed.

        A figure that is printed as approximate counts with a whole unit: ``~4 hours``.
        """
        readings = self.row.figures if self.row else {}
        total = 0.0
        for name in names:
            text = readings[name].raw.replace(",", "") if name in readings else ""
            match = _NUMBER.search(text)
            if match and float(match[0]):
                units = 1.0 if text.strip().startswith(_APPROXIMATE) else 0.5
                total += units * 0.1 ** len(match[1] or "") / float(match[0])
        return total

    def published(self, figure: str) -> list[float]:
        """Return a figure of ``peaks.toml`` for all products that the device's name can mean."""
        return [row[figure] for row in self._products if figure in row]

    @property
    def _products(self) -> Sequence[Mapping[str, Any]]:
        return peaks.products(self.device or "")

    def lacks(self, precision: str) -> bool:
        """Tell whether the device has peaks, and none in a precision."""
        rows = self._products
        known = any({"fp32_tflops", "fp16_tflops"} <= row.keys() for row in rows)
        has = (f"{precision}_tflops" in row or precision in row.get("also", ()) for row in rows)
        return known and not any(has)

    @property
    def has_data_sheet(self) -> bool:
        """Whether the figures of the device come from a vendor's document or data sheet."""
        return any(row["evidence"] in _DATA_SHEETS for row in self._products)

    def dense_peaks(self) -> list[float]:
        """Return the dense peaks in FLOP/s by which an MFU may have been computed."""
        names = {*self.precisions}
        if self.is_mixed or "fp8" in names:
            names |= {*_SIXTEEN_BITS}
        flops = {
            value * 1e12
            for row in self._products
            for figure, value in row.items()
            if figure.endswith("_tflops") and (not names or figure.removesuffix("_tflops") in names)
        }
        return sorted(flops, reverse=True)

    def bound(self) -> Peak | None:
        """Return the highest dense peak of the device; None: its peaks are not known.

        It is that of the declared precision; if none is declared or published, the highest one.
        """
        bounds = [bound for row in self._products if (bound := self._bound_of(row))]
        return max(bounds, default=None)

    def _bound_of(self, row: Mapping[str, Any]) -> Peak | None:
        known = {
            figure.removesuffix("_tflops"): value * 1e12
            for figure, value in row.items()
            if figure.endswith("_tflops")
        }
        declared = {*self.precisions, *(_SIXTEEN_BITS if self.is_mixed else ())}
        published = declared & known.keys()
        is_known = declared <= known.keys() or (self.is_mixed and bool(published))
        names = published if declared and is_known else known.keys()
        if not names:
            return None
        precision = max(names, key=lambda name: known[name])
        source = peaks.provenance(peaks.table(), row, f"{precision}_tflops")
        return Peak(known[precision], precision, source["evidence"] in _DATA_SHEETS)

    def rate_per_device(self) -> tuple[str, float]:
        """Return the name and value of the throughput of a device with the least waiting; or 0.

        Tokens come before the samples of the whole run, which pages print with few digits.
        """
        figures = self.figures
        for name in ("p_core", "p_train") if self.world_size else ():
            if name in figures:
                return name, figures[name] / (self.world_size or 1)
        for name in ("token/p/s", "sample/p/s"):
            if name in figures:
                return name, figures[name]
        for name in ("p_train_tokens", "p_whole", "final_result") if self.world_size else ():
            if name in figures:
                return name, figures[name] / (self.world_size or 1)
        return "token/p/s", 0.0

    def flops_per_device(self) -> float:
        """Return a lower bound of the model FLOP/s of a device by rates and workload; or 0."""
        known, figures = self.workload, self.figures
        per_sample = known.flops_of_sample(self.sequence) or 0.0
        per_token = min(known.parameters, default=0.0) * 1e9 * min(known.flops_per_parameter)
        rates = [0.0]
        if "token/p/s" in figures:
            rates.append(figures["token/p/s"] * per_token)
        if "sample/p/s" in figures:
            rates.append(figures["sample/p/s"] * per_sample)
        if "model_flops_per_device" in figures:
            rates.append(figures["model_flops_per_device"])
        if self.world_size:
            samples = [figures[name] for name in SAMPLE_RATES if name in figures]
            rates += [rate / self.world_size * per_sample for rate in samples]
            rates.append(figures.get("p_train_tokens", 0.0) / self.world_size * per_token)
        return max(rates)

    @property
    def seconds(self) -> float:
        """End-to-end time, else the time of training; 0: none is printed."""
        return self.figures.get("e2e_time") or self.figures.get("train_time", 0.0)

    def samples_bounds(self) -> tuple[float, float]:
        """Return the fewest and most samples that time and ``p_whole`` allow; or 0."""
        rate = self.figures.get("p_whole", 0.0)
        starting = STARTING_S if "e2e_time" in self.figures else 0.0
        return max(0.0, self.seconds - starting) * rate, self.seconds * rate


AuditSubjects = Sequence[AuditSubject]
Hits = Iterator[tuple[AuditSubject, Message]]  # the findings of a rule


def group_subjects(
    subjects: Iterable[AuditSubject], keys: Callable[[AuditSubject], Iterable[object]]
) -> list[list[AuditSubject]]:
    """Return the subjects of each key together; a subject with two keys is in two groups."""
    groups: dict[object, list[AuditSubject]] = defaultdict(list)
    for subject in subjects:
        for key in keys(subject):
            groups[key].append(subject)
    return [*groups.values()]


def view_record(record: Record, place: str) -> AuditSubject:
    """Return the view of a record that was read from ``place``."""
    return AuditSubject(file=place, configuration=record.plan.case_key, record=record)


def view_row(row: Row) -> AuditSubject:
    """Return the view of a printed row."""
    figures = {name: x.value for name, x in row.figures.items() if x.value is not None}
    name = row.case or row.model or row.file
    # The page claims what it prints, even if the reader has found another precision.
    words = re.findall(r"[a-z]+\d*", (row.cells.get("precision") or row.precision or "").lower())
    named = [word for word in words if word in _PRECISIONS]
    exact = [word for word in named if word not in _MIXED]
    return AuditSubject(
        file=row.file,
        line=row.line,
        table=(row.file, row.table, name),
        configuration=row.configuration,
        name=name,
        world_size=row.world_size,
        device=row.device,
        precisions=tuple(_PRECISIONS[word] for word in exact or named),
        is_mixed=bool(named) and not exact,
        printed=figures,
        workload=_find_workload(row),
        row=row,
    )


def _find_workload(row: Row) -> Workload:
    """Return what is known of a row's model; if it trains adapters, with the FLOPs of these."""
    known = workload_of_row(row)
    if known.parameters and trains_adapters(row):
        factors = dict.fromkeys((*known.flops_per_parameter, 4.0))
        return known.model_copy(update={"flops_per_parameter": tuple(factors)})
    return known
