"""Find the case or the known model that a printed name means."""

from __future__ import annotations

from functools import cache

from trainmark import cases
from trainmark.published.audit.workloads import find_workload


@cache
def _map_names_to_cases() -> dict[str, str]:
    """Return the name of each case by that name and by its aliases, both in lower case."""
    loaded_cases, _ = cases.load_all()  # without the errors of those that cannot be loaded
    case_by_name = {}
    for case in loaded_cases:
        for name in (case.name, *case.aliases):
            case_by_name[name.casefold()] = case.name
    return case_by_name


def find_case(model: str) -> str | None:
    """Return the case that is meant by the printed name of a model; None: no case."""
    return _map_names_to_cases().get(model.casefold())


def find_known_model(*names: str) -> str:
    """Return the first name that means a case or a model in ``workloads.toml``; empty: none."""
    for name in names:
        # Of a model that is not in the file, `find_workload` returns a workload without names.
        if find_case(name) is not None or find_workload(case=None, model=name).names:
            return name
    return ""
