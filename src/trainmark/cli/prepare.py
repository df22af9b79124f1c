"""``trainmark prepare``: convert real data to a case's form, with the options of the case."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Quiet, complete_with
from trainmark.cli.output import print_text
from trainmark.data.prepared import Reporter
from trainmark.errors import UsageError, escape_controls, suggest_nearest
from trainmark.plan.recipes import parse_assignments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import TaskID

    from trainmark.spec import Case

EXAMPLES = """\
  trainmark prepare CASE --from downloads/ --data data/mine
  trainmark prepare gpt_megatron tokenizer=gpt2/ --from corpus.jsonl --data data/corpus
  trainmark list options                                 print the options of all cases
  trainmark run CASE --data data/mine --recipe standard
"""
LINE_EVERY_S = 60.0  # time between two lines of a long stage


def prepare(
    case: Annotated[
        str, typer.Argument(help="Name of a case.", autocompletion=complete_with("complete_case"))
    ],
    raw: Annotated[
        Path, typer.Option("--from", help="Raw data as downloaded: a file, folder or archive.")
    ],
    data: Annotated[
        Path, typer.Option("--data", help="Output folder; an interrupted conversion is resumed.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Options for preparing the data of the case.",
            autocompletion=complete_with("complete_prepare_option"),
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Check raw data and convert it to the format that a case reads."""
    from trainmark import cases

    loaded_case = cases.load(case)
    name = loaded_case.name  # ``case`` may be an alias
    if not cases.has_part(name, "prepare"):
        raise UsageError(
            f"case {name} has nothing to prepare",
            where="CASE",
            fix=f"run `trainmark run {name}`, which generates its data",
        )
    values = _read_options(loaded_case, options or [])
    with open_reporter(quiet=quiet) as reporter:
        cases.import_part(name, "prepare").prepare(raw, data, reporter, **values)
    print_text(str(data))


def _read_options(case: Case, words: list[str]) -> dict[str, int | str | Path]:
    """Return the values of a case's options by their names.

    Args:
        words: as the user wrote them, ``KEY=VALUE``.

    Raises:
        UsageError: an unknown option, a value that does not fit, or a required option is missing.
    """
    options = {option.name: option for option in case.prepare_options}
    example_name = next(iter(options), "name")
    given = parse_assignments(words, example=f"{example_name}=VALUE")
    for name in given:
        if name not in options:
            fix = (
                suggest_nearest(name, options)
                if options
                else "remove the option; this case has no options"
            )
            what = f"case {case.name} has no option {name!r}"
            raise UsageError(what, where="KEY=VALUE", fix=fix)
    for name, option in options.items():
        if option.required and name not in given:
            raise UsageError(
                f"option {name} is missing",
                where=f"trainmark prepare {case.name}",
                rule=f"{name}: {option.help}",
                fix=f"add {name}=VALUE",
            )
    return {name: options[name].read(text) for name, text in given.items()}


@contextmanager
def open_reporter(*, quiet: bool) -> Iterator[Reporter]:
    """Open what shows the progress in the block: a bar on a terminal, else a few lines."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield Reporter(lambda _: None)
    elif console.is_terminal and not console.is_dumb_terminal:
        bar = BarReporter(console)
        with bar.progress:
            yield bar
    else:
        yield LineReporter(partial(print_text, err=True))


class LineReporter(Reporter):
    """Prints each line, each stage, and how far a long stage is once a minute.

    Args:
        say: prints a line.
        clock: returns a time in seconds.
    """

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(say)
        self._clock = clock
        self._stage = ""
        self._total = 0  # units of work of the stage, for example bytes
        self._done = 0  # of these, how many are done
        self._done_before = 0  # of these, how many an interrupted earlier call had done
        self._begin_s = 0.0  # time at which the stage began
        self._shown_s = 0.0  # time of the last line

    def begin(self, stage: str, total: int, done: int = 0) -> None:
        """Print the stage's name. It has ``total`` units of work; ``done`` are already done."""
        self._stage = stage
        self._total = total
        self._done = done
        self._done_before = done
        self._begin_s = self._clock()
        self._shown_s = self._begin_s
        self.say(stage)

    def advance(self, units: int) -> None:
        """Print the progress of the stage if a minute has passed since the last line.

        Args:
            units: of work that were done since the last call.
        """
        self._done += units
        now_s = self._clock()
        if now_s - self._shown_s < LINE_EVERY_S:
            return
        self._shown_s = now_s
        line = f"{self._stage}: {100 * self._done / max(1, self._total):.0f}%"
        new_units = self._done - self._done_before  # without those of an interrupted earlier call
        if new_units:
            remaining_s = (now_s - self._begin_s) * (self._total - self._done) / new_units
            line += f", about {timedelta(seconds=max(0, round(remaining_s)))} left"
        self.say(line)


class BarReporter(Reporter):
    """Shows a stage as a bar with percent and time left on a terminal, below the lines."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        super().__init__(
            lambda line: console.print(
                escape_controls(line), markup=False, highlight=False, soft_wrap=True
            )
        )
        self.progress = Progress(
            "{task.description}",
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None  # the bar of the stage; None: no stage has begun

    def begin(self, stage: str, total: int, done: int = 0) -> None:
        """Replace the current bar with a new one for the stage."""
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._task = self.progress.add_task(stage, total=total, completed=done)

    def advance(self, units: int) -> None:
        """Move the bar by the units of work that were done since the last call."""
        if self._task is not None:
            self.progress.advance(self._task, units)
