"""Tables and JSON of many results: of an index, of a plan file, of imported pages and logs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells, terminal
from trainmark.pages.document import Block, Code, Paragraph, Table, build_table
from trainmark.pages.repeats import summarize_figure
from trainmark.pages.texts import (
    Phrase,
    describe_trust,
    format_interval,
    join,
    phrase,
    term,
    translate,
)
from trainmark.pages.wrapping import measure_width
from trainmark.plan.recipes import format_setting
from trainmark.recipe import SHORT_NAMES
from trainmark.record.messages import render
from trainmark.record.stats import summarize_launches
from trainmark.record.trust import combine_verifications, get_trust, is_counted
from trainmark.record.work import find_differing_settings
from trainmark.results.store.query import Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from trainmark.launch.series import SeriesEntry
    from trainmark.record.record import Record
    from trainmark.record.work import Row, Unread
    from trainmark.spec import Message

    UnreadFiles = Sequence[tuple[str, Message]]  # path and reason of each


_MAX_SETTINGS = 4  # columns of settings
_MAX_REASONS = 5  # sentences of each kind on why something was not imported
_NOT_SETTINGS = ("world", "data")  # recipe fields that a run cannot change
_STATES = {"finished": "passed before", "left": "stopped"}  # of an entry, in plain words
_OPTIONAL_COLUMNS = ("world", "device", "precision", "recipe")  # left out on a narrow screen
# The path of a launch: the run's folder, named by time, case and six letters, and its repeat.
_LAUNCH_PATH = re.compile(r".*/\d{8}T\d{6}Z-[^/]*-(\w+(/r\d+)?)")
_UNLIMITED_WIDTH = 10_000  # columns


def to_listing_json(listing: Listing, unread_files: UnreadFiles) -> dict[str, Any]:
    """Return a listing of runs as JSON.

    Args:
        listing: the runs that match a user's filters. ``total`` counts all of them; a limit may
            keep only the first ones in its rows.
        unread_files: path of each record that could not be read, with the reason as a code with
            arguments.
    """
    unread = [{"file": path, "reason": asdict(reason)} for path, reason in unread_files]
    return {"total": listing.total, "runs": listing.as_dicts(), "unread": unread}


def add_differing_settings(listing: Listing) -> Listing:
    """Return a listing with a column for each setting in which runs of a case and recipe differ.

    A recipe is a named set of settings of a case. Each run holds its values as one JSON text in the
    column ``settings``. The new columns replace this column, and at most ``_MAX_SETTINGS`` settings
    get one. The column ``recipe`` with the recipe's name becomes the first of them if runs of a
    case differ in it, else it is left out. A setting that is a column already, such as the
    precision, is not repeated.
    """
    rows = listing.as_dicts()
    # The settings of each run, by name; empty if they are not known.
    settings_of_rows = [json.loads(row["settings"] or "{}") for row in rows]
    # Settings are compared only between runs of the same case and recipe.
    cases_and_recipes = [f"{row['case']} {row['recipe']}" for row in rows]
    differing = find_differing_settings(zip(cases_and_recipes, settings_of_rows, strict=True))
    # `rows[0]` exists: without rows no setting differs. All rows have the same columns.
    new_columns = [name for name in differing if name not in rows[0]][:_MAX_SETTINGS]
    # There are more pairs of case and recipe than cases only if a case has several recipes.
    has_several_recipes = len(set(cases_and_recipes)) > len({row["case"] for row in rows})
    if has_several_recipes:
        new_columns.insert(0, "recipe")
    columns: list[str] = []
    for key in listing.columns:
        if key == "settings":
            columns += new_columns
        elif key != "recipe":
            columns.append(key)
    new_rows = []
    for row, settings in zip(rows, settings_of_rows, strict=True):
        new_rows.append([row[key] if key in row else settings.get(key) for key in columns])
    units = dict(zip(listing.columns, listing.units, strict=True))
    return Listing(
        total=listing.total,
        # Long names of settings have short ones for headings.
        columns=[SHORT_NAMES.get(key, key) for key in columns],
        units=[units.get(key, "") for key in columns],  # settings have no unit
        rows=new_rows,
        settings=[SHORT_NAMES.get(key, key) for key in new_columns if key != "recipe"],
    )


def build_listing_table(
    listing: Listing, lang: str = "en", *, width: int = 0, are_columns_chosen: bool = False
) -> str:
    """Return a listing of runs as a table; figures in a readable unit, ``–`` for unknown ones.

    English headings are the keys of the columns, because a user filters by these keys. The trust
    in a run, a grade such as ``noisy``, has beside it whether its record was checked against its
    events, ``noisy (unverified)``, unless it was verified. This replaces the column
    ``verification``.

    If a row is wider than the screen, a path is shortened to a pattern by which a shell finds it in
    its folder, ``*fa3c1e/r1``. If that is not enough, columns are left out: first those with one
    value, which a line below the table states.

    Args:
        listing: the runs, at least one, with the keys of columns in ``columns``. Those of them that
            are fields of recipes are also in ``settings``.
        width: of the screen, in columns; 0: of the terminal on which this process prints, and no
            limit if it prints into a pipe or a file.
        are_columns_chosen: whether the user named the columns; the verification is then a column.
    """
    if not width:
        width = terminal.count_columns() if sys.stdout.isatty() else _UNLIMITED_WIDTH
    # The values of each column, by its key: ``zip`` turns the rows into columns.
    values_by_key: dict[str, list[Any]] = {}
    for key, *values in zip(listing.columns, *listing.rows, strict=True):
        values_by_key[key] = values
    if "trust" in values_by_key and not are_columns_chosen:
        states = values_by_key.pop("verification", None)  # whether each record was checked
        if states:
            # An imported row has neither a grade nor a state, both None.
            values_by_key["trust"] = [
                grade if state in ("verified", None) else f"{grade} ({state})"
                for grade, state in zip(values_by_key["trust"], states, strict=True)
            ]
    units = dict(zip(listing.columns, listing.units, strict=True))
    # Each column as the text of its heading, then those of its cells.
    columns = {
        key: _build_column(key, values, units[key], lang, is_setting=key in listing.settings)
        for key, values in values_by_key.items()
    }
    rows = zip(*columns.values(), strict=True)
    # A path is shortened as soon as rows do not fit on one line each, with three spaces between
    # cells: the pattern still finds the run. Columns are left out only if cells that are folded
    # between words do not fit either (``has_room`` below), because their values are then missing.
    if any(measure_width("   ".join(row)) > width for row in rows):
        for key, texts in columns.items():
            # Group 1: the six letters at the end of the run's folder, and the repeat, `fa3c1e/r1`.
            columns[key] = [_LAUNCH_PATH.sub(r"*\1", text) for text in texts]
    single_values: dict[str, str] = {}  # of columns that are left out, by their heading
    left_out: list[str] = []
    for key in _list_optional_columns(columns, listing.settings):
        if terminal.has_room(_build_table(columns), width, lang):
            break
        heading, first, *others = columns.pop(key)  # `first` and `others`: the cells of the rows
        if all(text == first for text in others):  # stated below the table
            single_values[heading] = first
        else:
            left_out.append(heading)
    blocks: list[Block] = [_build_table(columns)]
    if single_values:
        statements = join(f"{heading} {text}" for heading, text in single_values.items())
        blocks.append(Paragraph(phrase("terminal.alike", values=statements)))
    if left_out:
        blocks.append(Paragraph(phrase("terminal.left_out", columns=join(left_out))))
    return terminal.show(blocks, lang, width=width)


def _build_column(
    key: str, values: Sequence[Any], unit: str, lang: str, *, is_setting: bool
) -> list[str]:
    """Return the heading of a column and its cells.

    Args:
        key: the column's key, such as ``device``.
        values: of the rows.
        unit: of all values; empty: they have none, or differ in it.
        is_setting: whether the column is a setting of runs, which is written as in a recipe file;
            else it is a fact or a figure of the result.
    """
    # English headings are the keys, because a user filters by these keys.
    heading = key if lang == "en" else translate(term("site", key), lang)
    if unit:
        texts, readable_unit = cells.scale_to_unit(values, unit)
        return [f"{heading} {readable_unit}", *texts]
    format_value = _format_setting_cell if is_setting else _format_cell
    return [heading, *(format_value(value) for value in values)]


def _format_setting_cell(value: Any) -> str:
    """Return a setting as text; None: the run does not have it, or it is not set."""
    return cells.NOTHING if value is None else format_setting(value)


def _build_table(columns: dict[str, list[str]]) -> Table:
    """Return a table of columns, each of which is the text of its heading, then its cells."""
    heads, *rows = zip(*columns.values(), strict=True)
    return build_table(heads, rows)


def _list_optional_columns(columns: dict[str, list[str]], settings: Sequence[str]) -> list[str]:
    """Return the columns that a narrow screen may leave out, in the order in which they go.

    First those with one value, which loses nothing: a line below the table states it. Then the
    settings, the last first, so that the recipe's first ones stay longest; then the other columns
    in ``_OPTIONAL_COLUMNS``. All other columns stay.

    Args:
        columns: by key, the heading and then the cells of each column of the table.
        settings: keys of the columns that are settings of runs, in the order of the recipe.
    """
    # The first text of a column is its heading.
    with_one_value = [
        key for key in _OPTIONAL_COLUMNS if key in columns and len(set(columns[key][1:])) == 1
    ]
    others = [*reversed(settings), *_OPTIONAL_COLUMNS]
    return [*with_one_value, *(x for x in others if x in columns and x not in with_one_value)]


def _format_cell(value: Any) -> str:
    """Return a value of a run as text: a fact, a figure, or a list of them.

    A whole number has no decimals, because the database of runs may hold an integer as a float.
    """
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else cells.format_rate(value)
    if isinstance(value, list):
        return ", ".join(map(_format_cell, value)) or cells.NOTHING
    return cells.NOTHING if value is None else str(value)


def list_remarks(listing: Listing, unread_files: UnreadFiles, lang: str = "en") -> Iterator[str]:
    """Yield the lines below a table of runs: how many of all it shows, and which were not read.

    Args:
        listing: the runs that match a user's filters. ``total`` counts all of them; a limit may
            keep only the first ones in its rows.
        unread_files: path of each record that could not be read, with the reason.
    """
    if len(listing.rows) < listing.total:
        total = cells.format_integer(listing.total)
        yield translate(phrase("terminal.listed", shown=len(listing.rows), total=total), lang)
    for path, reason in unread_files:
        yield f"{path}: {render(reason, lang)}"


def build_imported_table(rows: Sequence[Row]) -> Table:
    """Return place, configuration, figures and notes of each published result that was read.

    Args:
        rows: the results. A row has its file and line, the configuration as printed, its figures by
            name, and notes on what is odd about it, such as that it is a duplicate.
    """
    lines = []
    for row in rows:
        figures = []
        for name, reading in row.figures.items():
            (value,), unit = cells.scale_to_unit([reading.value], reading.unit)
            # If the printed text `raw` is no number, such as "OOM", it is shown itself.
            shown = reading.raw if reading.value is None else f"{value} {unit}"
            figures.append(f"{name} {shown or cells.NOTHING}".strip())
        notes = (render(note, "en") for note in row.notes)
        lines.append((_format_place(row), row.configuration, ", ".join(figures), "; ".join(notes)))
    return build_table(("place", "configuration", "figures", "notes"), lines)


def summarize_import(rows: Sequence[Row], unread: Sequence[Unread]) -> Iterator[str]:
    """Yield a line with how much was read, and lines with why something was not.

    A line has a sentence, how many items it is true of, and the place of the first. Of each kind of
    reason at most ``_MAX_REASONS`` sentences are printed, and then how many items they leave out.
    The most frequent kind comes first.

    Args:
        rows: the published results that were read.
        unread: files, tables, rows and cells that could not be read.
    """
    yield f"rows read: {len(rows)}; items skipped: {len(unread)}"
    items_by_reason: dict[str, list[Unread]] = {}
    for item in unread:
        items_by_reason.setdefault(item.reason.code, []).append(item)
    for items in sorted(items_by_reason.values(), key=len, reverse=True):
        items_by_sentence: dict[str, list[Unread]] = {}
        for item in items:
            items_by_sentence.setdefault(render(item.reason, "en"), []).append(item)
        sentences = list(items_by_sentence.items())
        for sentence, equal_items in sentences[:_MAX_REASONS]:
            place = _format_place(equal_items[0])
            if len(equal_items) > 1:
                place = f"{len(equal_items)} x, first {place}"
            yield f"{place}: {sentence}"
        num_left_out = sum(len(equal_items) for _, equal_items in sentences[_MAX_REASONS:])
        if num_left_out:
            yield f"further items of this kind: {num_left_out}; `--json` prints all of them"


def _format_place(entry: Row | Unread) -> str:
    """Return file and line of an entry; the file alone if its line is not known."""
    return f"{entry.file}:{entry.line}" if entry.line else entry.file


def build_series_table(
    entries: Sequence[SeriesEntry],
    *,
    format_path: Callable[[Path], str] = str,
    width: int = 0,
) -> str:
    """Return a table with a row for each entry of a plan file, then remarks and folders.

    An entry is a run that the file asks for, with one or several launches. Settings in which the
    entries of a case differ have columns. An entry of which all launches passed, and none is
    contradicted by its evidence, has figures: geometric means, and for the result the interval.
    Remarks say why an entry did not run or failed, and how far its figures can be trusted. A remark
    on several entries appears once. No line is wider than the screen, except those with a folder.

    Args:
        entries: each with its state, such as "passed", the reason for the state, the records of
            launches that ended, and the folder ``run_dir``; None: it has no folder.
        format_path: returns the text in which the path of a folder is shown.
        width: of the screen, in columns; 0: of the terminal.
    """
    remarks: dict[str, list[str]] = {}  # names of the entries, by the remark
    for entry in entries:
        sentences = []
        # Only a dry run leaves an entry "to run". Its reason is then no reason, but what would run:
        # case, framework, hardware, and the numbers of nodes, of ranks on each and of launches,
        # such as `toy:pytorch_2.13:cpu:1:2:1`.
        if entry.reason and entry.state == "to run":
            sentences.append(f"to run as {entry.reason}")
        # "left": the series was stopped before the entry's last launch; the reason says "stopped".
        elif entry.reason and entry.state == "left":
            sentences.append(entry.reason)
        elif entry.reason:
            # `_STATES` has plainer words for some states.
            sentences.append(f"{_STATES.get(entry.state, entry.state)}: {entry.reason}")
        if entry.records:
            line = describe_trust(get_trust(entry.records), combine_verifications(entry.records))
            sentences.append(translate(line, "en"))
        for sentence in sentences:
            remarks.setdefault(sentence, []).append(entry.name)
    blocks: list[Block] = [
        _build_entry_table(entries, width or terminal.count_columns()),
        *(Paragraph(f"{', '.join(names)}: {remark}") for remark, names in remarks.items()),
    ]
    for entry in entries:
        if entry.run_dir is not None:
            blocks.append(Code(f"{entry.name}: {format_path(entry.run_dir)}"))
    if all(entry.state == "skipped" for entry in entries):
        blocks.append(Paragraph("nothing ran: this machine cannot run any run of the plan"))
    return terminal.show(blocks, width=width)


def _build_entry_table(entries: Sequence[SeriesEntry], width: int) -> Table:
    """Return a row for each entry of a plan file; on a narrow screen without memory and interval.

    An entry is a run that the file asks for. The first settings in which entries of the same case
    differ have columns, and the number of nodes and ranks if entries differ in it.

    Args:
        entries: each with its plan; None: this machine cannot run the entry.
        width: of the screen, in columns.
    """
    plans = [(entry.plan.case, entry.plan.recipe) for entry in entries if entry.plan]
    # `_NOT_SETTINGS`: fields of a recipe that a run cannot change, so they are no settings of it.
    settings = [x for x in find_differing_settings(plans) if x not in _NOT_SETTINGS][:_MAX_SETTINGS]
    worlds = {f"{entry.plan.nnodes}x{entry.plan.nproc}" for entry in entries if entry.plan}
    columns: dict[str, list[Phrase]] = {"run": [entry.name for entry in entries]}
    if len(worlds) > 1:
        columns["nodes x ranks"] = [
            None if entry.plan is None else f"{entry.plan.nnodes}x{entry.plan.nproc}"
            for entry in entries
        ]
    for setting in settings:
        columns[SHORT_NAMES.get(setting, setting)] = [
            _format_setting_cell(entry.plan.recipe[setting])
            if entry.plan and setting in entry.plan.recipe
            else None
            for entry in entries
        ]
    heads = ("status", "launches", "final_result", "interval", "quality", "memory GiB")
    entry_rows = [_list_entry_results(entry) for entry in entries]
    for index, head in enumerate(heads):
        columns[head] = [row[index] for row in entry_rows]
    # If the table is too wide, the memory is left out, then also the interval.
    for head in ("memory GiB", "interval"):
        shown = build_table(columns, zip(*columns.values(), strict=True))
        if terminal.has_room(shown, width):
            return shown
        del columns[head]
    return build_table(columns, zip(*columns.values(), strict=True))


def _list_entry_results(entry: SeriesEntry) -> list[Phrase]:
    """Return status, launches, result, interval, quality and memory of an entry of a plan file.

    The launches are those that passed and those that the entry asks for, ``2/3``. The figures are
    means over the launches. They are None unless all launches passed, now or in an earlier call,
    and no launch is contradicted by its evidence.

    Args:
        entry: a run that the plan file asks for; ``num_launches`` is how many launches it asks for.
    """
    records = entry.records  # one for each launch that has ended, now or in an earlier call
    state = _STATES.get(entry.state, entry.state)  # some states have plainer words for readers
    launches = f"{sum(x.passed for x in records)}/{entry.num_launches}"
    # "finished": all launches passed in an earlier call. In any other state launches are missing or
    # failed, and a mean over the rest is not that of the entry.
    # The same holds if evidence contradicts a launch: its figures are in no mean.
    have_all_passed = entry.state in ("passed", "finished")
    if not have_all_passed or not all(is_counted(record) for record in records):
        return [state, launches, None, None, None, None]
    result_text: Phrase = None
    interval: Phrase = None
    result = summarize_figure(records, "final_result")
    if result is not None:
        unit = records[0].figures["final_result"].unit
        result_text = f"{cells.format_rate(result.mean)} {unit}"
        if result.launches > 1:
            interval = format_interval(result, cells.format_rate)
    qualities = [x.quality.value for x in records if x.quality.value is not None]
    quality = summarize_launches(qualities).mean if qualities else None
    quality_text = cells.format_quality_and_target(quality, records[0].quality.target)
    used = summarize_figure(records, "mem")  # peak memory in use of a device
    total = summarize_figure(records, "mem_total")  # all memory of a device
    memory = cells.format_memory(used.mean if used else None, total.mean if total else None)
    return [state, launches, result_text, interval, quality_text, memory]


def build_launch_table(records: Iterable[Record]) -> Table:
    """Return a row for each launch: what ran, how it ended, its trust, the result.

    The trust is a grade: how far the figures can be quoted. The column ``evidence`` says whether
    the record was checked against the events of its run, and agrees with them.
    """
    rows = []
    for record in records:
        result = record.figures["final_result"]
        result_text = cells.format_rate(result.value)
        if result.value is not None:
            result_text = f"{result_text} {result.unit}".strip()
        quality = record.quality
        row = (
            record.run_id,
            record.plan.case,
            f"{record.plan.nnodes}x{record.plan.nproc}",
            record.status,
            record.trust.grade,
            record.verification,
            result_text,
            cells.format_quality_and_target(quality.value, quality.target),
        )
        rows.append(row)
    heads = ("run", "case", "ranks", "status", "trust", "evidence", "final_result", "quality")
    return build_table(heads, rows)


def to_series_json(
    entries: Sequence[SeriesEntry],
    *,
    name: str,
    exit_code: int,
    format_path: Callable[[Path], str] = str,
) -> dict[str, Any]:
    """Return how each entry of a plan file ended, as one JSON document.

    It has no figures: those are in the records of the runs.

    Args:
        entries: the runs that the file asks for. The state of each is a word such as ``passed`` or
            ``skipped``. ``reason`` says why it failed or did not run, or warns that a record of it
            contradicts its events; None: there is nothing to say.
            ``run_dir`` is the folder of its newest attempt; None: it has none.
        name: of the plan, as the plan file states it.
        exit_code: of the command that ran the entries.
        format_path: returns the text in which the path of a folder is shown.
    """
    runs = [
        {
            "name": entry.name,
            "status": entry.state,
            "reason": entry.reason,
            "run_dir": None if entry.run_dir is None else format_path(entry.run_dir),
            "launches": entry.num_launches,
            "run_ids": [record.run_id for record in entry.records],
            "statuses": [record.status for record in entry.records],
            # Launches of earlier calls that did not pass. Each is named by the end of its folder's
            # path: the folder of the attempt, `toy`, or, if the entry has several launches, also
            # that of the launch inside it, `toy/r2`.
            "did_not_pass_before": [
                "/".join(folder.parts[-2:]) if entry.num_launches > 1 else folder.name
                for folder in entry.earlier_failures
            ],
        }
        for entry in entries
    ]
    return {"plan": name, "exit_code": exit_code, "runs": runs}
