"""Loaders, checks and generated data of distilbert_sst2; no torch."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainmark.cases.distilbert_sst2 import data
from trainmark.cases.distilbert_sst2.case import CASE
from trainmark.cases.distilbert_sst2.data import generated
from trainmark.cases.distilbert_sst2.data.weights import expected_shapes
from trainmark.errors import DataError

TINY = CASE.recipes["tiny"]
REAL = replace(TINY, data="real")
ROWS = 12


def write_split(folder, split, sentences, labels):
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"sentence": sentences, "label": labels})
    pq.write_table(table, folder / f"{split}.parquet")


def write_npz(folder, split, **changes):
    rows = 3
    arrays = {
        "idx": np.arange(rows), "sentence": np.array(["a b"] * rows), "label": np.array([0, 1, 0]),
        "input_ids": np.tile([2, 9, 10, 3] + [0] * 20, (rows, 1)),
        "attention_mask": np.tile([1] * 4 + [0] * 20, (rows, 1)),
    } | changes  # fmt: skip
    (folder / "dataset").mkdir(parents=True, exist_ok=True)
    file = folder / "dataset" / data.NPZ.names[split][0]
    np.savez(file, **{key: item for key, item in arrays.items() if item is not None})
    return file


@pytest.fixture
def folder(tmp_path):
    """A small sound data folder in parquet form, with a model and no weights."""
    for split in data.SPLITS:
        sentences, labels, _ = generated.sentences(split, rows=ROWS, seed=1)
        write_split(tmp_path, split, sentences, labels)
    generated.write_model_folder(tmp_path / "model")
    return tmp_path


@pytest.fixture
def npz_folder(tmp_path):
    for split in data.SPLITS:
        write_npz(tmp_path, split)
    generated.write_model_folder(tmp_path / "model")
    return tmp_path


def fault(folder, recipe=REAL):
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    error = caught.value
    assert error.where, error.what
    assert error.remedy, error.what
    return str(error)


def test_generated_data_is_deterministic_and_passes_the_check(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        data.generate(tmp_path / name, TINY)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert [str(file) for file in files] == [
        "data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet",
        "model/config.json", "model/tokenizer_config.json", "model/vocab.txt",
    ]  # fmt: skip
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    facts = data.check(tmp_path / "one", TINY)
    assert (facts.train_samples, facts.eval_samples) == (6_400, 1_000)
    assert facts.layout == "parquet"
    assert facts.best_quality == 0.96
    assert not facts.quality_comparable
    assert data.check(tmp_path / "two", TINY) == facts


def true_label(sentence):
    """Judge as a reader who knows the grammar: the adjective, and a ``not`` right before it."""
    words = sentence.split()
    at = next(i for i, w in enumerate(words) if w in (*generated.POSITIVE, *generated.NEGATIVE))
    return int((words[at] in generated.POSITIVE) != (words[at - 1] == "not"))


@pytest.mark.parametrize("split", data.SPLITS)
def test_the_known_rule_scores_exactly_the_best_accuracy(split):
    rows = generated.ROWS[split]
    sentences, labels, flipped = generated.sentences(split, rows=rows, seed=3)
    wrong = [row for row, text in enumerate(sentences) if true_label(text) != labels[row]]
    assert wrong == flipped
    assert 1 - len(wrong) / rows == generated.BEST_ACCURACY


def test_words_without_order_cannot_reach_the_target():
    """The best guess from (adjective's side, number of ``not``) stays under 0.91."""
    votes = {}
    sentences, labels, _ = generated.sentences("train", rows=6_400, seed=1)
    for sentence, label in zip(sentences, labels, strict=True):
        words = sentence.split()
        side = any(word in generated.POSITIVE for word in words)
        votes.setdefault((side, words.count("not")), []).append(label)
    best = sum(max(sum(group), len(group) - sum(group)) for group in votes.values())
    assert best / len(labels) < 0.905


def test_generated_sentences_tokenise_without_unknown_words_and_fit(tmp_path):
    data.generate(tmp_path, TINY)
    loaded = data.load(tmp_path, TINY)
    assert generated.vocabulary()[1] == "[UNK]"
    assert not (loaded.train.tokens == 1).any()
    assert loaded.train.truncated == 0
    assert loaded.train.lengths.max() <= TINY.seq_length


ODD = [
    "plain words", "  spaces \u00a0 around  ", "ÉCLAIRS naïve façade", "hide new secretions from ",
    "don't -- stop !?", "中文 and é", "tab-free \u200b zero width", "simply mostly", "x" * 150,
    "[SEP] in the text", "quote \" and ' signs",
]  # fmt: skip


def test_parquet_tsv_and_npz_hold_the_same_rows(tmp_path):
    from trainmark.cases.distilbert_sst2.prepare import prepare

    labels = [row % 2 for row in range(len(ODD))]
    (tmp_path / "tsv").mkdir()
    for split, tsv in (("train", "train"), ("validation", "dev")):
        write_split(tmp_path / "parquet", split, ODD, labels)
        lines = [f"{text}\t{label}\n" for text, label in zip(ODD, labels, strict=True)]
        (tmp_path / "tsv" / f"{tsv}.tsv").write_text(
            "sentence\tlabel\n" + "".join(lines), encoding="utf-8", newline=""
        )
    for name in ("parquet", "tsv"):
        generated.write_model_folder(tmp_path / name / "model")
    write_weights(tmp_path / "tsv" / "model")
    prepare(tmp_path / "tsv", tmp_path / "npz", lambda _: None)
    recipe = replace(REAL, seq_length=64)
    wanted = data.load(tmp_path / "parquet", recipe)
    for name in ("tsv", "npz"):
        found = data.load(tmp_path / name, recipe)
        for split in data.SPLITS:
            for field in ("tokens", "starts", "labels"):
                left, right = (getattr(getattr(item, split), field) for item in (wanted, found))
                np.testing.assert_array_equal(left, right)
    assert data.check(tmp_path / "npz", recipe).layout == "npz"
    assert (
        data.check(tmp_path / "tsv", recipe).content_id
        == data.check(tmp_path / "parquet", recipe).content_id
    )


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("length", [8, 24])
def test_ids_equal_those_of_the_library_tokenizer(folder, form, length):
    from transformers import DistilBertTokenizer

    theirs = DistilBertTokenizer(vocab=str(folder / "model" / "vocab.txt"))
    if form == "tokenizer.json":
        theirs.backend_tokenizer.save(str(folder / "model" / "tokenizer.json"))
        (folder / "model" / "vocab.txt").unlink()
    write_split(folder, "train", ODD, [0] * len(ODD))
    rows = data.load(folder, replace(REAL, seq_length=length)).train
    ids, mask = rows.padded(np.arange(len(ODD)), seq_length=length, pad_token_id=0)
    wanted = theirs(ODD, padding="max_length", truncation=True, max_length=length)
    assert ids.tolist() == wanted["input_ids"]
    assert mask.astype(int).tolist() == wanted["attention_mask"]
    long = theirs(ODD)["input_ids"]
    assert rows.truncated == sum(len(row) > length for row in long)


def test_numbered_parts_are_read_in_order(folder):
    whole = data.load(folder, REAL).train
    table = pq.read_table(folder / "train.parquet")
    (folder / "train.parquet").unlink()
    (folder / "data").mkdir()
    (folder / "validation.parquet").rename(folder / "data" / "validation-00000-of-00001.parquet")
    for part in range(2):
        name = f"train-{part:05d}-of-00002.parquet"
        pq.write_table(table.slice(part * 6, 6), folder / "data" / name)
    np.testing.assert_array_equal(data.load(folder, REAL).train.tokens, whole.tokens)
    (folder / "data" / "train-00001-of-00002.parquet").unlink()
    assert "train-00001-of-00002.parquet: no such file" in fault(folder)


def write_weights(model, *, without=(), extra=None, config=None):
    from safetensors.numpy import save_file

    from trainmark.cases.distilbert_sst2.data.model_files import read_config

    shapes = expected_shapes(config or read_config(model))
    tensors = {
        name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name not in without
    }
    save_file(tensors | (extra or {}), model / "model.safetensors")


def test_weights_without_head_and_with_language_head_pass(folder):
    heads = [f"{a}.{b}" for a in ("classifier", "pre_classifier") for b in ("weight", "bias")]
    write_weights(
        folder / "model", without=heads, extra={"vocab_transform.bias": np.zeros(3, np.float32)}
    )
    facts = data.check(folder, replace(REAL, init="pretrained"))
    assert facts.quality_comparable
    assert facts.best_quality is None
    assert facts.content_id != data.check(folder, REAL).content_id


def set_config(folder, **changes):
    file = folder / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


PRETRAINED = replace(REAL, init="pretrained")


def cut(file, size):
    file.write_bytes(file.read_bytes()[:size])


def text_damage(name):
    """Return a function that damages a parquet folder."""

    def damage(folder):  # noqa: PLR0912
        train, model = folder / "train.parquet", folder / "model"
        if name == "missing file":
            (folder / "validation.parquet").unlink()
        elif name == "empty file":
            train.write_bytes(b"")
        elif name == "zero rows":
            write_split(folder, "train", pa.array([], pa.string()), pa.array([], pa.int64()))
        elif name == "wrong columns":
            pq.write_table(pa.table({"text": ["a"], "label": [0]}), train)
        elif name == "label":
            write_split(folder, "train", ["a", "b", "c"], [0, 1, 2])
        elif name == "float label":
            write_split(folder, "train", ["a"], [0.5])
        elif name == "null label":
            write_split(folder, "train", ["a", "b"], [0, None])
        elif name == "null sentence":
            write_split(folder, "train", ["a", None], [0, 1])
        elif name == "blank sentence":
            write_split(folder, "train", ["a", " "], [0, 1])
        elif name == "number sentence":
            write_split(folder, "train", [1, 2], [0, 1])
        elif name == "corrupt parquet":
            cut(train, 200)
        elif name == "no config":
            (model / "config.json").unlink()
        elif name == "bad config":
            cut(model / "config.json", 20)
        elif name == "other model":
            set_config(folder, model_type="bert")
        elif name == "bad size":
            set_config(folder, dim=0)
        elif name == "bad heads":
            set_config(folder, n_heads=3)
        elif name == "no tokenizer":
            (model / "vocab.txt").unlink()
        elif name == "bad tokenizer":
            (model / "tokenizer.json").write_text("{}")
        elif name == "small vocab":
            set_config(folder, vocab_size=20)
        elif name == "no special token":
            (model / "vocab.txt").write_text("[PAD]\na\n")
        elif name == "long":
            set_config(folder, max_position_embeddings=16)

    return damage


TEXT_FAULTS = {
    "missing file": ["validation.parquet", "no validation split beside train.parquet"],
    "empty file": ["train.parquet: the file is empty (0 bytes)"],
    "zero rows": ["train.parquet: no rows"],
    "wrong columns": ["train.parquet: no column sentence; there are: text, label"],
    "label": ["train.parquet, row 3: label is 2; a label is 0 or 1"],
    "float label": ["column label holds double"],
    "null label": ["train.parquet, row 2: label is null"],
    "null sentence": ["train.parquet, row 2: sentence is null"],
    "blank sentence": ["train.parquet, row 2: the sentence is blank"],
    "number sentence": ["column sentence holds int64", "a sentence is text"],
    "corrupt parquet": ["train.parquet: not readable as parquet"],
    "no config": ["config.json: no such file"],
    "bad config": ["config.json: not readable as JSON"],
    "other model": ["config.json, model_type: model_type is 'bert'"],
    "bad size": ["config.json, dim: dim is 0", "above 0"],
    "bad heads": ["n_heads is 3", "dim is a multiple of n_heads: 64"],
    "no tokenizer": ["model: no tokenizer.json and no vocab.txt"],
    "bad tokenizer": ["tokenizer.json: not readable as a tokenizer"],
    "small vocab": ["vocab.txt: 75 tokens", "vocab_size 20"],
    "no special token": ["vocab.txt: no token [UNK], [CLS], [SEP], [MASK]"],
    "long": [
        "max_position_embeddings: the recipe's seq_length is 24",
        "16 positions",
        "add seq=16",
    ],
}


@pytest.mark.parametrize("name", TEXT_FAULTS)
def test_each_fault_of_a_text_folder_has_its_words(folder, name):
    text_damage(name)(folder)
    message = fault(folder)
    for words in TEXT_FAULTS[name]:
        assert words in message


def test_missing_and_strange_folders_are_told(tmp_path):
    assert "nowhere: no such folder" in fault(tmp_path / "nowhere")
    assert "no data files; a data folder holds" in fault(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("sentence\tlabel\ngood\t1\nbad\n", "train.tsv, row 2 (line 3): 1 tab-separated field(s)"),
        ("sentence\tlabel\ngood\t-1\n", "train.tsv, row 1 (line 2): label is '-1'; a label is 0"),
        ("index\tsentence\n0\tgood\n", "no column label; there are: index, sentence"),
        ("sentence\tlabel\n", "train.tsv: no rows"),
        ("", "train.tsv: the file is empty"),
        ("sentence\tlabel\n \t1\n", "row 1 (line 2): the sentence is blank"),
        ("sentence\tlabel\na\t1\n\xff\t1\n", "train.tsv, row 2 (line 3): byte 0xff is not UTF-8"),
    ],
)
def test_each_fault_of_a_tsv_file_has_its_words(folder, content, words):
    for split in data.SPLITS:
        (folder / f"{split}.parquet").unlink()
    (folder / "train.tsv").write_bytes(content.encode("latin-1"))
    (folder / "dev.tsv").write_bytes(b"sentence\tlabel\r\nfine\t1\r\n")
    assert words in fault(folder)


def mask_of(*rows):
    return np.array([list(row) + [0] * (24 - len(row)) for row in rows])


WIDE_IDS = np.tile([2, 9, 10, 3], (3, 8))
NPZ_FAULTS = {
    "no member": ({"label": None}, ["no array label; there are: idx, sentence"]),
    "lengths": ({"label": np.array([0, 1])}, ["label has shape (2,), input_ids (3, 24)"]),
    "zero rows": (
        {"idx": None, "sentence": None, "label": np.zeros(0, int),
         "input_ids": np.zeros((0, 24), int), "attention_mask": np.zeros((0, 24), int)},
        ["no rows"],
    ),
    "label": ({"label": np.array([0, 1, -1])}, ["label, row 3: label is -1; a label is 0 or 1"]),
    "pickled label": (
        {"label": np.array([0, 1, None], object)},
        ["not readable as npz: Object arrays cannot be loaded"],
    ),
    "id high": (
        {"input_ids": np.array([[2, 9, 10, 3] + [0] * 20, [2, 75, 10, 3] + [0] * 20] * 2)[:3]},
        ["input_ids, row 2: token id out of range: smallest 0, largest 75", "[0, 75)"],
    ),
    "id low": ({"input_ids": np.full((3, 24), -1)}, ["input_ids, row 1", "smallest -1"]),
    "narrow": (
        {"input_ids": np.full((3, 8), 5), "attention_mask": np.ones((3, 8), int)},
        ["rows are 8 tokens wide, the recipe's seq_length is 24", "seq=8"],
    ),
    "too long": (
        {"input_ids": WIDE_IDS, "attention_mask": np.ones((3, 32), int)},
        ["row 1: 32 tokens; a row has at most seq_length=24 tokens; rows are never cut"],
    ),
    "mask value": (
        {"attention_mask": mask_of([1], [1, 2], [1])},
        ["attention_mask, row 2: mask value 2; a mask value is 0 or 1"],
    ),
    "mask hole": (
        {"attention_mask": mask_of([1], [1], [1, 0, 1])},
        ["attention_mask, row 3: mask is not ones followed by zeros"],
    ),
    "mask empty": ({"attention_mask": mask_of([0], [1], [1])}, ["attention_mask, row 1"]),
    "mask shape": ({"attention_mask": np.ones((3, 20), int)}, ["rows are 20 tokens wide"]),
    "float ids": ({"input_ids": np.zeros((3, 24))}, ["input_ids has shape (3, 24) of float64"]),
}  # fmt: skip


@pytest.mark.parametrize("name", NPZ_FAULTS)
def test_each_fault_of_an_npz_file_has_its_words(npz_folder, name):
    changes, expected = NPZ_FAULTS[name]
    write_npz(npz_folder, "validation", **changes)
    message = fault(npz_folder)
    assert "eval_dataset.npz" in message
    for words in expected:
        assert words in message


def test_an_array_beyond_the_bound_is_refused(npz_folder, monkeypatch):
    monkeypatch.setattr("trainmark.cases.distilbert_sst2.data.arrays.MOST_BYTES", 400)
    assert "array attention_mask has 704 bytes; an array has at most 400" in fault(npz_folder)


def never(*_, **__):
    raise AssertionError("read again")


@pytest.mark.parametrize("form", ["folder", "npz_folder"])
def test_a_split_is_read_once_and_again_when_it_changed(request, monkeypatch, form):
    folder = request.getfixturevalue(form)
    facts, rows = data.check(folder, REAL), data.load(folder, REAL)
    with monkeypatch.context() as patch:
        patch.setattr(data, "_read", never)
        assert data.check(folder, REAL) == facts
        again = data.load(folder, REAL)
        for field in ("tokens", "starts", "labels"):
            expected, found = getattr(rows.train, field), getattr(again.train, field)
            np.testing.assert_array_equal(expected, found)
            assert expected.dtype == found.dtype
        with pytest.raises(AssertionError, match="read again"):
            data.load(folder, replace(REAL, seq_length=8))
    if form == "folder":
        write_split(folder, "train", ["good"], [1])
    else:
        write_npz(folder, "train", label=np.array([0, 1, 1]))
    assert data.check(folder, REAL).content_id != facts.content_id


def test_one_array_alone_is_no_split(npz_folder):
    with (npz_folder / "dataset" / "train_dataset.npz").open("wb") as stream:
        np.save(stream, np.zeros(3))
    assert "train_dataset.npz: not readable as npz: a single array" in fault(npz_folder)


@pytest.mark.parametrize("size", [10, 700])
def test_a_cut_npz_file_is_told(npz_folder, size):
    cut(npz_folder / "dataset" / "train_dataset.npz", size)
    assert "train_dataset.npz: not readable as npz" in fault(npz_folder)


def test_a_flipped_byte_in_an_npz_file_is_told(npz_folder):
    file = npz_folder / "dataset" / "train_dataset.npz"
    content = bytearray(file.read_bytes())
    at = content.index(np.int64(10).tobytes() + np.int64(3).tobytes())
    content[at] = 11
    file.write_bytes(content)
    assert "not readable as npz: Bad CRC-32 for file 'input_ids.npy'" in fault(npz_folder)


def test_pickled_sentences_are_never_loaded(npz_folder):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was loaded",))

    write_npz(npz_folder, "train", sentence=np.array([Bomb()] * 3, object))
    assert data.check(npz_folder, REAL).train_samples == 3
    assert len(data.load(npz_folder, REAL).train) == 3


def test_padding_past_seq_length_may_be_left_out(npz_folder):
    rows = data.load(npz_folder, replace(REAL, seq_length=4)).train
    ids, mask = rows.padded(np.array([2, 0]), seq_length=4, pad_token_id=0)
    assert ids.tolist() == [[2, 9, 10, 3]] * 2
    assert mask.all()


def test_missing_and_wrong_weights_are_told(folder):
    message = fault(folder, PRETRAINED)
    assert "model: no model.safetensors and no pytorch_model.bin" in message
    assert "add init=random, which is labelled performance-only" in message
    model = folder / "model"
    write_weights(model, extra={"qa_outputs.bias": np.zeros(2, np.float32)})
    assert "model.safetensors, qa_outputs.bias: unknown weight" in fault(folder, PRETRAINED)
    name = "distilbert.transformer.layer.1.ffn.lin1.weight"
    write_weights(model, without=[name])
    assert f"no weight {name}; the DistilBERT of model/config.json has" in fault(folder, PRETRAINED)
    write_weights(model, extra={name: np.zeros((4, 64), np.float32)})
    message = fault(folder, PRETRAINED)
    assert (
        f"{name} has shape (4, 64); the DistilBERT of model/config.json has it as (128, 64)"
        in message
    )
    cut(model / "model.safetensors", 300)
    assert "not readable as safetensors" in fault(folder, PRETRAINED)


def test_the_standard_recipes_are_the_published_ones():
    table = {
        name: (item.micro_batch_size, item.grad_accum_steps, item.learning_rate, item.world)
        for name, item in CASE.recipes.items()
        if name != "tiny"
    }
    assert table == {
        "standard-1x1": (32, 8, 5e-5, "1x1"), "standard-1x8": (32, 1, 5e-5, "1x8"),
        "standard-2x8": (16, 1, 5e-5, "2x8"), "throughput-1x1": (96, 8, 1.5e-4, "1x1"),
        "throughput-1x8": (96, 1, 5e-5, "1x8"), "throughput-2x8": (96, 1, 5e-5, "2x8"),
    }  # fmt: skip
    for name in table:
        recipe = CASE.recipes[name]
        assert (recipe.seq_length, recipe.precision, recipe.weight_decay) == (512, "fp32", 0.0)
        quality = name.startswith("standard")
        assert recipe.target_value == (0.91 if quality else None)
        assert recipe.eval_every_epochs == (1 if quality else None)
        assert (recipe.max_steps is None) == quality


def test_the_case_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, trainmark.cases.distilbert_sst2.case as case; "
        "heavy = {'torch', 'numpy', 'pyarrow', 'tokenizers', 'pydantic'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
