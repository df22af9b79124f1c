"""Replace secrets and names of persons, machines and folders in what leaves the machine.

Applies ``redaction.toml`` and this machine's folders, user and host to text, documents, files of a
run and records. Files of the run itself are never changed. Redacting a second time changes nothing.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
import sysconfig
import tomllib
from contextlib import suppress
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

import trainmark
from trainmark.record.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trainmark.plan.plan import Plan

_SHORTEST_NAME = 3  # shorter ones occur in any text; in a path they are replaced with the path
_SMALLEST_OCTET = 10  # versions usually begin below it, private addresses never do
_PLAIN = (int, float, type(None))  # values that need no redaction, for speed in long lists
_LONGEST_LINE = 1 << 22  # bytes; a longer one is taken in pieces
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN ", b"-----END "  # of a private key

_LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_PARTS: dict[str, str] = _LISTED["parts"]


def _pattern(written: str) -> re.Pattern[str]:
    """Return a pattern of the file with its ``{{name}}`` fragments inserted."""
    return re.compile(re.sub(r"\{\{(\w+)\}\}", lambda name: _PARTS[name[1]], written))


_KEYS = {name: _pattern(written) for name, written in _LISTED["keys"].items()}
_SIGNS = {name: _pattern(written) for name, written in _LISTED["signs"].items()}


def _ipv4(found: re.Match[str]) -> str:
    """Replace four numbers that are an address; leave a version of four numbers."""
    quad, text = found.group(), found.string
    if any(int(part) > 255 for part in quad.split(".")) or re.match(r"127\.|0\.0\.|255\.255", quad):
        return quad
    before = text[max(0, found.start() - 40) : found.start()]
    if _SIGNS["version_before"].search(before):
        return quad
    labelled = _SIGNS["address_before"].search(before) or re.match(r"[:/]\d", text[found.end() :])
    return "<address>" if labelled or int(quad.partition(".")[0]) >= _SMALLEST_OCTET else quad


def _ipv6(found: re.Match[str]) -> str:
    text = found.group()
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return text
    # x[1::2] is a slice.
    plain = not re.search("[a-fA-F]", text) and len(text.replace("::", ":").split(":")) < 4
    return text if plain or address.is_loopback or address.is_unspecified else "<address>"


def _url(found: re.Match[str]) -> str:
    """Remove the credentials from a public URL; of any other keep only the scheme."""
    scheme, credentials, host, rest = found.groups()
    if not _is_public(host):
        return f"{scheme}://<host>"
    return f"{scheme}://{'<credentials>@' if credentials else ''}{host}{rest}"


def _is_public(host: str) -> bool:
    name = f".{host.lower().rstrip('.')}"
    return name.startswith(".127.") or name.endswith(
        tuple(f".{x}" for x in _LISTED["public_hosts"])
    )


def _path(found: re.Match[str]) -> str:
    path = found.group().rstrip(".")
    name = path.rpartition("/")[2]
    end = found.group()[len(path) :]
    return "<path>" + (f"/{name}" if _SIGNS["file_end"].search(name) else "") + end


def _host(found: re.Match[str]) -> str:
    """Replace the named group that matched, unless it is public or the name of a file."""
    group, name = next((group, name) for group, name in found.groupdict().items() if name)
    if _is_public(name) or _SIGNS["file_end"].search(name):
        return found.group()
    start, end = found.span(group)
    return found.string[found.start() : start] + "<host>" + found.string[end : found.end()]


_FUNCTIONS = {"ipv4": _ipv4, "ipv6": _ipv6, "url": _url, "path": _path, "host": _host}


class _Rule(NamedTuple):
    """A replacement, tried only if the lower-cased text contains one of ``needles``."""

    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    new: str | Callable[[re.Match[str]], str]


_RULES = {
    kind: [
        _Rule(tuple(x["needles"]), _pattern(x["pattern"]), x.get("new") or _FUNCTIONS[x["by"]])
        for x in _LISTED[kind]
    ]
    for kind in ("secrets", "paths", "hosts", "addresses")
}


def _apply(rules: Iterable[_Rule], text: str) -> str:
    lowered = text.lower()
    for needles, pattern, new in rules:
        if any(needle in lowered for needle in needles):
            text = pattern.sub(new, text)
            lowered = text.lower()
    return text


def _own_folders() -> Iterator[tuple[Path, str]]:
    """Yield the working directory and the home folder, without deleted or unknown ones."""
    for find, placeholder in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError):
            yield find(), placeholder


class Redactor:
    """Replace secrets and names of persons, machines and folders in text and documents.

    Args:
        folders: folders of this run, each with its placeholder; the working directory, the
            home folder and those of Python and of this program are always replaced.
    """

    def __init__(self, *folders: tuple[Path, str]) -> None:
        paths = sysconfig.get_paths()
        known = [
            *folders,
            (Path(trainmark.__file__).parent, "<trainmark>"),
            *((Path(paths[name]), "<python>") for name in ("purelib", "platlib", "stdlib")),
            *_own_folders(),
        ]
        pairs = {
            str(whole): placeholder
            for folder, placeholder in reversed(known)
            if folder.is_absolute()
            for whole in (folder, folder.resolve())
            if whole.name
        }
        self._folders = [
            _Rule(
                (folder.lower(),),
                re.compile(_PARTS["path_start"] + re.escape(folder) + _PARTS["path_end"]),
                pairs[folder],
            )
            for folder in sorted(
                pairs, key=lambda folder: (-len(folder), folder)
            )  # innermost first
        ]
        self._once = lru_cache(maxsize=4096)(self._string)  # samples repeat a few strings for days
        host, names = socket.gethostname(), {}
        with suppress(KeyError, OSError):  # a user id without a name, as containers have
            names[getpass.getuser()] = "<user>"
        names |= dict.fromkeys((host, host.partition(".")[0]), "<host>")
        self._names = [
            _Rule((name.lower(),), re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"), new)
            for name, new in names.items()
            if len(name) >= _SHORTEST_NAME and name not in _LISTED["nobody"]
        ]

    def text(self, text: str) -> str:
        """Return free text with everything replaced."""
        return _apply(self._names, self._places(text))

    def _places(self, text: str, *, is_version: bool = False) -> str:
        """Return ``text`` without secrets, paths, other hosts and addresses."""
        for rules in (_RULES["secrets"], self._folders, _RULES["paths"], _RULES["hosts"]):
            text = _apply(rules, text)
        return text if is_version else _apply(_RULES["addresses"], text)

    def document(self, value: Any, key: str = "", *, is_version: bool = False) -> Any:
        """Return ``value`` with every string of it redacted, at any depth.

        A single word may be one of ours, such as a kind or the name of a span. So user and host
        names are replaced only within longer text, or if the key says that the value is one.
        Under a key for versions, four numbers are not an address.
        """
        if isinstance(value, _PLAIN):
            return value
        is_version = is_version or _KEYS["version"].fullmatch(key) is not None
        if isinstance(value, dict):
            return {
                name: self.document(item, str(name), is_version=is_version)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return self._items(list(value), key, is_version=is_version)
        return self._once(str(value), key, is_version=is_version)

    def _items(self, values: list[Any], key: str, *, is_version: bool) -> list[Any]:
        """Redact a list; in a command line also the argument after ``--password``."""
        if all(isinstance(value, _PLAIN) for value in values):
            return values
        done: list[Any] = []
        for before, value in zip([None, *values], values, strict=False):
            follows = isinstance(before, str) and _KEYS["secret_option"].fullmatch(before)
            hidden = follows and isinstance(value, str)
            done.append("<secret>" if hidden else self.document(value, key, is_version=is_version))
        return done

    def _string(self, value: str, key: str, *, is_version: bool) -> str:
        if value and _KEYS["secret"].fullmatch(key):
            return "<secret>"
        if value and _KEYS["host"].fullmatch(key) and not _is_public(value):
            return "<host>"
        if value and _KEYS["user"].fullmatch(key):
            return "<user>"
        text = self._places(value, is_version=is_version)
        if _KEYS["path"].fullmatch(key) and value.startswith("/") and " " in text:
            return "<path>"
        return _apply(self._names, text) if re.search(r"[\s/'\"@]", value) else text


def of_run(plan: Plan, run_dir: Path) -> Redactor:
    """Return the redactor for the files of a run and its record."""
    return Redactor(
        (run_dir, "<run>"), (Path(plan.run_dir), "<run>"), (Path(plan.data.folder), "<data>")
    )


def redacted_record(record: Record) -> Record:
    """Return a record as others may see it."""
    redactor = of_run(record.plan, Path(record.plan.run_dir))
    return Record.model_validate(redactor.document(record.model_dump(mode="json")))


def redacted_file(path: Path, redactor: Redactor) -> Iterator[bytes]:
    """Yield a file in redacted pieces; in JSON only strings change, so that it stays valid JSON."""
    with path.open("rb") as file:
        if path.suffix == ".json" and path.stat().st_size <= _LONGEST_LINE:
            yield _line(file.read(), redactor)
            return
        while line := file.readline(_LONGEST_LINE):
            if _KEY_BEGINS in line and not line.startswith(b"{"):  # a private key as a whole
                while _KEY_ENDS not in line and (more := file.readline(_LONGEST_LINE)):
                    line += more
                    if len(line) > _LONGEST_LINE:
                        break
            yield _line(line, redactor)


def _line(line: bytes, redactor: Redactor) -> bytes:
    if line.startswith(b"{"):
        with suppress(ValueError):  # incomplete or malformed: redacted as text
            document = from_json(line, allow_inf_nan=False)
            redacted = redactor.document(document)
            if redacted == document:
                return line
            indent, separators = (2, None) if b"\n" in line.rstrip() else (None, (",", ":"))
            return (json.dumps(redacted, indent=indent, separators=separators) + "\n").encode()
    text = line.decode("utf-8", "surrogateescape")
    return redactor.text(text).encode("utf-8", "surrogateescape")
