"""What a page must know of a case besides its records: names, sentences, references."""

from __future__ import annotations

from dataclasses import dataclass

from trainmark import cases
from trainmark.report.cells import NOTHING
from trainmark.results import reference
from trainmark.results.reference import References
from trainmark.spec import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A case as its pages introduce it."""

    title: Text
    task: Text
    model: str
    dataset: str
    metric_note: Text
    sample_note: Text
    references: References


def about(name: str) -> About:
    """Return what is known of the case called ``name``.

    A record may come from a machine with cases that are not here: then its name stands for
    the title and the rest is ``/``.

    Raises:
        RecordError: the case's reference file is malformed.
    """
    if name not in cases.names():
        unknown = Text(NOTHING, NOTHING)
        return About(
            title=Text(name, name),
            task=unknown,
            model=NOTHING,
            dataset=NOTHING,
            metric_note=unknown,
            sample_note=unknown,
            references=References(),
        )
    case = cases.load(name)
    return About(
        title=case.title,
        task=case.task,
        model=case.model,
        dataset=case.dataset,
        metric_note=case.metric_note,
        sample_note=case.sample_note,
        references=reference.of_case(name),
    )
