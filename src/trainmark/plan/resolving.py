"""Resolve a plan: check every argument of the command line before anything starts.

It starts nothing and does not import torch.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import cases, devices
from trainmark.errors import DataError, EnvironmentFault, UsageError
from trainmark.plan import case_key, divisions
from trainmark.plan.capabilities import refuse_incapable
from trainmark.plan.overrides import changes, standard_of
from trainmark.plan.plan import (
    RUNS_DIR,
    SIMULATED,
    Plan,
    PlannedCase,
    PlannedData,
    PlannedDevice,
)  # fmt: skip
from trainmark.plan.requests import read_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.plan.capabilities import Elsewhere
    from trainmark.plan.requests import Request
    from trainmark.spec import Case, DataFacts, Recipe

PASSED_OVER = "accelerator-not-used"  # labels: see ``_labels``
_GIVEN_PEAK = "given-peak"


def _labels(
    request: Request,
    recipe: Recipe,
    facts: DataFacts,
    *,
    oversubscribed: bool,
    passed_over: bool,
    simulated: bool,
) -> list[str]:
    """Return what a reader of the figures must know at first sight.

    Args:
        passed_over: nobody asked for the processor; it was taken because an accelerator that is
            here cannot be used.
    """
    labels = ["self-reported"]
    if simulated:
        labels.append(SIMULATED)
    if recipe.target_value is None or (recipe.data == "real" and not facts.quality_comparable):
        labels.append("performance-only")
    if recipe.data == "generated":
        labels.append("generated-data")
    if oversubscribed:
        labels.append("oversubscribed")
    if passed_over:
        labels.append(PASSED_OVER)
    if request.peak_tflops is not None:
        labels.append(_GIVEN_PEAK)
    if recipe.world is not None and recipe.world != request.world:
        labels.append(f"recipe-written-for-{recipe.world}")
    return labels


def _check_work(case: Case, recipe: Recipe, facts: DataFacts, folder: Path) -> None:
    """Refuse a run that cannot end as its recipe asks."""
    target = case.target(recipe)
    if target and facts.best_quality is not None and not target.reached(facts.best_quality):
        raise UsageError(
            f"target_value={target.value:g} cannot be reached",
            where="recipe field target_value",
            rule=f"the best {case.metric} any model can score on this data is "
            f"{facts.best_quality:.4g}",
            remedy="choose a target below it" if case.higher_is_better else "choose one above it",
        )
    if recipe.eval_from_sample is not None and recipe.eval_every_samples is None:
        raise UsageError(
            f"eval_from_sample={recipe.eval_from_sample} has nothing to begin",
            where="recipe field eval_from_sample",
            rule="it says when the evaluations of eval_every_samples begin",
            remedy="set eval_every_samples too, or eval_from_sample=none",
        )
    if recipe.target_value is not None and not recipe.evaluates:
        raise UsageError(
            f"target_value={recipe.target_value:g} cannot be reached without an evaluation",
            where="recipe field eval_every_epochs",
            rule="none is for recipes without a target",
            remedy="add target_value=none",
        )
    needed = {"training": facts.train_samples}
    if recipe.evaluates:
        needed["evaluation"] = facts.eval_samples
    for split, rows in needed.items():
        if rows < 1:
            raise DataError(f"no {split} samples", where=str(folder), rule="at least 1 is needed")


def resolve(
    case_word: str,
    *,
    recipe_name: str | None = None,
    overrides: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    device_name: str | None = None,
    nnodes: int | None = None,
    nproc: int | None = None,
    repeat_count: int | None = None,
    timeout_s: float | None = None,
    seed: int | None = None,
    sample_every_s: float | None = None,
    peak_tflops: float | None = None,
    run_dir: Path | None = None,
    elsewhere: Elsewhere | None = None,
    generated_root: Path,
    now: datetime | None = None,
    run_token: str | None = None,
) -> Plan:
    """Check everything and return the plan of the first launch.

    Args:
        case_word: a case's name, alias or key.
        run_dir: where the run goes; none: a new folder under ``./runs``.
        elsewhere: the machines of a launcher; None: this one.
        generated_root: the cache of generated data.

    Generates a generated recipe's data into ``generated_root`` when it is not there yet.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    from trainmark import __version__

    request = read_request(
        case_word,
        recipe_name=recipe_name,
        overrides=overrides,
        real_data=data_dir is not None,
        nnodes=nnodes,
        nproc=nproc,
        repeat_count=repeat_count,
        timeout_s=timeout_s,
        seed=seed,
        sample_every_s=sample_every_s,
        peak_tflops=peak_tflops,
    )
    case, recipe = request.case, request.recipe
    nnodes, nproc, repeat_count = request.nnodes, request.nproc, request.repeat_count
    data = cases.part(case.name, "data")
    asked_for = device_name or case_key.vendor_of(request.hardware)
    if elsewhere is None:
        vendor = devices.choose(asked_for)
        refuse_incapable(vendor, request, ranks_share_cores=True)
    else:
        vendor = elsewhere.vendor(asked_for)
        elsewhere.refuse_incapable(vendor, request)
    if data_dir is not None:
        # Data from outside has no known best score, whatever recipe trains on it.
        recipe = replace(recipe, data="real")
        folder = data_dir
    elif recipe.data == "generated":
        folder = cases.generated_folder(case, recipe, generated_root)
    else:
        raise UsageError(
            f"recipe {request.recipe_name} trains on real data",
            where="--data",
            rule="a real recipe needs the folder that holds it",
            remedy=f"add --data DIR (see `trainmark prepare {case.name} --help`), "
            "or use --recipe tiny",
        )
    facts: DataFacts = data.check(folder, recipe)
    _check_work(case, recipe, facts, folder)
    memory = vendor.rank_memory(nproc) if elsewhere is None else None
    if memory is not None and hasattr(data, "check_fit"):
        data.check_fit(folder, recipe, nnodes * nproc, memory)
    standard = standard_of(case, request.recipe_name, world=request.world)
    fix_hp, extra = changes(
        recipe, named=case.recipes[request.recipe_name], standard=case.recipes[standard],
        rules=divisions.of_case(case),
    )  # fmt: skip
    extra |= {f"prepare.{name}": value for name, value in facts.changed_rules.items()}
    found = {name: value for name, value in asdict(facts).items() if name != "changed_rules"}
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    run_id = f"{stamp}-{case.name}-{run_token or secrets.token_hex(3)}"
    here = elsewhere is None
    oversubscribed = here and vendor.counts_cores and nproc > vendor.count()
    names = vendor.product_names() if here else []
    return Plan(
        suite_version=__version__,
        run_id=run_id,
        case=case.name,
        about=PlannedCase.of(case),
        case_key=case_key.write(case, vendor.name, nnodes=nnodes, nproc=nproc, repeat=repeat_count),
        recipe_name=request.recipe_name,
        recipe=asdict(recipe),
        compared_with=standard,
        fix_hp=fix_hp,
        extra=extra,
        rules="open" if extra else "closed",
        labels=[
            *_labels(
                request,
                recipe,
                facts,
                oversubscribed=oversubscribed,
                simulated=devices.named_only(vendor),
                passed_over=(
                    here and asked_for is None and vendor.counts_cores and bool(devices.unusable())
                ),
            ),
            *(() if elsewhere is None else elsewhere.labels),
        ],
        device=PlannedDevice(
            vendor=vendor.name,
            torch_type=vendor.torch_type,
            collective_backend=vendor.collective_backend,
            product_names=names if vendor.counts_cores else names[:nproc],
        ),
        peak_tflops=peak_tflops,
        nnodes=nnodes,
        nproc=nproc,
        repeat_index=1,
        repeat_count=repeat_count,
        data=PlannedData(folder=str(folder.resolve()), origin=recipe.data, **found),
        run_dir=_absolute(run_dir or RUNS_DIR / run_id),
        launcher="local" if elsewhere is None else elsewhere.launcher,
        sample_every_s=request.sample_every_s,
    )


def _absolute(run_dir: Path) -> str:
    try:
        path = str(run_dir.resolve())
        path.encode()
        if re.search(r"[\x00-\x1f\x7f]", path):
            raise ValueError("a control character in its name")
    except FileNotFoundError:
        raise EnvironmentFault(
            "the folder you are in was deleted",
            where="--out",
            remedy="go to another folder, or give --out from the root",
        ) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"not a usable folder: {error}",
            where="--out",
            rule="links must end somewhere, and names must be text",
            remedy="choose another --out",
        ) from None
    return path


def of_repeat(plan: Plan, index: int) -> Plan:
    """Return the plan of launch number ``index``, in its own folder under the first's."""
    base = Path(plan.run_dir)
    return plan.model_copy(
        update={
            "repeat_index": index,
            "run_id": f"{plan.run_id}-r{index}",
            "run_dir": str(base / f"r{index}"),
        }
    )
