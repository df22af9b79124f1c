"""What a training step needs is known before it runs, and what does not fit is refused."""

from __future__ import annotations

from trainmark.cases.llama2_7b_lora.case import LlamaRecipe
from trainmark.cases.llama2_7b_lora.estimates import predict_peak_bytes
from trainmark.cases.llama2_7b_lora.model_files import PRESETS

GIB = 2**30


def test_the_count_for_the_published_setup_is_exact_where_it_can_be() -> None:
    found = predict_peak_bytes(PRESETS["7b"], LlamaRecipe(micro_batch_size=2), 1)
    assert found.weights == 4 * (6_738_415_616 + 4_194_304)
    assert found.gradients == 4 * 4_194_304
    assert found.optimizer == 8 * 4_194_304
    assert found.total == found.weights + 12 * 4_194_304 + found.activations
    # The published run took 37.3 of 40 GiB, of which this is what tensors need at least.
    assert 28 * GIB < found.total < 37.3 * GIB
