"""DLRM equals a plain reference of EmbeddingBags, a list of pairs and SGD; the AUC is exact."""

from __future__ import annotations

import errno
import mmap
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainmark.cases.dlrm_criteo.embeddings import FusedTables
from trainmark.cases.dlrm_criteo.job import compute_roc_auc
from trainmark.cases.dlrm_criteo.model import Dlrm, Interaction, build_model
from trainmark.errors import DivergedError

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TABLES, DIM, BATCH = 26, 128, 64
CARDINALITIES = tuple(3 + 7 * i for i in range(NUM_TABLES))
BOTTOM, TOP = (512, 256, 128), (1024, 1024, 512, 256, 1)


class PlainDlrm(nn.Module):
    """The reference: one EmbeddingBag per table, pairs by index, copied layers of ``model``."""

    def __init__(self, model: Dlrm, tables: FusedTables) -> None:
        """Make the reference of ``model`` and its ``tables``, with copies of their weights."""
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(part.clone(), freeze=False, mode="sum")
            for part in tables.split_tables()
        )
        self.bottom, self.top = (
            nn.Sequential(*[self._copy(layer) for layer in part])
            for part in (model.bottom, model.top)
        )
        vectors = len(self.bags) + 1  # of a sample: an embedding of each table, and the dense one
        self.pairs = [(i, j) for i in range(vectors) for j in range(i)]
        self.num_features = model.interaction.num_features

    @staticmethod
    def _copy(layer: nn.Module) -> nn.Module:
        """Copy a linear layer with its weights; all other layers are ReLUs."""
        if not isinstance(layer, nn.Linear):
            return nn.ReLU()
        copy = nn.Linear(layer.in_features, layer.out_features)
        copy.load_state_dict(layer.state_dict())
        return copy

    def forward(self, numerical: Tensor, ids: Tensor) -> Tensor:
        """Return a logit for each sample.

        Args:
            numerical: the numbers of each sample, of shape (samples, 13).
            ids: for each table a row of the samples' categories.
        """
        dense = self.bottom(numerical)
        embeddings = [bag(row[:, None]) for bag, row in zip(self.bags, ids, strict=True)]
        vectors = torch.stack([dense, *embeddings], 1)
        products = vectors @ vectors.mT
        pairs = torch.stack([products[:, i, j] for i, j in self.pairs], 1)
        # Zeros, as the model pads the input of its top layers.
        padding = dense.new_zeros(len(dense), self.num_features - dense.shape[1] - pairs.shape[1])
        return self.top(torch.cat([dense, pairs, padding], 1)).squeeze(1)


def make_batch(number: int, size: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
    """Return numerical (size, 13), labels (size,), ids (tables, size); ``number`` is the seed.

    About 30% of the labels are 1. ``CARDINALITIES`` has the number of rows of each table.
    """
    generator = torch.Generator().manual_seed(number)
    numerical = torch.rand(size, 13, generator=generator)
    labels = (torch.rand(size, generator=generator) < 0.3).float()
    ids = torch.stack(
        [torch.randint(cardinality, (size,), generator=generator) for cardinality in CARDINALITIES]
    )
    return numerical, labels, ids.int()


def make_model_and_tables() -> tuple[Dlrm, FusedTables]:
    """Return dense layers of the published shape, and tables of ``CARDINALITIES`` rows.

    A sample has 13 numbers. 5 is any seed of the initial weights.
    """
    tables = FusedTables(CARDINALITIES, DIM, seed=5)
    return build_model(13, DIM, NUM_TABLES, BOTTOM, TOP, seed=5), tables


def test_the_standard_shape_has_480_features() -> None:
    """Features: the numbers of a sample that enter the top layers of the published model.

    The bottom layers and each of the 26 tables give a vector of 128 numbers: 27 vectors. Features
    are the bottom layers' vector itself and the product of each pair of vectors.
    """
    # 128 of the bottom layers and 27 * 26 / 2 = 351 products are 479, padded to a multiple of 32.
    model, _ = make_model_and_tables()
    assert model.interaction.num_features == 480
    shapes = [tuple(item.weight.shape) for item in model.top if isinstance(item, nn.Linear)]
    assert shapes == [(1024, 480), (1024, 1024), (512, 1024), (256, 512), (1, 256)]


def test_logits_and_three_steps_equal_the_plain_reference() -> None:
    """Our model and the reference ``PlainDlrm``, with equal weights, train three equal steps.

    ``make_batch`` draws the numbers, labels and ids of 64 samples from its seed. Compared are the
    logits of each step, and at the end all tables and layers.
    """
    model, tables = make_model_and_tables()
    plain = PlainDlrm(model, tables)
    rate = 0.1
    our_optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=rate)
    # The fused tables take their SGD step in the backward pass; the reference uses the optimizer.
    tables.learning_rate = rate
    for number in range(3):
        numerical, labels, ids = make_batch(number)
        our_logits, expected = model(numerical, tables(ids)), plain(numerical, ids)
        torch.testing.assert_close(our_logits, expected, rtol=0, atol=1e-5)
        for logits in (our_logits, expected):
            nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        for optimizer in (our_optimizer, plain_optimizer):
            optimizer.step()
            optimizer.zero_grad()
    for part, bag in zip(tables.split_tables(), plain.bags, strict=True):
        torch.testing.assert_close(part, bag.weight.detach(), rtol=0, atol=1e-5)
    for our_layers, plain_layers in (
        (model.bottom, plain.bottom),
        (model.top, plain.top),
    ):
        for actual, expected in zip(
            our_layers.parameters(), plain_layers.parameters(), strict=True
        ):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def compute_auc_by_pairs(scores: list[float], labels: list[int]) -> float:
    """Return the share of pairs of a positive and a negative that are in order; ties count half."""
    positive = [score for score, label in zip(scores, labels, strict=True) if label]
    negative = [score for score, label in zip(scores, labels, strict=True) if not label]
    right = 0.0
    for higher in positive:
        for lower in negative:
            if higher > lower:
                right += 1.0
            elif higher == lower:
                right += 0.5
    return right / (len(positive) * len(negative))


@given(seed=st.integers(0, 2**16), samples=st.integers(0, 40), use_int32=st.booleans())
@settings(max_examples=25, deadline=None)
def test_repeated_rows_get_the_sum_of_their_gradients(
    seed: int, samples: int, use_int32: bool
) -> None:
    """A row that occurs several times in a batch is changed by all of its gradients.

    Three tables with 2, 5 and 1 rows of 4 numbers. The learning rate is 0.5; gradients are divided
    by ``grad_scale``, 4.
    """
    generator = torch.Generator().manual_seed(seed)
    cardinalities = (2, 5, 1)  # so few that rows repeat within a batch
    tables = FusedTables(cardinalities, 4, seed=seed)
    before = tables.weight.clone()
    ids = torch.stack(
        [
            torch.randint(cardinality, (samples,), generator=generator)
            for cardinality in cardinalities
        ]
    )
    grad = torch.randn(samples, 3, 4, generator=generator)
    tables.learning_rate, tables.grad_scale = 0.5, 4.0
    embeddings = tables(ids.int() if use_int32 else ids)
    expected = before.clone()
    for sample in range(samples):
        for table, start in enumerate((0, 2, 7)):  # first rows of the tables
            row = start + int(ids[table, sample])
            assert torch.equal(embeddings[sample, table], before[row])
            expected[row] -= 0.5 / 4.0 * grad[sample, table]
    embeddings.backward(grad)  # this is the SGD step
    torch.testing.assert_close(tables.weight, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("last_gradient", "takes_step"), [(1.0, True), (float("inf"), False)])
def test_gradients_that_overflowed_under_a_loss_scale_are_dropped(
    last_gradient: float, takes_step: bool
) -> None:
    """A loss scale multiplies all gradients, so that small ones do not vanish in float16.

    The tables divide by it (``grad_scale``, here 2). A gradient that became infinite shows that
    the scale was too large: the whole step of the table is then left out.
    """
    tables = FusedTables((4,), 2, seed=1)  # one table of 4 rows with 2 numbers each
    tables.learning_rate, tables.grad_scale = 1.0, torch.tensor(2.0)
    before = tables.weight.clone()
    embeddings = tables(torch.tensor([[1, 2]]))  # rows 1 and 2, for two samples
    embeddings.backward(torch.tensor([[[1.0, 1.0]], [[1.0, last_gradient]]]))
    expected = before.clone()
    if takes_step:
        expected[1:3] -= 0.5  # learning rate 1 times gradient 1 over scale 2
    torch.testing.assert_close(tables.weight, expected)


class MemoryWithoutHugePages(mmap.mmap):
    """Memory of a kernel that was built without huge pages: it knows no such advice."""

    def madvise(self, *_: int) -> None:
        """Raise the error of such a kernel."""
        raise OSError(errno.EINVAL, "Invalid argument")


def test_tables_are_built_on_a_kernel_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables ask for huge pages with ``madvise``, which here raises an error; they do without.

    Two tables have 5 and 7 rows of 4 numbers, whose initial values follow from the seed.
    """
    expected = FusedTables((5, 7), 4, seed=3).weight
    monkeypatch.setattr(mmap, "mmap", MemoryWithoutHugePages)
    assert torch.equal(FusedTables((5, 7), 4, seed=3).weight, expected)


def test_the_interaction_has_the_gradient_of_its_products() -> None:
    """The interaction takes a dense vector and an embedding of each table, all of ``dim`` numbers.

    It returns the dense vector, the product of each pair of the vectors, and zeros, so that the
    number of features is a multiple of 32. Here are 4 samples with 1 + 3 vectors of 5 numbers.
    """
    interaction = Interaction(num_tables=3, dim=5).double()
    generator = torch.Generator().manual_seed(2)
    dense = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    embedded = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(interaction, (dense, embedded))
    features = interaction(dense, embedded)
    assert features.shape == (4, 32)  # 5 dense, 6 products of pairs of 4 vectors, 21 zeros
    assert torch.equal(features[:, :5], dense)
    torch.testing.assert_close(features[:, 5], (dense * embedded[:, 0]).sum(1))
    assert torch.equal(features[:, 5 + 6 :], torch.zeros(4, 21, dtype=torch.float64))


def count_unpadded_flops(num_tables: int, bottom: list[int], top: list[int], samples: int) -> int:
    """Count the FLOPs of a training step of plain layers and products, without padding.

    Tensors of the device ``meta`` have shapes but no values: nothing is computed.

    Args:
        num_tables: each gives a vector of a sample, as wide as the last of the bottom layers.
        bottom, top: widths of the layers before and after the products of pairs of vectors.
    """

    def make_layers(sizes: list[int]) -> nn.Sequential:
        """Return a linear layer for each pair of neighbours in ``sizes``."""
        return nn.Sequential(*[nn.Linear(*pair, device="meta") for pair in pairwise(sizes)])

    dim = bottom[-1]
    # Every pair of vectors once.
    row, column = torch.tril_indices(num_tables + 1, num_tables + 1, -1, device="meta")
    numerical = torch.rand(samples, 13, device="meta")
    embedded = torch.rand(samples, num_tables, dim, device="meta", requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        dense = make_layers([13, *bottom])(numerical)
        vectors = torch.cat([dense[:, None], embedded], 1)
        products = torch.bmm(vectors, vectors.mT)[:, row, column]
        make_layers([dim + len(row), *top])(torch.cat([dense, products], 1)).sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("num_tables", "bottom", "top"),
    [
        (26, [64, 16], [64, 32, 1]),  # tiny: 17 of its 384 features are padding
        (26, [*BOTTOM], [*TOP]),
        (26, [512, 256, 64], [*TOP]),
        (4, [16, 8], [16, 1]),
    ],
)
def test_model_flops_are_those_of_an_unpadded_model(
    num_tables: int, bottom: list[int], top: list[int]
) -> None:
    """Features are padded to a multiple of 32; this padding is no work of the model.

    ``bottom`` and ``top`` are the widths of the layers; ``BOTTOM`` and ``TOP`` those of the
    published model. 13 is the number of numerical inputs.
    """
    model = build_model(13, bottom[-1], num_tables, bottom, top, seed=5)
    # Of 8 samples.
    assert model.flops_per_sample * 8 == count_unpadded_flops(num_tables, bottom, top, samples=8)


@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, width=32), st.integers(0, 1)), min_size=2, max_size=60
    ).filter(lambda rows: 0 < sum(label for _, label in rows) < len(rows))
)
def test_auc_is_the_share_of_correctly_ordered_pairs(rows: list[tuple[float, int]]) -> None:
    """``rows`` are pairs of a score and a label, with both labels among them, 0 and 1.

    A pair of rows with different labels is in order if the one with label 1 has the higher score.
    """
    scores, labels = [score for score, _ in rows], [label for _, label in rows]
    auc = compute_roc_auc(np.array(scores, np.float32), np.array(labels, np.float32))
    assert auc == pytest.approx(compute_auc_by_pairs(scores, labels), abs=1e-12)


def test_scores_that_are_nan_are_refused() -> None:
    """An AUC orders rows by their scores, which NaN does not allow; such a training has failed."""
    with pytest.raises(DivergedError, match="scores_not_finite") as caught:
        compute_roc_auc(np.array([np.nan, 1.0]), np.array([0, 1]))
    assert caught.value.details == {"found": 1, "scores": 2}  # one of two scores is not finite
