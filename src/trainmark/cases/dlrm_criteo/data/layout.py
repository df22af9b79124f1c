"""A click log on disk: binary files of columns, and ``feature_spec.yaml``, which describes them.

The form is that of NVIDIA's DLRM. A split has ``numerical.bin`` (num_numerical x float16 per row),
``label.bin`` (one byte per row) and a file for each categorical column (integers of 1, 2 or 4
bytes). All files are little endian, row by row, without headers. In the description,
``channel_spec`` lists the columns by use, ``feature_spec`` the type of each, ``source_spec`` the
files of each split; ``metadata`` is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from os.path import normpath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainmark.data import splits
from trainmark.documents import Frozen, read_yaml, validate_document, write_atomically
from trainmark.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SPLITS = ("train", "test")
CATEGORY_BYTES = {"int8": 1, "int16": 2, "int32": 4}
NUM_NUMERICAL = 13  # integer columns of the Criteo logs
# How the published runs' data was prepared: NVIDIA's DLRM preprocessing with Spark.
PUBLISHED_RULES = {"frequency_threshold": 15, "log_offset": 3}
PREPARE = "run `trainmark prepare dlrm_criteo --from RAW --data DIR`"
AGAIN = f"copy the folder again, or {PREPARE}"
SPEC_FILE = "feature_spec.yaml"
Names = Annotated[list[str], Field(min_length=1)]
OneName = Annotated[list[str], Field(min_length=1, max_length=1)]


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files of one split; ``categories`` are in the order of the tables."""

    numerical: Path
    label: Path
    categories: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """The content of a data folder, as ``feature_spec.yaml`` describes it.

    Args:
        num_numerical: number of float16 values of a row.
        cardinalities: number of rows of each table; the table's category ids are below it.
        category_dtypes: type of each column: ``int8``, ``int16`` or ``int32``.
        files: of each split, ``train`` and ``test``.
        rules: the options of ``prepare`` that made the folder, as text; empty: not known.
    """

    num_numerical: int
    cardinalities: tuple[int, ...]
    category_dtypes: tuple[str, ...]
    files: dict[str, SplitFiles]
    rules: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(
        cls, folder: Path, cardinalities: Sequence[int], *, num_numerical: int = NUM_NUMERICAL
    ) -> FeatureSpec:
        """Return the spec of data that this program writes into ``folder``."""
        files = {
            split: SplitFiles(
                folder / split / "numerical.bin",
                folder / split / "label.bin",
                tuple(folder / split / f"cat_{n}.bin" for n in range(len(cardinalities))),
            )
            for split in SPLITS
        }
        dtypes = tuple(
            next(dtype for dtype in CATEGORY_BYTES if rows <= compute_max_cardinality(dtype))
            for rows in cardinalities
        )
        return cls(num_numerical, tuple(cardinalities), dtypes, files)

    @property
    def changed_rules(self) -> dict[str, str]:
        """The rules that differ from those of the published runs."""
        published = {name: str(value) for name, value in PUBLISHED_RULES.items()}
        return {
            name: value for name, value in self.rules.items() if published.get(name, value) != value
        }

    def get_row_types(self, split: str) -> dict[Path, np.dtype[Any]]:
        """Return the type of a row in each file of a split; numerical rows have a shaped type."""
        files = self.files[split]
        columns = (np.dtype(dtype).newbyteorder("<") for dtype in self.category_dtypes)
        return {
            files.label: np.dtype("u1"),
            files.numerical: np.dtype(("<f2", (self.num_numerical,))),
            **dict(zip(files.categories, columns, strict=True)),
        }

    def count_rows(self, split: str) -> int:
        """Return the number of rows of a split, from the sizes of its files.

        Raises:
            DataError: a file is missing, ends within a row or has another number of rows than
                the labels, or there are no rows.
        """
        rows: dict[Path, int] = {}
        for file, kind in self.get_row_types(split).items():
            with translate_read_errors(file):
                length = file.stat().st_size
            rows[file], rest = divmod(length, kind.itemsize)
            label, expected = next(iter(rows.items()))
            if rest or rows[file] != expected or not expected:
                raise DataError(
                    f"{length} bytes: {rows[file]} rows and {rest} bytes, but {label} has "
                    f"{expected} rows",
                    where=str(file),
                    rule=(
                        "all files of a split must have the same number of complete rows, at "
                        f"least one; a row of this file takes {kind.itemsize} bytes"
                    ),
                    fix=AGAIN,
                )
        return expected


def compute_max_cardinality(dtype: str) -> int:
    """Return how many category ids, from 0 on, a signed integer type can store."""
    return int(1 << (8 * CATEGORY_BYTES[dtype] - 1))


translate_read_errors = partial(
    splits.translate_read_errors,
    fault=partial(
        DataError,
        rule="every file named in feature_spec.yaml must exist and be readable",
        fix=AGAIN,
    ),
)


class _Channels(Frozen):
    numerical: Names
    categorical: Names
    label: OneName


class _Feature(Frozen):
    dtype: Literal["float16", "bool", "int8", "int16", "int32"]
    cardinality: int | None = None


class _Source(Frozen):
    type: Literal["split_binary"]
    features: Names
    files: OneName


class _Sources(Frozen):
    train: list[_Source]
    test: list[_Source]


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    trainmark_prepare: dict[str, str] = {}  # the options that made the folder


class _Spec(Frozen):
    channel_spec: _Channels
    feature_spec: dict[str, _Feature]
    source_spec: _Sources
    metadata: _Metadata | None = None

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The columns of each file: all numerical ones together, the others one per file."""
        channels = self.channel_spec
        single_columns = [(name,) for name in (*channels.label, *channels.categorical)]
        return [tuple(channels.numerical), *single_columns]

    @model_validator(mode="after")
    def _columns_agree(self) -> _Spec:
        names = sorted(name for group in self.groups for name in group)
        if names != sorted(self.feature_spec):
            raise ValueError(
                f"channel_spec has {names}, but feature_spec has {sorted(self.feature_spec)}"
            )
        for name, feature in self.feature_spec.items():
            dtypes = {"numerical": "float16", "label": "bool"}
            channel = next(kind for kind, group in self.channel_spec if name in group)
            if feature.dtype != dtypes.get(channel, feature.dtype):
                raise ValueError(f"{name}: columns of this channel must be {dtypes[channel]}")
            max_cardinality = (
                compute_max_cardinality(feature.dtype) if feature.dtype in CATEGORY_BYTES else 0
            )
            if channel == "categorical" and not 1 <= (feature.cardinality or 0) <= max_cardinality:
                rule = f"{feature.dtype} can hold 1 to {max_cardinality} categories"
                raise ValueError(f"{name}: cardinality {feature.cardinality}; {rule}")
        for split, sources in self.source_spec:
            if sorted(tuple(source.features) for source in sources) != sorted(self.groups):
                raise ValueError(
                    f"{split}: must have one file for all numerical columns in order, one "
                    "for the label, and one per categorical column"
                )
            files = [normpath(source.files[0]) for source in sources]
            if repeated := [name for name in files if files.count(name) > 1]:
                raise ValueError(f"{split}: {repeated[0]} is listed for several columns")
        return self


def read_spec(folder: Path) -> FeatureSpec:
    """Read ``feature_spec.yaml`` of ``folder``; the files that it names are not read.

    Raises:
        DataError: it is missing or invalid.
    """
    file, fix = folder / SPEC_FILE, f"correct the file, or {PREPARE}"
    try:
        spec = validate_document(_Spec, read_yaml(file), file, fix=fix)
    except UsageError as error:
        rule = error.rule or "the file must describe the columns in YAML"
        raise DataError(error.what, where=error.where, rule=rule, fix=fix) from None
    files = {}
    for split, sources in spec.source_spec:
        paths = {tuple(source.features): folder / source.files[0] for source in sources}
        numerical, label, *categories = (paths[group] for group in spec.groups)
        files[split] = SplitFiles(numerical, label, tuple(categories))
    tables = [spec.feature_spec[name] for name in spec.channel_spec.categorical]
    return FeatureSpec(
        num_numerical=len(spec.channel_spec.numerical),
        cardinalities=tuple(table.cardinality or 0 for table in tables),
        category_dtypes=tuple(table.dtype for table in tables),
        files=files,
        rules=spec.metadata.trainmark_prepare if spec.metadata else {},
    )


def write_spec(
    folder: Path,
    cardinalities: Sequence[int],
    *,
    num_numerical: int = NUM_NUMERICAL,
    rules: Mapping[str, object] | None = None,
) -> FeatureSpec:
    """Write ``feature_spec.yaml`` into ``folder``, completely or not at all; return the spec.

    The caller writes the files that it names first, so that a folder with a spec is complete.
    """
    import yaml

    spec = FeatureSpec.create(folder, cardinalities, num_numerical=num_numerical)
    spec = replace(spec, rules={name: str(value) for name, value in (rules or {}).items()})
    numerical = [f"num_{number}" for number in range(num_numerical)]
    tables = {
        f"cat_{n}.bin": _Feature(dtype=dtype, cardinality=rows)  # type: ignore[arg-type]
        for n, (dtype, rows) in enumerate(zip(spec.category_dtypes, cardinalities, strict=True))
    }
    sources = {}
    for split, files in spec.files.items():
        columns_of_files = [(numerical, files.numerical), (["label"], files.label)]
        for name, file in zip(tables, files.categories, strict=True):
            columns_of_files.append(([name], file))
        sources[split] = [
            _Source(
                type="split_binary",
                features=features,
                files=[file.relative_to(folder).as_posix()],
            )
            for features, file in columns_of_files
        ]
    description = _Spec(
        channel_spec=_Channels(categorical=[*tables], numerical=numerical, label=["label"]),
        feature_spec=tables
        | {name: _Feature(dtype="float16") for name in numerical}
        | {"label": _Feature(dtype="bool")},
        source_spec=_Sources(**sources),
        metadata=_Metadata(trainmark_prepare=spec.rules),
    )
    document = description.model_dump(exclude_defaults=True)
    with write_atomically(folder / SPEC_FILE) as stream:
        stream.write(yaml.safe_dump(document, sort_keys=False).encode())
    return spec
