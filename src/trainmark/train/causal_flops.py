"""The MFU of a causal language model by the other published count of attention. No torch.

PaLM, appendix B, counts attention over all pairs of positions: that is the figure ``MFU``. Others
count only the half that a causal mask leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import Figure, OwnFigures, message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.protocols import RankWork

SHARE = "attention_flops_share"  # of all model FLOPs, among a job's facts


def compute(ranks: Sequence[RankWork], known: Mapping[str, Figure]) -> OwnFigures:
    """Return ``MFU_causal``: the MFU without half of the FLOPs of attention."""
    whole = known["MFU"]
    share = ranks[0].facts.get(SHARE)
    if whole.value is None or share is None:
        return OwnFigures({"MFU_causal": Figure(None, whole.reason or message("no_train_time"))})
    return OwnFigures({"MFU_causal": Figure(whole.value * (1 - share / 2), note=whole.note)})
