"""The ``config.json`` of a Hugging Face model folder: which keys a case needs, and their ranges.

A case declares the keys as ``ConfigKeys``: each field has a type, a range and, as its
description, the rule that an error names. Owns reading the file and the errors; knows no
model. Keys that a case does not declare are the writer's own business.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainmark.data.input_files import readable
from trainmark.data.json_documents import read_bytes
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG = "config.json"
Size = Annotated[int, Field(gt=0, description="a size is a whole number above 0")]
Share = Annotated[float, Field(ge=0, lt=1, description="a number in [0, 1)")]
_MAX_BYTES = 64 << 20  # a config has kilobytes, the index of a checkpoint a few megabytes
_SHOWN_CHARACTERS = 80


class ConfigKeys(BaseModel):
    """The keys of a ``config.json`` that define a model; derive once a case.

    A field's alias is the key's name in the file. A validator that raises ``ValueError`` gives
    the rule that was broken as its text.
    """

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")

    @property
    def raw(self) -> dict[str, Any]:
        """The keys that the file gave, by their names there."""
        return self.model_dump(by_alias=True, exclude_unset=True)


Keys = TypeVar("Keys", bound=ConfigKeys)


def read_config(file: Path, keys: type[Keys], *, rule: str, remedy: str) -> Keys:
    """Read and check a ``config.json``.

    Raises:
        DataError: missing, no JSON, or the first key that is missing or outside its range.
    """
    raw = read_json(file, rule=rule, remedy=remedy)
    if not isinstance(raw, dict):
        raise DataError(
            f"holds a {type(raw).__name__}, not keys", where=str(file), rule=rule, remedy=remedy
        )
    try:
        return keys.model_validate(raw)
    except ValidationError as error:
        raise _bad_value(error, raw, file, keys, remedy) from None


def _bad_value(
    error: ValidationError, raw: Mapping[str, Any], file: Path, keys: type[ConfigKeys], remedy: str
) -> DataError:
    """Return the error for the first key that pydantic refused."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    told = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    if not name:  # a rule about several keys names them itself
        return DataError(told, where=str(file), remedy=remedy)
    field = next(item for key, item in keys.model_fields.items() if name in {key, item.alias})
    rule = told if first["type"] == "value_error" else field.description or told
    shown = repr(raw[name]) if name in raw else "missing"
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return DataError(f"{name} is {shown}", where=f"{file}, {name}", rule=rule, remedy=remedy)


def read_json(file: Path, *, rule: str, remedy: str) -> Any:
    """Return what a JSON file of a model folder holds.

    Raises:
        DataError: it is missing, no regular file, too large, or no JSON.
    """
    if not file.exists():
        raise DataError("no such file", where=str(file), rule=rule, remedy=remedy)
    try:
        with readable(file, rule=rule, remedy=remedy):
            return json.loads(read_bytes(file, max_bytes=_MAX_BYTES))
    except RecursionError:
        why = "nested too deeply"
    except ValueError as error:
        why = str(error)
    raise DataError(f"not readable as JSON: {why}", where=str(file), rule=rule, remedy=remedy)
