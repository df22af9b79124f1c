"""``feature_spec.yaml``, the description of a data folder in the form of NVIDIA's DLRM.

Owns which keys stand in it and what each may say. Four parts: ``channel_spec`` lists the
columns by use, ``feature_spec`` gives each its type, ``source_spec`` the files of each
split, ``metadata`` is free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainmark.data.documents import Frozen, checked, read_yaml
from trainmark.errors import DataError, UsageError

from .layout import (
    LABEL_TYPE,
    NUM_NUMERICAL,
    NUMERICAL_TYPE,
    PREPARE,
    FeatureSpec,
    SplitFiles,
    largest_cardinality,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SPEC_FILE = "feature_spec.yaml"
RULES = "trainmark_prepare"  # part of the metadata: the rules that made the folder
_SOURCE_TYPE: Literal["split_binary"] = "split_binary"
_REMEDY = f"correct the file, or {PREPARE}"
Names = Annotated[list[str], Field(min_length=1)]
OneName = Annotated[list[str], Field(min_length=1, max_length=1)]


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
    trainmark_prepare: dict[str, str] = {}


class _Spec(Frozen):
    channel_spec: _Channels
    feature_spec: dict[str, _Feature]
    source_spec: _Sources
    metadata: _Metadata | None = None

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Columns that one file holds: all numerical ones, the label, each categorical one."""
        channels = self.channel_spec
        alone = [(name,) for name in (*channels.label, *channels.categorical)]
        return [tuple(channels.numerical), *alone]

    @model_validator(mode="after")
    def _columns_agree(self) -> _Spec:
        names = [name for group in self.groups for name in group]
        if sorted(names) != sorted(self.feature_spec):
            odd = set(names) ^ set(self.feature_spec) or {x for x in names if names.count(x) > 1}
            raise ValueError(f"{min(odd)} is not once in channel_spec and once in feature_spec")
        channels = self.channel_spec
        wanted = dict.fromkeys(channels.numerical, NUMERICAL_TYPE)
        wanted |= dict.fromkeys(channels.label, LABEL_TYPE)
        for name, feature in self.feature_spec.items():
            if name in wanted and feature != _Feature(dtype=wanted[name]):  # type: ignore[arg-type]
                raise ValueError(f"{name}: a column of this channel is {wanted[name]}")
            if name not in wanted:
                most = largest_cardinality(feature.dtype) if feature.dtype[:3] == "int" else 0
                if not 1 <= (feature.cardinality or 0) <= most:
                    rule = f"{feature.dtype} numbers 1 to {most} categories"
                    raise ValueError(f"{name}: cardinality {feature.cardinality}; {rule}")
        for split, sources in self.source_spec:
            if sorted(tuple(source.features) for source in sources) != sorted(self.groups):
                raise ValueError(
                    f"{split}: one file for all numerical columns in their order, one for the "
                    "label, one for each categorical column"
                )
        return self


def read_spec(folder: Path) -> FeatureSpec:
    """Return what ``feature_spec.yaml`` of ``folder`` says.

    Raises:
        DataError: it is missing or invalid; the files that it names are not read.
    """
    file = folder / SPEC_FILE
    try:
        spec = checked(_Spec, read_yaml(file), file, remedy=_REMEDY)
    except UsageError as error:
        rule = error.rule or "it describes the columns in YAML"
        raise DataError(error.what, where=error.where, rule=rule, remedy=_REMEDY) from None
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
    folder: Path, cardinalities: Sequence[int], *, num_numerical: int = NUM_NUMERICAL,
    rules: Mapping[str, object] | None = None,
) -> FeatureSpec:  # fmt: skip
    """Write ``feature_spec.yaml`` into ``folder``, whole or not at all, and return it read.

    The caller writes the files that it names before: a folder with a spec is complete.
    """
    import yaml

    spec = FeatureSpec.of(folder, cardinalities, num_numerical=num_numerical)
    spec = replace(spec, rules={name: str(value) for name, value in (rules or {}).items()})
    text = yaml.safe_dump(_document(folder, spec), sort_keys=False)
    staging = folder / f".{SPEC_FILE}.part"
    staging.write_text(text, encoding="utf-8")
    staging.replace(folder / SPEC_FILE)
    return spec


def _document(folder: Path, spec: FeatureSpec) -> dict[str, object]:
    numerical = [f"num_{number}" for number in range(spec.num_numerical)]
    categorical = [f"cat_{number}.bin" for number in range(len(spec.cardinalities))]
    tables = zip(categorical, spec.category_dtypes, spec.cardinalities, strict=True)

    def source(features: list[str], file: Path) -> dict[str, object]:
        place = file.relative_to(folder).as_posix()
        # A new list each time: YAML would write an alias for a shared one.
        return {"type": _SOURCE_TYPE, "features": list(features), "files": [place]}

    return {
        "channel_spec": {
            "categorical": list(categorical), "numerical": list(numerical), "label": ["label"],
        },
        "feature_spec": {
            **{name: {"dtype": dtype, "cardinality": count} for name, dtype, count in tables},
            **{name: {"dtype": NUMERICAL_TYPE} for name in numerical},
            "label": {"dtype": LABEL_TYPE},
        },
        "source_spec": {
            split: [
                source(numerical, files.numerical),
                source(["label"], files.label),
                *(source([name], file)
                  for name, file in zip(categorical, files.categories, strict=True)),
            ]
            for split, files in spec.files.items()
        },
        "metadata": {RULES: dict(spec.rules)} if spec.rules else {},
    }  # fmt: skip
