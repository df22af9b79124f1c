"""A loop with ``accelerate``: its loader, accumulation and backward, an evaluation an epoch."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.programs.stopwatch import Stopwatch
from benchmarks.programs.text import WORDS, Texts

STEPS, LENGTH, ROWS, WIDTH = int(sys.argv[1]), int(sys.argv[2]), 4, 192

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loader = DataLoader(Texts(4 * STEPS, LENGTH), batch_size=ROWS, shuffle=True)
valid = DataLoader(Texts(16, LENGTH), batch_size=ROWS)
model, optimizer, loader, valid = accelerator.prepare(model, optimizer, loader, valid)
stopwatch = Stopwatch()
for _epoch in range(2):
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            stopwatch.step_ended()
    model.eval()
    with torch.no_grad():
        for batch in valid:
            model(**batch)
    stopwatch.interrupt()
stopwatch.write()
