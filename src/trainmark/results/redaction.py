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
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic_core import from_json, to_json

import trainmark
from trainmark.record.record import Record
from trainmark.results.pseudonyms import load_key, make_pseudonym
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainmark.plan.plan import Plan

    # A pattern, and its replacement or the function that returns it.
    _Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_MIN_NAME_CHARS = 3  # shorter names occur in any text, and paths are replaced as a whole
_TYPES_WITHOUT_TEXT = (int, float, type(None))  # ``bool`` is an ``int``
_MAX_LINE = 1 << 22  # bytes; a longer line is read in pieces
_KEY_BEGINS = b"-----BEGIN "  # of a private key
_KEY_ENDS = b"-----END "

_DOCUMENT = read_toml(Path(__file__).with_suffix(".toml"))
_FRAGMENTS: dict[str, str] = _DOCUMENT["parts"]


def _compile(pattern: str) -> re.Pattern[str]:
    """Return a pattern of ``redaction.toml`` with its ``{{name}}`` fragments inserted."""
    return re.compile(re.sub(r"\{\{(\w+)\}\}", lambda match: _FRAGMENTS[match[1]], pattern))


# Patterns of the keys whose values are paths, hosts, users or secrets.
_KEY_PATTERNS = {kind: _compile(pattern) for kind, pattern in _DOCUMENT["keys"].items()}
_FILE_END = re.compile(_FRAGMENTS["file_end"])


def _replace_url(match: re.Match[str]) -> str:
    """Remove the credentials from a public URL; of any other keep only the scheme."""
    scheme, credentials, host, rest = match.groups()  # rest: the port, path and query
    if not _is_public(host):
        return f"{scheme}://<host>"
    placeholder = "<credentials>@" if credentials else ""
    return f"{scheme}://{placeholder}{host}{rest}"


def _is_public(host: str) -> bool:
    """Tell whether a host is a loopback address or a well-known public host.

    Only other hosts are private, and are replaced.
    """
    # With a point before both names, ``example.org`` in the list also matches its subdomains, but
    # not ``myexample.org``.
    name = f".{host.lower().rstrip('.')}"
    if re.fullmatch(r"\.127(\.\d+){3}", name):  # a loopback address
        return True
    return any(name.endswith(f".{public}") for public in _DOCUMENT["public_hosts"])


def _replace_path(match: re.Match[str]) -> str:
    """Replace a path; the name of a file is kept, that of a folder is not."""
    path = match.group().rstrip(".")
    full_stops = match.group()[len(path) :]  # the end of a sentence
    name = path.rpartition("/")[2]
    file_name = f"/{name}" if _FILE_END.search(name) else ""
    return f"<path>{file_name}{full_stops}"


def _replace_host(match: re.Match[str]) -> str:
    """Replace the host in a match by ``<host>``, unless it is public or the name of a file."""
    # The named group is the host; a pattern without one matches a host alone.
    group = match.lastgroup or 0
    name = match[group]
    if _is_public(name) or _FILE_END.search(name):
        return match.group()
    before = match.string[match.start() : match.start(group)]
    behind = match.string[match.end(group) : match.end()]
    # Only the name is replaced: a pattern may also match what stands around it, such as a quote.
    return f"{before}<host>{behind}"


_FUNCTIONS = {"url": _replace_url, "path": _replace_path, "host": _replace_host}


def _make_rules(kind: str) -> list[_Rule]:
    """Return the rules of ``redaction.toml`` of a kind: ``secrets`` or ``paths`` for instance.

    A rule has a text that replaces what matches (``new``), or names a function of this module that
    returns it (``by``).
    """
    return [
        (_compile(rule["pattern"]), rule["new"] if "new" in rule else _FUNCTIONS[rule["by"]])
        for rule in _DOCUMENT[kind]
    ]


_SECRET_RULES = _make_rules("secrets")
_KERNEL_RULES = _make_rules("kernel")
_PLACE_RULES = [*_make_rules("paths"), *_make_rules("hosts"), *_make_rules("addresses")]


def _apply(rules: Iterable[_Rule], text: str) -> str:
    """Return a text after all replacements, in the order of the rules."""
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


class Redactor:
    """Replace secrets and names of persons, machines and folders in text and documents.

    Args:
        folders: folders of this run, each with its placeholder; if one is named twice, the first
            placeholder is taken. The working directory, the home folder and those of Python and
            of this program are always replaced.

    Attributes:
        _place_rules: replace secrets, folders, addresses and the like.
        _name_rules: replace the names of this user and host.
        _redact_string: ``_redact_value``, which keeps its results.
        _pseudonym_key: returns the key with which names of nodes become pseudonyms.
    """

    def __init__(self, *folders: tuple[Path, str]) -> None:
        """Make the rules; ``folders`` are known folders, each with the text that replaces it."""
        # Secrets come first: a path or a host may be a part of one.
        self._place_rules = [*_SECRET_RULES, *_make_folder_rules(folders), *_PLACE_RULES]
        self._name_rules = _make_name_rules()  # apart: they are not applied to single words
        # The samples of a run repeat the same few strings, so results are kept. The user's key for
        # pseudonyms is read once, and only if there is a name of a node.
        self._redact_string = lru_cache(maxsize=4096)(self._redact_value)
        self._pseudonym_key = lru_cache(maxsize=1)(load_key)

    def redact_text(self, text: str) -> str:
        """Return free text with everything replaced."""
        return _apply(self._name_rules, _apply(self._place_rules, text))

    def redact_document(self, value: Any, key: str = "") -> Any:
        """Return ``value`` with every string in it redacted, at any depth.

        A single word may be one that this program writes, such as a status, and a user or host may
        have the same name. So the names of users and hosts are replaced only within longer text, or
        if the key says that the value is such a name. Keys are kept: this program chooses them.

        Args:
            value: a document as JSON has it.
            key: under which ``value`` stands; empty: under none.
        """
        if isinstance(value, dict):
            return {name: self.redact_document(item, str(name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return self._redact_list(value, key)
        if isinstance(value, _TYPES_WITHOUT_TEXT):
            return value
        return self._redact_string(str(value), key)

    def _redact_list(self, values: Sequence[Any], key: str) -> list[Any]:
        """Return a list with every string in it redacted.

        The list may be the words of a command, in which an option such as ``--password`` announces
        that the next item is a secret. That item is replaced as a whole.

        Args:
            key: under which the list stands in its document; empty: under none.
        """
        if all(isinstance(item, _TYPES_WITHOUT_TEXT) for item in values):
            return list(values)  # for speed: a record has long lists of numbers
        redacted: list[Any] = []
        is_secret = False  # the item before is an option such as `--password`
        for item in values:
            redacted.append("<secret>" if is_secret else self.redact_document(item, key))
            is_secret = isinstance(item, str) and bool(
                _KEY_PATTERNS["secret_option"].fullmatch(item)
            )
        return redacted

    def _redact_value(self, value: str, key: str) -> str:
        """Return a string redacted by what its key says of it; an empty key says nothing.

        A secret, host, user or node that the key announces is replaced as a whole. In any other
        text, the rules replace what they find.
        """
        for kind in ("secret", "host", "user"):
            is_public = kind == "host" and _is_public(value)
            if value and _KEY_PATTERNS[kind].fullmatch(key) and not is_public:
                return f"<{kind}>"
        # The rules for paths in a text end a path at a space, and would keep the rest of this one.
        if _KEY_PATTERNS["path"].fullmatch(key) and value.startswith("/") and " " in value:
            return "<path>"
        # Nodes of a run must stay distinguishable, so they get pseudonyms instead of ``<host>``.
        if value and _KEY_PATTERNS["node"].fullmatch(key):
            return make_pseudonym(value, self._pseudonym_key())
        # A message of the operating system's kernel also has bus addresses and names of processes.
        if _KEY_PATTERNS["kernel"].fullmatch(key):
            value = _apply(_KERNEL_RULES, value)
        text = _apply(self._place_rules, value)  # secrets, folders, addresses and the like
        # The rules of names replace users and hosts. A single word may be one that this program
        # writes, such as a status. It stays, even if a user or host has the same name.
        is_longer_text = re.search(r"[\s/'\"@]", value) is not None
        return _apply(self._name_rules, text) if is_longer_text else text


def _make_folder_rules(folders: Sequence[tuple[Path, str]]) -> list[_Rule]:
    """Return the rules that replace known folders by their placeholders, the innermost first."""
    python_paths = sysconfig.get_paths()
    # If a path is known twice, the last entry wins: folders of the run win over all others, and the
    # first of them over the next.
    known_folders = [
        (Path(os.path.expanduser("~")), "~"),  # noqa: PTH111 - a user may have no home
        (Path.cwd(), "."),
        *((Path(python_paths[name]), "<python>") for name in ("stdlib", "platlib", "purelib")),
        (Path(trainmark.__file__).parent, "<trainmark>"),
        *reversed(folders),
    ]
    placeholders = {}
    for folder, placeholder in known_folders:
        for path in (folder, folder.resolve()):  # as it is given, and without symbolic links
            if folder.is_absolute() and path.name:  # the root has no name
                placeholders[str(path)] = placeholder
    before = _FRAGMENTS["path_start"]
    after = _FRAGMENTS["path_end"]
    innermost_first = sorted(placeholders, key=len, reverse=True)
    return [
        (re.compile(before + re.escape(path) + after), placeholders[path])
        for path in innermost_first
    ]


def _make_name_rules() -> list[_Rule]:
    """Return the rules that replace the names of this user and host."""
    names = {}
    with suppress(KeyError, OSError):  # a user id without a name, as containers have
        names[getpass.getuser()] = "<user>"
    host = socket.gethostname()
    names |= dict.fromkeys((host, host.partition(".")[0]), "<host>")
    # Only whole names: not parts of a longer word, or of one with hyphens or points. Common names
    # such as ``root`` identify nobody, and are kept.
    return [
        (re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"), placeholder)
        for name, placeholder in names.items()
        if len(name) >= _MIN_NAME_CHARS and name not in _DOCUMENT["nobody"]
    ]


def make_run_redactor(plan: Plan, run_dir: Path) -> Redactor:
    """Return the redactor for the files of a run and its record.

    Args:
        run_dir: where the run is now; its plan has the folder in which it was measured.
    """
    return Redactor(
        (run_dir, "<run>"), (Path(plan.run_dir), "<run>"), (Path(plan.data.folder), "<data>")
    )


def redact_record(record: Record) -> Record:
    """Return a record as others may see it."""
    redactor = make_run_redactor(record.plan, Path(record.plan.run_dir))
    return Record.model_validate(redactor.redact_document(record.model_dump(mode="json")))


def redact_file(path: Path, redactor: Redactor) -> Iterator[bytes]:
    """Yield a file in redacted pieces; in JSON only strings change, so that it stays valid JSON."""
    with path.open("rb") as file:
        # A JSON document may have line breaks, so it is redacted as one line. A larger file, or one
        # of another type, is redacted line by line.
        if path.suffix == ".json" and path.stat().st_size <= _MAX_LINE:
            content = file.read()
            if content:
                yield _redact_line(content, redactor)
            return
        while True:
            line = file.readline(_MAX_LINE)
            if not line:
                return
            # In a line of JSON, a private key is one string; elsewhere it has several lines.
            if _KEY_BEGINS in line and not line.startswith(b"{"):
                line = _read_private_key(line, file)
            yield _redact_line(line, redactor)


def _read_private_key(first_line: bytes, file: BinaryIO) -> bytes:
    """Return the lines of a private key, which are replaced as a whole."""
    key = first_line
    while _KEY_ENDS not in key and len(key) < _MAX_LINE:  # a key that was cut off has no end
        line = file.readline(_MAX_LINE)
        if not line:
            break
        key += line
    return key


def _redact_line(line: bytes, redactor: Redactor) -> bytes:
    """Return a redacted line; a JSON object stays a JSON object."""
    if line.startswith(b"{"):
        with suppress(ValueError):  # incomplete or malformed, as with NaN: redacted as text
            document = from_json(line, allow_inf_nan=False)
            redacted = redactor.redact_document(document)
            # Unchanged bytes if there was nothing to replace, however the JSON was written.
            return line if redacted == document else to_json(redacted) + b"\n"
    text = line.decode("utf-8", "surrogateescape")
    return redactor.redact_text(text).encode("utf-8", "surrogateescape")
