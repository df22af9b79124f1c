"""Replace secrets and names of persons, machines and folders in text that may be published.

Applies ``redaction.toml``, which lists the patterns of secrets, paths, hosts and addresses, and
their exceptions. Adds this machine's folders, user and host, and the rules for keys of documents.
Must not know files or records. Redacting a second time changes nothing.
"""

from __future__ import annotations

import getpass
import re
import socket
import sysconfig
import tomllib
from contextlib import suppress
from functools import cache, lru_cache
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import trainmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SECRET, HOST, ADDRESS, USER, PATH = "<secret>", "<host>", "<address>", "<user>", "<path>"
_SHORTEST_NAME = 3  # shorter ones occur in any text; in a path they are replaced with the path
_SMALLEST_OCTET = 10  # versions usually begin below it, private addresses never do
_PLAIN = (int, float, type(None))  # values that need no redaction, for speed in long lists

_LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _joined(pattern: str | list[str]) -> str:
    return pattern if isinstance(pattern, str) else "".join(pattern)


_PARTS = {name: _joined(part) for name, part in _LISTED["parts"].items()}


def _pattern(written: str | list[str]) -> re.Pattern[str]:
    """Return a pattern of the file with its ``{{name}}`` fragments inserted."""
    return re.compile(re.sub(r"\{\{(\w+)\}\}", lambda name: _PARTS[name[1]], _joined(written)))


_KEYS = {name: _pattern(written) for name, written in _LISTED["keys"].items()}
_SIGNS = {name: _pattern(written) for name, written in _LISTED["signs"].items()}
_PUBLIC_HOSTS = tuple(_LISTED["public_hosts"])
_PUBLIC_DOMAINS = tuple(f".{host}" for host in _PUBLIC_HOSTS)


def _ipv4(found: re.Match[str]) -> str:
    """Replace four numbers that are an address; leave a version of four numbers."""
    quad, text = found.group(), found.string
    if any(int(octet) > 255 for octet in quad.split(".")) or _SIGNS["local_address"].match(quad):
        return quad
    before = text[max(0, found.start() - 40) : found.start()]
    if _SIGNS["version_before"].search(before):
        return quad
    told = _SIGNS["address_before"].search(before) or re.match(r"[:/]\d", text[found.end() :])
    return ADDRESS if told or int(quad.partition(".")[0]) >= _SMALLEST_OCTET else quad


def _ipv6(found: re.Match[str]) -> str:
    text = found.group()
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return text
    # x[1::2] is a slice.
    plain = not re.search("[a-fA-F]", text) and len(text.replace("::", ":").split(":")) < 4
    return text if plain or address.is_loopback or address.is_unspecified else ADDRESS


def _url(found: re.Match[str]) -> str:
    """Remove the credentials from a public URL; of any other keep only the scheme."""
    scheme, credentials, host, rest = found.groups()
    if not _is_public(host):
        return f"{scheme}://{HOST}"
    return f"{scheme}://{'<credentials>@' if credentials else ''}{host}{rest}"


def _is_public(host: str) -> bool:
    """Tell whether ``host`` is a public source or localhost."""
    name = host.lower().rstrip(".")
    return name in _PUBLIC_HOSTS or name.endswith(_PUBLIC_DOMAINS) or name.startswith("127.")


def _path(found: re.Match[str]) -> str:
    path: str = found.group()
    kept = path.rstrip(".")
    name = kept.rpartition("/")[2]
    return PATH + (f"/{name}" if _SIGNS["file_end"].search(name) else "") + path[len(kept) :]


def _host(found: re.Match[str]) -> str:
    """Replace the group ``host``, unless it is public or the name of a file."""
    name = found["host"]
    if _is_public(name) or _SIGNS["file_end"].search(name):
        return found.group()
    start, end = found.span("host")
    return found.string[found.start() : start] + HOST + found.string[end : found.end()]


_FUNCTIONS = {"ipv4": _ipv4, "ipv6": _ipv6, "url": _url, "path": _path, "host": _host}


class _Rule(NamedTuple):
    """A replacement, tried only if the lower-cased text contains one of ``needles``."""

    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    new: str | Callable[[re.Match[str]], str]


def _rules(name: str) -> list[_Rule]:
    return [
        _Rule(
            tuple(entry["needles"]),
            _pattern(entry["pattern"]),
            _FUNCTIONS[entry["by"]] if "by" in entry else entry["new"],
        )
        for entry in _LISTED[name]
    ]


_SECRETS, _PATHS, _HOSTS = _rules("secrets"), _rules("paths"), _rules("hosts")
_ADDRESSES = _rules("addresses")


def _apply(rules: Iterable[_Rule], text: str) -> str:
    """Return ``text`` after each of ``rules`` in turn."""
    lowered = text.lower()
    for needles, pattern, new in rules:
        if any(needle in lowered for needle in needles):
            text = pattern.sub(new, text)
            lowered = text.lower()
    return text


@cache
def _names_version(key: str) -> bool:
    return _KEYS["version"].fullmatch(key) is not None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a user id without a name, as containers have


def _own_folders() -> Iterator[tuple[Path, str]]:
    """Yield the working directory and the home folder, without deleted or unknown ones."""
    for find, stand_in in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError):
            yield find(), stand_in


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
            str(whole): stand_in
            for folder, stand_in in reversed(known)
            if folder.is_absolute()  # a redacted plan has placeholders for folders
            for whole in (folder, folder.resolve())
            if whole.name
        }
        # The innermost first.
        self._folders = [
            _Rule(
                (folder.lower(),),
                re.compile(_PARTS["path_start"] + re.escape(folder) + _PARTS["path_end"]),
                pairs[folder],
            )
            for folder in sorted(pairs, key=lambda folder: (-len(folder), folder))
        ]
        self._once = lru_cache(maxsize=4096)(self._string)  # samples repeat a few strings for days
        host = socket.gethostname()
        names = dict.fromkeys((host, host.partition(".")[0]), HOST) | {_user(): USER}
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
        for rules in (_SECRETS, self._folders, _PATHS, _HOSTS):
            text = _apply(rules, text)
        return text if is_version else _apply(_ADDRESSES, text)

    def document(self, value: Any, key: str = "", *, is_version: bool = False) -> Any:
        """Return ``value`` with every string of it redacted, at any depth.

        A single word may be one of ours, such as a kind or the name of a span. So user and host
        names are replaced only within longer text, or if the key says that the value is one.
        Under a key for versions, four numbers are not an address.
        """
        if isinstance(value, _PLAIN):
            return value
        is_version = is_version or _names_version(key)
        if isinstance(value, dict):
            return {
                name: self.document(item, str(name), is_version=is_version)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return self._items(value, key, is_version=is_version)
        return self._once(str(value), key, is_version=is_version)

    def _items(self, values: Sequence[Any], key: str, *, is_version: bool) -> list[Any]:
        """Redact a list; in a command line also the argument after ``--password``."""
        if all(isinstance(value, _PLAIN) for value in values):
            return list(values)
        done: list[Any] = []
        secret_next = False
        for value in values:
            hidden = secret_next and isinstance(value, str)
            done.append(SECRET if hidden else self.document(value, key, is_version=is_version))
            secret_next = isinstance(value, str) and bool(_KEYS["secret_option"].fullmatch(value))
        return done

    def _string(self, value: str, key: str, *, is_version: bool) -> str:
        if value and _KEYS["secret"].fullmatch(key):
            return SECRET
        if value and _KEYS["host"].fullmatch(key) and not _is_public(value):
            return HOST
        if value and _KEYS["user"].fullmatch(key):
            return USER
        text = self._places(value, is_version=is_version)
        if _KEYS["path"].fullmatch(key) and value.startswith("/") and " " in text:
            return PATH
        return _apply(self._names, text) if re.search(r"[\s/'\"@]", value) else text
