"""Documents: JSON written whole or not at all, YAML that people write, pydantic models of both."""

from __future__ import annotations

import re
from contextlib import contextmanager
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from trainmark.errors import RecordError, UsageError, suggest_nearest
from trainmark.validation import describe_error, find_first_misfit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Model = TypeVar("Model", bound=BaseModel)

_JSON_LINE = re.compile(r"\bline (\d+)\b")  # in the rule of a text that is not JSON
_MOST_BYTES = 256 << 20  # the record of a million steps has 27 MB


class Frozen(BaseModel):
    """A document of ours: unknown keys fail, nothing changes once built."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ValueError: more than 256 MiB.
        OSError: no such file, or not to be read.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB")
    return path.read_bytes()


@contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` at the end of the block, whole or not at all.

    A device, a pipe or a link is written to: it is no file to replace.

    Raises:
        OSError: the disk is full or the folder read-only; ``path`` is as it was.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("wb") as file:
            yield file
        return
    staging = path.with_name(f".{path.name}.{token_hex(4)}.tmp")  # two may write it at once
    try:
        with staging.open("xb") as file:
            yield file
        staging.rename(path)
    finally:
        staging.unlink(missing_ok=True)


def read_yaml(file: Path) -> Any:
    """Return mappings, lists and words as they are written; None where nothing is.

    Numbers stay words: YAML 1.1 reads ``12:30:00`` as 45,000 and ``no`` as false. pydantic
    turns them into what a field asks for.

    Raises:
        UsageError: the file cannot be read, or is not YAML.
    """
    import yaml

    class Loader(yaml.BaseLoader):
        """Words only."""

        def construct_scalar(self, node: Any) -> Any:
            """Return a word; None where nothing is, ``null`` or ``~``."""
            if node.style is None and node.value in ("", "~", "null"):
                return None
            return super().construct_scalar(node)

    try:
        return yaml.load(file.read_text(encoding="utf-8-sig"), Loader)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the first names its line
        what = f"not YAML: {' '.join(str(error).split())}"
    raise UsageError(what, where=str(file), fix="pass a YAML file")


def validate_document(kind: type[Model], document: object, file: Path, *, fix: str) -> Model:
    """Return the content of a file as a pydantic model.

    Args:
        document: as ``read_yaml`` returns it.
        fix: where the keys are described.

    Raises:
        UsageError: with file and key: an unknown key, or a wrong value.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        fault = make_usage_error(error, kind, f"{file}: ")
    fault.fix = fault.fix or fix
    raise fault


def make_damage_error(
    error: OSError | ValueError, file: Path, what: str, *, rule: str, fix: str | None = None
) -> RecordError:
    """Return the fault of a JSON file of ours that cannot be read.

    It names the file, with the line where it stops being JSON, or the key that breaks the schema.

    Args:
        what: the fault in short, which the reason follows.
    """
    where, reason = str(file), describe_error(error)
    if isinstance(error, ValidationError):
        misfit = find_first_misfit(error)
        reason = f"{misfit.what}; {misfit.rule}"
        line = _JSON_LINE.search(misfit.rule) if misfit.kind == "json_invalid" else None
        if misfit.kind == "json_invalid":
            reason = misfit.rule
        place = line[1] if line else misfit.key
        where = f"{file}:{place}" if place else where
    return RecordError(f"{what}: {reason}", where=where, rule=rule, fix=fix)


def make_usage_error(error: ValidationError, model: type[BaseModel], where: str) -> UsageError:
    """Return the first fault of a document as an error of the user.

    Args:
        where: start of the place, before the key; ``--``: the key is an option.
    """
    misfit = find_first_misfit(error)
    key = misfit.key
    place = where + (key.replace("_", "-") if where == "--" else key)
    if misfit.kind == "extra_forbidden":
        known = _keys_beside(model, key.split("."))
        return UsageError(f"unknown key {key!r}", where=place, fix=suggest_nearest(key, known))
    return UsageError(misfit.what, where=place.removesuffix(": "), rule=misfit.rule)


def _keys_beside(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the valid keys in place of the last key of a path, each with those before it."""
    *outer, _ = path
    for key in outer:
        field = model.model_fields.get(key)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = [x for x in kinds if isinstance(x, type) and issubclass(x, BaseModel)]
        if not inner:
            return list(model.model_fields)
        model = inner[0]
    return [".".join([*outer, name]) for name in model.model_fields]
