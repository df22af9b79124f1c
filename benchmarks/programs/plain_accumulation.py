"""A plain loop: two micro-batches a step, clipping, a schedule, an evaluation every 50 steps."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.programs.stopwatch import Stopwatch
from benchmarks.programs.text import WORDS, Texts

STEPS, LENGTH, ROWS, WIDTH = int(sys.argv[1]), int(sys.argv[2]), 4, 192

torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4)
)
loader = DataLoader(Texts(8 * STEPS, LENGTH), batch_size=ROWS, shuffle=True, drop_last=True)
valid = DataLoader(Texts(16, LENGTH), batch_size=ROWS)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
stopwatch = Stopwatch()


def evaluate() -> float:
    """Return the mean loss of the rows held out."""
    model.eval()
    with torch.no_grad():
        losses = [float(model(**batch).loss) for batch in valid]
    model.train()
    return sum(losses) / len(losses)


model.train()
source = iter(loader)
for step in range(1, STEPS + 1):
    for _ in range(2):
        loss = model(**next(source)).loss / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    stopwatch.step_ended()
    if step % 50 == 0:
        print(f"step {step} loss {2 * loss.item():.3f} valid {evaluate():.3f}", flush=True)
        stopwatch.interrupt()
stopwatch.write()
