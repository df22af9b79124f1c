"""Case, recipe and world that a request names, before any device or data is inspected.

A request that cannot run on this machine is still checked in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark import cases
from trainmark.errors import UsageError
from trainmark.plan import case_key
from trainmark.plan.overrides import apply_overrides, choose_recipe

if TYPE_CHECKING:
    from trainmark.plan.request import RunRequest
    from trainmark.recipe import Recipe
    from trainmark.spec import Case

# torch runs a compiled graph once before it records it, and replays it from the third time on.
_STEPS_TO_REPLAY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a request names; ``hardware`` is that of a case key, None without one."""

    case: Case
    recipe_name: str
    recipe: Recipe
    hardware: str | None
    nnodes: int
    nproc: int
    repeat: int

    @property
    def world(self) -> str:
        """Machines x ranks on each, ``1x8``."""
        return f"{self.nnodes}x{self.nproc}"


def choose(request: RunRequest) -> Choice:
    """Return what ``request`` names.

    Raises:
        UsageError: an unknown case, recipe or field, or a value that does not fit.
        EnvironmentFault: a case key asks for another version of the framework.
    """
    key = case_key.split(request.case)
    case = cases.load(key.case)
    case_key.check_framework(case, key.framework)
    machines, ranks = _world_meant(case, key, request.recipe)
    if request.nproc is not None and key.hardware is None:
        machines = 1
    nnodes, nproc = request.nnodes or machines, request.nproc or ranks
    name = choose_recipe(
        case, request.recipe, world=f"{nnodes}x{nproc}", real_data=request.data is not None
    )
    options = {"timeout_s": request.timeout, "seed": request.seed}
    texts = {field: str(value) for field, value in options.items() if value is not None}
    recipe = apply_overrides(case.recipes[name], {**request.overrides, **texts})
    recipe.check(nnodes * nproc)
    _check_replay(recipe, nnodes * nproc)
    return Choice(
        case=case,
        recipe_name=name,
        recipe=recipe,
        hardware=key.hardware,
        nnodes=nnodes,
        nproc=nproc,
        repeat=request.repeat or key.repeat,
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


def _world_meant(case: Case, key: case_key.CaseWord, recipe: str | None) -> tuple[int, int]:
    """Return machines and ranks on each where no option names them.

    A key names them; else a recipe called by its full name was written for some.
    """
    named = case.recipes.get(recipe or "")
    if named is None or named.world is None or key.hardware is not None:
        return key.nnodes, key.nproc
    machines, ranks = named.world.split("x")
    return int(machines), int(ranks)
