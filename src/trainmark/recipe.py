"""How a case is trained: the fields that every case has, and what changing one means.

Must stay importable in milliseconds: no torch, no pydantic, no numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
# The type of autocast; fp8 is that of linear layers alone.
AUTOCAST: dict[str, str] = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
PositiveInt = Annotated[int, Gt(0), Le(10**12)]  # fits every counter and clock
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0), Le(2**63 - 1)]  # what torch takes as a seed
NonNegativeFloat = Annotated[float, Ge(0)]

# Published pages write amp for fp16 under autocast.
PRECISION_ALIASES: dict[str, str] = {"amp": "fp16"}


Rule = Literal["open", "closed", "scope", "free", "fixed"]


def recipe_field(default: Any, doc: str, *, rule: Rule = "open") -> Any:
    """Declare a recipe field.

    Args:
        default: the value in recipes that do not set the field.
        doc: one line for ``trainmark list fields``, with the unit.
        rule: what it means to change the field. A plan lists changes under ``fix_hp`` or
            ``extra``. A division is a set of rules for results that are compared. A result with
            changes only under ``fix_hp`` may be in the closed division; with one under ``extra``,
            it belongs to the open division.

            - ``closed``: the change is listed under ``fix_hp``.
            - ``open``: the field changes the work; the change is listed under ``extra``.
            - ``scope``: the field sets how much is trained or what is evaluated. A change by the
              user is listed under ``extra``; a value that a shipped recipe sets is not listed.
            - ``free``: the field does not change the work; nothing is listed.
            - ``fixed``: the user cannot change the field.
    """
    return field(default=default, metadata={"doc": doc, "rule": rule})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a case is trained. A case adds fields in one subclass.

    A batch is what one device takes in one forward pass (``micro_batch_size``); a step is
    one optimizer step of ``micro_batch_size x grad_accum_steps x world_size`` samples.
    """

    has_fp8: ClassVar[bool] = False  # whether the case computes linear layers in fp8
    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012 - pydantic's own name

    micro_batch_size: PositiveInt = recipe_field(
        32, "samples per device in one forward pass", rule="closed"
    )
    grad_accum_steps: PositiveInt = recipe_field(
        1, "micro-batches that each device accumulates in one optimizer step", rule="closed"
    )
    learning_rate: PositiveFloat = recipe_field(1e-3, "peak learning rate", rule="closed")
    precision: Precision = recipe_field(
        "fp32",
        "fp32 | tf32 | bf16 | fp16 | fp8; the last three use autocast with fp32 weights",
        rule="closed",
    )
    compile: bool = recipe_field(False, "compile the model with torch.compile", rule="closed")
    kernels: Literal["library", "own"] | None = recipe_field(
        None,
        "loss implementation of language models: library (PyTorch) | own (computed in blocks); "
        "none: own on a CPU, library on other devices",
        rule="free",
    )
    weight_decay: NonNegativeFloat = recipe_field(0.0, "decoupled weight decay")
    max_epochs: PositiveInt = recipe_field(
        1, "maximum number of passes over the data", rule="scope"
    )
    max_steps: PositiveInt | None = recipe_field(
        None, "maximum number of optimizer steps; none: limited only by max_epochs", rule="scope"
    )
    eval_every_epochs: PositiveInt | None = recipe_field(
        1, "number of epochs between evaluations; none: no evaluation after an epoch", rule="scope"
    )
    eval_every_samples: PositiveInt | None = recipe_field(
        None,
        "number of samples between evaluations within an epoch, summed over all ranks; none: no "
        "evaluation within an epoch",
        rule="scope",
    )
    eval_from_sample: PositiveInt | None = recipe_field(
        None,
        "number of samples before the first evaluation within an epoch, summed over all ranks; "
        "none: same as eval_every_samples",
        rule="scope",
    )
    target_value: float | None = recipe_field(
        None, "quality at which the run ends; none: no target", rule="scope"
    )
    target_required: bool = recipe_field(
        True,
        "true: a run that misses its target fails; false: such a run passes with a remark",
        rule="scope",
    )
    warmup_steps: PositiveInt = recipe_field(
        10, "number of initial steps that are excluded from steady-state figures", rule="scope"
    )
    window_steps: PositiveInt = recipe_field(
        10, "steps between two synchronisations with the device", rule="free"
    )
    read_ahead_batches: Annotated[int, Ge(0), Le(1024)] = recipe_field(
        2, "number of batches that a background thread prefetches; 0: no thread", rule="free"
    )
    replay_every_windows: PositiveInt | None = recipe_field(
        None,
        "repeat every Nth measured window and check that both passes match bit for bit; none: "
        "repeat no window",
        rule="free",
    )
    seed: NonNegativeInt = recipe_field(
        1, "random seed for the data order, initial weights and dropout", rule="free"
    )
    timeout_s: PositiveFloat = recipe_field(
        86_400.0, "wall-clock limit of the whole run in seconds", rule="free"
    )
    data: Literal["generated", "real"] = recipe_field(
        "real", "training data: generated by the case, or given with --data", rule="fixed"
    )
    world: str | None = recipe_field(
        None, "nnodes x nproc that the recipe is intended for, for example 1x8", rule="fixed"
    )

    def check(self, world_size: int) -> None:
        """Refuse fields that contradict each other or do not fit ``world_size`` ranks.

        Nothing is refused here: the fields that all cases share have no such rules. A case with
        rules of its own overrides this method.

        Raises:
            UsageError: naming the field, its rule and fix.
            EnvironmentFault: a package that the recipe needs is not installed.
        """

    @property
    def is_upper_bound(self) -> bool:
        """Tell whether the run is no real training, but shows how fast one could be at most.

        An example is a mixture of experts that all get equal loads. Recipes that have such runs
        override it.
        """
        return False

    @property
    def evaluates(self) -> bool:
        """Tell whether a run makes evaluations; one that does also evaluates at its end."""
        return self.eval_every_epochs is not None or self.eval_every_samples is not None


def list_fields_with_rule(recipe_type: type[Recipe], rule: Rule) -> frozenset[str]:
    """Return the names of the fields with ``rule``; see ``recipe_field``."""
    return frozenset(item.name for item in fields(recipe_type) if item.metadata.get("rule") == rule)


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
