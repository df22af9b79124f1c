"""Every case trains equally with and without compilation, prefetching and our loss kernel."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainmark import cases
from trainmark.cases import ensure_generated_data
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext
from trainmark.train.read_ahead import iterate_batches

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 5
DROPOUT = {  # by case: the recipe's field for dropout; None: the case has dropout without a field
    "distilbert_sst2": None,
    "glm_superglue": "dropout",
    "gpt_megatron": "dropout",
    "llama2_7b_lora": "lora_dropout",
}


def make_job(name: str, folder: Path, recipe: Any, device: CpuDevice) -> Any:
    """Build the job of the case ``name``, which trains ``recipe`` on one rank.

    Args:
        folder: the data, generated for this recipe.
    """
    context = JobContext(recipe=recipe, data_dir=folder, rank=0, world_size=1, device=device)
    module = cases.import_part(name, "job")
    torch.manual_seed(recipe.seed)  # as the worker does
    return module.build(context, module.load_data(context))


def make_small_recipe(name: str, root: Path) -> tuple[Any, Path]:
    """Return a small recipe whose field for dropout, if it has one, is 0, and the data folder.

    ``DROPOUT`` has, by case, the name of that field, or None if no field sets the dropout.

    Args:
        name: of the case.
        root: the folder below which its data is generated.
    """
    case, field = cases.load(name), DROPOUT.get(name)
    fields = {field: 0.0} if field else {}
    recipe = replace(case.recipes["tiny"], micro_batch_size=4, **fields)
    return recipe, ensure_generated_data(case, recipe, root)


def train_two_steps(
    name: str, folder: Path, recipe: Any
) -> tuple[list[float], list[dict[str, Tensor]], Any]:
    """Return losses and gradients of the first two steps of a new job, and its facts.

    The gradients are a dictionary for each step, by name of the parameter. Facts are what a job
    reports of itself, such as the kernels that it uses.

    Args:
        name: of the case.
        folder: the data, generated for ``recipe``.
    """
    job = make_job(name, folder, recipe, CpuDevice(threads=1))
    # Turn off dropout that no field of a recipe turns off.
    for module in job.stepper.model.modules():
        if isinstance(module, torch.nn.Dropout) and module.p:
            module.p = 0.0
    gradients: list[dict[str, Tensor]] = []

    def record_gradients(*_: Any) -> None:
        """Copy the gradients before the step; compiled modules add ``_orig_mod.`` to names."""
        trained = job.trained_parameters().items()
        assert all(item.grad is not None for _, item in trained)
        gradients.append({key.replace("_orig_mod.", ""): x.grad.clone() for key, x in trained})

    job.stepper.optimizer.register_step_pre_hook(record_gradients)
    batches = iter(job.batches(0))
    # Each batch closes its step, whatever the recipe's accumulation.
    losses = [float(job.step(iter([replace(next(batches), closes_step=True)]))) for _ in range(2)]
    return losses, gradients, job.facts()


def assert_alike(actual: Any, expected: Any, step: int) -> None:
    """Compare losses and the gradients of ``step``; both are results of ``train_two_steps``."""
    actual_losses, actual_gradients, _ = actual
    expected_losses, expected_gradients, _ = expected
    assert actual_losses == pytest.approx(expected_losses, rel=1e-5)
    torch.testing.assert_close(
        actual_gradients[step], expected_gradients[step], rtol=1e-3, atol=1e-5
    )
    # Gradients are large enough to compare.
    assert max(float(item.abs().max()) for item in actual_gradients[step].values()) > 1e-4


# The compiler instantiates each autograd function it meets, and looks for a gradient
# wherever a graph begins with what another has computed.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", [*DROPOUT, "toy"])
def test_compiled_and_eager_steps_have_the_same_gradients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``DROPOUT`` has the cases with dropout; the toy has none. ``name`` is a case.
    # Without generated C++, which takes a minute per model and does not affect gradients.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    # The recipe has no dropout, because compiled code draws other dropout masks.
    recipe, folder = make_small_recipe(name, tmp_path)
    actual = train_two_steps(name, folder, replace(recipe, compile=True))
    # The second step uses the graphs that the first one compiled.
    assert_alike(actual, train_two_steps(name, folder, recipe), step=1)


@pytest.mark.parametrize("name", ["gpt_megatron", "llama2_7b_lora"])
def test_case_trains_equally_with_either_loss_kernel(name: str, tmp_path: Path) -> None:
    # The kernel computes the cross-entropy: torch's ("library") or this program's ("own").
    # ``train_two_steps`` returns losses, gradients and facts; ``assert_alike`` compares the two
    # steps' losses, and the gradients of the first step (0).
    recipe, folder = make_small_recipe(name, tmp_path)
    expected = train_two_steps(name, folder, replace(recipe, kernels="library"))
    actual = train_two_steps(name, folder, recipe)  # our own kernel, which is a CPU's default
    _, _, expected_facts = expected
    _, _, facts = actual
    assert expected_facts["kernels"] == {"cross_entropy": "library"}
    assert facts["kernels"] == {"cross_entropy": "own"}
    assert_alike(actual, expected, step=0)


class Copying(CpuDevice):
    """A CPU that copies what it pins and what it places, as an accelerator does."""

    def pin(self, tensor: Any) -> Any:
        return tensor.clone()

    def place(self, value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value


def train_and_evaluate(name: str, folder: Path, recipe: Any) -> tuple[list[float], list[Any], Any]:
    """Return losses and counts of the first ``STEPS`` (5) steps of a new job, and its score.

    Counts are the samples and tokens of a step's batch.

    Args:
        name: of the case.
        folder: the data, generated for ``recipe``, which says how many batches are read ahead.
    """
    device = Copying(threads=1)  # a CPU that copies batches, as an accelerator does
    job = make_job(name, folder, recipe, device)
    losses, counts = [], []
    with closing(iterate_batches(job, device, 0, depth=recipe.read_ahead_batches)) as batches:
        for _ in range(STEPS):
            batch = next(batches)
            counts.append(batch.counts)
            # Each micro-batch is a step of its own.
            losses.append(float(job.step(iter([replace(batch, closes_step=True)]))))
    return losses, counts, job.evaluate()


@pytest.mark.parametrize("name", cases.list_names())
def test_prefetch_depth_changes_no_result_of_a_case(name: str, tmp_path: Path) -> None:
    case = cases.load(name)
    recipe = case.recipes["tiny"]
    folder = ensure_generated_data(case, recipe, tmp_path)
    # Results with batches that are read when a step needs them, and with two read ahead of it.
    plain, ahead = (
        train_and_evaluate(name, folder, replace(recipe, read_ahead_batches=depth))
        for depth in (0, 2)
    )
    assert ahead == plain
    losses, _, _ = plain
    # ``STEPS`` steps were taken. Each had another batch, so an error would show.
    assert len(set(losses)) == STEPS
