"""The sections of DistilBERT and GPT-2: their peers' models, bars and published figures."""

from __future__ import annotations

import pytest
import torch
from benchmarks.card import distilbert
from benchmarks.card.training import Measured
from benchmarks.gpt_plain import PlainGpt

from trainmark.cases.gpt_megatron.case import GptRecipe
from trainmark.cases.gpt_megatron.model import build_model

SMALL = GptRecipe(
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    seq_length=16,
    vocab_size=128,
    dropout=0.0,
    micro_batch_size=2,
    learning_rate=1e-2,
    min_learning_rate=0.0,
)


def make_measured_speed(
    product_name: str, seconds: float, peak_flops: float | None = None
) -> Measured:
    """Return what was measured in three rounds of equal steps of our own variant.

    Args:
        product_name: of the card.
        seconds: of a step, which trains 96 samples.
        peak_flops: the card's published FLOP/s; None: not known.
    """
    return Measured(
        seconds={"ours": [seconds] * 3},
        peak_bytes={"ours": 1},  # any number: speeds do not depend on it
        matmul=[1e12] * 3,  # FLOP/s of matmuls in each round
        flops=9e11,  # of a step
        units={"samples": 96},  # that a step trains
        peak_flops=peak_flops,
        product_name=product_name,
    )


def make_plain_model(our_model: torch.nn.Module) -> PlainGpt:
    """Return the plain model with the weights of our model."""
    plain = PlainGpt(SMALL)
    width, heads = SMALL.hidden_size, SMALL.num_heads
    weights = {}
    for name, value in our_model.state_dict().items():
        weights[name.replace(".attention.", ".")] = value
        # Our rows are ordered by head; the plain model has all queries, then keys, then values.
        if ".qkv." in name:
            by_head = value.view(heads, 3, width // heads, -1).transpose(0, 1)
            weights[name.replace(".attention.", ".")] = by_head.reshape(value.shape)
    weights["head.weight"] = weights["wte.weight"]  # one tensor in our model, a copy here
    plain.load_state_dict(weights)
    return plain


def test_plain_model_computes_the_loss_of_the_case() -> None:
    """The plain model is a GPT-2 written in torch alone; with our weights its loss is ours.

    ``SMALL`` is the recipe of a small GPT. Each of two rows has a token more than ``seq_length``:
    the target of a token is the one behind it.
    """
    our_model = build_model(SMALL, seed=3)
    ids = torch.randint(0, SMALL.vocab_size, (2, SMALL.seq_length + 1))

    loss = make_plain_model(our_model)(ids[:, :-1], ids[:, 1:])

    tokens = 2 * SMALL.seq_length  # our loss is a sum over them, that of the plain model a mean
    assert loss.item() == pytest.approx(
        our_model(ids[:, :-1], ids[:, 1:]).item() / tokens, rel=1e-5
    )


def test_published_figure_equals_the_cell_of_its_page() -> None:
    """287.9 samples/s is in the table of published figures, from which the function reads it."""
    assert distilbert.get_published_samples_per_second() == 287.9


@pytest.mark.parametrize(
    ("product", "batch", "seconds", "met"),
    [
        (distilbert.PUBLISHED_PRODUCT, distilbert.LARGE, 0.01, True),
        (distilbert.PUBLISHED_PRODUCT, distilbert.LARGE, 10.0, False),
        (distilbert.PUBLISHED_PRODUCT, distilbert.LARGE + 1, 0.01, None),
        ("NVIDIA A100-SXM4-80GB", distilbert.LARGE, 0.01, None),
    ],
)
def test_published_figure_is_a_bar_only_on_its_own_card(
    product: str, batch: int, seconds: float, met: bool | None
) -> None:
    """Met, missed, or only stated: with another batch size or on another card.

    ``make_measured_speed`` trains 96 samples in ``seconds``: 9600 or 9.6 samples/s.
    """
    bar, sentence = distilbert.compare_with_published(make_measured_speed(product, seconds), batch)

    assert (None if bar is None else bar.met) == met
    assert "287.9" in sentence  # the published samples/s
    assert product in sentence
