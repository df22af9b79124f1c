"""Notes on what was found on the nodes of a run before their ranks were started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.devices.numa import compact
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.nodes import NodeTimeline
    from trainmark.spec import Message

_LONGEST = 160  # characters of node numbers


def notes(nodes: Sequence[NodeTimeline]) -> Iterator[Message]:
    """Yield a note for each check that spoils figures, with the nodes where it does."""
    found: dict[str, tuple[str, list[int]]] = {}
    for node in nodes:
        for one in node.events.get("examined", {}).get("found", ()):
            found.setdefault(one["code"], (one["what"], []))[1].append(node.number)
    for check, (what, numbers) in found.items():
        told = compact(dict.fromkeys(numbers))
        yield message("preflight_spoils", check=check, nodes=told[:_LONGEST], what=what)
