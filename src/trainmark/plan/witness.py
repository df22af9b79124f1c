"""The file of ``run --witness``, in which a user describes a program that is to be measured.

Defines the keys of that file and their rules. The probe reads the same values from the plan.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self

from trainmark import documents
from trainmark.documents import Frozen
from trainmark.errors import UsageError
from trainmark.recipe import Precision  # noqa: TC001 - pydantic reads it at run time
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Sequence

WITNESSED = "witnessed"  # label, and name of the recipe
AUTO: Literal["auto"] = "auto"
MIN_WARMUP_STEPS = 3  # the first step compiles, and FLOPs are counted in one after it
# Groups of ``speed_line`` by the unit in which a program prints the number.
SPEED_GROUPS = (
    "tokens_per_second",
    "tokens_per_second_per_device",
    "samples_per_second",
    "samples_per_second_per_device",
    "steps_per_second",
    "step_s",
    "step_ms",
    "tflops_per_device",
    "mfu_percent",
)
_FIX = "see docs/witness.md for a complete file"
_MAX_DIMENSION = 8


def _check_speed_line(pattern: str) -> str:
    """Refuse a pattern that does not compile, or has none of the known groups."""
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if not groups.keys() & set(SPEED_GROUPS):
        raise ValueError(
            "the pattern needs a named group that captures a speed, such as "
            f"(?P<tokens_per_second>[0-9.,]+); possible group names are {', '.join(SPEED_GROUPS)}"
        )
    return pattern


class StepWork(Frozen):
    """Amounts that one training step trains, summed over all ranks."""

    samples: PositiveInt
    sequences: PositiveInt | None = None
    tokens: PositiveInt | None = None


class BatchDimensions(Frozen):
    """Which dimensions of the batches that a ``DataLoader`` yields are counted.

    Args:
        samples: the sample dimension of a batch's first tensor, or of its ``input_ids``.
        tokens: the token dimension of the same tensor; None: the program trains no tokens.
    """

    samples: Annotated[int, Field(ge=0, le=_MAX_DIMENSION)] = 0
    tokens: Annotated[int, Field(ge=0, le=_MAX_DIMENSION)] | None = None


class WitnessSpec(Frozen):
    """The file of ``run --witness``: the work of a user's program that is measured like a case.

    Args:
        name: the program's name on pages and in tables.
        precision: the precision in which the program multiplies, according to the user.
        step: what a step trains; alternatively ``batch`` tells how to count it.
        flops_per_token: model FLOPs of training one token; ``auto``: counted in one step.
        flops_per_sample: the same for one sample, if the program trains no tokens.
        optimizers: number of optimizers that step once in every training step.
        warmup_steps: first steps, which steady figures leave out.
        window_steps: steps between two synchronizations; None: as many as take about a second.
        target_loss: the run must reach this mean loss in its last window.
        speed_line: pattern of the lines in which the program prints its speed; None: known forms.
        log: file to which the program writes instead of its output, relative to its folder.
        starts_ranks: whether the command starts all ranks of a machine; None: only if it is
            torchrun or another known launcher.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,39}$")]
    precision: Precision
    step: StepWork | None = None
    batch: BatchDimensions | None = None
    flops_per_token: PositiveFloat | Literal["auto"] = AUTO
    flops_per_sample: PositiveFloat | None = None
    optimizers: PositiveInt = 1
    warmup_steps: Annotated[int, Field(ge=MIN_WARMUP_STEPS, le=10**9)] = 10
    window_steps: PositiveInt | None = None
    target_loss: float | None = None
    speed_line: Annotated[str, AfterValidator(_check_speed_line)] | None = None
    log: Path | None = None
    starts_ranks: bool | None = None

    @model_validator(mode="after")
    def _check_work(self) -> Self:
        """Refuse keys that contradict each other or lack another key."""
        if (self.step is None) == (self.batch is None):
            raise ValueError("the file must have either [step] or [batch]")
        # AUTO is the default of flops_per_token: the FLOPs are counted, not given.
        if self.flops_per_sample is not None and self.flops_per_token != AUTO:
            raise ValueError("only one of flops_per_token and flops_per_sample may be set")
        if self.flops_per_token != AUTO and not self.counts_tokens:
            raise ValueError("flops_per_token needs `tokens` in [step] or [batch]")
        return self

    @property
    def counts_tokens(self) -> bool:
        """Tell whether the file states the tokens: their number in a step or their dimension."""
        work = self.step or self.batch
        return work is not None and work.tokens is not None


class Witness(Frozen):
    """A program to measure.

    Args:
        command: started for each rank or, if it starts the ranks itself, once on each machine.
        folder: working directory of the command.
    """

    spec: WitnessSpec
    command: tuple[str, ...]
    folder: str
    starts_ranks: bool

    def describe_work(self) -> str:
        """Return the command and what the witness file states about its work.

        Without the settings of how its output is read, which do not change the work.
        """
        work_json = self.spec.model_dump_json(exclude={"speed_line", "log"}, exclude_defaults=True)
        return f"{shlex.join(self.command)} {work_json}"

    def list_work(self) -> dict[str, str]:
        """Return the parts of ``describe_work`` by name: the command, and each key of the file.

        The command is at the empty key. A key of a table has its name before it: ``step.samples``.
        """
        parts = {"": shlex.join(self.command)}
        stated = self.spec.model_dump(
            mode="json", exclude={"speed_line", "log"}, exclude_defaults=True
        )
        for key, value in stated.items():
            if isinstance(value, dict):  # a table, [step] or [batch]
                parts |= {f"{key}.{name}": str(entry) for name, entry in value.items()}
            else:
                parts[key] = str(value)
        return parts


def read_witness_spec(path: Path) -> WitnessSpec:
    """Read the file of ``run --witness``.

    Raises:
        UsageError: with file and key: the file cannot be read, an unknown key, or a wrong value.
    """
    try:
        document = read_toml(path)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}",
            where=str(path),
            fix="pass a TOML file that you can read",
        ) from None
    except ValueError as error:
        raise UsageError(
            f"not TOML: {' '.join(str(error).split())}", where=str(path), fix=_FIX
        ) from None
    return documents.validate_document(WitnessSpec, document, path, fix=_FIX)


# Programs that start the ranks of a machine, with their options for how many.
_RANK_OPTIONS = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.run": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.launch": ("--nproc-per-node", "--nproc_per_node"),
    "accelerate": ("--num_processes", "--num-processes"),
    "deepspeed": ("--num_gpus",),
}

# A word of Python's short options, such as `-u` or `-um`: options without a value, then perhaps one
# whose value is the rest of the word or the next word.
# docs.python.org/3/using/cmdline.html, 2026-11-29.
_SHORT_OPTIONS = re.compile(r"-[^-cmWX]*(?:(?P<option>[cmWX])(?P<value>.*))?", re.DOTALL)
_LONG_OPTION_WITH_VALUE = "--check-hash-based-pycs"


def find_rank_launcher(command: Sequence[str]) -> str | None:
    """Return the known launcher of ranks in a command, such as ``torchrun``; None: it has none."""
    name = Path(command[0]).name
    if name in _RANK_OPTIONS:  # its keys are the known launchers: programs and modules
        return name
    if name.startswith("python"):
        module = _read_module(command)
        package = module.split(".")[0]
        if module in _RANK_OPTIONS:
            return module
        if package in ("accelerate", "deepspeed"):  # any module of theirs starts ranks
            return package
    return None


def _read_module(command: Sequence[str]) -> str:
    """Return the module that a command of Python runs; empty if it runs a script or code."""
    position = 1
    # Only options of Python itself: those after the script are the script's own.
    while position < len(command) and command[position].startswith("-"):
        word = command[position]
        match = _SHORT_OPTIONS.fullmatch(word)
        option = match["option"] if match else None  # one that takes a value: c, m, W or X
        value = match["value"] if match else None  # in the same word
        if option == "m":
            return value or _get_next_word(command, position)
        if option == "c":  # its value is the code
            return ""
        has_value_in_next_word = word == _LONG_OPTION_WITH_VALUE or (option and not value)
        position += 2 if has_value_in_next_word else 1
    return ""


def _get_next_word(command: Sequence[str], position: int) -> str:
    """Return the word after a position; empty if there is none."""
    return command[position + 1] if position + 1 < len(command) else ""


def read_nproc(command: Sequence[str], *, nnodes: int) -> int | None:
    """Return the ranks per machine that a launcher's command names; None: it names no number.

    Args:
        nnodes: number of machines.
    """
    launcher = find_rank_launcher(command)
    if launcher is None:
        return None
    options = _RANK_OPTIONS[launcher]  # that set the number of ranks
    number = ""  # the last one counts, as in the launchers
    for position, word in enumerate(command):
        # The words after the script are the script's own. A program without this ending is not
        # recognized: that would need to know which options of each launcher have a value.
        if word.endswith(".py"):
            break
        option, equals, value = word.partition("=")
        if option in options:
            number = value if equals else _get_next_word(command, position)
    if not number.isdecimal():  # a word such as `gpu`, or no option
        return None
    # Accelerate's number is of all machines, and it divides it in the same way.
    nproc = int(number) // nnodes if launcher == "accelerate" else int(number)
    return nproc if nproc > 0 else None
