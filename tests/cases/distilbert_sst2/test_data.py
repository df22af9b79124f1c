"""Loaders, checks and generated data of distilbert_sst2, and what prepare writes."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from trainmark.cases.distilbert_sst2 import data
from trainmark.cases.distilbert_sst2.case import CASE
from trainmark.cases.distilbert_sst2.data import generated
from trainmark.cases.distilbert_sst2.data.model_files import compute_expected_shapes, read_config
from trainmark.cases.distilbert_sst2.data.rows import read_texts
from trainmark.cases.distilbert_sst2.prepare import prepare
from trainmark.errors import DataError

TINY = CASE.recipes["tiny"]
REAL = replace(TINY, data="real")
PRETRAINED = replace(REAL, init="pretrained")
UNUSUAL_TEXTS = [
    "plain words",
    "  spaces \u00a0 around  ",
    "ÉCLAIRS naïve façade",
    "hide new secretions from ",
    "don't -- stop !?",
    "中文 and é",
    "tab-free \u200b zero width",
    "simply mostly",
    "x" * 150,
    "[SEP] in the text",
    "quote \" and ' signs",
]


def write_split(folder, split, sentences, labels):
    """Write a split of a data folder in parquet form, which has a file for each split.

    Args:
        split: ``train`` or ``validation``.
        sentences, labels: of its rows, with one element for each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"sentence": sentences, "label": labels})
    pq.write_table(table, folder / f"{split}.parquet")


@pytest.fixture
def folder(tmp_path):
    """Return a small valid data folder in parquet form, with a model config and no weights."""
    for split in data.SPLITS:
        sentences, labels, _ = generated.draw_sentences(split, rows=12, seed=1)
        write_split(tmp_path, split, sentences, labels)
    generated.write_model_folder(tmp_path / "model")
    return tmp_path


def read_fault(folder, recipe=REAL):
    """Return the error of the check as text; it must name a place and a fix.

    Args:
        folder: a data folder with a fault.
        recipe: that would train on it; ``REAL``: on data that were not generated, from random
            weights.
    """
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    assert caught.value.where
    assert caught.value.fix
    return str(caught.value)


def test_generated_data_is_deterministic_and_passes_the_check(tmp_path):
    """The data of the tiny recipe are generated twice, and must be equal.

    The facts of a check are the numbers of rows, how the files are laid out, the best accuracy that
    the labels allow, whether an accuracy is comparable with published ones, and an id of the data.
    """
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        data.generate(tmp_path / name, TINY)
    facts = data.check(tmp_path / "one", TINY)
    # The numbers of generated rows; 4% of their labels are wrong, so no accuracy exceeds 96%.
    assert (facts.train_samples, facts.eval_samples) == (6_400, 1_000)
    assert (facts.layout, facts.best_quality, facts.quality_comparable) == ("tsv", 0.96, False)
    assert facts.content_id == "f5d20c8023599750"  # pinned: the generated data never change
    assert data.check(tmp_path / "two", TINY) == facts
    loaded = data.load(tmp_path / "one", TINY)
    assert not (loaded.train.ids.values == 1).any()  # 1: the id of [UNK]
    assert loaded.train.num_truncated == 0


def label_by_grammar(sentence):
    """Return the label by the grammar: that of the adjective, reversed by a ``not`` before it."""
    words = sentence.split()
    adjective_index = next(
        i for i, word in enumerate(words) if word in (*generated.POSITIVE, *generated.NEGATIVE)
    )
    is_positive = words[adjective_index] in generated.POSITIVE
    is_negated = words[adjective_index - 1] == "not"
    return int(is_positive != is_negated)


@pytest.mark.parametrize("split", data.SPLITS)
def test_labels_by_the_generating_rule_score_the_best_accuracy(split):
    """The label follows from the adjective of a sentence and a ``not`` before it.

    Only the rows in ``flipped``, 4%, have the other label: the rule is right in 96%,
    ``BEST_ACCURACY``.
    """
    rows = generated.ROWS[split]
    # ``flipped``: rows with a label that breaks the rule.
    sentences, labels, flipped = generated.draw_sentences(split, rows=rows, seed=3)
    wrong = [row for row, text in enumerate(sentences) if label_by_grammar(text) != labels[row]]
    assert wrong == flipped
    assert 1 - len(wrong) / rows == generated.BEST_ACCURACY


@pytest.mark.parametrize("vocabulary_file", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("length", [8, 24])
def test_ids_equal_those_of_the_library_tokenizer(folder, vocabulary_file, length):
    """Our token ids of unusual texts are those of the tokenizer of ``transformers``.

    The fixture ``folder`` is a small valid data folder, and ``REAL`` the recipe that trains on it.
    ``UNUSUAL_TEXTS`` holds eleven texts with accents, Chinese, odd spaces, 150 times "x" and such.

    Args:
        vocabulary_file: from which our tokenizer reads its words.
        length: ``seq_length``; 8 is so short that some texts are cut.
    """
    from transformers import DistilBertTokenizer

    library_tokenizer = DistilBertTokenizer(vocab=str(folder / "model" / "vocab.txt"))
    if vocabulary_file == "tokenizer.json":
        # A model folder may have either file; this one leaves only tokenizer.json.
        library_tokenizer.backend_tokenizer.save(str(folder / "model" / "tokenizer.json"))
        (folder / "model" / "vocab.txt").unlink()
    write_split(folder, "train", UNUSUAL_TEXTS, [0] * len(UNUSUAL_TEXTS))  # any valid labels
    rows = data.load(folder, replace(REAL, seq_length=length)).train
    (ids, mask, _), counts = rows.batch(np.arange(len(UNUSUAL_TEXTS)))
    expected = library_tokenizer(
        UNUSUAL_TEXTS, padding="max_length", truncation=True, max_length=length
    )
    assert ids.tolist() == expected["input_ids"]
    assert mask.astype(int).tolist() == expected["attention_mask"]
    assert (counts.tokens, counts.tokens_padded) == (mask.sum(), len(UNUSUAL_TEXTS) * length)
    untruncated = library_tokenizer(UNUSUAL_TEXTS)["input_ids"]
    assert rows.num_truncated == sum(len(row) > length for row in untruncated)


def write_weights(model, *, without=(), extra=None):
    """Write zeros of the right shapes into the model folder ``model``.

    Args:
        without: names of weights to leave out.
        extra: further tensors by name.
    """
    tensors = {
        name: np.zeros(shape, np.float32)
        for name, shape in compute_expected_shapes(read_config(model)).items()
        if name not in without
    }
    save_file(tensors | (extra or {}), model / "model.safetensors")


def test_weights_without_a_head_and_with_a_language_model_head_are_accepted(folder):
    """Layers that a training adds may be missing in a model; all others must be there.

    The head, which classifies, is added. ``PRETRAINED`` is the recipe ``REAL`` with
    ``init="pretrained"``; the fixture is a valid data folder without a weights file.
    """
    head_weights = [
        f"{layer}.{kind}"
        for layer in ("classifier", "pre_classifier")
        for kind in ("weight", "bias")
    ]
    # ``init="pretrained"`` needs a weights file; ``REAL`` starts from random weights and
    # needs none.
    assert "no model.safetensors and no pytorch_model.bin" in read_fault(folder, PRETRAINED)
    # As published for masked language modelling: no classifier, but ``vocab_transform``.
    write_weights(
        folder / "model",
        without=head_weights,
        extra={"vocab_transform.bias": np.zeros(3, np.float32)},
    )
    facts = data.check(folder, PRETRAINED)
    assert facts.quality_comparable
    assert facts.best_quality is None  # unlike generated data
    # The weights that a training starts from are part of the id.
    assert facts.content_id != data.check(folder, REAL).content_id
    # Any other weight is required.
    write_weights(folder / "model", without=["distilbert.embeddings.LayerNorm.bias"])
    assert "missing weights: distilbert.embeddings.LayerNorm.bias" in read_fault(folder, PRETRAINED)


def set_config(folder, **changes):
    """Change entries of the model's ``config.json`` in a data folder."""
    file = folder / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder_path: (folder_path / "validation.parquet").unlink(), "no validation split"),
        (
            lambda folder_path: pq.write_table(
                pa.table({"text": ["a"], "label": [0]}), folder_path / "train.parquet"
            ),
            "not readable as parquet with sentence and label",
        ),
        (
            lambda folder_path: write_split(folder_path, "train", ["a", "b", "c"], [0, 1, 2]),
            "train.parquet, row 3, label: the label is 2",
        ),
        (
            lambda folder_path: set_config(folder_path, n_heads=3),
            "n_heads must divide dim (64)",
        ),
        (
            lambda folder_path: (folder_path / "model" / "vocab.txt").unlink(),
            "no tokenizer.json and no vocab.txt",
        ),
        (lambda folder_path: set_config(folder_path, vocab_size=20), "vocab_size (20)"),
        (
            lambda folder_path: set_config(folder_path, max_position_embeddings=16),
            "add seq_length=16",
        ),
        (lambda folder_path: set_config(folder_path, num_labels=3), "num_labels is 3"),
        (
            lambda folder_path: set_config(folder_path, id2label={"0": "a", "1": "b", "2": "c"}),
            "SST-2 needs 2 labels",
        ),
        (
            lambda folder_path: set_config(folder_path, pruned_heads={"0": [1]}),
            'pruned_heads is {"0": [1]}',
        ),
        (lambda folder_path: set_config(folder_path, hidden_size=128), "hidden_size is 128"),
        (lambda folder_path: set_config(folder_path, activation="tanh"), "activation is 'tanh'"),
    ],
)
def test_each_fault_of_a_text_folder_names_its_place(folder, damage, says):
    """The fixture folder is valid, with a model of width 64 and a recipe of 24 tokens.

    Args:
        damage: does something to the folder after which it is not valid.
        says: a part of the error.
    """
    damage(folder)
    assert says in read_fault(folder)


def write_npz(folder, split, **changes):
    """Write three valid rows of 4 tokens, padded to 24; ``changes`` replace arrays by name.

    24 is the ``seq_length`` of the recipes in these tests. A row's ids are a start token (2), any
    two words (9 and 10), an end token (3) and the padding (0); its mask has a 1 for each token that
    is no padding. ``data.NPZ.names`` has the file name of each split in this layout.
    """
    arrays = {
        "idx": np.arange(3),
        "sentence": np.array(["a b"] * 3),
        "label": np.array([0, 1, 0]),
        "input_ids": np.tile([2, 9, 10, 3] + [0] * 20, (3, 1)),
        "attention_mask": np.tile([1] * 4 + [0] * 20, (3, 1)),
        **changes,
    }
    (folder / "dataset").mkdir(exist_ok=True)
    np.savez(folder / "dataset" / data.NPZ.names[split][0], **arrays)


@pytest.mark.parametrize(
    ("changes", "expected_error"),
    [
        ({}, None),
        ({"label": np.array([0, 1, 2])}, "label, row 3: label is not valid: 2"),
        # Masks must be ones, then zeros; ids must be in the vocabulary and as long as
        # ``seq_length``.
        ({"attention_mask": np.tile([1, 0] * 12, (3, 1))}, "attention_mask, row 1"),
        (
            {"attention_mask": np.ones((3, 24), int), "input_ids": np.full((3, 24), 999)},
            "input_ids, row 1: input_ids is not valid: 999",
        ),
        (
            # The largest id is valid, so the error must show the other one.
            {"attention_mask": np.ones((3, 24), int), "input_ids": np.tile([-7, 3], (3, 12))},
            "input_ids, row 1: input_ids is not valid: -7",
        ),
        ({"input_ids": np.zeros((3, 7), int)}, "input_ids: int64 (3, 7)"),
        # Rows without room for a token.
        (
            {"attention_mask": np.ones((3, 0), int), "input_ids": np.ones((3, 0), int)},
            "input_ids: int64 (3, 0)",
        ),
        # An array of objects would need pickle, which may run code.
        ({"label": np.array(["0"] * 3, object)}, "not readable as npz"),
        # The mask is one token shorter than the ids.
        ({"attention_mask": np.tile([1] * 3 + [0] * 21, (3, 1))}, "must equal the pad_token_id"),
        # ``idx`` and ``sentence`` are not trained, but must have the same number of rows.
        ({"idx": np.arange(4)}, "idx has shape (4,), but label has 3 rows"),
        ({"sentence": np.array(["a b"])}, "sentence has shape (1,), but label has 3 rows"),
        ({"idx": np.array([2, 2, 2])}, "row 2 appears 3 times"),
    ],
)
def test_npz_rows_are_read_and_checked(tmp_path, changes, expected_error):
    """Three valid rows are read (``expected_error`` None); those with a change are refused."""
    write_npz(tmp_path, "train", **changes)
    write_npz(tmp_path, "validation")
    generated.write_model_folder(tmp_path / "model")
    if expected_error is None:
        # Padding is not part of a row's ids.
        loaded = data.load(tmp_path, REAL)
        assert loaded.train.ids.get_row(1).tolist() == [2, 9, 10, 3]
        assert loaded.train.labels.tolist() == [0, 1, 0]
        return
    assert expected_error in read_fault(tmp_path)


SEPARATED = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven\reight"


def test_tsv_with_byte_order_mark_and_crlf_is_read_and_only_line_ends_split_rows(tmp_path):
    """Copies of SST-2 that a spreadsheet saved begin with the mark; quotes stay characters.

    Both splits have the same two rows. ``prepare`` writes a folder next to this one, which a run
    can read; ``print`` shows its progress.
    """
    generated.write_model_folder(tmp_path / "model")
    # ``SEPARATED`` has all other characters at which ``str.splitlines`` splits.
    rows = ["sentence\tlabel", f"{SEPARATED}\t1", '"quoted at the start only\t0', ""]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())
    texts = read_texts([tmp_path / "train.tsv"])
    assert texts.sentences == [SEPARATED, '"quoted at the start only']
    assert texts.labels == [1, 0]
    prepare(tmp_path, tmp_path.with_name(f"{tmp_path.name}-made"), print)
    assert data.check(tmp_path.with_name(f"{tmp_path.name}-made"), REAL).train_samples == 2


def test_vocabulary_with_byte_order_mark_and_crlf_gives_the_same_ids(folder):
    """The mark and the line ends, as some editors save them, are no part of any word.

    ``REAL`` is the recipe ``tiny`` with the data of a folder instead of generated data.
    ``ids.values`` are the token ids of all training sentences, one behind the other.
    """
    expected = data.load(folder, REAL).train.ids.values
    file = folder / "model" / "vocab.txt"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    np.testing.assert_array_equal(data.load(folder, REAL).train.ids.values, expected)


@pytest.mark.parametrize(
    ("sentence", "label", "where", "fix"),
    [(None, 0, "row 2, sentence", "remove the row"), ("a", -1, "row 2, label", "no labels")],
)
def test_row_without_sentence_or_label_is_named_with_its_column(
    folder, sentence, label, where, fix
):
    """The second training row has no sentence (None), or the label -1.

    ``where`` is the row and the column that the error names, ``fix`` a part of its advice.
    """
    write_split(folder, "train", ["good film", sentence], [1, label])
    with pytest.raises(DataError) as caught:
        prepare(folder, folder.with_name(f"{folder.name}-made"), print)
    assert caught.value.where == f"{folder / 'train.parquet'}, {where}"
    assert fix in caught.value.fix
    # The usual fix of a faulty folder, to prepare it anew, would not help here.
    assert "prepare" not in caught.value.fix


@pytest.mark.parametrize("labels", [[1.0, 0.0], [True, False]])
def test_parquet_labels_of_another_type_are_read_as_integers(folder, labels):
    """A library that saw missing labels writes floats; the rows are those of the labels 1, 0."""
    sentences = ["good film", "bad film"]
    write_split(folder, "train", sentences, [1, 0])
    expected = data.check(folder, REAL)
    write_split(folder, "train", sentences, labels)
    assert data.load(folder, REAL).train.labels.tolist() == [1, 0]
    assert data.check(folder, REAL) == expected


def test_parquet_tsv_and_npz_hold_the_same_rows(tmp_path):
    """The same texts are written as parquet and as tsv; ``prepare`` makes npz of the tsv files.

    Both splits have all of ``UNUSUAL_TEXTS``, with the labels 0 and 1 in turn. 64
    tokens (``seq_length``) are the most that the model takes; none of the texts has so many.
    """
    labels = [row % 2 for row in range(len(UNUSUAL_TEXTS))]
    (tmp_path / "tsv" / "data").mkdir(parents=True)
    # SST-2 calls the validation file dev.tsv.
    for split, tsv in (("train", "train"), ("validation", "dev")):
        write_split(tmp_path / "parquet", split, UNUSUAL_TEXTS, labels)
        lines = [f"{text}\t{label}\n" for text, label in zip(UNUSUAL_TEXTS, labels, strict=True)]
        (tmp_path / "tsv" / "data" / f"{tsv}.tsv").write_text(
            "sentence\tlabel\n" + "".join(lines), encoding="utf-8", newline=""
        )
    for name in ("parquet", "tsv"):
        generated.write_model_folder(tmp_path / name / "model")
    write_weights(tmp_path / "tsv" / "model")  # ``prepare`` copies them to the npz folder
    outputs = []
    prepare(tmp_path / "tsv", tmp_path / "npz", outputs.append)
    # ``UNUSUAL_TEXTS`` has 11 rows; the published data set has more.
    assert any(
        line.startswith("train: 11 rows") and "NOT the published" in line for line in outputs
    )
    recipe = replace(REAL, seq_length=64)
    expected = data.load(tmp_path / "parquet", recipe)
    for name in ("tsv", "npz"):
        content = data.load(tmp_path / name, recipe)
        for split in data.SPLITS:
            expected_split, split_content = getattr(expected, split), getattr(content, split)
            np.testing.assert_array_equal(expected_split.ids.values, split_content.ids.values)
            np.testing.assert_array_equal(expected_split.ids.starts, split_content.ids.starts)
            np.testing.assert_array_equal(expected_split.labels, split_content.labels)
    # Passes only with the weights that ``prepare`` copied.
    assert data.check(tmp_path / "npz", replace(recipe, init="pretrained")).layout == "npz"
    # Not npz: its id is of token ids, those of the other two are of sentences.
    ids = {data.check(tmp_path / name, recipe).content_id for name in ("tsv", "parquet")}
    assert len(ids) == 1
