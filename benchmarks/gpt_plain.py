"""What GPT-2 is compared with: a loop in plain PyTorch, as public training scripts have it.

The whole model in one file, attention by ``scaled_dot_product_attention``, a tied head and all
scores at once, autocast around the forward pass, fused AdamW with decay on matrices, clipping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.cases.gpt_megatron.case import GptRecipe


class PlainBlock(nn.Module):
    """A pre-norm block: causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        b, t, d = x.shape
        query, key, value = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).split(d, dim=2)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self.drop(self.out(mixed.transpose(1, 2).contiguous().view(b, t, d)))
        wide = F.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + self.drop(self.down(wide))  # type: ignore[no-any-return]


class PlainGpt(nn.Module):
    """GPT-2; returns the mean loss of all tokens."""

    def __init__(self, recipe: GptRecipe) -> None:
        super().__init__()
        width = recipe.hidden_size
        self.wte = nn.Embedding(recipe.padded_vocab_size, width)
        self.wpe = nn.Embedding(recipe.seq_length, width)
        self.drop = nn.Dropout(recipe.dropout)
        self.blocks = nn.ModuleList(
            PlainBlock(width, recipe.num_heads, recipe.dropout) for _ in range(recipe.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, recipe.padded_vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy; ids and targets are (B, T)."""
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.size(1), device=ids.device)))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.view(-1, scores.size(-1)), targets.reshape(-1))


def step_of(
    recipe: GptRecipe, rows: Tensor, torch_type: str, *, compiled: bool
) -> Callable[[], None]:
    """Return a function that takes one training step.

    Args:
        rows: token ids (rows, T + 1) on the device; every step takes the next batch of them.
        torch_type: where the model goes.
    """
    torch.manual_seed(1)
    plain = PlainGpt(recipe).to(torch_type).train()
    groups: list[dict[str, Any]] = [
        {"params": [x for x in plain.parameters() if x.dim() >= 2]},
        {"params": [x for x in plain.parameters() if x.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
    )
    model = torch.compile(plain) if compiled else plain
    batches = [x for x in rows.split(recipe.micro_batch_size) if len(x) == recipe.micro_batch_size]
    num_batches = 0

    def step() -> None:
        nonlocal num_batches
        ids = batches[num_batches % len(batches)]
        num_batches += 1
        with torch.autocast(torch_type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        if recipe.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
