"""The memory of a DLRM step is predicted before it runs, with activations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from support.live_tensors import LiveTensors
from trainmark import cases
from trainmark.cases.dlrm_criteo.placement import predict
from trainmark.protocols import JobContext
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from pathlib import Path

    from support.fakes import SyncDevice
    from trainmark.train.step_memory import Prediction

pytestmark = pytest.mark.usefixtures("one_thread")
GIB = 2**30
WIDE_TOP = {"top_layers": "1024,1024,512,1"}
WIDE_ROWS = {"embedding_dim": 128, "bottom_layers": "64,128"}


def make_tiny_recipe(**fields: Any) -> Any:
    """Return the case's tiny recipe with changed ``fields``."""
    return replace(cases.load("dlrm_criteo").recipes["tiny"], **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the generated click data of the tiny recipe."""
    root = tmp_path_factory.mktemp("data")
    return cases.ensure_generated_data(cases.load("dlrm_criteo"), make_tiny_recipe(), root)


def measure_and_predict_peak(
    recipe: Any, folder: Path, *, steps: int = 1, **context_fields: Any
) -> tuple[int, Prediction]:
    """Return the measured peak of a step in bytes, without parameters, and the prediction.

    The prediction is a lower bound, so the smallest peak of the ``steps`` is returned.

    Args:
        recipe: of the case; ``folder`` has its data.
        steps: number of steps that are measured.
        context_fields: fields of the ``JobContext``: rank, world_size and device.
    """
    # 1 GiB: enough for the tables of any test; the peak is measured and does not depend on it.
    context = JobContext(recipe, folder, memory=RankMemory(GIB), **context_fields)
    module = cases.import_part("dlrm_criteo", "job")
    loaded = module.load_data(context)
    with LiveTensors() as live:
        job = module.build(context, loaded)
        batches = job.batches(0)
        peaks = []
        for _ in range(steps):
            live.restart()
            job.step(batches)
            peaks.append(live.peak)
    # 4 bytes a float32.
    weights = 4 * sum(item.numel() for item in job.trained_parameters().values())
    return min(peaks) - weights, predict(recipe, job.placement, loaded.spec.num_numerical)


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        *(({}, precision) for precision in ("fp32", "bf16", "fp16")),
        # Not fp16: a CPU needs ten seconds for such wide layers.
        *((WIDE_TOP, precision) for precision in ("fp32", "bf16")),
        *((WIDE_ROWS, precision) for precision in ("fp32", "bf16", "fp16")),
    ],
)
def test_real_step_needs_at_least_the_predicted_memory(
    folder: Path, sync_device: SyncDevice, *, fields: dict[str, Any], precision: str
) -> None:
    """The prediction is made before a run; here a real step is taken and its memory is counted.

    Args:
        folder: generated click data of the tiny recipe.
        sync_device: a fake device of the test, on which the step runs.
        fields: changes of the tiny recipe: ``WIDE_TOP`` has wide layers, ``WIDE_ROWS`` wide rows of
            tables, {} changes nothing.
    """
    recipe = make_tiny_recipe(precision=precision, **{"micro_batch_size": 2048} | fields)
    measured_bytes, prediction = measure_and_predict_peak(
        recipe, folder, rank=0, world_size=1, device=sync_device
    )
    # Parameters are not measured. The prediction is never more than the real need, as that would
    # refuse a run that fits; it is not far below it either: 0.6 is a margin, not a computed share.
    assert 0.6 * measured_bytes <= prediction.total - prediction.weights <= measured_bytes
