"""No modules import each other in a circle, type hints included."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_imports_have_no_cycle() -> None:
    graph = grimp.build_graph("trainmark", cache_dir=None)
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imported) > 100  # the graph was built
    # Sorting fails if modules import each other; the error has the names of such a cycle.
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
