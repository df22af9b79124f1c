"""What several packages read from a record: a figure's value, and what work was planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.planning.plan import Plan
    from trainmark.results.record import Record

# A different seed or time limit is the same work done again.
_NOT_WORK = ("seed", "timeout_s")


def value_of(record: Record, name: str) -> float | None:
    """Return a figure's value; None where the record lacks the figure."""
    entry = record.figures.get(name)
    return None if entry is None else entry.value


def planned_work(plan: Plan) -> dict[str, Any]:
    """Return what must be equal for two launches to be of the same work, by name.

    The keys added here differ from all recipe fields, which include ``world`` and ``data``, so
    that neither overwrites the other. The same training under another given peak has another MFU.
    """
    recipe = {name: value for name, value in plan.recipe.items() if name not in _NOT_WORK}
    return recipe | {
        "case": plan.case,
        "peak_tflops": plan.peak_tflops,
        "device_products": ", ".join(sorted(set(plan.device.product_names))),
        "ran_world": f"{plan.nnodes}x{plan.nproc}",
        "content_id": plan.data.content_id,
        "suite_version": ".".join(plan.suite_version.split(".")[:2]),
    }


def differing(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names under which two pieces of work differ, sorted."""
    return sorted(key for key in first.keys() | other.keys() if first.get(key) != other.get(key))
