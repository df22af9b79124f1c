"""How a run was spread, what made it cheaper, and the batch it took: the fine-tuning page's lists.

Shown where a case's published page is of that form, which is told by its columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.report.document import Section
from trainmark.report.listing import joined, known, listed
from trainmark.report.tables import is_fine_tuning
from trainmark.report.texts import text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.results.record import Record


def strategies(records: Sequence[Record], lang: str, *, columns: Sequence[str]) -> list[Section]:
    """Return the parallel and the optimisation strategy as the jobs told them."""
    if not is_fine_tuning(columns):
        return []
    parallel: dict[str, Callable[[Record], str]] = {
        "parallel.technique": lambda record: _technique(record, lang),
        "parallel.implementer": lambda record: _spread(record, "PyTorch", lang),
        "parallel.details": lambda record: _spread(
            record, joined(_told(record, "parallel"), lang), lang
        ),
    }
    optimisation: dict[str, Callable[[Record], str]] = {
        "optimisation.scheme": lambda record: _optimisation(record, "scheme", lang),
        "optimisation.implementer": lambda record: _optimisation(record, "implementer", lang),
        "optimisation.details": lambda record: _optimisation(record, "details", lang),
    }
    return [
        Section(text("section.parallel", lang), 3, "parallel", (listed(records, lang, parallel),)),
        Section(
            text("section.optimisation", lang), 3, "optimisation",
            (listed(records, lang, optimisation),),
        ),
    ]  # fmt: skip


def batch_sizes(records: Sequence[Record], lang: str, *, columns: Sequence[str]) -> Section | None:
    """Return the sizes of a batch from one forward pass to a step over all ranks."""
    if not is_fine_tuning(columns):
        return None
    entries: dict[str, Callable[[Record], str]] = {
        "batch.local": lambda record: str(record.plan.recipe["micro_batch_size"]),
        "batch.sequence": lambda record: known(record.plan.recipe.get("seq_length"), lang),
        "batch.accumulation": lambda record: str(record.plan.recipe["grad_accum_steps"]),
        "batch.global": lambda record: str(_global_batch(record)),
    }
    return Section(text("section.batch", lang), 3, "batch", (listed(records, lang, entries),))


def _global_batch(record: Record) -> int:
    """Return the samples of an optimizer step over all ranks."""
    recipe = record.plan.recipe
    samples: int = recipe["micro_batch_size"] * recipe["grad_accum_steps"]
    return samples * record.plan.world_size


def _told(record: Record, name: str) -> dict[str, Any] | None:
    """Return what a job said of itself; None where it ended before it could."""
    job: Mapping[str, Any] = record.environment.get("job") or {}
    return job.get(name)


def _technique(record: Record, lang: str) -> str:
    parallel = _told(record, "parallel") or {}
    return _spread(record, "FSDP2" if parallel.get("fsdp") else "DDP", lang)


def _spread(record: Record, words: str, lang: str) -> str:
    """Return ``words`` where there are several ranks to speak of."""
    if record.plan.world_size == 1:
        return text("fact.none", lang)
    return text("fact.unknown", lang) if _told(record, "parallel") is None else words


def _optimisation(record: Record, name: str, lang: str) -> str:
    told = _told(record, "optimisation")
    return text("fact.unknown", lang) if told is None else str(told[name])
