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
CATEGORY_BYTES = {"int8": 1, "int16": 2, "int32": 4}  # in ascending order
NUM_NUMERICAL = 13  # integer columns of the Criteo logs
# How the published runs' data was prepared: NVIDIA's DLRM preprocessing with Spark.
PUBLISHED_RULES = {"frequency_threshold": 15, "log_offset": 3}
PREPARE = "run `trainmark prepare dlrm_criteo --from RAW --data DIR`"
COPY_AGAIN = f"copy the folder again, or {PREPARE}"
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
                numerical=folder / split / "numerical.bin",
                label=folder / split / "label.bin",
                categories=tuple(
                    folder / split / f"cat_{table}.bin" for table in range(len(cardinalities))
                ),
            )
            for split in SPLITS
        }
        return cls(
            num_numerical=num_numerical,
            cardinalities=tuple(cardinalities),
            category_dtypes=tuple(_choose_smallest_dtype(rows) for rows in cardinalities),
            files=files,
        )

    @property
    def changed_rules(self) -> dict[str, str]:
        """The options of ``prepare`` that have other values here than in the published runs.

        Options that have no published value, such as the seed of the order of rows, are left out.
        """
        published = {name: str(value) for name, value in PUBLISHED_RULES.items()}
        return {
            name: value
            for name, value in self.rules.items()
            if name in published and published[name] != value
        }

    def get_row_types(self, split: str) -> dict[Path, np.dtype[Any]]:
        """Return the type of a row in each file of a split.

        A row of the numerical file has several numbers, so its type is an array of float16.
        """
        files = self.files[split]
        category_types = (np.dtype(dtype).newbyteorder("<") for dtype in self.category_dtypes)
        return {
            files.label: np.dtype("u1"),  # 0 or 1
            files.numerical: np.dtype(("<f2", (self.num_numerical,))),
            **dict(zip(files.categories, category_types, strict=True)),
        }

    def count_rows(self, split: str) -> int:
        """Return the number of rows of a split, from the sizes of its files.

        Raises:
            DataError: a file is missing, ends within a row or has another number of rows than
                the labels, or there are no rows.
        """
        label_file = self.files[split].label
        with translate_read_errors(label_file):
            num_labels = label_file.stat().st_size  # one byte each
        for file, row_type in self.get_row_types(split).items():
            with translate_read_errors(file):
                length = file.stat().st_size
            num_rows, extra_bytes = divmod(length, row_type.itemsize)
            if extra_bytes or num_rows != num_labels or num_labels == 0:
                raise DataError(
                    f"the file has {length} bytes ({num_rows} rows and {extra_bytes} extra bytes), "
                    f"but {label_file} has {num_labels} rows",
                    where=str(file),
                    rule=(
                        "all files of a split must contain the same number of complete rows (at "
                        f"least one); each row of this file takes {row_type.itemsize} bytes"
                    ),
                    fix=COPY_AGAIN,
                )
        return num_labels


def _choose_smallest_dtype(cardinality: int) -> str:
    """Return the smallest type that stores the ids of a table with ``cardinality`` rows."""
    for dtype in CATEGORY_BYTES:  # in ascending size
        if cardinality <= compute_max_cardinality(dtype):
            return dtype
    raise ValueError(f"no supported type can hold {cardinality} categories")


def compute_max_cardinality(dtype: str) -> int:
    """Return how many category ids, from 0 on, a signed integer type can store."""
    return int(1 << (8 * CATEGORY_BYTES[dtype] - 1))


translate_read_errors = partial(
    splits.translate_read_errors,
    make_error=partial(
        DataError,
        rule="every file named in feature_spec.yaml must exist and be readable",
        fix=COPY_AGAIN,
    ),
)


# The parts of feature_spec.yaml.


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
    """The content of ``feature_spec.yaml``: a channel is a use of columns, a source is a file."""

    channel_spec: _Channels
    feature_spec: dict[str, _Feature]
    source_spec: _Sources
    metadata: _Metadata | None = None

    @property
    def columns_by_file(self) -> list[tuple[str, ...]]:
        """The columns of each file of a split.

        The first file has all numerical columns, the second one the label. Then comes a file for
        each categorical column.
        """
        channels = self.channel_spec
        single_columns = [(name,) for name in (*channels.label, *channels.categorical)]
        return [tuple(channels.numerical), *single_columns]

    @model_validator(mode="after")
    def _check_columns(self) -> _Spec:
        """Refuse sections of the file that name different columns, and columns of a wrong type.

        ``channel_spec`` lists the columns by use, ``feature_spec`` has the type of each, and
        ``source_spec`` has the files of each split.
        """
        names = sorted(name for columns in self.columns_by_file for name in columns)
        if names != sorted(self.feature_spec):
            raise ValueError(
                f"channel_spec lists {names}, but feature_spec lists {sorted(self.feature_spec)}"
            )
        for name, feature in self.feature_spec.items():
            self._refuse_wrong_type(name, feature)
        for split, sources in self.source_spec:  # name and value of each field: train, test
            self._refuse_wrong_files(split, sources)
        return self

    def _refuse_wrong_type(self, name: str, feature: _Feature) -> None:
        """Raise ValueError if a column has a type or cardinality that its use does not allow.

        A channel is a use of columns: as numerical values, as the label or as categories.
        """
        channels = self.channel_spec
        if name in channels.numerical:
            if feature.dtype != "float16":
                raise ValueError(f"{name}: a column of numerical values must be float16")
        elif name in channels.label:
            if feature.dtype != "bool":
                raise ValueError(f"{name}: a column of labels must be bool")
        else:
            # A categorical column must be an integer: float16 and bool store no categories.
            is_integer = feature.dtype in CATEGORY_BYTES
            max_cardinality = compute_max_cardinality(feature.dtype) if is_integer else 0
            cardinality = feature.cardinality
            if cardinality is None or not 1 <= cardinality <= max_cardinality:
                rule = f"{feature.dtype} can hold 1 to {max_cardinality} categories"
                raise ValueError(f"{name}: cardinality is {cardinality}; {rule}")

    def _refuse_wrong_files(self, split: str, sources: list[_Source]) -> None:
        """Raise ValueError unless the files of a split have the columns that they must have.

        One file must have all numerical columns. The label and each categorical column must have
        a file of their own.
        """
        if sorted(tuple(source.features) for source in sources) != sorted(self.columns_by_file):
            raise ValueError(
                f"{split}: there must be one file with all numerical columns in the order of "
                "channel_spec, one file with the label, and one file per categorical column"
            )
        files = [normpath(source.files[0]) for source in sources]  # a source has exactly one file
        repeated_files = [name for name in files if files.count(name) > 1]
        if repeated_files:
            raise ValueError(f"{split}: {repeated_files[0]} is listed for several columns")


def read_spec(folder: Path) -> FeatureSpec:
    """Read ``feature_spec.yaml`` of ``folder``; the files that it names are not read.

    Raises:
        DataError: it is missing or invalid.
    """
    file = folder / SPEC_FILE
    fix = f"correct the file, or {PREPARE}"
    try:
        spec = validate_document(_Spec, read_yaml(file), file, fix=fix)
    except UsageError as error:
        rule = error.rule or "the file must describe the columns in YAML"
        raise DataError(error.what, where=error.where, rule=rule, fix=fix) from None
    files = {}
    for split, sources in spec.source_spec:  # fields and values of the model: train, then test
        # The path of each file, by the columns in it. A source has exactly one file.
        path_of_columns = {tuple(source.features): folder / source.files[0] for source in sources}
        # In this order: all numerical columns, the label, each categorical column.
        paths = [path_of_columns[columns] for columns in spec.columns_by_file]
        numerical, label, *categories = paths
        files[split] = SplitFiles(numerical, label, tuple(categories))
    # ``_Spec`` has checked that each of these columns has a cardinality, so ``or 0`` below is only
    # for the type checker.
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

    The caller must have written all data files before. So a folder with a spec is complete.

    Args:
        rules: the options of ``prepare`` that made the folder; None: not known.
    """
    import yaml  # only ``prepare`` and ``generate`` need it

    spec = FeatureSpec.create(folder, cardinalities, num_numerical=num_numerical)
    spec = replace(spec, rules={name: str(value) for name, value in (rules or {}).items()})
    numerical = [f"num_{number}" for number in range(num_numerical)]
    features: dict[str, _Feature] = {}
    # A categorical column has the name of its file.
    types_and_sizes = zip(spec.category_dtypes, cardinalities, strict=True)
    for table, (dtype, cardinality) in enumerate(types_and_sizes):
        features[f"cat_{table}.bin"] = _Feature(dtype=dtype, cardinality=cardinality)  # type: ignore[arg-type]
    categorical = list(features)  # taken before the other columns are added below
    for name in numerical:
        features[name] = _Feature(dtype="float16")
    features["label"] = _Feature(dtype="bool")
    sources: dict[str, list[_Source]] = {}
    for split, files in spec.files.items():
        columns_and_files = [(numerical, files.numerical), (["label"], files.label)]
        for name, file in zip(categorical, files.categories, strict=True):
            columns_and_files.append(([name], file))
        sources[split] = [
            _Source(
                type="split_binary",  # the name of this kind of files in NVIDIA's DLRM
                features=columns,
                files=[file.relative_to(folder).as_posix()],
            )
            for columns, file in columns_and_files
        ]
    description = _Spec(
        channel_spec=_Channels(categorical=categorical, numerical=numerical, label=["label"]),
        feature_spec=features,
        source_spec=_Sources(**sources),
        metadata=_Metadata(trainmark_prepare=spec.rules),
    )
    # Without fields that have no value, such as the cardinality of a numerical column.
    document = description.model_dump(exclude_defaults=True)
    with write_atomically(folder / SPEC_FILE) as stream:
        stream.write(yaml.safe_dump(document, sort_keys=False).encode())
    return spec
