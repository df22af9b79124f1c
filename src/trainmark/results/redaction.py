"""Replace secrets and what names a person, a machine or a place in text that may leave here.

Owns what needs this machine (its folders, user and host) and how documents are read by their
keys; ``redaction_rules`` has the rest. Must not know files or records. What was redacted once is
not changed by a second time.
"""

from __future__ import annotations

import getpass
import re
import socket
import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainmark
from trainmark.results.redaction_rules import (
    ADDRESSES,
    HOST,
    HOSTS,
    NAME_END,
    PATH,
    PATH_START,
    PATHS,
    SECRET,
    SECRET_WORD,
    SECRETS,
    TOKEN_WORD,
    USER,
    Rule,
    apply,
    is_public,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Accounts and machines of this name are everywhere: it names nobody.
_NOBODY = {
    "root", "user", "admin", "nobody", "app", "docker", "runner", "ubuntu", "localhost",
}  # fmt: skip
_SHORTEST_NAME = 3  # shorter ones are words of any text; in a path they go with the path

_SECRET_KEY = re.compile(rf"(?:\w+[_-])?(?:{SECRET_WORD}|{TOKEN_WORD})", re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"--?(?:[\w-]+[_-])?(?:{SECRET_WORD}|{TOKEN_WORD})", re.IGNORECASE)
_HOST_KEY = re.compile(r"(?:\w+_)?(?:host|hostname|nodename|addr)", re.IGNORECASE)
_USER_KEY = re.compile(r"(?:\w+_)?(?:user|username|login)", re.IGNORECASE)
_PATH_KEY = re.compile(r"(?:\w+_)?(?:path|folder|dir|directory|file)", re.IGNORECASE)
_VERSION_KEY = re.compile(
    r".*(?:version|driver|firmware|release|toolkit|kernel|package|librar|collective|compiler).*"
    r"|os|python",
    re.IGNORECASE,
)


_PLAIN = (int, float, type(None))  # as they stand in an event's long lists


@cache
def _names_version(key: str) -> bool:
    return _VERSION_KEY.fullmatch(key) is not None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a user id without a name, as containers have


def _own_folders() -> Iterator[tuple[Path, str]]:
    """Yield working folder and home; one that was deleted, or that no user has, is left out."""
    for find, stand_in in ((Path.cwd, "."), (Path.home, "~")):
        with suppress(OSError, RuntimeError):
            yield find(), stand_in


class Redactor:
    """Replace secrets, persons, machines and places in text and in documents of text.

    Args:
        folders: what is known of this run, each with its stand-in; the working folder, the
            home folder and those of Python and of this program are known anyway.
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
            if folder.is_absolute()  # a plan that was redacted has stand-ins for folders
            for whole in (folder, folder.resolve())
            if whole.name
        }
        # The innermost first.
        self._folders = [
            Rule((folder.lower(),), re.compile(PATH_START + re.escape(folder) + NAME_END), new)
            for folder in sorted(pairs, key=lambda folder: (-len(folder), folder))
            for new in [pairs[folder]]
        ]
        host = socket.gethostname()
        names = dict.fromkeys((host, host.partition(".")[0]), HOST) | {_user(): USER}
        self._names = [
            Rule((name.lower(),), re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)"), new)
            for name, new in names.items()
            if len(name) >= _SHORTEST_NAME and name not in _NOBODY
        ]

    def text(self, text: str) -> str:
        """Return ``text``, for people, with everything replaced."""
        return apply(self._names, self._places(text))

    def _places(self, text: str, *, is_version: bool = False) -> str:
        """Return ``text`` without secrets, paths, other hosts and addresses."""
        for rules in (SECRETS, self._folders, PATHS, HOSTS):
            text = apply(rules, text)
        return text if is_version else apply(ADDRESSES, text)

    def document(self, value: Any, key: str = "", *, is_version: bool = False) -> Any:
        """Return ``value`` with every string of it redacted, at any depth.

        A single word may be one of ours, as a kind or the name of a span: the user's and the
        host's name are replaced within longer text, and where the key says what stands there.
        Under a key of versions four numbers are no address.
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
        return self._string(str(value), key, is_version=is_version)

    def _items(self, values: Sequence[Any], key: str, *, is_version: bool) -> list[Any]:
        """Redact a list; of a command line also the word behind ``--password``."""
        if all(isinstance(value, _PLAIN) for value in values):
            return list(values)
        done: list[Any] = []
        secret_next = False
        for value in values:
            hidden = secret_next and isinstance(value, str)
            done.append(SECRET if hidden else self.document(value, key, is_version=is_version))
            secret_next = isinstance(value, str) and bool(_SECRET_OPTION.fullmatch(value))
        return done

    def _string(self, value: str, key: str, *, is_version: bool) -> str:
        if value and _SECRET_KEY.fullmatch(key):
            return SECRET
        if value and _HOST_KEY.fullmatch(key) and not is_public(value):
            return HOST
        if value and _USER_KEY.fullmatch(key):
            return USER
        text = self._places(value, is_version=is_version)
        if _PATH_KEY.fullmatch(key) and value.startswith("/") and " " in text:
            return PATH
        return apply(self._names, text) if re.search(r"[\s/'\"@]", value) else text
