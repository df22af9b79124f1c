"""Read the speed of a log of events, PerfLog or MLPerf, from the runs that ``import`` reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainmark.published.analysis.quantities import Quantity
from trainmark.published.analysis.samples import Sample
from trainmark.published.analysis.sources import Source
from trainmark.published.importers.logs import (
    TOTAL_SPEED,
    describe_run,
    get_training_speed,
    list_notes,
    read_world_size,
)
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.published.importers.event_runs import EventRun

# The text before each event of a log, by the preset of such logs.
MARK_OF_PRESET = {"mllog": ":::MLLOG", "perflog": "[PerfLog]"}
_PRESET_OF_MARK = {mark: preset for preset, mark in MARK_OF_PRESET.items()}
_SHOWN_CHARACTERS = 300  # of a line in messages


@dataclass(frozen=True)
class EventSpeed:
    """The speed of the last run in a log of events that has one.

    Args:
        preset: ``mllog`` or ``perflog``.
        sample: the speed; None: no run has one.
        loss: the last loss of the run; None: not known.
        devices: number of devices; None: the log does not say.
        has_failed: the run was aborted, or says that it did not succeed.
        notes: for the user.
    """

    preset: str
    sample: Sample | None = None
    loss: float | None = None
    devices: int | None = None
    has_failed: bool = False
    notes: list[str] = field(default_factory=list)


def read_event_speed(runs: Sequence[EventRun], preset: str) -> EventSpeed | None:
    """Return the speed of the last run that has one.

    If no run has one, the returned object has no sample, but the notes on all runs.

    Args:
        runs: all runs of events in the log.
        preset: ``mllog`` or ``perflog``: only runs in this form count; any other preset: only runs
            in the form of the first run count.

    Returns:
        None: there is no run that counts.
    """
    if preset in MARK_OF_PRESET:
        runs = [run for run in runs if run.mark == MARK_OF_PRESET[preset]]
    if not runs:
        return None
    # The mark is the text before each event, such as `:::MLLOG`. If a log has events of both forms,
    # the runs in the other form do not count.
    mark = runs[0].mark
    found_preset = _PRESET_OF_MARK[mark]
    runs = [run for run in runs if run.mark == mark]
    runs_with_speed = [run for run in runs if get_training_speed(run) is not None]
    chosen = runs_with_speed[-1] if runs_with_speed else None
    notes = []
    for number, run in enumerate(runs, 1):
        if run is not chosen:
            why_unused = _describe_unused_run(run)
            notes.append(f"run {number} of {len(runs)}, from line {run.first_line}, {why_unused}")
    if chosen is None:
        return EventSpeed(found_preset, notes=notes)
    columns = describe_run(chosen, file_name="")  # only notes and devices are read from them
    prefix = f"run {runs.index(chosen) + 1} of {len(runs)}: " if len(runs) > 1 else ""
    notes += [prefix + render(note, "en") for note in list_notes(chosen, columns)]
    return EventSpeed(
        found_preset,
        sample=_make_sample(chosen, found_preset),
        # The loss is what the log has under its key: a text, or nothing, is no loss.
        loss=float(chosen.loss) if isinstance(chosen.loss, int | float) else None,
        devices=read_world_size(columns),
        has_failed=chosen.has_failed or chosen.is_aborted,
        notes=notes,
    )


def _describe_unused_run(run: EventRun) -> str:
    """Return why the speed of a run is not the result, as the end of a sentence.

    The result is the speed of the last run that has one.
    """
    # This says more than that it has no speed. If it has one, that of a later run is the result.
    if run.is_aborted:
        return "was aborted"
    return "has no speed" if get_training_speed(run) is None else "is not used"


def _make_sample(run: EventRun, preset: str) -> Sample:
    """Return the speed of a run that has one as a sample of a single value.

    Args:
        run: its ``facts`` are what events say of the whole run, by name, such as the speed that the
            program printed at its end, ``TOTAL_SPEED``.
        preset: ``mllog`` or ``perflog``.
    """
    speed = get_training_speed(run)
    assert speed is not None
    quantity = Quantity("speed", "samples/s", scope="job")  # the speed of all devices together
    # The key says from which events the speed is. ``get_training_speed`` prefers the total that the
    # program printed, then the speeds in `tracked_stats` events, then samples divided by times.
    if isinstance(run.facts.get(TOTAL_SPEED), int | float):
        key = TOTAL_SPEED
    elif run.logged_speeds:
        key = "tracked_stats"
    else:
        key = f"samples and times of {run.form} events"  # `perflog` or `mlperf`
    if run.line:  # the line of the event that ends the run
        first_text = f"line {run.line}: {run.raw[:_SHOWN_CHARACTERS]}"
    else:  # the run has no end
        first_text = f"line {run.first_line}"
    malformed_text = ""
    if run.malformed:  # number and text of each line; the first one is shown
        malformed_line, text = run.malformed[0]
        malformed_text = f"line {malformed_line}: {text[:_SHOWN_CHARACTERS]}"
    return Sample(
        source=Source(preset, key, quantity),
        unit="samples/s",  # events count samples, whatever the model
        values=np.array([speed]),
        num_lines=1,  # there is a single value, as if one line printed it
        num_malformed=len(run.malformed),
        first_malformed_text=malformed_text,
        first_text=first_text,
    )
