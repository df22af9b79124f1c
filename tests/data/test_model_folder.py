"""Model folders: keys of config.json, headers of weights, the match with what a model expects."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from safetensors.torch import save_file
from transformers import DistilBertConfig, LlamaConfig

from trainmark.cases.distilbert_sst2.data.model_files import ModelConfig as DistilbertKeys
from trainmark.cases.llama2_7b_lora.model_files import ModelConfig as LlamaKeys
from trainmark.data.model_folder import (
    DEFAULTS,
    INDEX_FILE,
    SINGLE_FILE,
    ConfigKeys,
    ModelWeights,
    Share,
    Size,
    StoredTensor,
    find_weight_files,
    list_folder_tensors,
    read_config,
)
from trainmark.errors import DataError
from trainmark.train.checkpoints import list_stored_weights

FAULT = partial(DataError, rule="a folder of a model", fix="fetch it")


class Keys(ConfigKeys):
    """The keys of config.json of a model that exists only in these tests."""

    model_type: Literal["small"] = Field(description='this case trains "small"')
    width: Size = Field(alias="hidden_size")
    heads: Size = 1
    dropout: Share = 0.1
    tied: Literal[False] = Field(False, exclude=True)
    unused_keys: ClassVar[frozenset[str]] = frozenset({"of_the_writer"})
    defaults: ClassVar[dict[str, Any]] = {"bias": False, "rate": 0.0}

    @field_validator("heads")
    @classmethod
    def _check_division(cls, value: int, info: ValidationInfo) -> int:
        """Refuse a number of heads that does not divide the width (the key hidden_size)."""
        if info.data["width"] % value:
            raise ValueError("a divisor of hidden_size")
        return value

    @model_validator(mode="after")
    def _refuse_huge(self) -> Keys:
        """Refuse a model by two of its fields; only this test's model has such a rule."""
        if self.width * self.heads > 10**6:
            raise ValueError("a million weights at most")
        return self


SOUND: dict[str, Any] = {"model_type": "small", "hidden_size": 8, "of_the_writer": {"a": 1}}


def read_model_config(folder: Path, content: Any) -> Keys:
    """Write ``content`` as config.json, an object or the text itself, and read it as ``Keys``.

    ``Keys`` declares the keys of a model that exists only in these tests. What is wrong in the file
    is raised as ``FAULT``, a ``DataError`` with the fix "fetch it".
    """
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_config(folder, Keys, FAULT)


def test_valid_config_is_read_and_keeps_its_keys(tmp_path: Path) -> None:
    # ``SOUND`` has the type "small", the width 8 and a key without effect; by default, heads is 1.
    # ``width`` is the field of the key hidden_size; ``tied`` may only be False.
    config = read_model_config(tmp_path, {**SOUND, "dropout": 0, "tied": False})
    assert (config.width, config.heads, config.dropout) == (8, 1, 0.0)
    # Written anew, without keys that have one allowed value only or no effect.
    assert config.raw == {"model_type": "small", "hidden_size": 8, "dropout": 0.0}


@pytest.mark.parametrize(
    ("changes", "key", "what", "rule"),
    [
        ({"model_type": "other"}, "model_type", "is 'other'", 'this case trains "small"'),
        ({"hidden_size": 0}, "hidden_size", "is 0", "must be a whole number above 0"),
        # A long value is shortened.
        ({"hidden_size": [8] * 99}, "hidden_size", "8, 8, 8", "must be a whole"),
        ({"heads": 3}, "heads", "is 3", "a divisor of hidden_size"),
        ({"dropout": 1}, "dropout", "is 1", "a number in [0, 1)"),
        ({"tied": True}, "tied", "is True", "False"),
    ],
)
def test_a_value_outside_its_range_is_named(
    tmp_path: Path, changes: dict[str, Any], key: str, what: str, rule: str
) -> None:
    # ``SOUND``: the keys of a file without faults, with the width 8 at hidden_size. ``changes``
    # make one of them wrong; ``what`` and ``rule`` are parts of the error, which names the file and
    # the ``key``.
    with pytest.raises(DataError) as caught:
        read_model_config(tmp_path, {**SOUND, **changes})
    error = caught.value
    assert error.where == f"{tmp_path / 'config.json'}, {key}"
    assert error.what.startswith(key)
    assert what in error.what
    assert rule in str(error.rule)
    assert error.fix == "fetch it"  # that of ``FAULT``, with which the tests read


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": False, "rate": 0},
        {"bias": None, "unheard_of": None},
        {"use_cache": True, "torch_dtype": "float16", "temperature": 0.7, "is_decoder": False},
    ],
)
def test_keys_without_effect_are_ignored(tmp_path: Path, changes: dict[str, Any]) -> None:
    # They have the only value that this model can have (``Keys`` declares bias False and rate 0),
    # or no value, or are only about generating text and storage. ``SOUND``: a file without faults.
    assert read_model_config(tmp_path, {**SOUND, **changes}).raw == {
        "model_type": "small",
        "hidden_size": 8,
    }


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"bias": True}, "bias is true"),
        ({"rate": 0.1}, "rate is 0.1"),
        ({"unheard_of": {"b": 1}}, 'unheard_of is {"b": 1}'),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"width": 9}, "width is 9"),  # the field's name: the file's key is hidden_size
    ],
)
def test_key_that_may_change_the_model_is_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    # ``SOUND``: the keys of a file without faults. ``Keys`` declares that bias is False and rate is
    # 0; another value, and a key that it does not know at all, may mean another model.
    with pytest.raises(DataError) as caught:
        read_model_config(tmp_path, {**SOUND, **changes})
    assert caught.value.what == what
    assert caught.value.where == f"{tmp_path / 'config.json'}, {next(iter(changes))}"
    assert caught.value.rule
    assert caught.value.fix


@pytest.mark.parametrize(
    ("library", "keys"), [(LlamaConfig, LlamaKeys), (DistilBertConfig, DistilbertKeys)]
)
def test_every_key_of_transformers_is_used_or_fixed_or_listed_as_unused(
    tmp_path: Path, library: Any, keys: type[ConfigKeys]
) -> None:
    # The configuration with default values, as the library writes it.
    written = library(attn_implementation="sdpa").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert read_config(tmp_path, keys, FAULT)  # raises for a key that it does not know
    # ``DEFAULTS`` and the class's own ``defaults``: keys with the one value that is accepted. These
    # values are the library's own defaults.
    for key, value in {**DEFAULTS, **keys.defaults}.items():
        assert written.get(key) in (value, None)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "not readable as JSON"),
        ("[]", "not a table of keys and values"),
    ],
)
def test_config_that_is_not_an_object_is_refused(tmp_path: Path, content: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read_model_config(tmp_path, content)


SHAPES = {"table": (8, 4), "layers.0.weight": (4, 4), "head.bias": (2,)}


def make_expected_tensors(**changes: Any) -> ModelWeights:
    """Return the three weights of ``SHAPES`` as what a model expects, with changed settings.

    ``SHAPES`` has the shapes of table, layers.0.weight and head.bias.

    Args:
        changes: fields of ``ModelWeights``, such as ``optional_prefixes``, with other values.
    """
    fields = {"model": "the model", "shapes": SHAPES, "fix": "use another"}
    return ModelWeights(**{**fields, **changes})


def make_stored_tensors(prefix: str = "", **changes: Any) -> list[StoredTensor]:
    """Return tensors of one file with the shapes of ``SHAPES`` and changes; None removes one.

    Args:
        prefix: what stands before the model's name of each weight in the file.
        changes: by name of the weight, another shape; other names add tensors.
    """
    shapes = {**SHAPES, **changes}
    return [
        StoredTensor(Path("file"), f"{prefix}{key}", shape)
        for key, shape in shapes.items()
        if shape is not None
    ]


def test_every_weight_is_matched_by_the_models_name() -> None:
    match = make_expected_tensors().match(make_stored_tensors(), where=Path("folder"))
    assert {name: tensor.key for name, tensor in match.items()} == {name: name for name in SHAPES}


def test_optional_weights_may_be_missing_and_unused_ones_stored() -> None:
    # ``SHAPES`` has the weights table, layers.0.weight and head.bias. ``make_stored_tensors``
    # returns the tensors of a file, ``make_expected_tensors`` what the model needs. ``match``
    # returns, by the model's name of a weight, the tensor that is stored for it.
    without_head = make_stored_tensors(**{"head.bias": None})
    head_is_optional = make_expected_tensors(optional_prefixes=("head.",))
    match = head_is_optional.match(without_head, where=Path("folder"))
    assert set(match) == {"table", "layers.0.weight"}
    with_extra = make_stored_tensors(extra=(3,))
    extra_is_unused = make_expected_tensors(is_unused=lambda name: name == "extra")
    assert set(extra_is_unused.match(with_extra, where=Path("folder"))) == set(SHAPES)


@pytest.mark.parametrize(
    ("changes", "what", "where", "rule"),
    [
        ({"table": (8, 5)}, "table has shape (8, 5)", "file, table",
         "the weight must have shape (8, 4), as in the model"),
        ({"table": None, "head.bias": None}, "missing weights: table, and 1 more", "folder, table",
         "the model has 3 weights"),
        ({"extra": (3,)}, "unknown weight extra", "file, extra", "the model has no such weight"),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_refused(
    changes: dict[str, Any], what: str, where: str, rule: str
) -> None:
    # The model has the three weights table (8 x 4), layers.0.weight and head.bias. They are stored
    # in "file", in the folder "folder", with ``changes`` of their shapes; None: not stored.
    with pytest.raises(DataError) as caught:
        make_expected_tensors().match(make_stored_tensors(**changes), where=Path("folder"))
    error = caught.value
    assert (error.what, error.where, error.rule) == (what, where, rule)
    assert error.fix == "use another"


def test_weight_that_is_stored_twice_is_refused() -> None:
    # ``make_stored_tensors`` returns the model's three weights, ``table`` among them, as those of a
    # file named "file"; a second file, "other", has ``table`` too.
    twice = [*make_stored_tensors(), StoredTensor(Path("other"), "table", SHAPES["table"])]
    with pytest.raises(DataError, match="table is also in file") as caught:
        make_expected_tensors().match(twice, where=Path("folder"))
    assert caught.value.where == "other, table"


@pytest.mark.parametrize(
    ("listed", "where", "what"),
    [
        ({"a": "1.safetensors", "b": "2.safetensors"}, None, None),
        ({"a": "2.safetensors", "b": "1.safetensors"}, "1.safetensors, a", "a is not listed"),
        ({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}, "2.safetensors, c",
         "c is missing"),
        ({"a": "1.safetensors"}, None, None),  # the other file is not this index's
    ],
)  # fmt: skip
def test_files_must_hold_the_tensors_of_their_index(
    tmp_path: Path, listed: dict[str, str], where: str | None, what: str | None
) -> None:
    # File 1 holds tensor a, file 2 holds b. ``listed`` is what the index says: the file of each
    # tensor. ``where`` is what the error names below the folder; None: the folder is accepted.
    # ``FAULT`` makes a ``DataError``.
    for number, name in enumerate("ab", 1):
        save_file({name: torch.ones(2)}, tmp_path / f"{number}.safetensors")
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": listed}))
    if where is None:
        assert {tensor.key for tensor in list_folder_tensors(tmp_path, FAULT)} == set(listed)
        return
    with pytest.raises(DataError, match=what) as caught:
        list_folder_tensors(tmp_path, FAULT)
    assert caught.value.where == f"{tmp_path}/{where}"


def read_stored_weights(file: Path) -> list[StoredTensor]:
    """Return the key and the shape of each tensor of a file; ``FAULT`` makes the error."""
    return list_stored_weights(file, FAULT)


@pytest.mark.parametrize("kind", ["safetensors", "state", "module", "old"])
def test_names_and_shapes_are_read_from_headers_of_each_format(tmp_path: Path, kind: str) -> None:
    # state: weights alone, by name; module: weights within a checkpoint, beside other tensors and
    # arrays; old: torch's form before zip archives. ``SINGLE_FILE`` is "model.safetensors".
    state = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.ones(())}
    file = tmp_path / (SINGLE_FILE if kind == "safetensors" else "weights.pt")
    if kind == "safetensors":
        save_file(state, file)
    elif kind == "module":
        rng = np.random.get_state()[1]
        torch.save({"module": state, "rng": torch.get_rng_state(), "numpy": rng}, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=kind != "old")
    assert {x.key: x.shape for x in read_stored_weights(file)} == {
        "a": (2, 3),
        "b": (4,),
        "c": (),
    }


@pytest.mark.parametrize("name", [SINGLE_FILE, "weights.pt"])
@pytest.mark.parametrize("size", [0, 300])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, size: int) -> None:
    # ``SINGLE_FILE`` is "model.safetensors"; ``size``: bytes of the file that are left.
    file = tmp_path / name
    state = {f"a.{number}": torch.ones(9) for number in range(9)}
    if name == SINGLE_FILE:
        save_file(state, file)
    else:
        torch.save(state, file)
    file.write_bytes(file.read_bytes()[:size])  # nothing, or a part of the header
    with pytest.raises(DataError, match=r"empty|not readable|damaged") as caught:
        read_stored_weights(file)
    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    "text",
    [
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1000\n",
        "<html>not found</html>",
        "hello",
    ],
)
def test_file_of_text_is_not_reported_as_code(tmp_path: Path, text: str) -> None:
    # A download may leave a pointer of git LFS or an error page under the name of the weights.
    file = tmp_path / "weights.pt"
    file.write_text(text)
    with pytest.raises(DataError, match=r"damaged, or not a file that torch\.save wrote") as caught:
        read_stored_weights(file)
    assert caught.value.where == str(file)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:  # unpickling it would make a file
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    file = tmp_path / "weights.pt"
    torch.save({"a": torch.ones(2), "args": Trap()}, file)
    with pytest.raises(DataError, match="the file contains more than weights"):
        read_stored_weights(file)
    assert not (tmp_path / "sprung").exists()


def test_each_file_of_an_index_is_listed_once(tmp_path: Path) -> None:
    index = tmp_path / INDEX_FILE
    names = {"a": "part-2.safetensors", "b": "part-1.safetensors", "c": "part-2.safetensors"}
    index.write_text(json.dumps({"weight_map": names}))
    # The names that are looked for, in this order: a single file of weights, or an index of files.
    # ``FAULT`` would make the error of a folder that has neither.
    files = find_weight_files(tmp_path, (SINGLE_FILE, INDEX_FILE), FAULT)
    assert [file.name for file in files] == ["part-1.safetensors", "part-2.safetensors"]
