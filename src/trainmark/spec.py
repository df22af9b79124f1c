"""What a case is: the types that every other package uses.

Owns the frozen descriptions ``Case``, ``Target``, ``FigureSpec`` and ``PageSpec``.
Must stay importable in milliseconds: no torch, no pydantic, no numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainmark.recipe import Recipe

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Text:
    """One sentence in the languages of the result page; English stands in for a missing Chinese."""

    # Applies when pydantic reads one.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    en: str
    zh: str = ""

    def in_language(self, lang: str) -> str:
        """Return the text in ``lang``: ``en`` or ``zh``."""
        return self.zh if lang == "zh" and self.zh.strip() else self.en


@dataclass(frozen=True, slots=True)
class Message:
    """A reason, note, finding or cause as a code with arguments.

    Records, events and plans contain messages; ``record.messages`` has the sentence of each
    code in both languages. The sentences of a case's own codes are in the ``messages.toml``
    beside its ``case.py``, or in ``Case.messages``.
    """

    code: str
    args: dict[str, str | int | float | bool | None] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return code and arguments in the form of an event's field."""
        return {"code": self.code, "args": dict(self.args)}


def message(code: str, **args: str | int | float | bool | None) -> Message:
    """Return the message ``code`` with its arguments; ratios are from 0 to 1, times in seconds."""
    return Message(code, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """The definition of a figure: name, unit, texts and where it is shown.

    Args:
        unit: unit of the value in a record; ``{work}`` stands for the case's unit of work.
        better: whether higher or lower values are better; None: neither.
        column: its CSV column; empty: its name with the unit in words.
        on_host: its definition where ranks are processes that share a host's cores and memory.
        detail: left out of the figures of a repeat.
        first_screen: of a case's own figure: shown beside speed, time and memory.
    """

    name: str
    unit: str
    label: Text
    definition: Text
    on_host: Text | None = None
    better: Literal["higher", "lower"] | None = None
    column: str = ""
    detail: bool = False
    first_screen: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A value in its figure's unit, or the reason why there is none."""

    value: float | None
    reason: Message | None = None
    note: Message | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a case's ``sizes.py`` says of a run: what follows from its recipe.

    Records are checked against it, also those without their events.

    Args:
        facts: values that facts of the job must have, by name: ``parameters`` and others.
        flops: called with ``protocols.Counts``, returns the model FLOPs of training them; None: no
            formula, or one that is not proportional to the counts.
    """

    facts: Mapping[str, Any]
    flops: Callable[[Any], float] | None = None


class OwnFigures(NamedTuple):
    """What ``compute`` of a case's ``figures.py`` returns: values, and notes on the run.

    ``compute`` is called with the work of each rank (``protocols.RankWork``) and the figures
    that every case has. It may replace one of the latter by None with a reason.
    """

    figures: Mapping[str, Figure]
    notes: Sequence[Message] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A value that a page shows.

    Args:
        name: the header of its column, or its name in a list.
        value: its path: in a table a key of the row; in a list the path that begins with
            ``job.``, ``recipe.`` or ``run.``, for example ``job.parallel.fsdp``.
        form: format specification of numbers, ``,`` or ``.1%``, as Python's ``format`` takes it.
    """

    name: Text
    value: str
    form: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table or list on a page, filled from the facts of a run's job.

    Args:
        rows: name of the job's fact that is a list of rows; empty: the entries make a list of
            names with values.
        curves: draw each entry over the first one, the step, in place of a table.
    """

    heading: Text
    entries: tuple[Shown, ...]
    rows: str = ""
    curves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpec:
    """What a page shows of one case in addition to what it shows of every case."""

    figures: tuple[FigureSpec, ...] = ()
    tables: tuple[TableSpec, ...] = ()


MESSAGES_FILE = "messages.toml"
PAGE_FILE = "page.toml"


def read_messages(path: Path) -> dict[str, Text]:
    """Return the sentences of a ``messages.toml`` by their codes, for example ``fix.oom``.

    An entry is a table of ``en`` and, optionally, ``zh``; a code with dots is a nested table.

    Raises:
        UsageError: the file is not TOML, or an entry does not have this form.
    """
    return _read_toml_as(path, lambda document: dict(_iterate_sentences(document)))


def read_page(path: Path) -> PageSpec:
    """Return what a ``page.toml`` declares.

    Raises:
        UsageError: the file is not TOML, or does not have the form of ``PageSpec``.
    """
    from pydantic import TypeAdapter  # not needed to import a case

    return _read_toml_as(path, TypeAdapter(PageSpec).validate_python)


def _read_toml_as(path: Path, convert: Callable[[dict[str, Any]], _Read]) -> _Read:
    """Read a TOML file of a case, and return what ``convert`` makes of its document.

    Raises:
        UsageError: the file cannot be read or converted.
    """
    from trainmark.toml_file import read_toml  # not needed to import a case

    try:
        return convert(read_toml(path))
    except (OSError, ValueError, TypeError) as error:
        from trainmark.validation import describe_error  # not needed to import a case

        raise UsageError(
            f"cannot be read: {describe_error(error)}",
            where=f"{path.parent.name}/{path.name}",
            rule=(
                "the file must be TOML in UTF-8, with each text in English (en) and Chinese (zh); "
                "see docs/adding-a-case.md"
            ),
        ) from None


def _iterate_sentences(entries: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Text]]:
    """Yield the code and the text of each sentence in a table of TOML and the tables in it.

    Args:
        prefix: start of the codes: the names of the tables around ``entries``, each with a dot.

    Raises:
        TypeError: an entry is no table, or a sentence has another key than ``en`` and ``zh``.
    """
    for name, entry in entries.items():
        code = prefix + name
        if not isinstance(entry, dict):
            raise TypeError(f"{code} must be a table with an English text under the key `en`")
        if isinstance(entry.get("en"), str):  # a sentence; any other table contains sentences
            yield code, Text(**entry)
        else:
            yield from _iterate_sentences(entry, f"{code}.")


@dataclass(frozen=True, slots=True)
class Target:
    """The quality that ends a run; if it is not ``required``, a run that misses it gets a note."""

    metric: str
    value: float
    higher_is_better: bool = True
    required: bool = True

    def reached(self, quality: float) -> bool:
        """Tell whether ``quality`` is at least as good as the target."""
        return quality >= self.value if self.higher_is_better else quality <= self.value


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What the check before a run found in the data.

    ``quality_comparable`` is false if the run does not start from the published weights, but
    from random ones for instance: it then measures speed only.
    ``changed_rules`` holds the rules of data preparation that differ from the published ones,
    by name: the run then counts as ``open``.
    ``best_quality`` is the Bayes-optimal score, known only for generated data. ``content_id``
    identifies the bytes, so that runs on different data are not compared by mistake.
    """

    train_samples: int
    eval_samples: int
    content_id: str
    layout: str
    best_quality: float | None = None
    quality_comparable: bool = True
    changed_rules: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory that is available to a rank.

    Args:
        machine_bytes: total of a machine whose ranks share it; None: each rank has its own.
    """

    rank_bytes: int
    machine_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Mission:
    """How the JSON record of one case names the case; codes in ``record.index_record``.

    Args:
        repository: first component of the record's name, ``nlp``.
        model: second component, ``gpt``.
        name: the mission's name as the record prints it, ``语义表示``.
        direction_id: 0 CV, 1 NLP, 2 Rec.
    """

    repository: str
    model: str
    name: str
    direction_id: int


@dataclass(frozen=True, slots=True)
class PrepareOption:
    """An option of ``trainmark prepare`` that a case takes.

    Args:
        name: the keyword argument of ``prepare.prepare``.
        type: type to which the text on the command line is converted.
        help: one line, with the default.
        choices: the allowed values, as a range or a list; empty: all.
        required: whether ``prepare`` needs it.
    """

    name: str
    type: type[int | str | Path]
    help: str
    choices: Sequence[int | str] = ()
    required: bool = False

    @property
    def rule(self) -> str:
        """The allowed values, as text."""
        if isinstance(self.choices, range):
            return f"{self.choices[0]} to {self.choices[-1]}"
        if self.choices:
            return " or ".join(map(str, self.choices))
        if self.type is int:
            return "a whole number"
        return "text" if self.type is str else "a path"

    def read(self, text: str) -> int | str | Path:
        """Return the value of ``text``.

        Raises:
            UsageError: it has another type, or is not one of ``choices``.
        """
        is_valid = text != ""  # an empty path would mean the current folder
        try:
            value = self.type(text)
        except ValueError:
            is_valid = False
        else:
            if self.choices and value not in self.choices:
                is_valid = False
        if not is_valid:
            fix = "correct the value" if self.required else "remove it to use the default"
            raise UsageError(f"{self.name} is {text!r}", where=self.name, rule=self.rule, fix=fix)
        return value


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload: what is trained on what, to which quality.

    How it is done is in the modules beside its ``case.py``; see ``trainmark.cases``.

    Args:
        dataset: its name, or words for it in both languages.
        metric: short name of the quality as result pages print it, ``acc``.
        data_fields: recipe fields that the generated data depends on; ``data.generate``
            receives only these.
        prepare_options: options of ``trainmark prepare`` that this case takes.
        sample_note: what one sample is, for the page.
        work_unit: what ``final_result`` counts.
        mission: how the JSON record of one case names it; None: no such record is written.
        precision_labels: names of precisions on the case's published pages, where they differ:
            ``{"fp16": "amp"}``.
        can_replay: whether a step changes nothing but what the job's ``stepper``, a
            ``train.stepper.Stepper``, holds, so that ``replay_every_windows`` can repeat it.
        mlperf: called with the recipe's fields; returns further keys and values that MLPerf's
            ruleset of this benchmark requires in a log.
        messages: sentences of the codes that this case's job emits, for example
            ``my_case.no_answers``, with arguments in ``str.format`` syntax. Those in a
            ``messages.toml`` beside ``case.py`` are added.
        page: the case's own figures and tables, from the ``page.toml`` beside ``case.py``.
    """

    name: str
    title: Text
    task: Text
    model: str
    dataset: str | Text
    metric: str
    metric_note: Text
    sample_note: Text
    recipe_type: type[Recipe]
    recipes: Mapping[str, Recipe]
    data_fields: frozenset[str] = frozenset({"seed"})
    prepare_options: tuple[PrepareOption, ...] = ()
    higher_is_better: bool = True
    aliases: tuple[str, ...] = ()
    framework: str = "pytorch"
    work_unit: Literal["samples", "tokens"] = "samples"
    mission: Mission | None = None
    precision_labels: Mapping[str, str] = field(default_factory=dict)
    can_replay: bool = False
    mlperf: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    messages: Mapping[str, Text] = field(default_factory=dict)
    page: PageSpec = field(default_factory=PageSpec)

    def target(self, recipe: Recipe) -> Target | None:
        """Return the quality target of ``recipe``, None for a throughput recipe."""
        if recipe.target_value is None:
            return None
        return Target(
            self.metric, recipe.target_value, self.higher_is_better, recipe.target_required
        )
