"""Replace secrets and names of persons, machines and folders in data that leaves the machine.

Applies ``redaction.toml`` and this machine's folders, user and host to text, documents, files of a
run and records. The files of the run itself are never changed. Redacting twice changes nothing.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import sysconfig
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

import trainmark
from trainmark.record.record import Record
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trainmark.plan.plan import Plan

    _Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_MIN_NAME = 3  # characters; shorter names occur in any text, and paths are replaced as a whole
_PLAIN = (int, float, type(None))  # values that need no redaction, for speed in long lists
_MAX_LINE = 1 << 22  # bytes; a longer line is read in pieces
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN ", b"-----END "  # of a private key

_LISTED = read_toml(Path(__file__).with_suffix(".toml"))
_PARTS: dict[str, str] = _LISTED["parts"]


def _pattern(written: str) -> re.Pattern[str]:
    """Return a pattern of the file with its ``{{name}}`` fragments inserted."""
    return re.compile(re.sub(r"\{\{(\w+)\}\}", lambda name: _PARTS[name[1]], written))


_KEYS = {name: _pattern(written) for name, written in _LISTED["keys"].items()}
_FILE_END = re.compile(_PARTS["file_end"])


def _replace_url(match: re.Match[str]) -> str:
    """Remove the credentials from a public URL; of any other keep only the scheme."""
    scheme, credentials, host, rest = match.groups()
    if not _is_public(host):
        return f"{scheme}://<host>"
    replaced = "<credentials>@" if credentials else ""
    return f"{scheme}://{replaced}{host}{rest}"


def _is_public(host: str) -> bool:
    name = f".{host.lower().rstrip('.')}"
    return name.startswith(".127.") or any(name.endswith(f".{x}") for x in _LISTED["public_hosts"])


def _replace_path(match: re.Match[str]) -> str:
    path = match.group().rstrip(".")
    name = path.rpartition("/")[2]
    end = match.group()[len(path) :]
    return "<path>" + (f"/{name}" if _FILE_END.search(name) else "") + end


def _replace_host(match: re.Match[str]) -> str:
    """Replace the named group that matched, unless it is public or the name of a file."""
    name = match[match.lastgroup or 0]
    if _is_public(name) or _FILE_END.search(name):
        return match.group()
    start, end = (index - match.start() for index in match.span(match.lastgroup or 0))
    return f"{match.group()[:start]}<host>{match.group()[end:]}"


_FUNCTIONS = {"url": _replace_url, "path": _replace_path, "host": _replace_host}


_SECRETS, _OTHERS = (
    [
        (_pattern(rule["pattern"]), rule.get("new") or _FUNCTIONS[rule["by"]])
        for kind in kinds
        for rule in _LISTED[kind]
    ]
    for kinds in (["secrets"], ["paths", "hosts", "addresses"])
)


def _apply(rules: Iterable[_Rule], text: str) -> str:
    for pattern, new in rules:
        text = pattern.sub(new, text)
    return text


class Redactor:
    """Replace secrets and names of persons, machines and folders in text and documents.

    Args:
        folders: folders of this run, each with its placeholder; the working directory, the
            home folder and those of Python and of this program are always replaced.
    """

    def __init__(self, *folders: tuple[Path, str]) -> None:
        paths = sysconfig.get_paths()
        known = [
            (Path(os.path.expanduser("~")), "~"),  # noqa: PTH111 - a user may have no home
            (Path.cwd(), "."),
            *((Path(paths[name]), "<python>") for name in ("stdlib", "platlib", "purelib")),
            (Path(trainmark.__file__).parent, "<trainmark>"),
            *reversed(folders),
        ]
        places = {
            str(whole): placeholder
            for folder, placeholder in known
            for whole in (folder, folder.resolve())
            if folder.is_absolute() and whole.name
        }
        before, after = _PARTS["path_start"], _PARTS["path_end"]
        innermost = sorted(places, key=len, reverse=True)
        patterns = [(re.compile(before + re.escape(x) + after), places[x]) for x in innermost]
        self._places = [*_SECRETS, *patterns, *_OTHERS]  # what stands for paths, hosts and secrets
        self._once = lru_cache(maxsize=4096)(self._string)  # samples repeat a few strings for days
        host, names = socket.gethostname(), {}
        with suppress(KeyError, OSError):  # a user id without a name, as containers have
            names[getpass.getuser()] = "<user>"
        names |= dict.fromkeys((host, host.partition(".")[0]), "<host>")
        self._names = [
            (re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"), new)
            for name, new in names.items()
            if len(name) >= _MIN_NAME and name not in _LISTED["nobody"]
        ]

    def text(self, text: str) -> str:
        """Return free text with everything replaced."""
        return _apply(self._names, _apply(self._places, text))

    def document(self, value: Any, key: str = "") -> Any:
        """Return ``value`` with every string of it redacted, at any depth.

        A single word may be one of ours, such as a kind or the name of a span. So user and host
        names are replaced only within longer text, or if the key says that the value is one.
        """
        if isinstance(value, dict):
            return {name: self.document(item, str(name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            if all(isinstance(item, _PLAIN) for item in value):
                return list(value)
            done: list[Any] = []
            for before, item in zip(
                [None, *value], value, strict=False
            ):  # the item after `--password`
                hidden = isinstance(before, str) and _KEYS["secret_option"].fullmatch(before)
                done.append("<secret>" if hidden else self.document(item, key))
            return done
        return value if isinstance(value, _PLAIN) else self._once(str(value), key)

    def _string(self, value: str, key: str) -> str:
        for kind in ("secret", "host", "user"):
            if value and _KEYS[kind].fullmatch(key) and not (kind == "host" and _is_public(value)):
                return f"<{kind}>"
        if _KEYS["path"].fullmatch(key) and value.startswith("/") and " " in value:
            return "<path>"
        text = _apply(self._places, value)
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
        whole = path.suffix == ".json" and path.stat().st_size <= _MAX_LINE
        while line := file.read() if whole else file.readline(_MAX_LINE):
            if _KEY_BEGINS in line and not line.startswith(b"{"):  # a private key as a whole
                while _KEY_ENDS not in line and len(line) < _MAX_LINE:
                    if not (more := file.readline(_MAX_LINE)):
                        break
                    line += more
            yield _line(line, redactor)


def _line(line: bytes, redactor: Redactor) -> bytes:
    if line.startswith(b"{"):
        with suppress(ValueError):  # incomplete or malformed: redacted as text
            document = from_json(line, allow_inf_nan=False)
            redacted = redactor.document(document)
            return line if redacted == document else to_json(redacted) + b"\n"
    text = line.decode("utf-8", "surrogateescape")
    return redactor.text(text).encode("utf-8", "surrogateescape")
