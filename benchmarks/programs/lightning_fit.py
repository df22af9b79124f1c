"""Lightning's ``Trainer.fit``: its closure in the optimizer's step, a validation an epoch."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.programs.stopwatch import Stopwatch
from benchmarks.programs.text import WORDS, Texts

STEPS, LENGTH, ROWS, WIDTH = int(sys.argv[1]), int(sys.argv[2]), 8, 192
stopwatch = Stopwatch()


class Model(lightning.LightningModule):  # type: ignore[misc]
    """A small causal language model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(
            GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4)
        )

    def training_step(self, batch: Any, _number: int) -> Any:
        return self.model(**batch).loss

    def validation_step(self, batch: Any, _number: int) -> None:
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)

    def on_train_batch_end(self, *_arguments: Any) -> None:
        stopwatch.step_ended()

    def on_validation_end(self) -> None:
        stopwatch.interrupt()


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = DataLoader(Texts(ROWS * STEPS // 2, LENGTH), batch_size=ROWS, shuffle=True)
    trainer.fit(Model(), loader, DataLoader(Texts(16, LENGTH), batch_size=ROWS))
stopwatch.write()
