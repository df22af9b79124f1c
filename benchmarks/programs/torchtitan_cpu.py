"""torchtitan's own training program on a CPU, which it refuses by itself.

torchtitan asks torch which accelerator there is, and takes ``cuda`` if there is none. Here torch
answers ``cpu``, with the functions that only accelerators have. All else is as installed: trainer,
model, loader, loss, metrics. Tokenizer and text, which torchtitan does not ship, are written into
the folder in which it starts.

For torchtitan 0.2.2: the models of 0.3 need FlexAttention, which has no backward pass on a CPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.programs.stopwatch import Stopwatch

STEPS, LENGTH, ROWS = int(sys.argv[1]), int(sys.argv[2]), 4
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class CpuDevice:
    """What torchtitan asks of an accelerator, of a CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def get_device_name(self, _device: Any = None) -> str:
        return "CPU"

    def get_device_properties(self, _device: Any = None) -> Any:
        return SimpleNamespace(total_memory=16 << 30, name="CPU")

    def memory_stats(self, _device: Any = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self) -> None:
        """A CPU counts no peak."""

    def empty_cache(self) -> None:
        """A CPU has no cache of memory."""


def write_assets() -> None:
    """Write a tokenizer of single letters and rows of text where the debug model looks."""
    folder = Path("tests/assets")
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "c4_test").mkdir()
    numbers = {name: number for number, name in enumerate(["<s>", "</s>", " ", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    generator = torch.Generator().manual_seed(0)
    with (folder / "c4_test" / "data.json").open("w") as file:
        for _ in range(500):
            positions = torch.randint(0, len(LETTERS), (400,), generator=generator).tolist()
            file.write(json.dumps({"text": "".join(LETTERS[i] for i in positions)}) + "\n")


def main() -> None:
    """Train the debug model by torchtitan's command line."""
    torch.set_num_threads(1)
    write_assets()
    words = "--model.name llama3 --model.flavor debugmodel --training.dataset c4_test"
    words += " --model.hf_assets_path tests/assets/tokenizer --metrics.log_freq 10"
    words += f" --training.steps {STEPS} --training.seq_len {LENGTH}"
    sys.argv[1:] = [*words.split(), "--training.local_batch_size", str(ROWS)]
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _kind: CpuDevice()
    # Not before: torchtitan reads arguments and device while it is imported.
    from torchtitan.train import Trainer
    from torchtitan.train import main as train

    stopwatch = Stopwatch()
    train_step = Trainer.train_step

    def timed(self: Any, *arguments: Any, **named: Any) -> Any:
        result = train_step(self, *arguments, **named)
        stopwatch.step_ended()
        return result

    Trainer.train_step = timed
    os.environ.setdefault("LOCAL_RANK", "0")
    train(Trainer)
    stopwatch.write()


main()
