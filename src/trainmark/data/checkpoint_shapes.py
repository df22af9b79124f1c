"""Names, types and shapes of a checkpoint's tensors, held against those that a model expects.

Reads the headers of safetensors files and the index that names several. Knows no model; no
torch, so that the launcher can check. Files that torch wrote are ``train.checkpoints``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.data.files import refuse_unreadable
from trainmark.data.model_config import read_json
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Floating-point types by what safetensors headers call them; another type keeps its name.
_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a header describes it: its file, its key there, type and shape."""

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """What a model expects of a checkpoint.

    Args:
        model: what decides the shapes, ``the Llama of model/config.json``.
        shapes: shape of every weight by name.
        rule: what a sound checkpoint is.
        remedy: where one comes from.
        fitting: the way out where a checkpoint is sound but of another model.
        wrappers: what may stand before a name, ``module.``; not part of it.
        optional: what the names of weights that may be missing begin with.
        unused: tells of a name without wrappers that the model has no use for it.
        any_rows: tables that may have another number of rows.
    """

    model: str
    shapes: Mapping[str, tuple[int, ...]]
    rule: str
    remedy: str
    fitting: str = "use the config.json and the weights of one and the same model"
    wrappers: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    unused: Callable[[str], bool] = field(default=lambda _: False)
    any_rows: tuple[str, ...] = ()

    def bare(self, name: str) -> str:
        """Return a name without what may stand before it."""
        while name.startswith(self.wrappers):
            name = name.partition(".")[2]
        return name


def match(
    found: Iterable[StoredTensor], weights: ModelWeights, *, where: Path
) -> dict[str, StoredTensor]:
    """Return the stored tensor of every weight that was found, by the model's name of it.

    Args:
        where: the file or folder of the checkpoint, for what is missing from it.

    Raises:
        DataError: a tensor that is there twice, unknown, of another shape or no floating-point
            numbers, or a weight that is missing.
    """
    names = {weights.bare(name): name for name in weights.shapes}
    matched: dict[str, StoredTensor] = {}
    for tensor in found:
        bare = weights.bare(tensor.key)
        name = names.get(bare)
        if name is None and weights.unused(bare):
            continue
        what, rule, remedy = _fault(tensor, name, weights)
        if name in matched:
            what, rule, remedy = f"{name} is there twice", weights.rule, weights.remedy
        if what:
            raise DataError(what, where=f"{tensor.file}, {tensor.key}", rule=rule, remedy=remedy)
        assert name is not None
        matched[name] = tensor
    missing = [
        name for name in weights.shapes
        if name not in matched and not name.startswith(weights.optional)
    ]  # fmt: skip
    if missing:
        raise DataError(
            f"no weight {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            where=f"{where}, {missing[0]}",
            rule=f"{weights.model} has {len(weights.shapes)} weights",
            remedy=weights.fitting,
        )
    return matched


def _fault(tensor: StoredTensor, name: str | None, weights: ModelWeights) -> tuple[str, str, str]:
    """Return what is wrong with a tensor, rule and way out; empty texts where nothing is."""
    key, has = tensor.key, tensor.shape
    if name is None:
        return f"unknown weight {key}", f"{weights.model} has no such weight", weights.fitting
    wanted = weights.shapes[name]
    if name in weights.any_rows:
        wanted = (*has[:1], *wanted[1:])
    if has != wanted:
        rule = f"{weights.model} has it as {weights.shapes[name]}"
        return f"{key} has shape {has}", rule, weights.fitting
    if tensor.dtype not in _DTYPES.values():
        rule = f"weights are floating-point numbers: {', '.join(_DTYPES.values())}"
        return f"{key} is stored as {tensor.dtype}", rule, weights.remedy
    return "", "", ""


def indexed_files(index: Path, *, rule: str, remedy: str) -> list[Path]:
    """Return the safetensors files that an index names, sorted.

    Raises:
        DataError: no index, or one that names no files.
    """
    found = read_json(index, rule=rule, remedy=remedy)
    names = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(names, dict) or not names:
        raise DataError("no weight_map", where=str(index), rule=rule, remedy=remedy)
    return [index.with_name(name) for name in sorted(set(map(str, names.values())))]


def stored_tensors(file: Path, *, rule: str, remedy: str) -> list[StoredTensor]:
    """Return the tensors of a safetensors file in its order.

    Raises:
        DataError: missing, empty, damaged or cut short.
    """
    from safetensors import SafetensorError, safe_open

    refuse_unreadable(file, rule=rule, remedy=remedy)
    try:
        with safe_open(file, framework="np") as opened:
            slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118
            return [
                StoredTensor(
                    file, key, _DTYPES.get(part.get_dtype(), part.get_dtype()),
                    tuple(part.get_shape()),
                )
                for key, part in slices.items()
            ]  # fmt: skip
    except SafetensorError as error:
        what = f"not readable as safetensors: {error}"
        raise DataError(what, where=str(file), rule=rule, remedy=remedy) from None
