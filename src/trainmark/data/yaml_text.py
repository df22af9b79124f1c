"""YAML as people write it by hand: mappings, lists and scalars that know their line.

Owns which part of YAML is taken: no anchors, aliases or tags, and little depth, so that no
file is larger in memory than on disk. Must not know what the keys mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from trainmark.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pydantic import BaseModel
    from yaml.nodes import Node

    Model = TypeVar("Model", bound=BaseModel)

_LARGEST_BYTES = 256 * 1024  # PyYAML reads some 100 kB a second
_DEEPEST = 8
_LONGEST_WHOLE = 19  # digits of the largest seed
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_KINDS = {
    "map": "a mapping", "seq": "a list", "null": "nothing", "bool": "a truth value",
    "int": "a number", "float": "a number", "timestamp": "a date", "str": "text",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A place in a file: what stands there, under which key, in which line."""

    file: str
    key: str
    node: Node

    @property
    def line(self) -> int:
        """The line it begins in, counted from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}, line {self.line}"

    @property
    def is_list(self) -> bool:
        """Tell whether a list stands here, as ``items`` returns it."""
        return self._kind == "seq"

    @property
    def _kind(self) -> str:
        return str(self.node.tag).rpartition(":")[2]

    def _refuse(self, wanted: str, remedy: str | None = None) -> UsageError:
        kind = _KINDS.get(self._kind, self._kind)
        shown = f" {self.node.value[:40]!r}" if isinstance(self.node.value, str) else ""
        what = f"{self.key} has no value" if kind == "nothing" else f"{self.key} is {kind}{shown}"
        return UsageError(what, where=self.where, rule=f"it must be {wanted}", remedy=remedy)

    def mapping(self) -> dict[str, Value]:
        """Return what stands under each key.

        Raises:
            UsageError: no mapping, a key that is not text, or one that is given twice.
        """
        if self._kind != "map":
            raise self._refuse("a mapping, `key: value`")
        found: dict[str, Value] = {}
        for key, value in self.node.value:
            name = Value(self.file, "a key", key).text()
            if name in found:
                raise UsageError(
                    f"{name} is given twice",
                    where=f"{self.file}, line {key.start_mark.line + 1}",
                    rule=f"it stands in line {found[name].line} already",
                    remedy="name it once",
                )
            found[name] = Value(self.file, name, value)
        return found

    def items(self) -> list[Value]:
        """Return the members of a list.

        Raises:
            UsageError: no list.
        """
        if self._kind != "seq":
            raise self._refuse("a list, a line `- …` for each")
        return [
            Value(self.file, f"{self.key}[{number}]", node)
            for number, node in enumerate(self.node.value, 1)
        ]

    def plain(self) -> object:
        """Return mappings, lists and words as they are written; None where nothing is.

        Numbers stay words: YAML 1.1 reads ``12:30:00`` as 45,000 and ``no`` as false.

        Raises:
            UsageError: a key that is not text or is given twice, or unprintable characters.
        """
        if self._kind == "map":
            return {key: value.plain() for key, value in self.mapping().items()}
        if self._kind == "seq":
            return [value.plain() for value in self.items()]
        return None if self._kind == "null" else self._printable()

    def at(self, place: Iterable[str | int]) -> Value:
        """Return what stands at a place, or the nearest value around it."""
        found = self
        for step in place:
            inner: dict[Any, Value] = {}
            if found._kind == "map":
                inner = dict(found.mapping())
            elif found._kind == "seq":
                inner = dict(enumerate(found.items()))
            if step not in inner:
                break
            found = inner[step]
        return found

    def text(self) -> str:
        """Return one line of text.

        Raises:
            UsageError: nothing, something else, or characters that no name holds.
        """
        if self._kind != "str" or not self.node.value:
            quoted = "put it in quotes" if self._kind in ("int", "float", "bool") else None
            raise self._refuse("text", quoted)
        return self._printable()

    def word(self) -> str:
        """Return a scalar as it is written; ``none`` where nothing is.

        Raises:
            UsageError: a mapping or a list.
        """
        if self._kind in ("map", "seq"):
            raise self._refuse("one value")
        return "none" if self._kind == "null" else self._printable()

    def _printable(self) -> str:
        text = str(self.node.value)
        if not text.isprintable():
            raise self._refuse("one line of characters that can be printed")
        return text

    def whole(self) -> int:
        """Return a whole number in decimal digits.

        Raises:
            UsageError: anything else.
        """
        text = self.node.value
        digits = text.lstrip("+-") if self._kind == "int" else ""
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_WHOLE):
            raise self._refuse("a whole number, as 8")
        return int(text)

    def number(self) -> float:
        """Return a finite decimal number, ``1e3`` among them.

        Raises:
            UsageError: anything else.
        """
        text = self.node.value
        plain = self._kind not in ("map", "seq") and self.node.style is None  # type: ignore[attr-defined]
        if not plain or not _NUMBER.fullmatch(text):
            raise self._refuse("a number, as 900 or 1.5e3")
        return float(text)


def read(path: Path) -> Value:
    """Return what a YAML file holds.

    Raises:
        UsageError: the file cannot be read, is no YAML, or more of YAML than is taken here.
    """
    file = str(path)
    try:
        if not S_ISREG(path.stat().st_mode):  # opening a pipe waits for its writer
            raise ValueError("not a regular file")
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"cannot be read: {why}", where=file, remedy="name a file in YAML"
        ) from None
    if len(data) > _LARGEST_BYTES:
        rule = f"{_LARGEST_BYTES >> 10} KiB at most are read"
        raise UsageError("the file is too large", where=file, rule=rule)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            "not text", where=f"{file}, line {line}", rule="YAML is text in UTF-8"
        ) from None
    return Value(file, "the file", _compose(text, file))


def checked(kind: type[Model], file: Value, *, remedy: str) -> Model:
    """Return the content of a file as a pydantic model.

    Args:
        remedy: where the keys are described.

    Raises:
        UsageError: with line and key: an unknown key, with the nearest one; a wrong value.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(file.plain())
    except ValidationError as error:
        # A misspelt key may also be a missing one: the misspelling says more.
        faults = error.errors(include_url=False)
        first = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
    place, where = first["loc"], file.at(first["loc"]).where
    key = ".".join(map(str, place))
    if first["type"] != "extra_forbidden":
        raise UsageError(f"{key or 'the file'}: {first['msg']}", where=where, remedy=remedy)
    section: Any = kind
    for name in place[:-1]:  # also numbers of a list's members and keys of a mapping
        if name in section.model_fields:
            section = _section(section.model_fields[name].annotation) or section
    known = section.model_fields
    raise UsageError(f"unknown key {key!r}", where=where, remedy=nearest(str(place[-1]), known))


def _section(kind: Any) -> Any:
    """Return the model in an annotation such as ``Model | None`` or ``dict[str, Model]``."""
    if hasattr(kind, "model_fields"):
        return kind
    return next((found for part in get_args(kind) if (found := _section(part))), None)


def _compose(text: str, file: str) -> Node:
    import yaml

    try:
        _refuse_tricks(text, file)
        node: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}, line {mark.line + 1}" if mark else file
        raise UsageError(f"not YAML: {error.problem or error.context}", where=where) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            "a character that cannot be printed",
            where=f"{file}, line {line}",
            rule="YAML is text in UTF-8",
        ) from None
    except (ValueError, OverflowError) as error:  # an escape or a version beyond all numbers
        raise UsageError(f"not YAML: {error}", where=file) from None
    if node is None:
        raise UsageError("the file is empty", where=file)
    return node


def _refuse_tricks(text: str, file: str) -> None:
    """Refuse what makes a small file large or a plain one surprising, before it is built."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        assert event.start_mark is not None
        where = f"{file}, line {event.start_mark.line + 1}"
        if getattr(event, "anchor", None) is not None:
            raise UsageError(
                "anchors and aliases are not taken", where=where, remedy="write the value out"
            )
        if getattr(event, "tag", None) is not None:
            raise UsageError("tags are not taken", where=where, remedy="leave the ! out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise UsageError(
                "nested too deep", where=where, rule=f"{_DEEPEST} levels at most are taken"
            )
