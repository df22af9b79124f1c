"""Programs that cannot be measured, or only in part; the argument says which."""

import importlib.util
import os
import sys

KIND = sys.argv[1]
if KIND == "no_torch":
    print("nothing to train")
    sys.exit(0)
if KIND == "fails_first":
    print("the data set is missing")
    sys.exit(4)

if KIND == "looks_first":
    # Other packages look whether torch is there, before anything imports it.
    assert importlib.util.find_spec("torch") is not None

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)  # tensors are small, and tests share the machine
torch.manual_seed(0)
model = nn.Linear(8, 2)
other = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)


def train(steps=20):
    """Train both or one of the models, with the mistake that ``KIND``, an argument, names.

    ``model`` and ``other`` are linear layers from 8 features to 2 classes; ``optimizer`` trains the
    first one, ``second`` the other one. A batch has 8 rows.
    """
    for step in range(steps):
        inputs, targets = torch.randn(8, 8), torch.randint(0, 2, (8,))
        logits = model(inputs)
        if KIND in ("two_optimizers", "alternating"):
            logits = logits + other(inputs)
        nn.functional.cross_entropy(logits, targets).backward()
        if KIND != "never_steps":
            optimizer.step()
        if KIND == "two_optimizers" or (KIND == "alternating" and step % 4 == 0):
            second.step()
        optimizer.zero_grad()
        second.zero_grad()
        # The time is made up: only its form matters.
        print(f"step {step} step_ms 1.0", flush=True)


if KIND == "never_trains":
    model(torch.randn(1, 8))
elif KIND == "forks":
    child = os.fork()
    if child == 0:
        train()
        sys.exit(0)
    os.waitpid(child, 0)
elif KIND == "both_train":
    train(5)
    child = os.fork()
    if child == 0:
        train()
        os._exit(0)
    os.waitpid(child, 0)
elif KIND == "os_exit":
    train()
    os._exit(0)
elif KIND == "redirects":
    file = os.open("own.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    train()
elif KIND == "raises":
    train(8)
    raise ValueError("the data set is empty")
elif KIND == "killed":
    train(8)
    os.kill(os.getpid(), 9)
elif KIND == "compiled":
    train = torch.compile(train, backend="eager")
    train()
else:
    train()
