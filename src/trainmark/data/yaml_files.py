"""YAML that people write by hand, read into pydantic models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from trainmark.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)


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
        what, where = f"cannot be read: {error.strerror}", str(file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not YAML: {error.problem or error.context}"
        where = f"{file}, line {mark.line + 1}" if mark else str(file)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what, where = f"not YAML: {error}", str(file)
    raise UsageError(what, where=where, remedy="name a file in YAML")


def checked(kind: type[Model], document: object, file: Path, *, remedy: str) -> Model:
    """Return the content of a file as a pydantic model.

    Args:
        document: as ``read_yaml`` returns it.
        remedy: where the keys are described.

    Raises:
        UsageError: with file and key: an unknown key, or a wrong value.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(document)
    except ValidationError as error:
        # A misspelt key may also be a missing one: the misspelling says more.
        faults = error.errors(include_url=False)
        first = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
    key = ".".join(map(str, first["loc"])) or "the file"
    shown = "" if isinstance(first["input"], dict | list) else f", not {first['input']!r}"
    what = f"{key}: {first['msg']}{shown}"
    if first["type"] == "extra_forbidden":
        what = f"unknown key {key!r}"
    raise UsageError(what, where=str(file), remedy=remedy)
