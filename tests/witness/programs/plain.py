"""A plain loop with accumulation, as many people write one."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--width", type=int, default=64)
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)  # tensors are small, and tests share the machine
features = torch.randn(512, 16)
labels = (features[:, 0] > 0).long()
loader = DataLoader(TensorDataset(features, labels), batch_size=8, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(16, options.width), nn.ReLU(), nn.Linear(options.width, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def batches():
    while True:
        yield from loader


source = batches()
for step in range(options.steps):
    started = time.perf_counter()
    for _ in range(options.accumulate):
        inputs, targets = next(source)
        loss = nn.functional.cross_entropy(model(inputs), targets) / options.accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seconds = time.perf_counter() - started
    print(f"step {step} loss {loss.item():.4f} step_ms {1e3 * seconds:.4f}", flush=True)
