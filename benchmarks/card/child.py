"""Run one section in this process: ``python -m benchmarks.card.child MODULE ...``.

Writes what the section found as JSON; the exit code is not 0 if there is nothing to write.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.card.section import Card
from trainmark.errors import RunError


def main(arguments: list[str]) -> None:
    from trainmark.documents import write_atomically
    from trainmark.rank.parent import die_with_parent

    parent, module_name, device, size, scratch, stacks_after_s, ends_at_s, extent, result = (
        arguments
    )
    die_with_parent(int(parent))
    # Before the parent ends this process, its output says where it hung.
    faulthandler.dump_traceback_later(float(stacks_after_s))
    assert size in ("full", "tiny")
    module = importlib.import_module(module_name)
    card = Card(device, size, Path(scratch), float(ends_at_s), is_brief=extent == "brief")
    try:
        findings = module.run(card)
    except RunError as error:
        sys.exit(describe(error))
    document: dict[str, Any] = {"title": module.TITLE, "found": asdict(findings)}
    with write_atomically(Path(result)) as file:
        file.write(json.dumps(document, allow_nan=False).encode())


def describe(error: RunError) -> str:
    """Return the sentence that a record would have for ``error``."""
    from trainmark import cases
    from trainmark.record.messages import render
    from trainmark.spec import message

    case, dot, _ = error.code.partition(".")
    own = cases.load(case).messages if dot else None
    return f"{type(error).__name__}: {render(message(error.code, **error.details), 'en', own)}"


if __name__ == "__main__":
    main(sys.argv[1:])
