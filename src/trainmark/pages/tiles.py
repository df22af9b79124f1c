"""The tiles of a page: one figure each, with three significant digits; tables have all digits."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.pages import cells
from trainmark.pages.document import Tile, Tiles
from trainmark.pages.repeats import find_median_launch, select_counted, summarize_figure
from trainmark.pages.texts import (
    Missing,
    Phrase,
    count_in_words,
    format_interval,
    get_unit,
    join,
    name_speed_figure,
    phrase,
    translate_message,
)
from trainmark.record.work import count_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec


# A number with a currency before or after it.
_PRICE = re.compile(r"(\D*?)(\d+(?:\.\d+)?)(\D*)")
_SMALL_MODEL = 10_000_000  # parameters; a smaller model never keeps a device busy


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour on all devices of a run costs, in a currency as given."""

    per_hour: float
    currency: str

    @classmethod
    def parse(cls, text: str) -> Price:
        """Return the price that a text such as ``12.5 USD`` or ``$12.5`` states.

        Raises:
            UsageError: the text is not a price.
        """
        match = _PRICE.fullmatch(text.strip())
        if match is not None:
            before, number, after = match.groups()  # the text around the number may be empty
            currencies = [currency.strip() for currency in (before, after) if currency]
            if len(currencies) == 1:
                return cls(float(number), currencies[0])
        raise UsageError(
            f"{text!r} is not a price",
            where="--price-per-hour",
            rule="a price must be a number with one currency, for example 12.5 USD",
        )


def build_tiles(records: Sequence[Record], price: Price | None = None) -> Tiles:
    """Return the figures that most readers look for first.

    These are the speed, the time, the utilization of the device, the case's own figures that belong
    on the first screen, memory, energy and cost. A figure that no launch has is left out, except
    the utilization, whose tile then states the reason.

    Args:
        records: of all launches of a run; figures are means over those that count.
        price: what an hour on all devices of the run costs; None: no tile of the cost.
    """
    record = find_median_launch(records)  # its notes and reasons stand for all launches
    launches = select_counted(records)
    energy = _build_tile(launches, "energy_per_sample", "energy")  # from counters
    if energy is None:  # else from readings of the power
        energy = _build_tile(launches, "estimated_energy_per_sample", "estimated")
    # The time is called the time to the target only if the run reached its target of quality.
    title_of_time = "to_target" if record.quality.reached else "whole"
    tiles = [
        _build_speed_tile(launches, name_speed_figure(record)),
        _build_tile(launches, "e2e_time", title_of_time),
        _build_utilization_tile(record, launches),
        *(
            _build_case_tile(record, launches, spec)
            for spec in record.plan.about.page.figures
            if spec.first_screen
        ),
        _build_memory_tile(launches),
        energy,
        describe_cost(records, price),
    ]
    return Tiles(tuple(tile for tile in tiles if tile is not None))


def _build_speed_tile(launches: Sequence[Record], name: str) -> Tile | None:
    """Return the tile of the speed with its interval over launches; None if there is no speed.

    Args:
        launches: the launches that are averaged.
        name: of the figure that is the case's speed: ``token/p/s``, tokens per second of one
            device, or ``p_train``, samples per second of all devices.
    """
    summary = summarize_figure(launches, name)
    if summary is None:
        return None
    num_launches = summary.launches  # of those, how many have the figure
    note: Phrase = count_in_words("launches", num_launches)
    if num_launches > 1:
        note = join((format_interval(summary, cells.format_rounded), note))
    return _build_tile(launches, name, "speed", note)


def _build_tile(
    launches: Sequence[Record], name: str, title: str, note: Phrase = ""
) -> Tile | None:
    """Return the tile of a figure's mean; None if no launch has the figure.

    Args:
        launches: the launches that are averaged.
        name: of the figure.
        title: the tile's name is the text ``tile.<title>``.
        note: text below the figure.
    """
    summary = summarize_figure(launches, name)
    if summary is None:
        return None
    if name == "e2e_time":
        # The duration in words contains its units.
        duration = cells.format_duration(summary.mean)
        return Tile(phrase(f"tile.{title}"), duration, unit="", code=name, note=note)
    value = cells.format_rounded(summary.mean)
    return Tile(phrase(f"tile.{title}"), value, unit=get_unit(name), code=name, note=note)


def _build_case_tile(record: Record, launches: Sequence[Record], spec: FigureSpec) -> Tile | None:
    """Return the tile of the mean of a case's own figure; None if no launch has the figure.

    Args:
        record: the launch whose note on the figure is shown below the mean.
        launches: the launches that are averaged.
        spec: definition of the figure.
    """
    summary = summarize_figure(launches, spec.name)
    if summary is None:
        return None
    figure = record.figures.get(spec.name)
    note = translate_message(record, figure.note if figure else None)
    value = cells.format_rounded(summary.mean)
    return Tile(spec.label, value, unit=spec.unit, code=spec.name, note=note)


def _build_utilization_tile(record: Record, launches: Sequence[Record]) -> Tile | None:
    """Return the tile of MFU or, if it is not known, of MAMFU; None if no launch passed.

    Both are the model's FLOP/s per device as a share: MFU of the device's published peak, MAMFU of
    the rate of matrix multiplication that was measured in the run. If neither is known, the tile
    states the reason.

    Args:
        record: the launch that stands for all: its model's size and its reason are shown.
        launches: the launches that are averaged.
    """
    if not launches:
        return None
    share_of_matmul = summarize_figure(launches, "MAMFU")
    tile = _build_tile(launches, "MFU", "MFU")
    if tile is not None:
        if share_of_matmul is None:
            return tile
        share = f"{cells.format_rounded(share_of_matmul.mean)}%"
        return replace(tile, note=phrase("tile.of_matmul", share=share))
    if share_of_matmul is not None:
        # The share of a small model is always low, so a note says that the model is the reason.
        size = count_parameters(record)
        is_small = size is not None and size < _SMALL_MODEL
        note = phrase("tile.small_model") if is_small else ""
        return _build_tile(launches, "MAMFU", "MAMFU", note)
    figure = record.figures.get("MFU")
    reason = translate_message(record, figure.reason if figure else None, phrase("fact.unknown"))
    return Tile(phrase("tile.MFU"), Missing(reason), unit="", code="MFU", note=reason)


def _build_memory_tile(launches: Sequence[Record]) -> Tile | None:
    """Return the tile of the memory in use; None if it is not known.

    If the total is known, it stands in the place of the unit: ``of 80.0 GiB``.
    """
    used = summarize_figure(launches, "mem")  # in bytes, like the total
    total = summarize_figure(launches, "mem_total")
    if used is None:
        return None
    unit: Phrase = "GiB"
    if total is not None:
        unit = phrase("tile.memory_of", total=f"{total.mean / cells.GIB:.1f}")
    return Tile(phrase("tile.memory"), f"{used.mean / cells.GIB:.1f}", unit=unit, code="mem")


def describe_cost(records: Sequence[Record], price: Price | None) -> Tile | None:
    """Return the tile of the cost of a million samples or tokens, with its arithmetic.

    None without a price or without a speed.

    Args:
        price: what an hour on all devices of the run costs.
    """
    record = find_median_launch(records)
    rate = summarize_figure(select_counted(records), name_speed_figure(record))
    if price is None or rate is None:
        return None
    work = record.plan.about.work_unit
    # The speed in tokens is that of one device; the speed in samples is that of all devices.
    per_second = rate.mean * record.plan.world_size if work == "tokens" else rate.mean
    arithmetic = f"{price.per_hour:g} / 3600 s / {per_second:,.1f} {work}/s x 1,000,000"
    value = cells.format_rounded(price.per_hour / 3600 / per_second * 1e6)
    return Tile(phrase(f"cost.{work}"), value, unit=price.currency, code="", arithmetic=arithmetic)
