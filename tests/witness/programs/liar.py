"""A training program that, with ``--lie``, does less than it says; without, it is honest.

``--lie`` names what is wrong; each is a way in which real programs were wrong.
"""

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--lie", default="")
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()
LIE = options.lie
ROWS, LENGTH, WORDS, WIDTH, ACCUMULATE = 8, 32, 64, 128, 2
torch.manual_seed(0)
torch.set_num_threads(1)  # tensors are small, and tests share the machine


class Texts(Dataset):
    """Random texts. ``LIE``, an argument of the program, names what is wrong; empty: nothing."""

    def __len__(self):
        return 4096

    def __getitem__(self, place):
        """Return a row: ``LENGTH`` (32) tokens, those that follow each of them, and the padding.

        Tokens are 1 to ``WORDS`` - 1. ``place`` is the row's number, by which it is drawn.
        """
        if LIE == "waiting":
            time.sleep(0.001)
        if LIE == "one_row":
            place = 0
        generator = torch.Generator().manual_seed(place)
        tokens = torch.randint(1, WORDS, (LENGTH + 1,), generator=generator)
        # Tokens that are no padding: from half the length on, by the row's place.
        real = LENGTH // 2 + place % (LENGTH // 2)
        mask = (torch.arange(LENGTH) < real).long()
        inputs, targets = tokens[:-1], tokens[1:]
        if LIE == "short_sequences":
            inputs, targets, mask = inputs[:16], targets[:16], mask[:16]
        return {"input_ids": inputs, "labels": targets, "attention_mask": mask}


class Model(nn.Module):
    """A small language model. ``LIE``, an argument of the program, may leave out a part of it."""

    def __init__(self):
        """Build the layers, whose width is ``WIDTH``; ``WORDS`` is the number of tokens."""
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        """Return the scores of each next token.

        Of the lies, "fewer_layers" uses only the first layer; "detached" keeps gradients from
        all of them.
        """
        hidden = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            if LIE == "fewer_layers" and number > 0:
                continue
            hidden = hidden + torch.tanh(layer(hidden))
            if LIE == "detached" and number == len(self.layers) - 1:
                hidden = hidden.detach()
        return self.head(hidden)


rows = ROWS // 2 if LIE == "half_batch" else ROWS
loader = DataLoader(Texts(), batch_size=rows, shuffle=True, drop_last=True)
model = Model()
rate = 0.0 if LIE == "zero_rate" else 1e-3
optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)


def batches():
    """Yield batches without end, epoch after epoch."""
    while True:
        yield from loader


def compute_loss(batch):
    """Return the loss of a micro-batch, spoiled if ``LIE``, an argument, says so.

    A step has ``ACCUMULATE`` (2) micro-batches, by which the loss is divided.
    """
    logits = model(batch["input_ids"])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    if LIE == "zero_loss":
        loss = loss * 0
    if LIE == "nan_loss":
        loss = loss * math.nan
    return loss / ACCUMULATE


source = batches()
saved = [tensor.detach().clone() for tensor in model.parameters()]
began = time.perf_counter()
fastest = math.inf
waited = 0.0
for step in range(1, options.steps + 1):
    started = time.perf_counter()
    step_waited = 0.0
    for _ in range(ACCUMULATE):
        asked = time.perf_counter()
        batch = next(source)
        step_waited += time.perf_counter() - asked
        if LIE == "evaluation":
            with torch.no_grad():
                loss = compute_loss(batch)
            continue
        if LIE == "bf16":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = compute_loss(batch)
        elif LIE == "hidden_forward":
            model.eval()
            loss = compute_loss(batch)
            model.train()
        else:
            loss = compute_loss(batch)
        loss.backward()
    if LIE == "evaluation" and step == 1:
        compute_loss(batch).backward()
        optimizer.zero_grad()
    if LIE != "skipped" or step % 2 == 0:
        optimizer.step()
    if LIE == "undone":  # the weights are as at the beginning after each step
        with torch.no_grad():
            for tensor, value in zip(model.parameters(), saved, strict=True):
                tensor.copy_(value)
    optimizer.zero_grad()
    seconds = time.perf_counter() - started
    fastest = min(fastest, seconds)
    printed = seconds
    if LIE == "fastest":
        printed = fastest
    if LIE == "waiting":
        printed = seconds - step_waited
    if LIE == "warmup_left_in":
        printed = (time.perf_counter() - began) / step
    if LIE == "half_time":
        printed = seconds / 2
    tokens = ROWS * LENGTH * ACCUMULATE
    if LIE == "accumulation_twice":
        tokens *= ACCUMULATE
    if LIE == "accumulation_forgotten":
        tokens //= ACCUMULATE
    if LIE == "tokens_twice":
        tokens *= 2
    if LIE == "without_padding":
        tokens = int(batch["attention_mask"].sum()) * ACCUMULATE
    print(f"step {step} loss {loss.item():.3f} tok/s {tokens / printed:,.1f}")
if LIE == "after_the_end":
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.01)
