"""Two or more ranks with DistributedDataParallel, started by torchrun or by a launcher."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)  # tensors are small, and tests share the machine
dist.init_process_group("gloo")
torch.manual_seed(0)
features = torch.randn(256, 16)
data = TensorDataset(features, (features[:, 0] > 0).long())
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs, targets) in enumerate(loader):
    if step == 20:
        break
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} of {os.environ['WORLD_SIZE']} done", flush=True)
dist.destroy_process_group()
# While Python ends, a thread of torch's gloo that asks for its lock aborts the process.
os._exit(0)
