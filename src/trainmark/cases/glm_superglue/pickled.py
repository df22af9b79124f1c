"""Shapes of the weights in the original's checkpoint file, read without torch.

Owns how little of a pickle is rebuilt: dictionaries and the sizes of tensors. No name that
the file gives is looked up, so nothing in it can run; names that no weights need are
refused here, the rest of them by the library on the ranks. Must not read numbers.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from typing import IO, TYPE_CHECKING, Any

from trainmark.data.input_files import readable
from trainmark.errors import DataError

from .checkpoint_files import REMEDY, RULE
from .weights import by_name, more_than_weights, no_numbers, weights_in

if TYPE_CHECKING:
    from pathlib import Path

DATA_MODULES = {"torch", "numpy", "collections", "builtins", "__builtin__", "_codecs"}
ZIP_START = b"PK\x03\x04"
# What the reader raises for bytes that are no sound pickle of a checkpoint.
DAMAGE = (
    pickle.UnpicklingError, zipfile.BadZipFile, EOFError, TypeError, ValueError, LookupError,
    AttributeError, ArithmeticError, MemoryError, NotImplementedError, RecursionError,
)  # fmt: skip


class _Reader(pickle.Unpickler):
    """Rebuilds dictionaries and sizes; everything else becomes an object that does nothing."""

    def __init__(self, stream: IO[bytes], file: Path) -> None:
        super().__init__(stream)
        self.file = file

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in DATA_MODULES:
            raise more_than_weights(self.file, f"{module}.{name}")

        class Nothing:
            def __new__(cls, *_args: Any, **_named: Any) -> Any:
                return object.__new__(cls)

            def take(self, *_args: Any) -> None:
                pass

            __setstate__ = __setitem__ = append = extend = add = take

        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): lambda _held, _at, size, *_rest: tuple(size),
            ("torch._utils", "_rebuild_parameter"): lambda data, *_rest: data,
        }
        return known.get((module, name), Nothing)

    def persistent_load(self, pid: Any) -> None:
        """Leave the numbers where they are."""


def pickled_shapes(file: Path) -> dict[str, tuple[int, ...]] | None:
    """Return the shape of every weight of a checkpoint; none for the format before torch 1.6.

    Raises:
        DataError: damaged, cut short, without weights by name, or with more than weights.
    """
    with readable(file, rule=RULE, remedy=REMEDY):
        with file.open("rb") as stream:
            start = stream.read(len(ZIP_START))
        if start != ZIP_START:
            return None
        try:
            with zipfile.ZipFile(file) as held:
                entry = next(n for n in held.namelist() if n.endswith("/data.pkl"))
                with held.open(entry) as pickled:
                    whole = _Reader(pickled, file).load()
        except StopIteration:
            whole = None
        except DAMAGE as error:
            raise DataError(
                f"damaged: {str(error) or type(error).__name__}", where=str(file), rule=RULE,
                remedy=REMEDY,
            ) from None  # fmt: skip
    found = weights_in(whole, file)
    for key, shape in found.items():
        if type(shape) is not tuple or not all(type(size) is int for size in shape):
            raise no_numbers(file, key)
    return by_name(found, file)
