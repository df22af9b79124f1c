"""Refuse to train where the packages of a node differ from those of the first node."""

from __future__ import annotations

import json

from trainmark.errors import RunError


def refuse_other_packages(described: str | None, nnodes: int) -> None:
    """Compare this node's package versions with those of rank 0's node.

    One broadcast: what is sent grows with the number of ranks, not with its square.

    Args:
        described: the node's number and package versions, as its node process tells them in JSON.

    Raises:
        RunError: they differ; names the first such package and both versions.
    """
    import torch

    if nnodes == 1:
        return
    assert described is not None, "ranks on several nodes are started by a node process"
    own = json.loads(described)
    sent = [own["packages"]]
    torch.distributed.broadcast_object_list(sent, src=0)
    first, here = sent[0], own["packages"]
    for name in sorted(first.keys() | here.keys()):
        if first.get(name) != here.get(name):
            raise RunError(
                "packages_differ",
                node=own["node"],
                package=name,
                here=here.get(name) or "absent",
                first=first.get(name) or "absent",
            )
