"""Hugging Face's ``Trainer`` as it is: accumulation, an evaluation and a checkpoint on the way."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from benchmarks.programs.stopwatch import Stopwatch
from benchmarks.programs.text import WORDS, Texts

STEPS, LENGTH, WIDTH = int(sys.argv[1]), int(sys.argv[2]), 192
stopwatch = Stopwatch()


class TakeTimes(TrainerCallback):  # type: ignore[misc]
    """Reads the stopwatch when the trainer reports."""

    def on_step_end(self, *_arguments: Any, **_named: Any) -> None:
        stopwatch.step_ended()

    def on_evaluate(self, *_arguments: Any, **_named: Any) -> None:
        stopwatch.interrupt()

    def on_save(self, *_arguments: Any, **_named: Any) -> None:
        stopwatch.interrupt()


torch.set_num_threads(1)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=4)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=max(1, STEPS // 2),
        save_steps=max(1, STEPS // 2 + 10),
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Texts(8 * STEPS, LENGTH),
        eval_dataset=Texts(16, LENGTH),
        callbacks=[TakeTimes()],
    )
    trainer.train()
stopwatch.write()
