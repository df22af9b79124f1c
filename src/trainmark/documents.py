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

_JSON_LINE = re.compile(r"\bline (\d+)\b")  # where JSON is malformed, as the error's text says
_MAX_BYTES = 256 << 20  # the record of a million steps has 27 MB


class Frozen(BaseModel):
    """A document of this program: unknown keys fail, and it cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ValueError: more than 256 MiB.
        OSError: the file does not exist or cannot be read.
    """
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"the file is larger than {_MAX_BYTES >> 20} MiB")
    return path.read_bytes()


@contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` at the end of the block, whole or not at all.

    That holds for readers, and if this process dies. It does not hold for a crash of the machine,
    because the file is not flushed to the disk.

    A device, a pipe or a link is written to directly, because it must not be replaced by a file.
    Such a write can end halfway.

    Raises:
        OSError: the disk is full or the folder read-only.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("wb") as file:
            yield file
        return
    # The random part keeps two processes that write the same file apart.
    staging = path.with_name(f".{path.name}.{token_hex(4)}.tmp")
    try:
        with staging.open("xb") as file:
            yield file
        staging.rename(path)
    finally:
        staging.unlink(missing_ok=True)


def read_yaml(file: Path) -> Any:
    """Return mappings, lists and texts as they are written; None for an empty value.

    Numbers stay texts, because YAML 1.1 reads ``12:30:00`` as 45,000 and ``no`` as false. pydantic
    converts them to the type of the field.

    Raises:
        UsageError: the file cannot be read, is not YAML, or has a key twice in a mapping.
    """
    import yaml

    class Loader(yaml.BaseLoader):
        """Reads every single value as text."""

        def construct_scalar(self, node: Any) -> Any:
            """Return a value as text; None for an empty value, ``null`` and ``~``."""
            # A style of None: the value is written without quotes.
            if node.style is None and node.value in ("", "~", "null"):
                return None
            return super().construct_scalar(node)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """Return a mapping; refuse a key that it has twice, of which YAML keeps the last."""
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = str(key_node.value)
                if key in seen:
                    raise UsageError(
                        f"{key} is given twice",
                        where=f"{file}, line {key_node.start_mark.line + 1}",
                        rule="each key may occur only once in a mapping",
                        fix=f"set {key} only once",
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(file.read_text(encoding="utf-8-sig"), Loader)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a YAMLError names its line
        what = f"not YAML: {' '.join(str(error).split())}"
    raise UsageError(what, where=str(file), fix="pass a YAML file")


def validate_document(kind: type[Model], document: object, file: Path, *, fix: str) -> Model:
    """Return the content of a file as a pydantic model.

    Args:
        document: as ``read_yaml`` returns it.
        fix: what the error recommends, unless it names the nearest known key.

    Raises:
        UsageError: with file and key: an unknown key, or a wrong value.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        fault = make_usage_error(error, kind, f"{file}: ")
    fault.fix = fault.fix or fix  # an unknown key already has a fix: the nearest known key
    raise fault


def make_damage_error(
    error: OSError | ValueError, file: Path, what: str, *, rule: str, fix: str | None = None
) -> RecordError:
    """Return the error of a JSON file of this program that cannot be read.

    It names the file, with the line at which JSON is malformed, or the key that breaks the schema.

    Args:
        what: the fault in short, which the reason follows.
        rule: what is valid.
        fix: what to do now.
    """
    where = str(file)
    reason = describe_error(error)
    if isinstance(error, ValidationError):
        misfit = find_first_misfit(error)
        place = misfit.key
        reason = f"{misfit.what}; {misfit.rule}"
        if misfit.kind == "json_invalid":
            reason = misfit.rule
            line = _JSON_LINE.search(misfit.rule)  # "… stopped at line 3 column 7"
            if line is not None:
                place = line[1]
        if place:
            where = f"{file}:{place}"
    return RecordError(f"{what}: {reason}", where=where, rule=rule, fix=fix)


def make_usage_error(error: ValidationError, model: type[BaseModel], where: str) -> UsageError:
    """Return one of pydantic's errors, the most useful to the user, as a UsageError.

    Args:
        model: the type of the document; its fields are the valid keys.
        where: text before the key in the place that the error names, such as ``FILE: ``; ``--`` if
            the key is an option, in which ``_`` is then written as ``-``.
    """
    misfit = find_first_misfit(error)
    key = misfit.key
    place = where + (key.replace("_", "-") if where == "--" else key)
    if misfit.kind == "extra_forbidden":
        valid_keys = _list_sibling_keys(model, key.split("."))
        return UsageError(f"unknown key {key!r}", where=place, fix=suggest_nearest(key, valid_keys))
    # Without a key only the start is left, such as `FILE: `.
    return UsageError(misfit.what, where=place.removesuffix(": "), rule=misfit.rule)


def _list_sibling_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the keys that are valid in place of the last key of a path, each as a whole path.

    Args:
        path: keys from the outermost table to the key. Tables are fields of ``model``, or entries
            of a field that is a mapping or list of tables.
    """
    outer_keys = path[:-1]
    for key in outer_keys:
        field = model.model_fields.get(key)
        # The table's type: alone, in a union such as ``StepWork | None``, or that of the entries in
        # ``list[Source]`` and ``dict[str, Feature]``.
        types = (field.annotation, *get_args(field.annotation)) if field else ()
        table_types = [x for x in types if isinstance(x, type) and issubclass(x, BaseModel)]
        if table_types:
            model = table_types[0]
        # Otherwise ``key`` is the name or number of an entry; ``model`` is the type of entries.
    return [".".join([*outer_keys, name]) for name in model.model_fields]
