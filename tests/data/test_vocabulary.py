"""A vocabulary shorter than the model's is refused while planning; a padded table is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainmark import cases
from trainmark.cases import generated_folder
from trainmark.cases.llama2_7b_lora.data import generating
from trainmark.cases.llama2_7b_lora.data.tokens import open_tokenizer
from trainmark.data.vocabulary import refuse_short
from trainmark.errors import DataError


@pytest.mark.parametrize(
    ("entries", "vocab_size", "multiple", "refused"),
    [
        (32_000, 32_000, 1, False),
        (32_001, 32_000, 1, False),  # too long is told elsewhere
        (31_999, 32_000, 1, True),
        (50_257, 50_304, 128, False),  # GPT-2 as Megatron pads it
        (50_257, 50_305, 128, True),
        (30_524, 30_592, 128, False),  # GLM
        (30_464, 30_592, 128, True),
    ],
)
def test_only_padding_explains_a_shorter_vocabulary(
    entries: int, vocab_size: int, multiple: int, refused: bool
) -> None:
    def check() -> None:
        refuse_short(
            Path("v.txt"), entries=entries, vocab_size=vocab_size, of="config", remedy="fetch it",
            multiple=multiple,
        )  # fmt: skip

    if not refused:
        check()
        return
    with pytest.raises(DataError, match=f"{entries} entries, the model has {vocab_size}") as caught:
        check()
    assert (caught.value.where, caught.value.remedy) == ("v.txt", "fetch it")


def said(name: str, folder: Path, **fields: int) -> DataError | None:
    """Return what the check before a run says of the case's tiny recipe on ``folder``."""
    case = cases.load(name)
    try:
        cases.part(case.name, "data").check(folder, replace(case.recipes["tiny"], **fields))
    except DataError as error:
        return error
    return None


def folder_of(name: str, root: Path) -> Path:
    case = cases.load(name)
    return generated_folder(case, case.recipes["tiny"], root)


def test_distilbert_takes_no_shorter_vocabulary(tmp_path: Path) -> None:
    folder = folder_of("distilbert_sst2", tmp_path)
    assert said("distilbert_sst2", folder) is None
    vocabulary = folder / "model" / "vocab.txt"
    words = vocabulary.read_text().split()
    vocabulary.write_text("\n".join(words[:-1]) + "\n")
    found = said("distilbert_sst2", folder)
    assert found is not None
    assert found.what == f"{len(words) - 1} entries, the model has {len(words)}"
    assert found.where == str(vocabulary)
    assert found.remedy


def test_glm_takes_a_padded_table_and_no_larger_one(tmp_path: Path) -> None:
    folder = folder_of("glm_superglue", tmp_path)
    assert said("glm_superglue", folder, vocab_size=128) is None
    found = said("glm_superglue", folder, vocab_size=129)
    assert found is not None
    assert found.what == "47 entries, the model has 129"
    assert found.where == str(folder / "model" / "vocab.txt")
    assert found.remedy is not None
    assert "vocab_size to at most 128" in found.remedy


def test_gpt_takes_a_padded_table_and_no_larger_one(tmp_path: Path) -> None:
    folder = folder_of("gpt_megatron", tmp_path)
    assert said("gpt_megatron", folder, vocab_size=5_000) is None  # nobody noted a vocabulary
    (folder / "manifest.json").write_text(json.dumps({"vocab_size": 100}))
    assert said("gpt_megatron", folder, vocab_size=128) is None
    found = said("gpt_megatron", folder, vocab_size=129)
    assert found is not None
    assert (found.what, found.remedy) == ("100 entries, the model has 129", "set vocab_size=100")
    assert found.where == str(folder / "manifest.json")


def test_llama_takes_no_shorter_vocabulary(tmp_path: Path) -> None:
    folder = folder_of("llama2_7b_lora", tmp_path)
    assert said("llama2_7b_lora", folder) is None
    file = folder / "model" / "tokenizer.json"
    made = json.loads(file.read_text())
    del made["model"]["vocab"]["<unused3>"]  # a hole: the last id is as before
    file.write_text(json.dumps(made))
    found = said("llama2_7b_lora", folder)
    assert found is not None
    assert (found.what, found.where) == ("255 entries, the model has 256", str(file))
    assert found.remedy


def test_a_generated_tokenizer_is_as_large_as_its_model(tmp_path: Path) -> None:
    generating.write_tokenizer(tmp_path, vocab_size=32_000)
    tokenizer = open_tokenizer(tmp_path, vocab_size=32_000)
    words = generating.vocabulary()
    (ids,) = tokenizer.prompts([" ".join(words[3:]) + " <unused3>"])
    assert max(ids) == len(words) - 1  # no text becomes one that fills up
