"""The form in which the rules of an audit read a record or a printed row.

Owns what follows from the facts of a row: the published figures of its device, the rounding of its
numbers, and the rates, FLOPs and samples that follow from its figures.
Figures have their names in records: ``p_core``, ``p_train`` and ``p_whole`` are samples a second of
all devices; ``p_train_tokens`` is tokens a second of all devices; ``sample/p/s`` and ``token/p/s``
are rates of one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.devices import peaks
from trainmark.published.audit.workloads import (
    MIN_SEQUENCE,
    Workload,
    find_sequence_length,
    parse_sequence_length,
)
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.record.record import Record
    from trainmark.record.work import Row

# Names of figures, which ``docs/metrics.md`` defines. The first three are samples a second of all
# devices, over the time of training without waiting for data, of training, and of training with
# evaluations.
SAMPLE_RATES = ("p_core", "p_train", "p_whole")
RATES = (*SAMPLE_RATES, "final_result")
TIMES = ("e2e_time", "train_time", "step_time")
TOKEN_RATES = ("token/p/s", "p_train_tokens")  # tokens a second of one device, of all devices
# End-to-end time contains starting and loading; no page prints how long they took.
MAX_STARTUP_S = 300.0
_SIXTEEN_BITS = ("fp16", "bf16")
# Settings that may be tuned to the number of devices.
_TUNED_SETTINGS = (
    "micro_batch_size",
    "global_batch_size",
    "global_batch_tokens",
    "batch_size",
    "bs",
    "lr",
    "grad_accum_steps",
    "learning_rate",
)
_DATA_SHEET_LEVELS = ("A", "B")  # evidence of a published figure: a vendor's document or data sheet
_NUMBER_WITH_DECIMALS = re.compile(r"\d+(?:\.(\d+))?")  # the group has the decimals
_WHOLE_NUMBER = re.compile(r"[0-9][0-9,]*")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(%?)")  # ``0.68``, ``68%``
_REGULARIZATION = re.compile(r"(?i)drop[ _-]?(?:out|path)")  # settings that drop no tokens
_APPROXIMATE_MARKS = ("~", "≈")


class PeakBound(NamedTuple):
    """The highest rate at which a device can compute, without sparsity.

    Args:
        flops: in FLOP/s.
        precision: of this rate, in the words of recipes.
        is_sure: a vendor's document or data sheet states it.
    """

    flops: float
    precision: str
    is_sure: bool


class DeviceRate(NamedTuple):
    """The throughput of one device.

    Args:
        figure: name of the figure that it follows from, which decides its unit.
        value: in samples or tokens a second; 0: the row has no throughput.
    """

    figure: str
    value: float


@dataclass(slots=True, kw_only=True)
class AuditSubject:
    """The facts of one launch or one printed row that rules read; None: not known.

    Args:
        file: the file that was read, or the folder of a run.
        line: of a printed row in its file, from 1; 0: a record.
        configuration: label of the row as printed, or key of the launch's case.
        name: of the case, else of the model as printed.
        table: key that rows of one table and workload share: file, line of the table, name;
            None: a record.
        world_size: number of devices.
        device: its name as printed.
        precisions: those that the row names, as recipes write them: ``bf16``.
        is_mixed: mixed precision with 16 bits of either kind.
        printed_figures: known figures by name, in the units of a record's figures.
        workload: what is known of the model.
        record: a launch, whose figures were checked when it was read; None: a printed row.
        row: a printed row; None: a launch.
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
    printed_figures: dict[str, float] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    record: Record | None = None
    row: Row | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that a row prints, by name, such as batch and learning rate.

        Empty for a launch, which is no printed row.
        """
        return self.row.changes if self.row else {}

    @property
    def figures(self) -> dict[str, float]:
        """The printed figures that are above zero, by name.

        Rules calculate with these, so they need no test against division by zero. Zeros and
        negatives are only reported, by ``check_ranges``.
        """
        return {name: value for name, value in self.printed_figures.items() if value > 0}

    @property
    def precision(self) -> str | None:
        """The precision that the row names, such as ``bf16``; None: it names none or several."""
        return self.precisions[0] if len(set(self.precisions)) == 1 else None

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sample, or a lower bound if the row does not print them; None: not known."""
        printed = find_sequence_length(self.settings)
        if printed is not None:
            return parse_sequence_length(printed)
        # The length in the standard configuration of the model; None: not known.
        standard = self.workload.sequence_length
        if standard is None:
            return None
        if self._has_standard_settings:
            return standard
        # The run may have used shorter samples than the standard ones, but hardly shorter ones than
        # `MIN_SEQUENCE`.
        return min(standard, MIN_SEQUENCE)

    @property
    def _has_standard_settings(self) -> bool:
        """Whether settings that a row does not print are those of the standard configuration.

        They are if the row's model is that of a case of this program. They also are if the row has
        a cell ``fix_hp``, which lists all its changes to the standard configuration.
        """
        if self.row is None:  # a launch, which prints no settings
            return False
        return self.row.case is not None or "fix_hp" in self.row.cells

    @property
    def work_settings(self) -> tuple[tuple[str, str], ...]:
        """The settings by which rows of one table may differ in their work.

        They are all but batch and learning rate, which may be tuned to the number of devices. Empty
        for a launch, and in a table with a column ``fix_hp``: all its rows do the work of one
        standard configuration, and the column lists the hyper-parameters that a row tunes for it.

        Returns:
            name and printed value of each.
        """
        if self.row is None or "fix_hp" in self.row.cells:
            return ()
        # Batch and learning rate, under all their names, are in `_TUNED_SETTINGS`.
        settings = ((name, x) for name, x in self.settings.items() if name not in _TUNED_SETTINGS)
        return tuple(sorted(settings))

    @property
    def dropped_share(self) -> float:
        """The share of assignments of tokens to experts that a mixture dropped; 0: none is printed.

        A token may be dropped by one of its experts and computed by the others, so assignments are
        counted, not tokens. The share, ``68%`` or ``0.68``, is in the first setting or column whose
        name contains ``drop`` and that has a share above 0: ``token_drop_rate``, ``dropped``. Names
        of regularization, ``dropout`` and ``drop_path``, do not count.
        """
        # `changes` are the row's settings by name, `cells` the texts of all its columns by header.
        texts_by_name = {**self.row.changes, **self.row.cells} if self.row else {}
        for name, text in texts_by_name.items():
            match = _SHARE.fullmatch(text.strip())  # its groups: the number, and `%` or nothing
            is_of_tokens = "drop" in name.lower() and not _REGULARIZATION.search(name)
            if match is None or not is_of_tokens:
                continue
            is_percent = match[2] == "%"
            share = float(match[1]) / (100 if is_percent else 1)
            # A larger number counts something else. A 0 may be a switch, `drop_policy`.
            if 0 < share < 1:
                return share
        return 0.0

    def read_setting(self, name: str) -> float | None:
        """Return the value of a setting, 1024 of ``1,024``.

        None: the row lacks it, or it is not a whole number.
        """
        text = self.settings.get(name, "")
        return float(text.replace(",", "")) if _WHOLE_NUMBER.fullmatch(text) else None

    def get_last_digit_unit(self, name: str) -> float:
        """Return the place value of a printed figure's last digit: 0.1 of ``23.4``, 1 of ``23``.

        It is 0 if the row does not print the figure, or prints it without digits.
        """
        # `raw` is the text of the cell as printed.
        text = self.row.figures[name].raw if self.row and name in self.row.figures else ""
        match = _NUMBER_WITH_DECIMALS.search(text.replace(",", ""))  # without thousands separators
        return _get_place_value(match) if match else 0.0

    def compute_rounding(self, *names: str) -> float:
        """Return the sum of the relative errors that rounding may cause in these printed figures.

        A figure may be wrong by half a unit of its last digit; one that is marked as approximate,
        ``~4 hours``, by a whole unit. A figure that the row does not print adds nothing.

        Args:
            names: of the figures.
        """
        readings = self.row.figures if self.row else {}
        total = 0.0
        for name in names:
            if name not in readings:
                continue
            # `raw` is the text of the cell as printed. Separators of thousands are removed.
            text = readings[name].raw.replace(",", "")
            match = _NUMBER_WITH_DECIMALS.search(text)
            if match is None or float(match[0]) == 0:  # 0 has no relative error
                continue
            is_approximate = text.strip().startswith(_APPROXIMATE_MARKS)
            num_units = 1.0 if is_approximate else 0.5
            total += num_units * _get_place_value(match) / float(match[0])
        return total

    def list_product_figures(self, figure: str) -> list[float]:
        """Return a figure of ``peaks.toml`` for all products that the device's name can mean."""
        return [product[figure] for product in self._possible_products if figure in product]

    @property
    def _possible_products(self) -> Sequence[Mapping[str, Any]]:
        """The products of ``peaks.toml`` that the device's name can mean; empty: none is known.

        ``A100`` can mean several, which differ in memory and form factor. A product has its
        figures as keys: ``fp16_tflops``, ``memory_gb``.
        """
        return peaks.find_products(self.device or "")

    def lacks_precision(self, precision: str) -> bool:
        """Tell whether no product that the device's name can mean computes in this precision.

        False if too little is known of the products to tell.

        Args:
            precision: such as ``bf16``; a product has its peak under ``bf16_tflops``.
        """
        is_any_complete = False
        for product in self._possible_products:
            # `also` lists precisions that the product has, but whose peak is not published.
            if f"{precision}_tflops" in product or precision in product.get("also", ()):
                return False
            # An entry is taken for complete if it has both of these peaks. One with a single peak
            # may lack others that nobody has entered.
            if "fp32_tflops" in product and "fp16_tflops" in product:
                is_any_complete = True
        return is_any_complete

    @property
    def has_data_sheet(self) -> bool:
        """Whether a vendor's document or data sheet has the figures of the device.

        One of the products that the device's name can mean is enough.
        """
        # `evidence` grades the source of a product's figures: A and B are a vendor's document and
        # data sheet, C is the press.
        return any(product["evidence"] in _DATA_SHEET_LEVELS for product in self._possible_products)

    def list_dense_peaks(self) -> list[float]:
        """Return the dense peaks in FLOP/s to which a row's MFU may refer, highest first.

        They are those of the precisions that the row names; if it names none, of all precisions.
        The list is empty if the named precisions have no published peak: a correct MFU would look
        wrong beside the peak of another precision.
        """
        precisions = set(self.precisions)
        # A row in mixed precision does not say whether it is FP16 or BF16. A row in FP8 may state
        # its MFU by the peak of 16 bits.
        if self.is_mixed or "fp8" in precisions:
            precisions |= set(_SIXTEEN_BITS)
        dense_peaks = set()
        for product in self._possible_products:
            for precision, peak in _read_peaks(product).items():
                if not precisions or precision in precisions:
                    dense_peaks.add(peak)
        return sorted(dense_peaks, reverse=True)

    def find_peak_bound(self) -> PeakBound | None:
        """Return the highest dense peak of the device; None: its peaks are not known.

        It is the highest of the precisions that the row names. If the row names none, or one of
        them has no published peak, it is the highest of all precisions. If the device's name can
        mean several products, the fastest one counts.
        """
        bounds = []
        for product in self._possible_products:
            bound = self._find_product_bound(product)
            if bound is not None:
                bounds.append(bound)
        # The first field of a bound is its FLOP/s, by which tuples are compared.
        return max(bounds, default=None)

    def _find_product_bound(self, product: Mapping[str, Any]) -> PeakBound | None:
        """Return the highest dense peak of one product; None: its peaks are not known.

        The row must not be blamed for a bound that is too low. So if one of the precisions that it
        names has no published peak, or it names none, the bound is the highest of all peaks.

        Args:
            product: an entry of ``peaks.toml``, with its figures as keys.
        """
        product_peaks = _read_peaks(product)  # FLOP/s by precision
        named = set(self.precisions)
        if self.is_mixed:  # the row does not say whether it is FP16 or BF16
            named |= set(_SIXTEEN_BITS)
        published = [precision for precision in product_peaks if precision in named]
        # Of mixed precision, the peak of FP16 or BF16 is enough.
        are_published = len(published) == len(named) or (self.is_mixed and bool(published))
        candidates = published if named and are_published else list(product_peaks)
        if not candidates:
            return None
        precision = max(candidates, key=lambda name: product_peaks[name])
        source = peaks.get_provenance(peaks.read_table(), product, f"{precision}_tflops")
        # `evidence` grades the source: A and B, a vendor's document and data sheet, are sure; the
        # press, C, is not.
        is_sure = source["evidence"] in _DATA_SHEET_LEVELS
        return PeakBound(product_peaks[precision], precision, is_sure)

    def find_device_rate(self) -> DeviceRate:
        """Return the throughput of a device, by the first figure of a fixed order that the row has.

        Figures that are known to include little waiting come first. A figure of all devices
        together needs the number of devices; without it, the next figure is taken.
        """
        # True: the figure is of all devices together.
        candidates = (
            ("p_core", True),  # samples a second of training, without waiting for data
            ("p_train", True),  # samples a second of training
            # Of the others, most pages do not say whether their time includes evaluations. Rates of
            # one device, which need no number of devices, come before totals.
            ("token/p/s", False),  # tokens a second
            ("sample/p/s", False),  # samples a second
            # Tokens come before samples, which pages print with few digits.
            ("p_train_tokens", True),  # tokens a second
            ("p_whole", True),  # samples a second
            # Last, because it is samples or tokens a second, and of other programs' results it is
            # not known what their time includes.
            ("final_result", True),
        )
        figures = self.figures
        for name, is_total in candidates:
            if name not in figures:
                continue
            value = figures[name]
            if not is_total:
                return DeviceRate(name, value)
            if self.world_size:
                return DeviceRate(name, value / self.world_size)
        return DeviceRate("token/p/s", 0.0)  # no throughput: the name has no meaning then

    def estimate_device_flops(self) -> float:
        """Return the model FLOP/s that a device reached at least; 0: not known.

        They follow from each printed rate and from the FLOPs of a sample or a token of the model;
        the highest result counts.
        """
        workload = self.workload  # what is known of the model
        figures = self.figures
        flops_per_sample = workload.compute_sample_flops(self.sequence_length) or 0.0
        # The workload lists possible numbers of parameters, and of FLOPs per parameter, which are
        # fewer if only a part is trained. The smallest count, so that the FLOPs are not too high.
        min_parameters = min(workload.parameter_billions, default=0.0) * 1e9
        flops_per_token = min_parameters * min(workload.flops_per_parameter)
        flop_rates = [0.0]
        # Each of these is a lower bound, so that the highest one holds.
        if "token/p/s" in figures:
            flop_rates.append(figures["token/p/s"] * flops_per_token)
        if "sample/p/s" in figures:
            flop_rates.append(figures["sample/p/s"] * flops_per_sample)
        if "model_flops_per_device" in figures:
            flop_rates.append(figures["model_flops_per_device"])
        if self.world_size:  # the other rates are those of all devices
            for name in SAMPLE_RATES:  # samples a second, with and without waiting and evaluations
                if name in figures:
                    flop_rates.append(figures[name] / self.world_size * flops_per_sample)
            token_rate = figures.get("p_train_tokens", 0.0) / self.world_size
            flop_rates.append(token_rate * flops_per_token)
        return max(flop_rates)

    @property
    def run_time_s(self) -> float:
        """End-to-end time in seconds, else the time of training; 0: none is printed."""
        return self.figures.get("e2e_time") or self.figures.get("train_time", 0.0)

    @property
    def min_samples(self) -> float:
        """The fewest samples that the run can have trained; 0: not known.

        They are ``p_whole``, the samples a second of the whole run, multiplied by the shortest time
        that the run can have trained: the end-to-end time without the longest possible start, or
        the printed time of training if there is no end-to-end time.
        """
        startup_s = MAX_STARTUP_S if "e2e_time" in self.figures else 0.0
        return max(0.0, self.run_time_s - startup_s) * self.figures.get("p_whole", 0.0)

    @property
    def max_samples(self) -> float:
        """The most samples that the run can have trained; 0: not known.

        They are ``p_whole``, the samples a second of the whole run, multiplied by the printed time,
        as if the start had taken no time.
        """
        return self.run_time_s * self.figures.get("p_whole", 0.0)


def _get_place_value(number: re.Match[str]) -> float:
    """Return the place value of a number's last digit: 0.1 of ``23.4``, 1 of ``23``.

    Args:
        number: a match of ``_NUMBER_WITH_DECIMALS``, whose group has the digits behind the point.
    """
    decimals = number[1] or ""
    return 0.1 ** len(decimals)


def _read_peaks(product: Mapping[str, Any]) -> dict[str, float]:
    """Return the dense peaks of a product in FLOP/s by precision: 312e12 for ``fp16``.

    Args:
        product: an entry of ``peaks.toml``, with its figures as keys: ``fp16_tflops`` is 312.
    """
    return {
        figure.removesuffix("_tflops"): tflops * 1e12
        for figure, tflops in product.items()
        if figure.endswith("_tflops")
    }


AuditSubjects = Sequence[AuditSubject]
Hits = Iterator[tuple[AuditSubject, Message]]  # the findings of a rule
