"""``feature_spec.yaml``, the description of a data folder in the form of NVIDIA's DLRM.

Owns which keys stand in it and what each may say. Four parts: ``channel_spec`` lists the
columns by use, ``feature_spec`` gives each its type, ``source_spec`` the files of each
split, ``metadata`` is free. Aliases are taken, because that program's own writer makes them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from trainmark.data.yaml_text import Value
from trainmark.errors import DataError, UsageError, nearest

from .layout import (
    AGAIN,
    CATEGORY_BYTES,
    LABEL_TYPE,
    NUM_NUMERICAL,
    NUMERICAL_TYPE,
    PREPARE,
    SPLITS,
    FeatureSpec,
    SplitFiles,
    largest_cardinality,
    readable,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from yaml.nodes import Node

SPEC_FILE = "feature_spec.yaml"
RULES = "trainmark_prepare"  # part of the metadata: the rules that made the folder
CHANNELS = ("numerical", "categorical", "label")
_LARGEST_BYTES = 256 * 1024  # a spec of 26 tables takes 5 kB
_SOURCE_TYPE = "split_binary"
_FIX = f"correct the file, or {PREPARE}"


def read_spec(folder: Path) -> FeatureSpec:
    """Return what ``feature_spec.yaml`` of ``folder`` says.

    Raises:
        DataError: it is missing or invalid; the files that it names are not read.
    """
    file = folder / SPEC_FILE
    with _data_errors():
        root = Value(str(file), "the file", _compose(file))
        parts = _keys(root, ("channel_spec", "feature_spec", "source_spec"), ("metadata",))
        channels = {
            name: [item.text() for item in value.items()]
            for name, value in _keys(parts["channel_spec"], CHANNELS).items()
        }
        _refuse_channels(parts["channel_spec"], channels)
        names = [name for channel in CHANNELS for name in channels[channel]]
        features = _keys(parts["feature_spec"], names)
        for channel, dtype in (("numerical", NUMERICAL_TYPE), ("label", LABEL_TYPE)):
            for name in channels[channel]:
                _dtype(_keys(features[name], ("dtype",))["dtype"], (dtype,))
        tables = [_table(features[name]) for name in channels["categorical"]]
        splits = _keys(parts["source_spec"], SPLITS)
        files = {split: _split_files(folder, splits[split], channels) for split in SPLITS}
        rules = _rules(parts["metadata"]) if "metadata" in parts else {}
    cardinalities, dtypes = zip(*tables, strict=True)
    return FeatureSpec(len(channels["numerical"]), cardinalities, dtypes, files, rules)


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


@contextmanager
def _data_errors() -> Iterator[None]:
    """Say what ``yaml_text`` refuses as a fault of the data."""
    try:
        yield
    except UsageError as error:
        raise DataError(
            error.what, where=error.where, remedy=error.remedy or _FIX,
            rule=error.rule or f"{SPEC_FILE} describes the columns in YAML",
        ) from None  # fmt: skip


def _compose(file: Path) -> Node:
    import yaml

    with readable(file), file.open("rb") as stream:
        data = stream.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        rule = f"{_LARGEST_BYTES >> 10} KiB at most are read"
        raise DataError("the file is too large", where=str(file), rule=rule, remedy=AGAIN)
    what, where = "the file is empty", str(file)
    try:
        node: Node | None = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
        if node is not None:
            return node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}, line {mark.line + 1}" if mark else where
        what = f"not YAML: {error.problem or error.context}"
    except (yaml.YAMLError, ValueError):  # no UTF-8 among them
        what = "not YAML: a character that no text holds"
    except RecursionError:
        what = "not a description of columns: nested too deep"
    raise DataError(what, where=where, rule=f"{SPEC_FILE} is text in YAML", remedy=_FIX)


def _keys(
    value: Value, wanted: Collection[str], optional: Collection[str] = ()
) -> dict[str, Value]:
    """Return a mapping that holds all of ``wanted`` and nothing unknown."""
    found = value.mapping()
    for name, entry in found.items():
        if name not in wanted and name not in optional:
            raise DataError(
                f"unknown key {name}", where=entry.where, rule=f"under {value.key}",
                remedy=nearest(name, (*wanted, *optional)),
            )  # fmt: skip
    missing = [name for name in wanted if name not in found]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise DataError(
            f"{value.key} lacks {shown}", where=value.where,
            rule="every part, channel, column and split stands there once", remedy=_FIX,
        )  # fmt: skip
    return found


def _refuse_channels(value: Value, channels: Mapping[str, list[str]]) -> None:
    """Refuse an empty channel, several labels, and a column with two uses."""
    names = [name for channel in CHANNELS for name in channels[channel]]
    twice = sorted({name for name in names if names.count(name) > 1})
    what = next((f"channel {name} is empty" for name in CHANNELS if not channels[name]), None)
    if len(channels["label"]) > 1:
        what = f"{len(channels['label'])} labels"
    if twice:
        what = f"{twice[0]} is listed twice"
    if what:
        raise DataError(
            what, where=value.where, remedy=_FIX,
            rule="one label, at least one numerical and one categorical column, each once",
        )  # fmt: skip


def _rules(metadata: Value) -> dict[str, str]:
    """Return the rules that stand in the metadata, which is free otherwise."""
    if isinstance(metadata.node.value, list) and metadata.node.tag.endswith(":map"):
        for key, node in metadata.node.value:
            if key.value == RULES:
                rules = Value(metadata.file, RULES, node).mapping()
                return {name: value.text() for name, value in rules.items()}
    return {}


def _dtype(value: Value, known: Collection[str]) -> str:
    dtype = value.text()
    if dtype not in known:
        raise DataError(
            f"dtype {dtype}", where=value.where,
            rule=f"a column of this channel is {' or '.join(known)}", remedy=_FIX,
        )  # fmt: skip
    return dtype


def _table(value: Value) -> tuple[int, str]:
    """Return cardinality and type of a categorical column."""
    entry = _keys(value, ("dtype", "cardinality"))
    dtype = _dtype(entry["dtype"], CATEGORY_BYTES)
    cardinality, most = entry["cardinality"].whole(), largest_cardinality(dtype)
    if not 1 <= cardinality <= most:
        raise DataError(
            f"cardinality {cardinality} of {value.key}", where=entry["cardinality"].where,
            rule=f"{dtype} numbers 1 to {most} categories", remedy=_FIX,
        )  # fmt: skip
    return cardinality, dtype


def _split_files(folder: Path, split: Value, channels: Mapping[str, list[str]]) -> SplitFiles:
    """Return the files of a split, by the columns each holds."""
    found: dict[tuple[str, ...], Path] = {}
    groups = [tuple(channels["numerical"]), tuple(channels["label"])]
    groups += [(name,) for name in channels["categorical"]]
    for item in split.items():
        entry = _keys(item, ("type", "features", "files"))
        if entry["type"].text() != _SOURCE_TYPE:
            raise DataError(
                f"type {entry['type'].text()}", where=entry["type"].where,
                rule=f"sources of type {_SOURCE_TYPE} are read", remedy=PREPARE,
            )  # fmt: skip
        columns = tuple(name.text() for name in entry["features"].items())
        files = entry["files"].items()
        if columns not in groups or columns in found or len(files) != 1:
            raise DataError(
                f"{len(files)} files for {', '.join(columns)[:60] or 'no column'}",
                where=entry["features"].where,
                rule="one file for all numerical columns in their order, one for the label, "
                "one for each categorical column",
                remedy=_FIX,
            )
        found[columns] = folder / _inside(files[0])
    missing = next((columns for columns in groups if columns not in found), None)
    if missing is not None:
        raise DataError(
            f"no file for {', '.join(missing)[:60]}", where=split.where,
            rule=f"{split.key} names a file for every column", remedy=_FIX,
        )  # fmt: skip
    numerical, label, *categories = (found[columns] for columns in groups)
    return SplitFiles(numerical, label, tuple(categories))


def _inside(value: Value) -> PurePosixPath:
    path = PurePosixPath(value.text())
    if path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"file {path}", where=value.where,
            rule="files lie in the data folder, named from there", remedy=_FIX,
        )  # fmt: skip
    return path
