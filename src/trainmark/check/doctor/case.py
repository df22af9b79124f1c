"""The case: its data, its checkpoint, and whether its recipe fits, as planning judges them."""

from __future__ import annotations

from trainmark.check.doctor.subject import Conditions, Subject, judged
from trainmark.errors import DataError, TrainmarkError
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve


def data(subject: Subject) -> Conditions:
    """Plan the run; nothing is started. Generates a generated recipe's data if it is missing."""
    choice = subject.choice
    if choice is None or subject.vendor is None:
        return
    if subject.quick and subject.data is None and choice.recipe.data == "generated":
        yield judged("data is not generated in --quick", "leave --quick out", unknown=True)
        return
    try:
        request = RunRequest.of(
            case=choice.case.name,
            recipe=choice.recipe_name,
            data=subject.data,
            device=subject.vendor.name,
            nnodes=choice.nnodes,
            nproc=subject.nproc,
            out=subject.out,
        )
        plan = resolve(request)
    except OSError as error:
        remedy = "choose a folder that this user may read"
        yield judged(str(error), remedy, stops=True)
        return
    except TrainmarkError as fault:
        what = "; ".join(filter(None, (fault.where, fault.what, fault.rule)))
        remedy = fault.remedy or f"see `trainmark prepare {choice.case.name} --help`"
        code = "data" if isinstance(fault, DataError) else "recipe"
        yield judged(what, remedy, stops=True, code=code)
        return
    yield judged(f"{plan.recipe_name} fits {plan.nproc} rank(s)", code="recipe")
    found = plan.data
    yield judged(
        f"{found.train_samples:,} training, {found.eval_samples:,} evaluation samples, "
        f"{found.origin}; comparable quality: {found.quality_comparable}",
        "start from the published weights; from others only the speed compares",
        spoils=found.origin == "real" and not found.quality_comparable,
    )
