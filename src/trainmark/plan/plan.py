"""``Plan``: the one document of a run that ranks, records and people read."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt, Le
from pydantic import AfterValidator, Field, TypeAdapter

from trainmark import cases, documents
from trainmark.documents import Frozen
from trainmark.errors import RecordError
from trainmark.plan import reference
from trainmark.plan.reference import References  # noqa: TC001 - pydantic reads it at run time
from trainmark.plan.request import MAX_TFLOPS
from trainmark.plan.witness import Witness  # noqa: TC001 - likewise
from trainmark.protocols.job import Progress  # noqa: TC001 - likewise
from trainmark.recipe import NonNegativeInt, PositiveInt, Recipe
from trainmark.spec import Case, Mission, PageSpec, Target, Text

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from trainmark.protocols import Vendor

PLAN_FILE = "plan.json"
RUNS_DIR = Path("runs")
CHECKPOINTS_DIR = "checkpoints"  # in a run's folder
SIMULATED = "simulated-device"  # label
# Label of a recipe that measures an upper bound on the speed; see ``Recipe.is_upper_bound``.
BALANCED_BOUND = "balanced-bound"
_REQUIRED_FIELDS = (
    "precision",
    "micro_batch_size",
    "grad_accum_steps",
    "warmup_steps",
    "max_epochs",
    "max_steps",
    "target_value",
    "timeout_s",
)
_EVALUATION_FIELDS = ("eval_every_epochs", "eval_every_samples")
# A text whose placeholders all have the form `{name}` or `{name:,.2f}`; `{{` and `}}` are braces.
_PLACEHOLDERS = re.compile(r"(?:[^{}]|\{\{|\}\}|\{[^\W\d]\w*(?::[+,]?(?:\.\d)?[dfgs%]?)?\})*")


@cache  # building one takes 10 ms
def _build_common_adapter() -> TypeAdapter[Any]:
    """Return what validates the recipe fields that every case has."""
    return TypeAdapter(Recipe)


def _check_common_fields(recipe: dict[str, Any]) -> dict[str, Any]:
    """Refuse a recipe that lacks a field that every record needs, or whose common fields are wrong.

    Other fields may be missing: a plan of an earlier version does not have the newest ones.
    """
    missing = [name for name in _REQUIRED_FIELDS if name not in recipe]
    if missing:
        raise ValueError(f"a recipe must have the field {missing[0]}")
    common = {item.name: recipe[item.name] for item in fields(Recipe) if item.name in recipe}
    _build_common_adapter().validate_python(common)
    return recipe


def _check_placeholders(text: Text) -> Text:
    """Refuse a sentence with placeholders other than ``{name}`` and ``{name:,.2f}``.

    Otherwise an edited record could read attributes of objects, or ask for gigabytes of padding.
    """
    if not (_PLACEHOLDERS.fullmatch(text.en) and _PLACEHOLDERS.fullmatch(text.zh)):
        raise ValueError(f"unknown placeholder in {text.en!r} or {text.zh!r}")
    return text


def is_empty(value: Collection[object]) -> bool:
    """Tell whether a field is empty, and is therefore left out of the file."""
    return not value


def is_none(value: object) -> bool:
    """Tell whether a field is None, and is therefore left out of the file."""
    return value is None


class PlannedCase(Frozen):
    """Facts of the case that records and pages need, so that these need not load the case.

    Args:
        messages: sentences of the message codes that only this case has.
        page: figures and tables that only this case has.
        references: published figures of the same case, as they were when the run was planned.
    """

    title: Text
    task: Text
    model: str
    dataset: str | Text
    metric: str
    metric_note: Text
    sample_note: Text
    higher_is_better: bool
    work_unit: Literal["samples", "tokens"]
    mission: Mission | None
    precision_labels: dict[str, str]
    messages: dict[str, Annotated[Text, AfterValidator(_check_placeholders)]]
    page: PageSpec = PageSpec()
    references: References

    @classmethod
    def from_case(cls, case: Case) -> PlannedCase:
        """Return the facts of ``case``, with its published figures.

        Raises:
            RecordError: the case's reference file is malformed.
        """
        facts = {name: getattr(case, name) for name in cls.model_fields if name != "references"}
        return cls(**facts, references=reference.read_references(case.name))


UNCHECKED = "unchecked"  # layout and content id of data that a dry run could not see


class PlannedData(Frozen):
    """Location of the data, and the results of its check."""

    folder: str
    origin: Literal["generated", "real"]
    layout: str
    content_id: str
    train_samples: NonNegativeInt = Field(description="0 in a dry run that could not check them")
    eval_samples: NonNegativeInt = Field(description="0 if nothing is evaluated")
    best_quality: float | None
    quality_comparable: bool


class PlannedDevice(Frozen):
    """The devices that ranks run on, as far as they are known before the run."""

    vendor: str
    torch_type: str
    collective_backend: str
    product_names: list[str]

    @classmethod
    def from_vendor(cls, vendor: Vendor, nproc: int, *, is_remote: bool) -> PlannedDevice:
        """Return the devices of ``vendor`` for ``nproc`` ranks on a machine.

        Args:
            is_remote: the ranks run on other machines, whose products are not known here.
        """
        product_names = [] if is_remote else vendor.product_names()
        # Each rank has an accelerator of its own; ranks on a processor share all of it.
        if not vendor.counts_cores:
            product_names = product_names[:nproc]
        return cls(
            vendor=vendor.name,
            torch_type=vendor.torch_type,
            collective_backend=vendor.collective_backend,
            product_names=product_names,
        )


class Resumed(Frozen):
    """The checkpoint from which a launch continues.

    Args:
        runs: ids of the earlier launches of the same training, in order. Their times are not added
            to those of the launch.
        progress: steps and samples that were done at the checkpoint.
    """

    runs: list[str]
    checkpoint: str
    progress: Progress


class Plan(Frozen):
    """One launch of one case, fully resolved."""

    schema_version: Literal[1] = 1
    suite_version: str
    run_id: str
    case: str
    about: PlannedCase
    case_key: str
    recipe_name: str
    recipe: Annotated[dict[str, Any], AfterValidator(_check_common_fields)]
    compared_with: str = Field(description="recipe whose fields are changed by fix_hp and extra")
    fix_hp: dict[str, Any]
    extra: dict[str, Any]
    rules: Literal["closed", "open"]
    labels: list[str]
    device: PlannedDevice
    peak_tflops: Annotated[float, Gt(0), Le(MAX_TFLOPS)] | None = Field(
        default=None, description="dense peak of one device, if the user gave one"
    )
    unproven: dict[str, Text] = Field(
        default_factory=dict,
        exclude_if=is_empty,
        description="vendor and launcher without real runs yet, and what each was tested on",
    )
    nnodes: PositiveInt
    nproc: PositiveInt
    repeat_index: PositiveInt
    repeat_count: PositiveInt
    launcher: str = "local"
    data: PlannedData
    run_dir: str
    resumed: Resumed | None = None
    sample_every_s: Annotated[float, Field(ge=0, le=3_600)] = Field(
        default=0.0, description="between two samples of devices and host; 0: none are taken"
    )
    witness: Witness | None = Field(
        default=None,
        exclude_if=is_none,
        description="the user's own program that is measured instead of a case",
    )

    @property
    def world_size(self) -> int:
        """Ranks over all machines."""
        return self.nnodes * self.nproc

    @property
    def node_processes(self) -> int:
        """Number of node processes that start the ranks; 0 if the launcher starts them itself."""
        return 0 if self.launcher == "local" else self.nnodes

    def describe_unproven(self) -> list[str]:
        """Return what its device and its launcher were tested on, if they did no real runs yet."""
        return [f"{name}, tested on: {tested.en}" for name, tested in self.unproven.items()]

    def load_case(self) -> Case:
        """Return the case this plan runs."""
        return cases.load(self.case)

    @property
    def target(self) -> Target | None:
        """Return the quality that the run must reach; None: the recipe only measures speed."""
        value = self.recipe["target_value"]
        if value is None:
            return None
        required = self.recipe.get("target_required", True)  # plans of earlier versions lack it
        return Target(self.about.metric, value, self.about.higher_is_better, required)

    @property
    def evaluates(self) -> bool:
        """Tell whether a run is evaluated at all."""
        return any(self.recipe.get(name) is not None for name in _EVALUATION_FIELDS)

    def load_recipe(self) -> Recipe:
        """Return the resolved recipe as the case's own type."""
        return self.load_case().recipe_type(**self.recipe)

    def save(self, run_dir: Path) -> Path:
        """Write ``plan.json`` into ``run_dir`` and return its path."""
        path = run_dir / PLAN_FILE
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, run_dir: Path) -> Plan:
        """Read the plan of a run directory.

        Raises:
            OSError: the directory has no plan.
            ValueError: not a regular file, or not a plan of this schema.
        """
        # Strict: a value of another type is damage, and is not converted.
        return cls.model_validate_json(documents.read_bytes(run_dir / PLAN_FILE), strict=True)


def read_plan(run_dir: Path) -> Plan:
    """Read the plan of a run directory.

    Raises:
        RecordError: there is none, or it is damaged, with the line or the key.
    """
    try:
        return Plan.read(run_dir)
    except FileNotFoundError:
        raise RecordError(
            "not a run directory",
            where=str(run_dir / PLAN_FILE),
            rule=f"the folder must contain {PLAN_FILE} and events",
        ) from None
    except (OSError, ValueError) as error:
        raise documents.make_damage_error(
            error,
            run_dir / PLAN_FILE,
            "not a plan of this schema",
            rule="the plan must be unchanged since the run wrote it",
        ) from None


def format_run_id(case_name: str, started: datetime, token: str) -> str:
    """Return the id of a run, such as ``20261128T191500Z-toy-1a2b3c``."""
    return f"{started:%Y%m%dT%H%M%SZ}-{case_name}-{token}"
