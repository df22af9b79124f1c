"""What a case is and how it is trained: the types that every other package uses.

Owns the frozen descriptions ``Case``, ``Recipe``, ``Target``, ``FigureSpec`` and ``PageSpec``.
Must stay importable in milliseconds: no torch, no pydantic, no numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Gt, Le

from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PositiveInt = Annotated[int, Gt(0), Le(10**12)]  # fits every counter and clock
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0), Le(2**63 - 1)]  # what torch takes as a seed
NonNegativeFloat = Annotated[float, Ge(0)]

# Published pages write amp for fp16 under autocast.
PRECISION_ALIASES: dict[str, str] = {"amp": "fp16"}


@dataclass(frozen=True, slots=True)
class Text:
    """One sentence in the languages of the result page; English stands in for a missing Chinese."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # applies when pydantic reads one

    en: str
    zh: str = ""

    def in_language(self, lang: str) -> str:
        """Return the text in ``lang``: ``en`` or ``zh``."""
        return self.zh if lang == "zh" and self.zh.strip() else self.en


@dataclass(frozen=True, slots=True)
class Message:
    """A reason, note, finding or cause as a code with arguments.

    Records, events and plans contain messages; ``results.messages`` has the sentence of each
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


MESSAGES_FILE = "messages.toml"


def read_messages(path: Path) -> dict[str, Text]:
    """Return the sentences of a ``messages.toml`` by their codes, for example ``way_out.oom``.

    An entry is a table of ``en`` and, optionally, ``zh``; a code with dots is a nested table.

    Raises:
        UsageError: the file is not TOML, or an entry does not have this form.
    """
    import tomllib  # not needed to import a case

    try:
        return dict(_sentences(tomllib.loads(path.read_text(encoding="utf-8")), ""))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot be read: {error}",
            where=f"{path.parent.name}/{path.name}",
            rule='it is TOML in UTF-8; an entry is [code] with en = "…" and, optional, zh = "…"',
        ) from None


def _sentences(entries: dict[str, Any], prefix: str) -> Iterator[tuple[str, Text]]:
    for name, entry in entries.items():
        code = prefix + name
        if isinstance(entry, dict) and "en" not in entry:
            yield from _sentences(entry, f"{code}.")
        elif isinstance(entry, dict) and _is_sentence(entry):
            yield code, Text(**entry)
        else:
            raise ValueError(f"{code} is not a sentence")


def _is_sentence(entry: dict[str, Any]) -> bool:
    return entry.keys() <= {"en", "zh"} and all(isinstance(text, str) for text in entry.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """The definition of a figure: name, unit, texts and where it is shown.

    Args:
        unit: unit of the value in a record; ``{work}`` stands for the case's unit of work.
        better: whether higher or lower values are better; None: neither.
        column: its CSV column; empty: its name with the unit in words.
        on_host: its definition where ranks are processes that share a host's cores and memory.
        detail: shown on pages and in exports only, not on the terminal nor in repeat statistics.
    """

    name: str
    unit: str
    label: Text
    definition: Text
    on_host: Text | None = None
    better: Literal["higher", "lower"] | None = None
    column: str = ""
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A value in its figure's unit, or the reason why there is none."""

    value: float | None
    reason: Message | None = None
    note: Message | None = None


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
        form: format specification of numbers, ``,`` or ``.1%``; see ``format``.
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
    """

    heading: Text
    entries: tuple[Shown, ...]
    rows: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpec:
    """What a page shows of one case in addition to what it shows of every case.

    Args:
        terms: labels for the names of values that its evaluations report.
    """

    figures: tuple[FigureSpec, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    terms: dict[str, Text] = field(default_factory=dict)


PAGE_FILE = "page.toml"


def read_page(path: Path) -> PageSpec:
    """Return what a ``page.toml`` declares.

    Raises:
        UsageError: the file is not TOML, or does not have the form of ``PageSpec``.
    """
    import tomllib  # not needed to import a case

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        figures = [FigureSpec(**_with_texts(item)) for item in document.pop("figures", [])]
        tables = [_table(item) for item in document.pop("tables", [])]
        terms = _with_texts(document.pop("terms", {}))
        return PageSpec(figures=tuple(figures), tables=tuple(tables), terms=terms, **document)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"cannot be read: {error}",
            where=f"{path.parent.name}/{path.name}",
            rule="it is TOML in UTF-8 with figures, tables and terms as docs/adding-a-case.md says",
        ) from None


def _table(item: dict[str, Any]) -> TableSpec:
    entries = tuple(Shown(**_with_texts(entry)) for entry in item.pop("entries", ()))
    return TableSpec(entries=entries, **_with_texts(item))


def _with_texts(item: dict[str, Any]) -> dict[str, Any]:
    """Return ``item`` with each table of ``en`` and ``zh`` as a text."""
    return {key: Text(**value) if isinstance(value, dict) else value for key, value in item.items()}


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


Rule = Literal["open", "closed", "scope", "free", "fixed"]


def recipe_field(default: Any, doc: str, *, rule: Rule = "open") -> Any:
    """Declare a recipe field.

    Args:
        default: the value in recipes that do not set the field.
        doc: one line for ``trainmark list fields``, with the unit.
        rule: what changing it means. ``closed``: the closed rules allow it, listed as
            ``fix_hp``. ``open``: it changes the work, listed as ``extra``. ``scope``: it sets
            how much of the work is done and what is evaluated, listed as ``extra`` if the
            user changed it, not if a shipped recipe sets it. ``free``: the work stays
            the same. ``fixed``: the user cannot change it.
    """
    return field(default=default, metadata={"doc": doc, "rule": rule})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a case is trained. A case adds fields in one subclass.

    A batch is what one device takes in one forward pass (``micro_batch_size``); a step is
    one optimizer step of ``micro_batch_size x grad_accum_steps x world_size`` samples.
    """

    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012 - pydantic's own name

    micro_batch_size: PositiveInt = recipe_field(
        32, "samples a device takes in one forward pass", rule="closed"
    )
    grad_accum_steps: PositiveInt = recipe_field(
        1, "micro-batches a device adds up in one optimizer step", rule="closed"
    )
    learning_rate: PositiveFloat = recipe_field(1e-3, "peak learning rate", rule="closed")
    precision: Precision = recipe_field(
        "fp32",
        "fp32 | tf32 | bf16 | fp16; the last two are autocast with fp32 weights",
        rule="closed",
    )
    compile: bool | Literal["reduce-overhead"] = recipe_field(
        False,
        "torch.compile the model; reduce-overhead also replays its kernels as device graphs",
        rule="closed",
    )
    kernels: Literal["library", "own"] | None = recipe_field(
        None,
        "library | own: whose attention, dropout, loss and tables run; none: own on a CPU",
        rule="free",
    )
    weight_decay: NonNegativeFloat = recipe_field(0.0, "decoupled weight decay")
    max_epochs: PositiveInt = recipe_field(1, "passes over the data at most", rule="scope")
    max_steps: PositiveInt | None = recipe_field(
        None, "optimizer steps at most; none: epochs rule", rule="scope"
    )
    eval_every_epochs: PositiveInt | None = recipe_field(
        1, "epochs between two evaluations; none: no evaluation by epochs", rule="scope"
    )
    eval_every_samples: PositiveInt | None = recipe_field(
        None,
        "samples of all ranks between two evaluations; none: no evaluation within epochs",
        rule="scope",
    )
    eval_from_sample: PositiveInt | None = recipe_field(
        None,
        "samples of all ranks before the first of these; none: eval_every_samples",
        rule="scope",
    )
    target_value: float | None = recipe_field(
        None, "quality that ends the run; none: no target", rule="scope"
    )
    target_required: bool = recipe_field(
        True,
        "whether a run that misses its target fails; false: it passes with a remark",
        rule="scope",
    )
    warmup_steps: PositiveInt = recipe_field(
        10, "first steps kept out of steady figures", rule="scope"
    )
    window_steps: PositiveInt = recipe_field(
        10, "steps between two synchronisations with the device", rule="free"
    )
    read_ahead_batches: Annotated[int, Ge(0), Le(1024)] = recipe_field(
        2, "batches that a thread reads ahead of the step; 0: no thread", rule="free"
    )
    seed: NonNegativeInt = recipe_field(
        1, "seed of data order, initial weights and dropout", rule="free"
    )
    timeout_s: PositiveFloat = recipe_field(
        86_400.0, "wall-clock limit of the whole run, seconds", rule="free"
    )
    data: Literal["generated", "real"] = recipe_field(
        "real", "generated by the case, or given with --data", rule="fixed"
    )
    world: str | None = recipe_field(
        None, "nnodes x nproc the recipe was written for, as 1x8", rule="fixed"
    )

    def check(self, world_size: int) -> None:
        """Refuse fields that contradict each other or do not fit ``world_size`` ranks.

        A case overrides it to add its own rules.

        Raises:
            UsageError: naming the field, its rule and the way out.
            EnvironmentFault: a package that the recipe needs is not installed.
        """

    @property
    def replays_graphs(self) -> bool:
        """Tell whether compiled steps are recorded once and replayed as device graphs."""
        return self.compile == "reduce-overhead"

    def prevents_replay(self) -> str | None:
        """Return why a step of this recipe cannot be replayed as a device graph; None: it can.

        A case overrides it. The rules of all cases are in ``planning.requests``.
        """
        return None

    @property
    def evaluates(self) -> bool:
        """Tell whether a run makes evaluations; one that does also evaluates at its end."""
        return self.eval_every_epochs is not None or self.eval_every_samples is not None


def field_docs(recipe_type: type[Recipe]) -> dict[str, str]:
    """Return every recipe field's one-line description by name."""
    return {item.name: item.metadata.get("doc", "") for item in fields(recipe_type)}


def fields_under(recipe_type: type[Recipe], rule: Rule) -> frozenset[str]:
    """Return the names of the fields with ``rule``; see ``recipe_field``."""
    return frozenset(i.name for i in fields(recipe_type) if i.metadata.get("rule") == rule)


# Short names of fields on the command line and in the fix_hp column of published pages.
FIELD_ALIASES: dict[str, str] = {
    "bs": "micro_batch_size",
    "batch_size": "micro_batch_size",
    "local_batchsize": "micro_batch_size",
    "gas": "grad_accum_steps",
    "lr": "learning_rate",
    "wd": "weight_decay",
    "epochs": "max_epochs",
    "steps": "max_steps",
    "seq": "seq_length",
    "target": "target_value",
}
SHORT_NAMES: dict[str, str] = {
    "micro_batch_size": "bs",
    "grad_accum_steps": "gas",
    "learning_rate": "lr",
}


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
        held: who holds memory that ``rank_bytes`` does not count, in words; empty: nobody.
    """

    rank_bytes: int
    machine_bytes: int | None = None
    held: str = ""


@dataclass(frozen=True, slots=True)
class Mission:
    """How the JSON record of one case names the case; codes in ``results.index_record``.

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
    """

    name: str
    type: type[int | str | Path]
    help: str
    choices: Sequence[int | str] = ()

    @property
    def rule(self) -> str:
        """The allowed values, as text."""
        if isinstance(self.choices, range):
            return f"{self.choices[0]} to {self.choices[-1]}"
        if self.choices:
            return " or ".join(map(str, self.choices))
        return "a whole number" if self.type is int else "text"

    def read(self, text: str) -> int | str | Path:
        """Return the value of ``text``.

        Raises:
            UsageError: it has another type, or is not one of ``choices``.
        """
        try:
            value = self.type(text)
        except ValueError:
            value = None
        if value is None or (self.choices and value not in self.choices):
            raise UsageError(
                f"{self.name} is {text}",
                where=f"{self.name}={text}",
                rule=self.rule,
                remedy="leave it out for the default",
            )
        return value


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload: what is trained on what, to which quality.

    How it is done is in the modules beside its ``case.py``; see ``trainmark.cases``.

    Args:
        metric: short name of the quality as result pages print it, ``acc``.
        data_fields: recipe fields that the generated data depends on; ``data.generate``
            receives only these.
        prepare_options: options of ``trainmark prepare`` that this case takes.
        sample_note: what one sample is, for the page.
        work_unit: what ``final_result`` counts.
        mission: how the JSON record of one case names it; None: no such record is written.
        precision_labels: names of precisions on the case's published pages, where they differ:
            ``{"fp16": "amp"}``.
        layers: rows, inner and columns of matmuls of its standard recipe, forward, by the
            layer's name; ``trainmark ceilings`` measures their rates.
        messages: sentences of the codes that this case's job emits, for example
            ``my_case.no_answers``, with arguments in ``str.format`` syntax. Those in a
            ``messages.toml`` beside ``case.py`` are added.
        page: the case's own figures, tables and terms, from the ``page.toml`` beside ``case.py``.
    """

    name: str
    title: Text
    task: Text
    model: str
    dataset: str
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
    layers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    messages: Mapping[str, Text] = field(default_factory=dict)
    page: PageSpec = field(default_factory=PageSpec)

    def target(self, recipe: Recipe) -> Target | None:
        """Return the quality target of ``recipe``, None for a throughput recipe."""
        if recipe.target_value is None:
            return None
        return Target(
            self.metric, recipe.target_value, self.higher_is_better, recipe.target_required
        )
