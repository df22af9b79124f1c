"""Convert a raw download into the npz format, completely or not at all.

Owns which files count as sources, archives included, and the conversion of sources to files.
``trainmark.data.prepared`` writes the files and resumes interrupted calls.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data import prepared
from trainmark.data.model_config import CONFIG
from trainmark.data.split_layout import Layout, complete_layout
from trainmark.errors import DataError

from ..data import FORMS, NPZ, RULE
from ..data.arrays import read_npz
from ..data.model_files import (
    TOKENIZERS,
    first_existing,
    open_tokenizer,
    read_config,
    tokenize,
)  # fmt: skip
from ..data.texts import read_texts
from ..data.weights import WEIGHTS, check_weights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.prepared import Say, Unfinished

    from ..data.model_files import ModelConfig
    from ..data.tokens import TokenRows

FORMAT = 1
# Row counts of the published SST-2, https://huggingface.co/datasets/stanfordnlp/sst2
PUBLISHED_ROWS = {"train": 67_349, "validation": 872}
TOKENIZER_FILES = (*TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json")
SPLIT_NAMES = {name: split for split, (name,) in NPZ.names.items()}
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
# Errors of the readers besides OSError; RuntimeError: encrypted, or an unknown compression.
DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError,
)  # fmt: skip
OUTPUT_SEQ_LENGTH = 512
WHERE_DATA = (
    "SST-2 comes from the GLUE benchmark as SST-2.zip (train.tsv, dev.tsv), or from the "
    "dataset hub as sst2 or glue/sst2 (parquet)"
)
WHERE_MODEL = (
    "the model comes from the model hub as distilbert-base-uncased: config.json, vocab.txt or "
    "tokenizer.json, and model.safetensors or pytorch_model.bin"
)


def prepare(raw: Path, data: Path, say: Say) -> None:
    """Write ``data`` from ``raw``: a folder or an archive with SST-2 and a model folder.

    Calling again with the same sources reuses every finished file whose sha256 still matches.

    Args:
        say: called with each line of progress.

    Raises:
        DataError: a source is missing or damaged, or ``data`` was not written by this command.
        EnvironmentFault: not enough disk space to unpack.
    """

    def write(raw: Path, unfinished: Unfinished) -> None:
        unpacked = unfinished.partial / "raw"
        source = _find_source(_unpacked(raw, unpacked, say))
        if not any(source.model.joinpath(name).exists() for name in WEIGHTS):
            say("no weights in the model folder: only init=random will run on this data")
        counts = unfinished.manifest["counts"]
        for relative in source.outputs():
            unfinished.once(relative, partial(source.write, relative, counts), say)
        _tell_counts(counts, say)
        shutil.rmtree(unpacked, ignore_errors=True)

    prepared.prepare(
        raw, data, say, case="distilbert_sst2", form=FORMAT, raw_files=_raw_files, write=write
    )


def _tell_counts(counts: dict[str, Any], say: Say) -> None:
    for split, published in PUBLISHED_ROWS.items():
        found = counts[split]
        line = f"{split}: {found['rows']:,} rows, longest {found['longest']} tokens"
        if found["truncated"]:
            line += f", {found['truncated']} cut to fit the model"
        if found["rows"] != published:
            line += f"; NOT the published SST-2, which has {published:,}"
        say(line)


def _raw_files(raw: Path) -> dict[str, Path]:
    """Return the raw files that matter, by name below ``raw``.

    Raises:
        DataError: ``raw`` does not exist, or holds no file that this case reads.
    """
    if raw.is_file():
        if not _is_archive(raw):
            raise DataError(
                f"{raw.name} is not an archive",
                where=str(raw),
                rule=f"a raw file ends in {', '.join(SUFFIXES)}",
                remedy="name the folder that holds the files",
            )
        return {raw.name: raw}
    if not raw.is_dir():
        raise DataError(
            "no such file or folder", where=str(raw), remedy=f"{WHERE_DATA}; {WHERE_MODEL}"
        )
    names = {CONFIG, *TOKENIZER_FILES, *WEIGHTS, *SPLIT_NAMES}
    found = {
        file.relative_to(raw).as_posix(): file
        for file in raw.rglob("*")
        if file.is_file()
        and (file.name in names or file.suffix in (".tsv", ".parquet") or _is_archive(file))
    }
    if not found:
        raise DataError(
            "neither data nor a model", where=str(raw), remedy=f"{WHERE_DATA}; {WHERE_MODEL}"
        )
    return found


def _is_archive(file: Path) -> bool:
    return file.is_file() and file.name.lower().endswith(SUFFIXES)


def _unpacked(raw: Path, folder: Path, say: Say) -> list[Path]:
    """Return the folders to look in: ``raw`` itself and what its archives hold."""
    shutil.rmtree(folder, ignore_errors=True)
    places = [raw] if raw.is_dir() else []
    archives = [file for _, file in sorted(_raw_files(raw).items()) if _is_archive(file)]
    for number, archive in enumerate(archives):
        say(f"unpacking {archive.name}")
        place = folder / str(number)
        place.mkdir(parents=True)
        _unpack(archive, place)
        places.append(place)
    return places


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack into ``folder``, which exists; the library writes no member outside of it.

    Raises:
        DataError: a damaged archive, or a member that is a link out of it or a device.
        EnvironmentFault: the disk has less room than the archive says it needs.
    """
    zipped = archive.name.lower().endswith(".zip")
    rule = f"{archive.name} is unpacked next to the folder to write"
    try:
        if zipped:
            with zipfile.ZipFile(archive) as opened:
                size = sum(member.file_size for member in opened.infolist())
                prepared.refuse_full(folder, size, rule=rule)
                opened.extractall(folder)
            return
        if archive.name.lower().endswith("gz"):  # tarfile does not read gzip's checksums
            with gzip.open(archive) as stream:
                while stream.read(1 << 20):
                    pass
        with tarfile.open(archive) as tar:
            prepared.refuse_full(folder, sum(member.size for member in tar), rule=rule)
            tar.extractall(folder, filter="data")
    except DAMAGE as error:
        raise DataError(
            f"not readable as an archive: {error}",
            where=str(archive),
            rule="members are files, folders and links inside the archive's top folder",
            remedy="fetch the archive from its publisher again, or unpack it by hand",
        ) from None


@dataclass(frozen=True, slots=True)
class Source:
    """Checked sources: the splits and the model folder."""

    layout: Layout
    model: Path
    config: ModelConfig

    def outputs(self) -> list[str]:
        """Return the files to write, by name below the data folder."""
        weights = first_existing(self.model, WEIGHTS)
        names = [CONFIG, *(name for name in TOKENIZER_FILES if (self.model / name).is_file())]
        names += [weights.name] if weights else []
        return [
            *(f"dataset/{name}" for name in SPLIT_NAMES),
            *(f"model/{name}" for name in names),
        ]

    def write(self, relative: str, counts: dict[str, Any], target: Path) -> None:
        """Write one output to ``target``; put a split's numbers into ``counts``."""
        folder, _, name = relative.partition("/")
        if folder == "model":
            shutil.copyfile(self.model / name, target)
            return
        split = SPLIT_NAMES[name]
        if self.layout.kind == NPZ.kind:
            file = self.layout.files[split][0]
            rows = read_npz(file, seq_length=None, vocab_size=self.config.vocab_size)
            shutil.copyfile(file, target)
        else:
            rows = self._write_split(split, target)
        longest = int(rows.lengths.max())
        counts[split] = {"rows": len(rows), "longest": longest, "truncated": rows.truncated}

    def _write_split(self, split: str, target: Path) -> TokenRows:
        """Tokenise a split and write it in the published format, with smaller integer types."""
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


def _find_source(places: Sequence[Path]) -> Source:
    """Find the splits and the model folder in ``places``, and check them.

    Raises:
        DataError: one of them is missing, found twice, or damaged.
    """
    looked = ", ".join(str(place) for place in places)
    model = prepared.only("model folder", _model_folders(places), where=looked, remedy=WHERE_MODEL)
    found = _layouts(places)
    best = next((form.kind for form in FORMS if any(x.kind == form.kind for x, _ in found)), None)
    chosen = [(layout, folder) for layout, folder in found if layout.kind == best]
    prepared.only("SST-2", [folder for _, folder in chosen], where=looked, remedy=WHERE_DATA)
    layout = chosen[0][0]
    config = read_config(model)
    if layout.kind != NPZ.kind:
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
        # Take a damaged config for the model's: the check reports the damage.
        if raw is None or (isinstance(raw, dict) and raw.get("model_type") == "distilbert"):
            found.append(file.parent)
    return found


def _layouts(places: Sequence[Path]) -> list[tuple[Layout, Path]]:
    """Return every folder that holds both splits in one form."""
    found = []
    for place in places:
        for folder in sorted({place, *(item for item in place.rglob("*") if item.is_dir())}):
            for form in FORMS:
                if all(form.files_in(folder).values()):
                    layout = complete_layout(form, folder, rule=RULE, remedy=WHERE_DATA)
                    assert layout is not None
                    found.append((layout, folder))
    return found
