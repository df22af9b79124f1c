"""``transformers.Trainer`` as a peer, with its own defaults, on the device of a benchmark."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from benchmarks.peers import iterate_turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run_trainer(
    model: Any,
    items: Sequence[Mapping[str, Any]],
    *,
    batch: int,
    planned: int,
    device_name: str = "cpu",
    precision: str = "fp32",
    **arguments: Any,
) -> None:
    """Train ``transformers.Trainer`` in the parent's turns, with its fused AdamW.

    Args:
        items: the rows to train, in the model's own arguments.
        planned: steps of its learning rate schedule; more than all turns take.
        arguments: further ``TrainingArguments``.
    """
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from trainmark import devices

    device = devices.choose_vendor(device_name).open(0, 1)
    waiting = iterate_turns(device)

    class TakeTurns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_words: Any, **_named: Any) -> None:
            next(waiting, None)

        def on_step_end(self, _args: Any, _state: Any, control: Any, **_named: Any) -> None:
            if next(waiting, "over") == "over":
                control.should_training_stop = True

    class Items(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, index: int) -> Any:
            return items[index]

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=planned,
            use_cpu=device.torch_type == "cpu",
            bf16=precision == "bf16",
            # False would touch the switches too; without it they stay off.
            tf32=True if precision == "tf32" else None,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_num_workers=0,
            **arguments,
        )
        keep_tf32_readable()
        if settings.device.type != device.torch_type:
            raise SystemExit(f"the Trainer chose {settings.device.type}, not {device.torch_type}")
        # With several cards visible it would split batches over all of them.
        settings._n_gpu = min(1, settings.n_gpu)
        Trainer(model=model, args=settings, train_dataset=Items(), callbacks=[TakeTurns()]).train()


def keep_tf32_readable() -> None:
    """Say by torch's older switch too that TF32 is on, where the library said so by the newer.

    The library switches it on for ``tf32`` and to compile. Torch then raises an error where it
    reads the older switch, as its compiler does for each matrix product up to torch 2.11:
    https://github.com/pytorch/pytorch/issues/166387, 2026-11-22.
    """
    import torch

    if torch.backends.cuda.matmul.fp32_precision == "tf32":
        torch.set_float32_matmul_precision("high")
