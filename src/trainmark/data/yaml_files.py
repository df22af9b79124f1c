"""YAML that people write by hand, read into pydantic models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

from trainmark.errors import UsageError, nearest

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
        """Words only, and no key twice."""

        def construct_mapping(self, node: Any, deep: bool = True) -> dict[Any, Any]:
            """Return a mapping; raise ConstructorError for a key that is given twice."""
            keys = [self.construct_object(key, deep) for key, _ in node.value]
            for number, key in enumerate(keys):
                if key in keys[:number]:
                    mark = node.value[number][0].start_mark
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key} is given twice", mark
                    )
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

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
        UsageError: with file and key: an unknown key, with the nearest one; a wrong value.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(document)
    except ValidationError as error:
        # A misspelt key may also be a missing one: the misspelling says more.
        faults = error.errors(include_url=False)
        first = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
    place = first["loc"]
    key = ".".join(map(str, place))
    if first["type"] != "extra_forbidden":
        shown = "" if isinstance(first["input"], dict | list) else f", not {first['input']!r}"
        what = f"{key or 'the file'}: {first['msg']}{shown}"
        raise UsageError(what, where=str(file), remedy=remedy)
    section: Any = kind
    for name in place[:-1]:  # also numbers of a list's members and keys of a mapping
        if name in section.model_fields:
            section = _model_of(section.model_fields[name].annotation) or section
    hint = nearest(str(place[-1]), section.model_fields)
    raise UsageError(f"unknown key {key!r}", where=str(file), remedy=hint)


def _model_of(kind: Any) -> Any:
    """Return the model in an annotation such as ``Model | None`` or ``dict[str, Model]``."""
    if hasattr(kind, "model_fields"):
        return kind
    return next((found for part in get_args(kind) if (found := _model_of(part))), None)
