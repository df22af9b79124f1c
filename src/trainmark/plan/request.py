"""What a user asks of a run: each option once, for the command line, plan files and Python.

A new option of a run is one field of ``RunRequest``: its name, type, default, help text and bounds.
``RunFields`` repeats name and type for type checkers; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from typing_extensions import Self

from trainmark.documents import Frozen, make_usage_error

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TFLOPS = 1e6  # the fastest device has some thousand
_MIN_INTERVAL_S = 0.1


def _convert_to_texts(overrides: Any) -> Any:
    """Return override values as a user writes them after ``KEY=``; ``none`` stands for None."""
    if not isinstance(overrides, dict):  # pydantic refuses it after this
        return overrides
    return {name: "none" if value is None else str(value) for name, value in overrides.items()}


def _convert_to_list(words: Any) -> Any:
    """Return a word as a list of one word; anything else as it is."""
    return [words] if isinstance(words, str) else words


def _check_interval(seconds: float) -> float:
    """Refuse an interval between samples of the devices at which sampling would disturb the run."""
    if 0 < seconds < _MIN_INTERVAL_S:
        raise ValueError(
            f"the interval must be at least {_MIN_INTERVAL_S:g} seconds, or 0 to take no samples"
        )
    return seconds


PositiveCount = Annotated[int, Field(ge=1, le=1_024)]


class RunFields(TypedDict, total=False):
    """The fields of a request that `trainmark.run` takes by name; None: not given."""

    recipe: str | None
    data: str | Path | None
    device: str | None
    nproc: int | None
    nnodes: int | None
    launcher: str | None
    cluster: str | Path | None
    repeat: int | None
    timeout: float | None
    seed: int | None
    sample_every: float | None
    peak_tflops: float | None
    resume: str | Path | None
    follow: str | Sequence[str] | None
    out: str | Path | None
    witness: str | Path | None
    command: Sequence[str] | None


class TrainingRequest(Frozen):
    """What runs and acceptance tests both ask: what is trained, how, and on which machines.

    None where the case, the recipe or the machine decides.

    Args:
        overrides: recipe fields to change, by name or short name.
    """

    case: str = Field(min_length=1, description="Case, alias, case key or plan file.")
    overrides: Annotated[dict[str, str], BeforeValidator(_convert_to_texts)] = Field({})
    recipe: str | None = Field(None, description="Name of a recipe; see `trainmark list recipes`.")
    data: Path | None = Field(None, description="Folder with real data.")
    device: str | None = Field(
        None,
        description=(
            "Device name or torch device type; see `list devices`. Default: the first device found."
        ),
    )
    nproc: PositiveCount | None = Field(None, description="Ranks per machine.")
    nnodes: PositiveCount | None = Field(None, description="Number of machines.")
    launcher: str | None = Field(
        None,
        description=(
            "Launcher; see `list launchers`. Default: the one in the cluster file, otherwise local."
        ),
    )
    cluster: Path | None = Field(
        None, description="File with the cluster's settings; see docs/launchers.md."
    )

    @classmethod
    def build(cls, place: str = "--", /, **fields: Any) -> Self:
        """Return the request with ``fields``; those that are None are not given.

        Args:
            place: start of the place that errors name; ``--`` gives ``--nproc``, for example.

        Raises:
            UsageError: an unknown field, or a value outside its type or bounds.
        """
        try:
            return cls(**{name: value for name, value in fields.items() if value is not None})
        except ValidationError as error:
            raise make_usage_error(error, cls, place) from None


class RunRequest(TrainingRequest):
    """One run as requested.

    Args:
        command: the program that is measured in place of a case, with ``witness``.
    """

    repeat: PositiveCount | None = Field(
        None, description="Number of launches, which run one after another."
    )
    timeout: float | None = Field(None, gt=0, description="Time limit for each launch, in seconds.")
    seed: int | None = Field(
        None, description="Random seed for the data order, initial weights and dropout."
    )
    sample_every: Annotated[float, AfterValidator(_check_interval)] = Field(
        1.0, ge=0, le=3_600, description="Seconds between telemetry samples; 0: no samples."
    )
    peak_tflops: float | None = Field(
        None,
        gt=0,
        le=MAX_TFLOPS,
        description=(
            "Dense peak performance of one device in TFLOP/s, for MFU; default: the published "
            "value."
        ),
    )
    resume: Path | None = Field(
        None, description="Folder of the run to resume from its last checkpoint."
    )
    follow: Annotated[list[str], BeforeValidator(_convert_to_list)] | None = Field(
        None,
        description=(
            "Send the run to tensorboard, wandb, mlflow or openmetrics[=DESTINATION] while it "
            "runs; repeatable."
        ),
    )
    out: Path | None = Field(None, description="Output folder of the run; default: ./runs/…")
    witness: Path | None = Field(
        None, description="File that describes your own program; put its command after --."
    )
    command: tuple[str, ...] = ()
