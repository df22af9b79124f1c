"""What a step takes is known before it runs; what does not fit is refused."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from live_tensors import LiveTensors
from trainmark import cases
from trainmark.errors import EnvironmentFault
from trainmark.protocols import JobContext, MemoryUse
from trainmark.rank.agreement import memory_that_fits
from trainmark.spec import RankMemory
from trainmark.train.step_memory import PROCESS_BYTES, Prediction

if TYPE_CHECKING:
    from fakes import SyncDevice

pytestmark = pytest.mark.usefixtures("one_thread")
GIB = 2**30
SIZES = {"num_layers": 3, "hidden_size": 128, "num_heads": 4}
GPT = SIZES | {"seq_length": 128, "micro_batch_size": 4, "vocab_size": 2000}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def wider(folder: Path, to: Path) -> Path:
    """Copy DistilBERT's generated data, its model made larger."""
    import shutil

    shutil.copytree(folder, to)
    config = to / "model" / "config.json"
    told = json.loads(config.read_text()) | {"dim": 128, "hidden_dim": 512, "n_layers": 3}
    config.write_text(json.dumps(told))
    return to


@pytest.mark.parametrize(
    ("case", "fields", "least"),
    [
        ("gpt_megatron", {"kernels": "library"}, 0.98),
        ("gpt_megatron", GPT | {"kernels": "library"}, 0.98),
        ("gpt_megatron", GPT | {"kernels": "library", "precision": "bf16"}, 0.92),
        ("gpt_megatron", GPT | {"kernels": "library", "checkpoint_activations": True}, 0.9),
        ("gpt_megatron", GPT | {"kernels": "own"}, 0.9),
        ("glm_superglue", {"kernels": "library"}, 0.85),
        ("glm_superglue", SIZES | {"kernels": "own", "micro_batch_size": 4}, 0.8),
        ("glm_superglue", SIZES | {"kernels": "library", "trim_padding": True}, 0.75),
        ("distilbert_sst2", {"kernels": "library"}, 0.95),
        ("distilbert_sst2", {"kernels": "library", "micro_batch_size": 32, "precision": "bf16"},
         0.85),
    ],
)  # fmt: skip
def test_a_real_step_takes_what_is_predicted_or_a_little_more(
    root: Path, tmp_path: Path, sync_device: SyncDevice, *, case: str, fields: dict[str, Any],
    least: float,
) -> None:  # fmt: skip
    described = cases.load(case)
    recipe = replace(described.recipes["tiny"], **fields)
    folder = cases.generated_folder(described, recipe, root)
    if case == "distilbert_sst2" and "micro_batch_size" in fields:
        folder = wider(folder, tmp_path / "wider")
    context = JobContext(recipe, folder, rank=0, world_size=1, device=sync_device)
    module = cases.part(case, "job")
    loaded = module.load_data(context)
    with LiveTensors() as live:
        job = module.build(context, loaded)
        batches = job.batches(0)
        for _ in range(3):
            job.step(batches)
    predicted = prediction(case, folder, recipe)
    assert least * live.peak <= predicted.total <= live.peak
    weights = 4 * sum(item.numel() for item in job.trained_parameters().values())
    assert 0.98 * weights <= predicted.weights <= weights  # DistilBERT's biases are left out
    assert predicted.optimizer == 2 * predicted.weights


def prediction(case: str, folder: Path, recipe: Any, world_size: int = 1) -> Prediction:
    """Return what the check of a recipe finds, by the estimate of its case."""
    memory = importlib.import_module(f"trainmark.cases.{case}.data")
    if case == "gpt_megatron":
        found = memory.predict(recipe, world_size)
    elif case == "glm_superglue":
        from trainmark.cases.glm_superglue.data import load

        train = load(folder, recipe).train
        choices = float(train.num_choices.mean())
        tokens = train.mean_tokens() if recipe.trim_padding else None
        found = memory.predict(recipe, world_size, choices=choices, tokens=tokens)
    else:
        from trainmark.cases.distilbert_sst2.data.model_files import read_config

        found = memory.predict(read_config(folder / "model"), recipe, world_size)
    assert isinstance(found, Prediction)
    return found


def gpt(**fields: Any) -> Any:
    return replace(cases.load("gpt_megatron").recipes["sp-bs16-bf16"], **fields)


@pytest.mark.parametrize("case", ["gpt_megatron", "glm_superglue", "distilbert_sst2"])
def test_what_does_not_fit_is_refused(root: Path, case: str) -> None:
    described = cases.load(case)
    recipe = replace(described.recipes["tiny"], kernels="library")
    folder = cases.generated_folder(described, recipe, root)
    check_fit = cases.part(case, "data").check_fit
    needed = prediction(case, folder, recipe).total + PROCESS_BYTES
    check_fit(folder, recipe, 1, RankMemory(needed))
    with pytest.raises(EnvironmentFault, match="a rank needs about"):
        check_fit(folder, recipe, 1, RankMemory(needed - 1))


@pytest.mark.parametrize(
    ("fields", "world_size"),
    [({"compile": True}, 1), ({"tensor_parallel": 2}, 2), ({"fsdp": True}, 4)],
)
def test_what_shares_or_recomputes_needs_less(fields: dict[str, Any], world_size: int) -> None:
    whole = prediction("gpt_megatron", Path(), gpt(kernels="library"), world_size)
    less = prediction("gpt_megatron", Path(), gpt(kernels="library", **fields), world_size)
    assert less.total < whole.total
    if "fsdp" in fields:  # a quarter of the parameters, and what is gathered
        alone = prediction("gpt_megatron", Path(), gpt(kernels="library"), 1)
        assert less.optimizer == -(-alone.optimizer // 4)
        assert less.weights > -(-alone.weights // 4)


class Silent:
    """A vendor that leaves it to its ranks to find out the memory, or does not."""

    def __init__(self, known: RankMemory | None) -> None:
        self.known = known

    def rank_memory(self, nproc: int) -> RankMemory | None:
        return self.known


def test_a_rank_refuses_where_planning_could_not_know(sync_device: SyncDevice) -> None:
    from types import SimpleNamespace

    plan: Any = SimpleNamespace(
        case="gpt_megatron", world_size=1, nproc=1, data=SimpleNamespace(folder="none")
    )
    sync_device.memory = lambda: MemoryUse(None, 0, 8 * GIB, "device")  # type: ignore[method-assign]
    found: Any = Silent(None)
    with pytest.raises(EnvironmentFault, match=r"a rank needs about .* and has 8\.0 GiB"):
        memory_that_fits(plan, gpt(), found, sync_device)
    found.known = RankMemory(1)  # planning knew, and let it pass
    assert memory_that_fits(plan, gpt(), found, sync_device) == RankMemory(8 * GIB)
    plan.case, found.known = "toy", None  # a case without an estimate
    assert memory_that_fits(plan, gpt(), found, sync_device) == RankMemory(8 * GIB)
