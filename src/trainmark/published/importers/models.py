"""Find the case or the known model that a printed name means."""

from __future__ import annotations

from functools import cache

from trainmark import cases
from trainmark.published.audit.workloads import find_workload


@cache
def _list_case_names() -> dict[str, str]:
    """Return the name of the case by each of its names and aliases in lower case."""
    loaded, _ = cases.load_all()
    return {name.casefold(): case.name for case in loaded for name in (case.name, *case.aliases)}


def find_case(model: str) -> str | None:
    """Return the case that is meant by the printed name of a model; None: no case."""
    return _list_case_names().get(model.casefold())


def find_known_model(*names: str) -> str:
    """Return the first name that means a case, or a model that the audit knows; empty: none."""
    for name in names:
        if find_case(name) is not None or find_workload(None, name).names:
            return name
    return ""
