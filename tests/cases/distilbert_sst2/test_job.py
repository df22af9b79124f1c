"""The torch side of distilbert_sst2 against the library and against plain loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import (
    DistilBertForSequenceClassification,
)

from trainmark.cases.distilbert_sst2 import data, job
from trainmark.cases.distilbert_sst2.case import CASE
from trainmark.cases.distilbert_sst2.data.model_files import (
    ModelConfig,
    compute_expected_shapes,
)
from trainmark.cases.distilbert_sst2.job import group_parameters
from trainmark.data.splits import Ragged
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import Counts, JobContext

pytestmark = pytest.mark.usefixtures("one_thread")

BASE = ModelConfig(
    model_type="distilbert",
    n_layers=6,
    n_heads=12,
    dim=768,
    hidden_dim=3072,
    vocab_size=30522,
    max_position_embeddings=512,
)
TINY = replace(CASE.recipes["tiny"], micro_batch_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a data folder with the generated data of the tiny recipe."""
    data_folder = tmp_path_factory.mktemp("data")
    data.generate(data_folder, TINY)
    return data_folder


@pytest.fixture(scope="module")
def loaded_data(folder):
    """Return the generated data of ``folder``, as a job gets them."""
    return data.load(folder, TINY)


def select_first_rows(split, rows):
    """Return a split that has only its first rows."""
    starts = split.ids.starts[: rows + 1]  # of each row, and the end of the last
    return replace(split, labels=split.labels[:rows], ids=Ragged(split.ids.values, starts))


def disable_dropout(loaded_data):
    """Return the data with a model config without any dropout.

    The generated model has none but that of its classifier (``seq_classif_dropout``).
    """
    raw = dict(loaded_data.config.raw) | {"seq_classif_dropout": 0.0}
    return replace(loaded_data, config=ModelConfig.model_validate(raw))


def build(folder, loaded_data, *, rows=160, **changes):
    """Build the job of the tiny recipe on one rank, a CPU.

    Args:
        folder: of the data.
        loaded_data: what ``data.load`` has read from it.
        rows: number of training rows that are used, the first ones; 160 are 20 micro-batches of 8.
        changes: to fields of the recipe.
    """
    recipe = replace(TINY, **changes)
    small = replace(loaded_data, train=select_first_rows(loaded_data.train, rows))
    context = JobContext(
        recipe=recipe, data_dir=folder, rank=0, world_size=1, device=CpuDevice(threads=1)
    )
    return job.build(context, small)


def test_the_base_model_has_the_published_number_of_parameters():
    """The expected shapes of weights are those of the library's model."""
    with torch.device("meta"):
        model = DistilBertForSequenceClassification(DistilBertConfig())
    shapes = {name: tuple(item.shape) for name, item in model.named_parameters()}
    # ``BASE`` has the sizes of DistilBERT base, which are also the defaults of
    # ``DistilBertConfig``.
    assert shapes == compute_expected_shapes(BASE)
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_955_010


def test_weight_decay_excludes_biases_and_norms(folder, loaded_data):
    """All matrices are decayed, all vectors (biases and norms) are not.

    ``group_parameters`` returns the groups of the optimizer; 0.01 is the decay that it is given.
    """
    model = build(folder, loaded_data).model
    decayed, plain = group_parameters(model, 0.01)
    assert decayed["weight_decay"] == 0.01
    assert plain["weight_decay"] == 0.0
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))
    assert all(item.ndim == 2 for item in decayed["params"])
    assert all(item.ndim == 1 for item in plain["params"])


def train_plain_loop(model, batches, *, lr, planned):
    """Train as any tutorial does: unfused AdamW, mean loss, linear decay; return the losses.

    Args:
        planned: steps after which the learning rate would be 0.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / planned)
    losses = []
    for ids, mask, labels in batches:
        output = model(input_ids=ids, attention_mask=mask.long(), labels=labels)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(output.loss.item())
    return losses


def make_library_model(the_job):
    """Return the model of transformers with the same weights and its own attention."""
    config = DistilBertConfig.from_dict(the_job.model.config.to_dict())
    config._attn_implementation = "sdpa"
    model = DistilBertForSequenceClassification(config)
    model.load_state_dict(the_job.model.state_dict())
    return model


@pytest.mark.parametrize("dropout", [False, True])
def test_twenty_steps_have_the_losses_of_a_plain_loop(folder, loaded_data, dropout):
    """The job trains as a plain loop with the model of ``transformers`` does.

    Both begin with the same weights and take the same batches. ``dropout`` False: the data's model
    has no dropout at all.
    """
    the_job = build(folder, loaded_data if dropout else disable_dropout(loaded_data))
    library_model = make_library_model(the_job).train()
    batches = [batch.tensors for batch in the_job.batches(0)]
    assert len(batches) == 20  # 160 rows in micro-batches of 8
    # The same seed before both trainings: they draw the same dropout.
    torch.manual_seed(7)
    expected = train_plain_loop(
        library_model, batches, lr=TINY.learning_rate, planned=20 * TINY.max_epochs
    )
    torch.manual_seed(7)
    source = the_job.batches(0)
    losses = [float(the_job.step(source)) for _ in range(20)]
    assert the_job.step(source) is None  # the epoch has ended
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-6)


def test_evaluation_counts_each_row_once(folder, loaded_data, monkeypatch):
    """The generated data have 1,000 validation rows; the value is the accuracy, right over all."""
    the_job = build(folder, loaded_data)
    single_result = the_job.evaluate()  # on one rank
    assert (single_result.samples, single_result.detail) == (
        1_000,
        {"correct": round(single_result.value * 1_000)},
    )
    parts = []  # the counts of each rank, before they are summed

    def note_counts(*counts, **_):
        parts.append(counts)
        return 1, 1  # right and scored rows of all ranks: too few, which ends the evaluation

    monkeypatch.setattr(job, "add_over_ranks", note_counts)
    for rank in range(3):
        the_job.context = replace(the_job.context, rank=rank, world_size=3)
        with pytest.raises(AssertionError, match="1 of 1000 validation rows were scored"):
            the_job.evaluate()
    # The ranks' shares together are the evaluation of one rank: right rows, and all rows.
    assert [sum(counts) for counts in zip(*parts, strict=True)] == [
        single_result.value * 1_000,
        1_000,
    ]


def test_model_flops_of_the_base_model_are_the_formula(folder, loaded_data):
    """``BASE`` has the sizes of DistilBERT base: 6 layers of width 768, inner width 3,072.

    Only its sizes are needed for the formula, so the job is built with the tiny model.
    """
    the_job = build(folder, loaded_data, seq_length=512)
    the_job.data = replace(loaded_data, config=BASE)
    assert BASE.encoder_matmul_weights == 42_467_328  # 6 x (4 x 768^2 + 2 x 768 x 3,072)
    assert BASE.head_matmul_weights == 591_360  # 768^2 + 768 x 2: a layer, and one for two labels
    # 6 FLOPs per weight, and 12 L D S per token for attention, with L = 6 layers, the width D = 768
    # and S = 512 tokens of a sequence. The head sees only one token of a sample.
    per_sample = 512 * (6 * 42_467_328 + 12 * 6 * 768 * 512) + 6 * 591_360
    # Three samples of 20 tokens, padded to 512.
    counts = Counts(samples=3, sequences=3, tokens=60, tokens_padded=3 * 512)
    assert the_job.model_flops(counts) == 3 * per_sample  # padding counts as work
