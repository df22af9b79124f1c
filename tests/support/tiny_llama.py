"""A Llama with adapters small enough to train in a test, on one rank or on several real ones.

Apart from the tests because a spawned rank has to import it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from trainmark.cases.llama2_7b_lora import job
from trainmark.cases.llama2_7b_lora.case import LlamaRecipe
from trainmark.cases.llama2_7b_lora.data import generating
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

if TYPE_CHECKING:
    from pathlib import Path

    import torch

ROWS = {"train": 45, "val": 9}
SUBJECTS = 2  # of the 57, to be quick


def make_recipe(**changes: Any) -> LlamaRecipe:
    """Return the recipe of a small model with changes of its fields."""
    fields = {
        "data": "generated", "model_size": "tiny", "init": "random", "seq_length": 64,
        "micro_batch_size": 4, "lora_rank": 4, "lora_dropout": 0.0, "learning_rate": 1e-3,
        "lora_targets": "q_proj,v_proj,down_proj", "max_epochs": 3, "mmlu_shots": 2,
        "shuffle": True, "short_row": "train",
    }  # fmt: skip
    return LlamaRecipe(**{**fields, **changes})


def write_data(folder: Path) -> Path:
    """Write few dialogues, all questions and a model without weights; return their folder.

    ``ROWS`` has the number of dialogues, each with its summary, by split: 45 of ``train`` and 9 of
    ``val``. The questions are those of the benchmark MMLU.
    """
    folder.mkdir(exist_ok=True)
    for split, rows in ROWS.items():
        items = [
            {"id": "", "dialogue": dialogue, "summary": summary}
            for dialogue, summary in generating.draw_dialogues(split, rows=rows, seed=1)
        ]
        (folder / f"{split}.json").write_text(json.dumps(items))
    generating.write_mmlu(folder / "mmlu", seed=1)
    generating.write_model(folder / "model", make_recipe())
    return folder


def new_job(folder: Path, *, rank: int = 0, world_size: int = 1, **changes: Any) -> job.LlamaJob:
    """Return the job of a rank on data of ``write_data``; ``changes``: of fields of the recipe."""
    context = JobContext(
        recipe=make_recipe(**changes),
        data_dir=folder,
        rank=rank,
        world_size=world_size,
        device=CpuDevice(threads=1),
    )
    data = job.load_data(context)
    # Of the 57 subjects of MMLU's questions, ``SUBJECTS`` (2), to be quick.
    few_subjects = data.mmlu and data.mmlu[:SUBJECTS]  # None without MMLU
    return job.build(context, replace(data, mmlu=few_subjects))


def gather_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, whole also if it is sharded."""
    plain = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return plain.detach().clone()


def train(job_to_train: job.LlamaJob, *, epochs: int = 2) -> dict[str, Any]:
    """Take the steps of all epochs; return what they gave.

    Returns:
        ``steps``: loss and samples of each; ``weights``: of the adapters alone, which are what is
        trained; ``quality`` and ``detail``: of the evaluation; ``facts``: of the job.
    """
    steps = []
    for epoch in range(epochs):
        batches = list(job_to_train.batches(epoch))
        stream = iter(batches)
        samples_of_steps, num_samples = [], 0
        for batch in batches:
            num_samples += batch.counts.samples
            if batch.closes_step:
                samples_of_steps.append(num_samples)
                num_samples = 0
        for samples in samples_of_steps:
            loss = job_to_train.step(stream)
            assert loss is not None
            steps.append((loss.item(), samples))
    job_to_train.check()
    quality = job_to_train.evaluate()
    adapters = {
        name: gather_whole(parameter)
        for name, parameter in job_to_train.model.named_parameters()
        if parameter.requires_grad
    }
    return {
        "steps": steps,
        "weights": adapters,
        "quality": (quality.value, quality.samples),
        "detail": dict(quality.detail),
        "facts": dict(job_to_train.facts()),
    }


def train_rank(rank: int, folder: Path, out: Path, spreads: Any) -> dict[str, Any]:
    """Train one of two ranks with each of ``spreads``; return the results by its name.

    One start of the ranks serves all trainings, because it takes longer than they do.

    Args:
        out: gets a folder with the adapters of each spread, by its name.
        spreads: by name, the changes of the recipe that spread the training over ranks.
    """
    trainings = {}
    for name, changes in spreads.items():
        job_of_rank = new_job(folder, rank=rank, world_size=2, **changes)
        trainings[name] = train(job_of_rank)
        job_of_rank.save(out / name)
    return trainings
