"""A loop like nanoGPT: batches cut from one array, no DataLoader, its own speed line."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from benchmarks.programs.stopwatch import Stopwatch
from benchmarks.programs.text import WORDS

STEPS, LENGTH, ROWS, WIDTH, HEADS = int(sys.argv[1]), int(sys.argv[2]), 8, 192, 4


class Block(nn.Module):
    """Attention and a multi-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        heads = self.attention(self.norms[0](x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """A decoder with a head that is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])
        return self.head(self.blocks(self.words(x) + self.places(positions)))


torch.set_num_threads(1)
torch.manual_seed(1337)
data = torch.randint(0, WORDS, (100_000,))


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Cut rows from the array at random places."""
    positions = torch.randint(len(data) - LENGTH, (ROWS,))
    inputs = torch.stack([data[i : i + LENGTH] for i in positions])
    return inputs, torch.stack([data[i + 1 : i + 1 + LENGTH] for i in positions])


model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
stopwatch = Stopwatch()
before = time.time()
for step in range(STEPS):
    if step % 100 == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                inputs, targets = get_batch()
                F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        model.train()
        stopwatch.interrupt()
        before = time.time()
    for group in optimizer.param_groups:
        group["lr"] = 3e-4 * min(1.0, (step + 1) / 20)
    inputs, targets = get_batch()
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    stopwatch.step_ended()
    now = time.time()
    print(f"iter {step}: loss {loss.item():.4f}, time {1e3 * (now - before):.2f}ms", flush=True)
    before = now
stopwatch.write()
