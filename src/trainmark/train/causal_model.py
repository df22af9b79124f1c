"""A decoder of ``transformers`` with its loss inside, and the draw of its first weights.

Must not know which decoder it is: a case builds the library's model and says how each parameter
begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from trainmark.train.kernels import Kernels


class CausalModel(nn.Module):
    """The language model with its loss inside, so that FSDP and DDP see the head too.

    Args:
        library: a causal model of ``transformers``: table, blocks, last norm, head.
    """

    def __init__(self, library: PreTrainedModel, kernels: Kernels) -> None:
        super().__init__()
        self.cross_entropy = kernels.cross_entropy
        self.library = library

    @property
    def blocks(self) -> Any:
        """The transformer blocks, a ``ModuleList``; what is in them depends on the library."""
        return self.library.model.layers

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the SUM of the cross-entropy, in nats, over all targets; both (B, T), int64."""
        return self.cross_entropy(
            self.hidden(ids).flatten(0, 1), self.library.lm_head.weight, targets.flatten()
        )

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states (B, T, D) of token ids (B, T).

        The library's own loop looks for packed sequences in the positions, for which every step
        would wait for the device.
        """
        model = self.library.model
        x: Tensor = model.embed_tokens(ids)
        positions = torch.arange(ids.size(1), device=ids.device)[None]
        rotation = model.rotary_emb(x, position_ids=positions)
        for block in model.layers:
            x = block(x, position_embeddings=rotation, position_ids=positions)
        normed: Tensor = model.norm(x)
        return normed


@dataclass(frozen=True, slots=True)
class Initial:
    """The normal distribution that a parameter is drawn from; with ``std`` 0 it is the mean."""

    mean: float = 0.0
    std: float = 0.0


@torch.no_grad()
def draw_parameters(
    model: nn.Module, device: torch.device, *, seed: int, initial: Callable[[str, Tensor], Initial]
) -> None:
    """Give parameters without memory their memory on ``device``, and draw them from ``seed``.

    Each is drawn whole on the host and cut there, so that weights do not depend on how many ranks
    hold the model, and no rank ever holds a whole one. Buffers are not drawn: make them anew.
    """
    model.to_empty(device=device)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        begin = initial(name, parameter)
        if begin.std == 0:
            nn.init.constant_(parameter, begin.mean)
            continue
        whole = torch.empty(parameter.shape)
        _fill(parameter, whole.normal_(begin.mean, begin.std, generator=generator))


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy what of ``whole`` this rank holds; every rank has drawn the same."""
    if isinstance(parameter, DTensor):
        cut = distribute_tensor(
            whole.to(parameter.device),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,
        )
        parameter.to_local().copy_(cut.to_local())
    else:
        parameter.copy_(whole)
