"""One reader of config.json: every fault names the file, the key, its rule and a way out."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainmark.data.model_config import ConfigKeys, Share, Size, read_config, refuse_short
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


class Keys(ConfigKeys):
    model_type: Literal["small"] = Field(description='this case trains "small"')
    width: Size = Field(alias="hidden_size")
    heads: Size = 1
    dropout: Share = 0.1
    tied: Literal[False] = Field(False, exclude=True)

    @field_validator("heads")
    @classmethod
    def _divides(cls, value: int, info: ValidationInfo) -> int:
        if info.data["width"] % value:
            raise ValueError("a divisor of hidden_size")
        return value

    @model_validator(mode="after")
    def _not_huge(self) -> Keys:
        if self.width * self.heads > 10**6:
            raise ValueError("a million weights at most")
        return self


SOUND: dict[str, Any] = {"model_type": "small", "hidden_size": 8, "of_the_writer": {"a": 1}}


def read(folder: Path, content: Any) -> Keys:
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_config(file, Keys, rule="a folder of a model", remedy="fetch it")


def test_a_sound_config_is_read_and_keeps_the_keys_that_it_gave(tmp_path: Path) -> None:
    found = read(tmp_path, {**SOUND, "dropout": 0, "tied": False})
    assert (found.width, found.heads, found.dropout) == (8, 1, 0.0)
    assert found.raw == {"model_type": "small", "hidden_size": 8, "dropout": 0.0}


@pytest.mark.parametrize(
    ("changes", "key", "what", "rule"),
    [
        ({"model_type": "other"}, "model_type", "is 'other'", 'this case trains "small"'),
        ({"hidden_size": 0}, "hidden_size", "is 0", "a size is a whole number above 0"),
        ({"hidden_size": [8] * 99}, "hidden_size", "8, 8, 8", "a size is"),
        ({"heads": 3}, "heads", "is 3", "a divisor of hidden_size"),
        ({"dropout": 1}, "dropout", "is 1", "a number in [0, 1)"),
        ({"tied": True}, "tied", "is True", "False"),
    ],
)
def test_a_value_outside_its_range_is_named(
    tmp_path: Path, changes: dict[str, Any], key: str, what: str, rule: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, {**SOUND, **changes})
    error = caught.value
    assert error.where == f"{tmp_path / 'config.json'}, {key}"
    assert error.what.startswith(key)
    assert what in error.what
    assert rule in str(error.rule)
    assert error.remedy == "fetch it"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "not readable as JSON"),
        ("[]", "Input should be"),
    ],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("entries", "vocab_size", "multiple", "refused"),
    [
        (32_000, 32_000, 1, False),
        (31_999, 32_000, 1, True),
        (50_257, 50_304, 128, False),  # GPT-2 as Megatron pads it
        (50_257, 50_305, 128, True),
    ],
)
def test_only_padding_explains_a_shorter_vocabulary(
    tmp_path: Path, entries: int, vocab_size: int, multiple: int, refused: bool
) -> None:
    said = pytest.raises(DataError, match=f"{entries} entries, the model has {vocab_size}")
    with said if refused else nullcontext():
        refuse_short(
            tmp_path, entries=entries, vocab_size=vocab_size, of="config", remedy="fetch it",
            multiple=multiple,
        )  # fmt: skip
