"""What the user requested for one launch, before any device or data is inspected.

Owns the reading of case, recipe and counts into values. Must not know what this machine
has: a request that cannot run here is still checked in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark import cases
from trainmark.errors import UsageError
from trainmark.plan import case_key
from trainmark.plan.overrides import apply_overrides, choose_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.spec import Case, Recipe

_MOST = 1_024  # ranks, machines or launches
MOST_TFLOPS = 1e6  # the fastest device has some thousand
# torch runs a compiled graph once before it records it, and replays it from the third time on.
_STEPS_TO_REPLAY = 3
_SAMPLE_EVERY_S = 1.0
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.1, 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One launch as requested; ``hardware`` is that of a case key, None without one."""

    case: Case
    recipe_name: str
    recipe: Recipe
    hardware: str | None
    nnodes: int
    nproc: int
    repeat_count: int
    sample_every_s: float
    peak_tflops: float | None = None

    @property
    def world(self) -> str:
        """Machines x ranks on each, ``1x8``."""
        return f"{self.nnodes}x{self.nproc}"


def read_request(
    case_word: str,
    *,
    recipe_name: str | None = None,
    overrides: Mapping[str, str] | None = None,
    real_data: bool = False,
    nnodes: int | None = None,
    nproc: int | None = None,
    repeat_count: int | None = None,
    timeout_s: float | None = None,
    seed: int | None = None,
    sample_every_s: float | None = None,
    peak_tflops: float | None = None,
) -> Request:
    """Check every argument and return the request.

    Args:
        case_word: a case's name, alias or key.
        real_data: whether a folder of data is given.
        peak_tflops: dense peak of a device in the recipe's precision, as the user knows it.

    Raises:
        UsageError: an argument that is unknown or invalid.
        EnvironmentFault: a case key asks for another version of the framework.
    """
    word = case_key.split(case_word)
    case = cases.load(word.case)
    case_key.check_framework(case, word.framework)
    meant = _world_meant(case, word, recipe_name)
    machines = 1 if nproc is not None and word.hardware is None else meant[0]
    nnodes = _count("nnodes", nnodes, machines)
    nproc = _count("--nproc", nproc, meant[1])
    repeat_count = _count("--repeat", repeat_count, word.repeat)
    name = choose_recipe(case, recipe_name, world=f"{nnodes}x{nproc}", real_data=real_data)
    options = {"timeout_s": timeout_s, "seed": seed}
    texts = {key: str(value) for key, value in options.items() if value is not None}
    recipe = apply_overrides(case.recipes[name], {**(overrides or {}), **texts})
    recipe.check(nnodes * nproc)
    _check_peak(peak_tflops)
    _check_replay(recipe, nnodes * nproc)
    return Request(
        case=case,
        recipe_name=name,
        recipe=recipe,
        hardware=word.hardware,
        nnodes=nnodes,
        nproc=nproc,
        repeat_count=repeat_count,
        sample_every_s=_interval_s(sample_every_s),
        peak_tflops=peak_tflops,
    )


def _interval_s(given: float | None) -> float:
    """Return the seconds between two samples of devices and host; 0: none are taken."""
    value = _SAMPLE_EVERY_S if given is None else given
    if value != 0 and not _LEAST_INTERVAL_S <= value <= _MOST_INTERVAL_S:
        raise UsageError(
            f"--sample-every {value:g}",
            where="--sample-every",
            rule=f"{_LEAST_INTERVAL_S:g} to {_MOST_INTERVAL_S:,.0f} seconds, or 0 for no samples",
        )
    return value


def _check_peak(tflops: float | None) -> None:
    if tflops is not None and not 0 < tflops <= MOST_TFLOPS:
        raise UsageError(
            f"--peak-tflops {tflops:g}",
            where="--peak-tflops",
            rule=f"dense TFLOP/s of one device: above 0, at most {MOST_TFLOPS:,.0f}",
            remedy="give the peak of the precision that runs, without sparsity",
        )


def _check_replay(recipe: Recipe, world_size: int) -> None:
    """Refuse to replay steps as device graphs where that is not the same training.

    A graph always writes to the same memory. Gradients lie in it too, so the next backward pass
    overwrites them: https://github.com/pytorch/pytorch/issues/169545. With DDP it fails:
    https://github.com/pytorch/pytorch/issues/113809 and 140395 (both open, 2026-11-22).

    Raises:
        UsageError: naming what prevents it.
    """
    if not recipe.replays_graphs:
        return
    own = recipe.prevents_replay()
    for fault, field, rule, way_out in (
        (recipe.grad_accum_steps > 1, f"grad_accum_steps={recipe.grad_accum_steps}",
         "the next backward pass would overwrite the gradients that the graph left",
         "add gas=1"),
        (world_size > 1, f"{world_size} ranks", "torch's graphs are for one rank: they fail in DDP",
         "use --nproc 1"),
        (recipe.warmup_steps < _STEPS_TO_REPLAY, f"warmup_steps={recipe.warmup_steps}",
         "the first step compiles, the second records, the third replays",
         f"add warmup_steps={_STEPS_TO_REPLAY}"),
        (own is not None, "this recipe", own, "leave compile at false"),
    ):  # fmt: skip
        if fault:
            raise UsageError(
                f"compile=reduce-overhead with {field}",
                where="recipe field compile",
                rule=rule,
                remedy=f"{way_out}, or compile=true",
            )


def _world_meant(case: Case, word: case_key.CaseWord, recipe_name: str | None) -> tuple[int, int]:
    """Return machines and ranks on each where --nproc does not say that it is one machine.

    A key names them; else a recipe called by its full name was written for some.
    """
    named = case.recipes.get(recipe_name or "")
    if named is None or named.world is None or word.hardware is not None:
        return word.nnodes, word.nproc
    machines, ranks = named.world.split("x")
    return int(machines), int(ranks)


def _count(option: str, given: int | None, meant: int) -> int:
    """Return how many: as given, or as the case key or the recipe means it."""
    value = meant if given is None else given
    if not 1 <= value <= _MOST:
        raise UsageError(f"{option} {value}", where=option, rule=f"1 to {_MOST:,} are possible")
    return value
