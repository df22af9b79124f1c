"""Names, types and shapes of a checkpoint's tensors, held against those that a model expects.

Reads headers only: of safetensors files, of the index that names several, and of torch's zip
format. Of a pickle, dictionaries and sizes are rebuilt and nothing else: no name in it is
looked up, so nothing in it can run. Knows no model; no torch, so that the launcher can check.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from trainmark.data.input_files import file_bytes, readable
from trainmark.data.model_config import read_json
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("float64", "float32", "bfloat16", "float16")
# What safetensors headers and torch's storages call them; another type keeps its name.
_DTYPES = {
    "F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16",
    "DoubleStorage": "float64", "FloatStorage": "float32", "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
}  # fmt: skip
_ZIP_START = b"PK\x03\x04"
_DATA_MODULES = {"torch", "numpy", "collections", "builtins", "__builtin__", "_codecs"}
# What the reader raises for bytes that are no sound pickle of a checkpoint.
_DAMAGE = (
    pickle.UnpicklingError, zipfile.BadZipFile, EOFError, TypeError, ValueError, LookupError,
    AttributeError, ArithmeticError, MemoryError, NotImplementedError, RecursionError,
)  # fmt: skip


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
    names = {_bare(name, weights): name for name in weights.shapes}
    matched: dict[str, StoredTensor] = {}
    for tensor in found:
        bare = _bare(tensor.key, weights)
        name = names.get(bare)
        if name is None and weights.unused(bare):
            continue
        if name is not None and name in matched:
            raise _refused(tensor, f"{name} is there twice", weights.rule, weights.remedy)
        _refuse_other(tensor, name, weights)
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


def _bare(name: str, weights: ModelWeights) -> str:
    while name.startswith(weights.wrappers):
        name = name.partition(".")[2]
    return name


def _refuse_other(tensor: StoredTensor, name: str | None, weights: ModelWeights) -> None:
    """Raise DataError for a tensor that the model does not have in this form."""
    key = tensor.key
    if name is None:
        rule = f"{weights.model} has no such weight"
        raise _refused(tensor, f"unknown weight {key}", rule, weights.fitting)
    wanted, has = weights.shapes[name], tensor.shape
    if name in weights.any_rows:
        wanted, has = wanted[1:], has[1:]
    if has != wanted or len(tensor.shape) != len(weights.shapes[name]):
        rule = f"{weights.model} has it as {weights.shapes[name]}"
        raise _refused(tensor, f"{key} has shape {tensor.shape}", rule, weights.fitting)
    if tensor.dtype not in FLOATS:
        rule = f"weights are floating-point numbers: {', '.join(FLOATS)}"
        raise _refused(tensor, f"{key} is stored as {tensor.dtype}", rule, weights.remedy)


def _refused(tensor: StoredTensor, what: str, rule: str, remedy: str) -> DataError:
    return DataError(what, where=f"{tensor.file}, {tensor.key}", rule=rule, remedy=remedy)


def indexed_files(index: Path, *, rule: str, remedy: str) -> list[Path]:
    """Return the safetensors files that an index names, sorted.

    Raises:
        DataError: no index, or one that names something else.
    """
    found = read_json(index, rule=rule, remedy=remedy)
    names = found.get("weight_map") if isinstance(found, dict) else None
    what = None if isinstance(names, dict) and names else "no weight_map"
    files = sorted({str(name) for name in names.values()}) if isinstance(names, dict) else []
    if strange := [x for x in files if "/" in x or not x.endswith(".safetensors")]:
        what = f"the weight_map names {strange[0]!r}"
    if what:
        raise DataError(what, where=str(index), rule=rule, remedy=remedy)
    return [index.with_name(name) for name in files]


def stored_tensors(file: Path, *, rule: str, remedy: str) -> list[StoredTensor] | None:
    """Return the tensors of a file in its order; none for torch's format before 1.6.

    Raises:
        DataError: missing, empty, damaged, cut short, or with something else than weights.
    """
    if not file.exists():
        raise DataError("no such file", where=str(file), rule=rule, remedy=remedy)
    with readable(file, rule=rule, remedy=remedy):
        if file_bytes(file) == 0:
            what = "the file is empty (0 bytes)"
            raise DataError(what, where=str(file), rule=rule, remedy=remedy)
        if file.suffix == ".safetensors":
            return _safetensors(file, rule, remedy)
        with file.open("rb") as stream:
            if stream.read(len(_ZIP_START)) != _ZIP_START:
                return None
        return _pickled(file, rule, remedy)


def _safetensors(file: Path, rule: str, remedy: str) -> list[StoredTensor]:
    from safetensors import SafetensorError, safe_open

    found = []
    try:
        with safe_open(file, framework="np") as held:
            for key in held.keys():  # noqa: SIM118 - not a mapping
                part = held.get_slice(key)
                kind = part.get_dtype()
                shape = tuple(part.get_shape())
                found.append(StoredTensor(file, key, _DTYPES.get(kind, kind), shape))
    except SafetensorError as error:
        what = f"not readable as safetensors: {error}"
        raise DataError(what, where=str(file), rule=rule, remedy=remedy) from None
    return found


def _pickled(file: Path, rule: str, remedy: str) -> list[StoredTensor]:
    """Return the tensors of a checkpoint that torch saved, or of the ``module`` within it."""
    try:
        with zipfile.ZipFile(file) as held:
            entry = next((name for name in held.namelist() if name.endswith("/data.pkl")), None)
            whole = None
            if entry is not None:
                with held.open(entry) as pickled:
                    whole = _Reader(pickled, file).load()
    except _DAMAGE as error:
        what = f"damaged: {str(error) or type(error).__name__}"
        raise DataError(what, where=str(file), rule=rule, remedy=remedy) from None
    state = weights_in(whole, file, rule=rule, remedy=remedy)
    found = []
    for key, item in state.items():
        if not isinstance(item, _Tensor):
            what, only = f"{key} holds no floating-point numbers", "every weight is a tensor"
            raise DataError(what, where=f"{file}, {key}", rule=only, remedy=remedy)
        found.append(StoredTensor(file, key, item.dtype, item.shape))
    return found


def weights_in(whole: Any, file: Path, *, rule: str, remedy: str) -> dict[str, Any]:
    """Return the weights out of what a torch file holds: its ``module``, or all of it.

    Raises:
        DataError: no entries by name.
    """
    found = whole.get("module", whole) if isinstance(whole, dict) else None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise DataError("no weights by name", where=f"{file}, module", rule=rule, remedy=remedy)
    return found


def more_than_weights(file: Path, name: str | None) -> DataError:
    """Return the error for a pickle that would have to execute ``name`` to be read."""
    return DataError(
        "not readable as weights alone" + (f": it names {name}" if name else ""),
        where=str(file),
        rule="the file is read without executing anything in it",
        remedy="save the weights alone again where the file comes from",
    )


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]


def _rebuilt(storage: Any, _offset: Any, shape: Any, *_rest: Any) -> Any:
    """Stand in for torch's own function of this form; anything odd is no tensor."""
    if type(shape) is tuple and all(type(size) is int for size in shape):
        return _Tensor(str(storage), shape)
    return None


class _Nothing:
    """Stands for every object that no weight needs, and does nothing."""

    def __new__(cls, *_args: Any, **_named: Any) -> _Nothing:
        return object.__new__(cls)

    def _take(self, *_args: Any) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = _take


class _Reader(pickle.Unpickler):
    """Rebuilds dictionaries, types and sizes; everything else becomes a ``_Nothing``."""

    def __init__(self, stream: IO[bytes], file: Path) -> None:
        super().__init__(stream)
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _DATA_MODULES:
            raise more_than_weights(self._file, f"{module}.{name}")
        if module == "torch" and name.endswith("Storage"):
            return _DTYPES.get(name, name)
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_rest: data,
        }
        # A class of its own each time: what a pickle sets on one must not reach the next.
        return known.get((module, name), type(name, (_Nothing,), {}))

    def persistent_load(self, pid: Any) -> Any:
        """Return the type of a storage; its numbers are left where they are."""
        return pid[1] if isinstance(pid, tuple) and len(pid) > 1 else None
