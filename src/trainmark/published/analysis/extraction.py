"""Extract the values of a speed from a log, or say why there are none.

The values stand behind the user's keyword, in the format of a known trainer, or behind any key that
names a speed; a log of events has them in its runs. What is computed from them is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.published.analysis.choice import Choice, choose_speed
from trainmark.published.analysis.event_logs import MARK_OF_PRESET, read_event_speed
from trainmark.published.analysis.keywords import KeywordReader
from trainmark.published.analysis.log_reader import LogReader
from trainmark.published.analysis.options import AUTO, Options
from trainmark.published.analysis.quantities import Quantity
from trainmark.published.analysis.results import STEP_TIME_MODES, Mode
from trainmark.published.analysis.sources import PRESETS
from trainmark.published.log import read_numbered_lines

if TYPE_CHECKING:
    from trainmark.published.analysis.event_logs import EventSpeed
    from trainmark.published.analysis.samples import Sample

# In which a preset is recognised for a keyword of the user: they are held in memory, because
# standard input cannot be read twice.
_MAX_HEAD_LINES = 50_000
_MAX_SHOWN_KEYS = 8  # in messages


@dataclass
class Extraction:
    """The values extracted from a log, and what the user must know about them.

    Args:
        preset: name of the format; empty: only the user's keyword was used.
        sample: the values that count; None: there are none.
        loss: the last loss, which may be infinite; None: there is none.
        others: other speeds in the log.
        devices: of the job, by the log; None: not known.
        has_failed: the log says that the run failed.
        num_malformed: number of lines that have the key, but no number behind it.
        first_malformed_text: the first of them.
        num_values: number of values, if there is no sample.
        num_skipped: how many of them ``skip_steps`` skips.
        notes: for the user.
        reason: why there is no sample; empty: there is one.
        advice: what the user can do about it.
    """

    preset: str = ""
    sample: Sample | None = None
    loss: float | None = None
    others: list[Sample] = field(default_factory=list)
    devices: int | None = None
    has_failed: bool = False
    num_malformed: int = 0
    first_malformed_text: str = ""
    num_values: int = 0
    num_skipped: int = 0
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    advice: str = ""


def read_keyword(log: str, options: Options) -> Extraction:
    """Return the values behind the user's keyword; a preset supplies what the user left out.

    A preset is the log format of a known trainer: it says behind which key the speed stands, what
    the number measures, and which key has the loss.

    Args:
        log: a path; ``-`` is standard input.
        options: of the user, who gives a keyword or the position of a word in its line.
    """
    lines = read_numbered_lines(log)
    choice = Choice()  # the speed that the preset finds; without a preset it stays empty
    if options.preset:
        # The first lines are enough to find the key of the preset's speed. They are kept in memory,
        # because standard input cannot be read twice.
        head = list(islice(lines, _MAX_HEAD_LINES))
        lines = chain(head, lines)  # the head is read again for the values
        choice = _choose_speed_of_head(head, options, options.preset)
    keyword = options.keyword
    if not keyword and choice.sample is not None:
        keyword = choice.sample.source.key
    if not keyword and options.position is None:
        fix = "set keyword=TEXT, as written in the log"
        raise UsageError("no keyword to search for", where="keyword", fix=fix)
    keyword_reader = _make_keyword_reader(keyword, options, choice.preset)
    keyword_reader.read(lines)
    sample = _take_keyword_sample(keyword_reader, options, choice)
    # Values of closing lines, such as a total, count if the log has no others.
    num_values = len(keyword_reader.values) or len(keyword_reader.closing_values)
    extraction = Extraction(
        choice.preset,
        sample,
        keyword_reader.loss,
        num_malformed=keyword_reader.num_malformed,
        first_malformed_text=keyword_reader.first_malformed_text,
        num_values=num_values,
    )
    if keyword:
        extraction.reason = f"no value found after the keyword {keyword!r}"
        extraction.advice = "set keyword=TEXT, as written before the value in the log"
    else:  # the preset found no key: the word at the position was read from every line
        extraction.reason = f"no number found at position {options.position} of any line"
        extraction.advice = (
            "set position=N to the index of the value among the words of its line, counted from 0"
        )
    if sample is None and num_values:  # there are values, but ``skip_steps`` skips all
        _blame_skipping(extraction, options.skip_steps, num_values)
    # A note on units is only for times, whose unit the user may have left out. The key or unit of
    # a rate says what it counts.
    if keyword_reader.quantity is not None and keyword_reader.quantity.kind == "step_time":
        _note_units(extraction, keyword_reader.quantity, options, has_preset=bool(choice.preset))
    return extraction


def _choose_speed_of_head(head: list[tuple[int, str]], options: Options, preset: str) -> Choice:
    """Return the speed that a preset, a known log format, finds in the first lines of a log.

    Args:
        head: number and text of each of these lines.
    """
    reader = LogReader(preset, skip=0)
    reader.read(head)
    # The head may have fewer values than the user skips in the whole log, so none is skipped.
    return choose_speed(reader, options.model_copy(update={"skip_steps": 0}))


def _make_keyword_reader(keyword: str, options: Options, preset: str) -> KeywordReader:
    """Return a reader of the values behind a keyword, or of words at a position.

    Args:
        keyword: of the user or the preset; empty: the user gives the position of a word.
        preset: name of the log format of a known trainer. ``PLAIN`` and an empty text are no such
            formats, and not in ``PRESETS``.
    """
    # Only the preset of a known trainer says which key has the loss.
    loss_key = PRESETS[preset].loss if preset in PRESETS else ""
    return KeywordReader(
        keyword=keyword,
        separator=options.separator,
        position=options.position,
        character_range=options.range,
        skip=options.skip_steps,
        loss_keyword=options.keyword_loss or loss_key,
    )


def _take_keyword_sample(reader: KeywordReader, options: Options, choice: Choice) -> Sample | None:
    """Return the values behind the keyword that count; None: there are none.

    Args:
        reader: it has read the whole log.
        choice: the speed that a preset, the format of a known trainer's log, finds. Its sample says
            what the number behind the keyword measures; None: no speed is found.
    """
    if choice.sample is not None:
        return reader.make_sample(choice.sample.source.quantity, choice.preset)
    # If the key does not say what the values are, only the user's mode does, the formula by which
    # the result follows from them.
    has_times = options.model_mode in {*STEP_TIME_MODES, Mode.EPOCH_TIME}
    return reader.make_sample(Quantity("step_time" if has_times else "speed"))


def _note_units(
    extraction: Extraction, quantity: Quantity, options: Options, *, has_preset: bool
) -> None:
    """Add notes about units of times that the key names and the options leave out.

    Args:
        extraction: has the notes.
        quantity: of the times. Its ``time_unit_s`` is the length of the unit in seconds, 0.001 of
            milliseconds, and ``num_steps`` is how many steps a time covers.
        has_preset: the log is in a known format, whose unit is known and is converted to seconds.
    """
    if quantity.time_unit_s != 1.0 and options.time_unit is None and not has_preset:
        unit = "ms" if quantity.time_unit_s == 1e-3 else f"{quantity.time_unit_s:g} s"
        extraction.notes.append(
            f"the times in the log are in {unit}, but time_unit=s is assumed; set time_unit"
        )
    if quantity.num_steps > 1 and options.steps_per_value is None:
        extraction.notes.append(
            f"each value is the time of {quantity.num_steps} steps, according to its key"
        )


def read_best_speed(log: str, options: Options) -> Extraction:
    """Return the values of the best speed of a log, in the preset that the user names or in any.

    A preset is a known log format. If the log has no speed, the returned object says why.

    Args:
        log: a path; ``-`` is standard input.
        options: of the user, who gives no keyword.
    """
    preset = options.preset or AUTO  # AUTO: any preset
    reader = LogReader(preset, options.skip_steps, options.keyword_loss)
    reader.read(read_numbered_lines(log))
    is_event_preset = preset in MARK_OF_PRESET  # that of logs of events, such as MLPerf's
    event_speed = None  # none, or only other log formats are wanted
    if is_event_preset or preset == AUTO:
        event_speed = read_event_speed(reader.event_runs, preset)
    # With `auto`, events without a speed do not end the search: other lines may have one.
    if is_event_preset or (event_speed is not None and event_speed.sample is not None):
        return _extract_event_speed(event_speed, preset)
    choice = choose_speed(reader, options)  # its sample is the values of the speed; None: no speed
    # ``PRESETS`` has the formats of known trainers. If none of them is chosen, ``choice.preset`` is
    # ``PLAIN`` or empty. The key is then empty, which stands for the main loss.
    loss_key = PRESETS[choice.preset].loss if choice.preset in PRESETS else ""
    loss = reader.wanted_loss if options.keyword_loss else reader.last_loss_of.get(loss_key)
    extraction = Extraction(
        choice.preset, choice.sample, loss, others=choice.others, devices=choice.devices
    )
    if reader.context.resumed_at:
        line = reader.context.resumed_at
        extraction.notes.append(f"according to line {line}, the run was resumed from a checkpoint")
    if choice.sample is not None:
        # Notes on trainers that print their speed only at the end, if the log lacks that line.
        extraction.notes += choice.missing_closings
        extraction.num_malformed = choice.sample.num_malformed
        extraction.first_malformed_text = choice.sample.first_malformed_text
        return extraction
    _describe_readings(extraction, reader, preset)
    extraction.reason = _explain_missing_speed(choice, preset)
    extraction.advice = _advise(reader, choice, has_events=event_speed is not None)
    # If the reason is not that several speeds are equally good (``ambiguous``), all values may be
    # skipped. That is so if there is a sample when none is skipped.
    if options.skip_steps and not choice.ambiguous:
        unskipped = choose_speed(reader, options.model_copy(update={"skip_steps": 0}))
        if unskipped.sample is not None:
            _blame_skipping(extraction, options.skip_steps, len(unskipped.sample.values))
    return extraction


def _describe_readings(extraction: Extraction, reader: LogReader, preset: str) -> None:
    """Set the numbers of malformed lines and of values of a log in which no speed was chosen.

    The malformed lines, without a number behind the key, are those of the first key that has some:
    a line may be malformed for several keys, so that a sum over keys would count it twice. The
    values are those of the key with the most; each rank that prints a step counts. If the user
    names a preset, only its keys count.

    Args:
        reader: its ``readings`` are all values of each key.
        preset: the known log format that the user names; AUTO: any.
    """
    readings_of_preset = [
        readings for key, readings in reader.readings.items() if preset in (AUTO, key.preset)
    ]
    for readings in readings_of_preset:
        if readings.num_malformed:
            extraction.num_malformed = readings.num_malformed
            line = readings.first_malformed_line
            extraction.first_malformed_text = f"line {line}: {readings.first_malformed_text}"
            break
    extraction.num_values = max((x.num_lines for x in readings_of_preset), default=0)


def _blame_skipping(extraction: Extraction, skip_steps: int, num_values: int) -> None:
    """Say that there is no result because all values of the speed are skipped.

    Args:
        num_values: number of values that are skipped.
    """
    extraction.num_values = num_values
    extraction.num_skipped = num_values
    extraction.reason = f"skip_steps={skip_steps} skips all values"
    extraction.advice = "use a smaller skip_steps, or the log of a longer run"


def _extract_event_speed(event_speed: EventSpeed | None, preset: str) -> Extraction:
    """Return the speed of a log of events.

    Args:
        event_speed: what the events say; None: the log has no events, although the user named the
            preset of such logs.
        preset: that the user named.
    """
    if event_speed is None:
        advice = "choose a log with such lines"
        return Extraction(preset, reason=f"no {MARK_OF_PRESET[preset]} lines", advice=advice)
    extraction = Extraction(
        event_speed.preset,
        event_speed.sample,
        event_speed.loss,
        devices=event_speed.devices,
        has_failed=event_speed.has_failed,
        notes=event_speed.notes,
    )
    if event_speed.sample is None:  # the events give no speed
        extraction.reason = "no run in the log has samples with times"
        extraction.advice = "`trainmark import` reads the other figures of this log"
    return extraction


def _explain_missing_speed(choice: Choice, preset: str) -> str:
    """Return why no speed was found.

    Args:
        choice: its ``missing_closings`` are notes on trainers that print their speed only at the
            end, if the log lacks that line or the line gives no speed. Its ``ambiguous`` are the
            values of keys that are equally good but differ.
        preset: the known log format that the user names; AUTO: any.
    """
    if choice.missing_closings:
        return "no speed found: " + "; ".join(choice.missing_closings)
    if choice.ambiguous:
        keys = [f"{x.source.name} ({x.mean:g})" for x in choice.ambiguous[:_MAX_SHOWN_KEYS]]
        return f"no unique speed: several keys could be the speed: {', '.join(keys)}"
    if preset != AUTO:
        return f"no value found with preset {preset}"
    return "unknown log format"


def _advise(reader: LogReader, choice: Choice, *, has_events: bool) -> str:
    """Return what the user can do with a log that has no known speed.

    Args:
        reader: has counted how often each key of a number stands in the first lines, and has the
            last value of each.
        choice: its ``ambiguous`` are keys that could equally well be the speed but differ; its
            ``missing_closings`` are notes on trainers that print their speed only at the end.
        has_events: the log has events, none of whose runs has a speed.
    """
    # The file may be a table of results instead of a log: it has several speeds, too.
    if choice.ambiguous:
        return "choose a key with keyword=TEXT; `trainmark import` reads tables of results"
    if has_events:
        return "`trainmark import` reads the figures of these events"
    # The trainer prints its speed only at the end of a run. This log lacks that line, or the line
    # is of a resumed run and gives no speed.
    if choice.missing_closings:
        return "use the log of a whole run, or set keyword=TEXT, as written before a value"
    advice = "set keyword=TEXT, as written before the value in the log"
    # Keys that stand on several lines; if there are none, all of them.
    repeated_keys = [key for key, count in reader.key_counts.most_common() if count > 1]
    shown_keys = (repeated_keys or list(reader.key_counts))[:_MAX_SHOWN_KEYS]
    if not shown_keys:
        return advice
    descriptions = [
        f"{key} ({reader.key_counts[key]} times, last {reader.last_value_of[key]:g})"
        for key in shown_keys
    ]
    return f"numeric keys in the log: {', '.join(descriptions)}; {advice}"


def describe_missing_value(extraction: Extraction) -> str:
    """Return why there is no value, and what the user can do."""
    counts = f"values: {extraction.num_values}, malformed lines: {extraction.num_malformed}"
    return f"{extraction.reason}: {counts}; {extraction.advice}"
