"""Find SST-2 and the model folder in a raw download, and write each output from them.

Owns what counts as a source and the words for what is missing.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data.model_config import CONFIG
from trainmark.errors import DataError

from . import data as layouts
from .arrays import read_npz
from .columns import read_texts
from .model_files import TOKENIZERS, first_existing, open_tokenizer, read_config, tokenize
from .unpack import SUFFIXES, is_archive
from .weights import WEIGHTS, check_weights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .model_files import ModelConfig
    from .tokens import TokenRows

TOKENIZER_FILES = (*TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json")
OUTPUT_SEQ_LENGTH = 512
WHERE_DATA = (
    "SST-2 comes from the GLUE benchmark as SST-2.zip (train.tsv, dev.tsv), or from the "
    "dataset hub as sst2 or glue/sst2 (parquet)"
)
WHERE_MODEL = (
    "the model comes from the model hub as distilbert-base-uncased: config.json, vocab.txt or "
    "tokenizer.json, and model.safetensors or pytorch_model.bin"
)


def raw_files(raw: Path) -> dict[str, Path]:
    """Return the raw files that matter, by name below ``raw``.

    Raises:
        DataError: nothing is there, or nothing that this case knows.
    """
    if raw.is_file():
        if not is_archive(raw):
            raise DataError(
                f"{raw.name} is no archive",
                where=str(raw),
                rule=f"a raw file ends in {', '.join(SUFFIXES)}",
                remedy="name the folder that holds the files",
            )
        return {raw.name: raw}
    if not raw.is_dir():
        raise DataError(
            "no such file or folder", where=str(raw), remedy=f"{WHERE_DATA}; {WHERE_MODEL}"
        )
    names = {CONFIG, *TOKENIZER_FILES, *WEIGHTS, *layouts.NPZ_NAMES.values()}
    found = {
        file.relative_to(raw).as_posix(): file
        for file in raw.rglob("*")
        if file.is_file()
        and (file.name in names or file.suffix in (".tsv", ".parquet") or is_archive(file))
    }
    if not found:
        raise DataError(
            "neither data nor a model", where=str(raw), remedy=f"{WHERE_DATA}; {WHERE_MODEL}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """Sound sources: the splits and the model folder."""

    layout: layouts.Layout
    model: Path
    config: ModelConfig

    def outputs(self) -> list[str]:
        """Return the files to write, by name below the data folder."""
        weights = first_existing(self.model, WEIGHTS)
        names = [CONFIG, *(name for name in TOKENIZER_FILES if (self.model / name).is_file())]
        names += [weights.name] if weights else []
        return [
            *(f"dataset/{name}" for name in layouts.NPZ_NAMES.values()),
            *(f"model/{name}" for name in names),
        ]

    def write(self, relative: str, target: Path) -> tuple[str, dict[str, int]] | None:
        """Write one output to ``target``; for a split return its name and counts."""
        folder, _, name = relative.partition("/")
        if folder == "model":
            shutil.copyfile(self.model / name, target)
            return None
        split = next(key for key, value in layouts.NPZ_NAMES.items() if value == name)
        if self.layout.kind == "npz":
            file = self.layout.files[split][0]
            rows = read_npz(file, seq_length=None, vocab_size=self.config.vocab_size)
            shutil.copyfile(file, target)
        else:
            rows = self._write_split(split, target)
        longest = int(rows.lengths.max())
        return split, {"rows": len(rows), "longest": longest, "truncated": rows.truncated}

    def _write_split(self, split: str, target: Path) -> TokenRows:
        """Tokenise a split and write it as the published form has it, in smaller types."""
        import numpy as np

        texts = read_texts(self.layout.files[split])
        width = min(OUTPUT_SEQ_LENGTH, self.config.max_position_embeddings)
        tokenizer = open_tokenizer(self.model, self.config)
        rows = tokenize(tokenizer, texts.sentences, texts.labels, width)
        numbers = np.arange(len(rows))
        ids, mask = rows.padded(numbers, seq_length=width, pad_token_id=self.config.pad_token_id)
        with target.open("wb") as stream:
            np.savez_compressed(
                stream,
                idx=numbers.astype(np.int32),
                sentence=np.array(texts.sentences),
                label=rows.labels.astype(np.int8),
                input_ids=ids.astype(np.int32),
                attention_mask=mask.astype(np.int8),
            )
        return rows


def find_source(places: Sequence[Path]) -> Source:
    """Find the splits and the model folder in ``places``, and check them.

    Raises:
        DataError: one is missing, or found twice, or damaged.
    """
    model = _only("model folder", _model_folders(places), places, WHERE_MODEL)
    found = _layouts(places)
    best = next((kind for kind in layouts.KINDS if any(x.kind == kind for x, _ in found)), None)
    chosen = [(layout, at) for layout, at in found if layout.kind == best]
    _only("SST-2", [at for _, at in chosen], places, WHERE_DATA)
    layout = chosen[0][0]
    config = read_config(model)
    if layout.kind != "npz":
        open_tokenizer(model, config)
    if first_existing(model, WEIGHTS):
        check_weights(model, config)
    return Source(layout, model, config)


def _model_folders(places: Sequence[Path]) -> list[Path]:
    found = []
    for file in sorted(x for place in places for x in place.rglob(CONFIG) if x.is_file()):
        try:
            raw = json.loads(file.read_bytes())
        except (ValueError, RecursionError):
            raw = None
        # A damaged config beside weights is still the model meant; its check says why.
        if raw is None or (isinstance(raw, dict) and raw.get("model_type") == "distilbert"):
            found.append(file.parent)
    return found


def _layouts(places: Sequence[Path]) -> list[tuple[layouts.Layout, Path]]:
    """Return every folder that holds both splits in one form."""
    found = []
    for place in places:
        for folder in sorted({place, *(item for item in place.rglob("*") if item.is_dir())}):
            found += [(layout, folder) for layout in layouts.layouts_in(folder)]
    return found


def _only(what: str, found: list[Path], places: Sequence[Path], remedy: str) -> Path:
    looked = ", ".join(str(place) for place in places)
    if not found:
        raise DataError(f"no {what} found", where=looked, remedy=remedy)
    if len(found) > 1:
        names = ", ".join(str(item) for item in found)
        raise DataError(
            f"{len(found)} times {what}: {names}",
            where=looked,
            rule="the raw download holds each once",
            remedy="remove or move away all but one",
        )
    return found[0]
