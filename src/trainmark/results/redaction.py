"""Replace secrets and what names a person, a machine or a place in text that may leave here.

Owns the rules: what is replaced, by which stand-in, and what only looks like it. Must not know
files or records. What was redacted once is not changed by a second time.

The rules that need this machine (folders, its user and host) are the ``Redactor``'s; the others
are ``_RULES``, applied in their order: secrets first, so that no other rule cuts one in two.
"""

from __future__ import annotations

import getpass
import re
import socket
import sysconfig
from contextlib import suppress
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Replacement = str | Callable[[re.Match[str]], str]

SECRET, HOST, ADDRESS, USER, PATH = "<secret>", "<host>", "<address>", "<user>", "<path>"

# Public sources, which error messages and references name, and this machine by its common name.
PUBLIC_HOSTS = (
    "amd.com", "arxiv.org", "criteo.com", "fbaipublicfiles.com", "github.com",
    "githubusercontent.com", "gluebenchmark.com", "googleapis.com", "huggingface.co", "intel.com",
    "localhost", "mlcommons.org", "numpy.org", "nvidia.com", "openai.com", "pydantic.dev",
    "pypi.org", "python.org", "pytorch.org", "readthedocs.io",
)  # fmt: skip
# Accounts and machines of this name are everywhere: it names nobody.
_NOBODY = {
    "root", "user", "admin", "nobody", "app", "docker", "runner", "ubuntu", "localhost",
}  # fmt: skip
_SHORTEST_NAME = 3  # shorter ones are words of any text; in a path they go with the path

# A path's last part stays where it tells what the file is, as in a traceback.
_FILE_END = re.compile(
    r"\.(?:py|so(?:\.\d+)*|c|cc|cpp|cu|h|hpp|jsonl?|toml|ya?ml|txt|md|log|csv|tsv|bin|idx|pth?"
    r"|np[yz]|h5|hdf5|safetensors|parquet|model|gz|zip|tar)\Z"
)
_SECRET_WORD = (
    r"(?:\w+[_-])?(?:passw(?:or)?d|pwd|passphrase|secret|(?:api|access|private|secret|auth)[_-]?key"
    r"|credentials?|authorization)"
)
_TOKEN_WORD = r"(?:\w+[_-])?token"
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s'\"<]\S*)"
_NO_SECRET = r"(?![\"']?(?:-?[\d.]+|None|True|False|null|true|false)(?![\w.+/-]))"

_SECRET_KEY = re.compile(rf"{_SECRET_WORD}|{_TOKEN_WORD}", re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"--?(?:{_SECRET_WORD}|{_TOKEN_WORD})", re.IGNORECASE)
_HOST_KEY = re.compile(r"(?:\w+_)?(?:host|hostname|nodename|addr)", re.IGNORECASE)
_USER_KEY = re.compile(r"(?:\w+_)?(?:user|username|login)", re.IGNORECASE)
_PATH_KEY = re.compile(r"(?:\w+_)?(?:path|folder|dir|directory|file)", re.IGNORECASE)
_VERSION_KEY = re.compile(
    r".*(?:version|driver|firmware|release|toolkit|kernel|package|librar|collective|compiler).*"
    r"|os|python",
    re.IGNORECASE,
)

_NAME = r"[\w.+%@~=-]"  # of a part of a path
_PATH_START = r"(?:(?<![\w.~+%@<>/-])|(?<=\s-[IL]))"
_NAME_END = rf"(?!{_NAME.replace('.', '')}|\.\w)"

_QUAD = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\w)")
_LOCAL = re.compile(r"127\.|0\.0\.0\.0$|255\.255\.")
# A word before four numbers, or what is glued to them, that makes them a version.
_VERSION_BEFORE = re.compile(
    r"(?<![A-Za-z])(?:version|driver|release|firmware|toolkit|kernel|v|cud\w*|cublas\w*|[nrhc]ccl|cncl"
    r"|rocm|hip|torch\w*|python|numpy|gcc|glibc|linux|mkl|onednn|openmpi|ucx)"
    r"\s*[:=]?\s*[\"'(]?$|[=<>~!]=\s*$",
    re.IGNORECASE,
)
_ADDRESS_BEFORE = re.compile(
    r"(?:[\[@/(]|\b(?:address|addr|ip|host|peer|node|to|from|at|by|on|via|inet))\s*[:=]?\s*[\"']?$",
    re.IGNORECASE,
)
_SMALL = 10  # versions begin below it as a rule, private addresses never


def _address(found: re.Match[str]) -> str:
    """Replace four numbers that are an address; a version of four numbers stays."""
    quad, text = found.group(), found.string
    if any(int(octet) > 255 for octet in quad.split(".")) or _LOCAL.match(quad):
        return quad
    before = text[max(0, found.start() - 40) : found.start()]
    if _VERSION_BEFORE.search(before):
        return quad
    told = _ADDRESS_BEFORE.search(before) or re.match(r"[:/]\d", text[found.end() :])
    return ADDRESS if told or int(quad.partition(".")[0]) >= _SMALL else quad


def _address6(found: re.Match[str]) -> str:
    text = found.group()
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return text
    # x[1::2] is a slice.
    plain = not re.search("[a-fA-F]", text) and len(text.replace("::", ":").split(":")) < 4
    return text if plain or address.is_loopback or address.is_unspecified else ADDRESS


def _url(found: re.Match[str]) -> str:
    """Take the credentials out of a public URL; of another keep the scheme alone."""
    scheme, credentials, host, rest = found.groups()
    if not _is_public(host):
        return f"{scheme}://{HOST}"
    return f"{scheme}://{'<credentials>@' if credentials else ''}{host}{rest}"


def _is_public(host: str) -> bool:
    name = host.lower().rstrip(".")
    parents = tuple(f".{public}" for public in PUBLIC_HOSTS)
    return name in PUBLIC_HOSTS or name.endswith(parents) or name.startswith("127.")


def _path(found: re.Match[str]) -> str:
    path: str = found.group()
    kept = path.rstrip(".")
    name = kept.rpartition("/")[2]
    return PATH + (f"/{name}" if _FILE_END.search(name) else "") + path[len(kept) :]


def _host(found: re.Match[str]) -> str:
    """Replace the group ``host``, unless it is public or the name of a file."""
    name = found["host"]
    if _is_public(name) or _FILE_END.search(name):
        return found.group()
    start, end = found.span("host")
    return found.string[found.start() : start] + HOST + found.string[end : found.end()]


def _compiled(
    rules: Iterable[tuple[str, Replacement]],
) -> list[tuple[re.Pattern[str], Replacement]]:
    return [(re.compile(pattern), new) for pattern, new in rules]


_LABEL = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_HOST_WORD = r"(?P<host>[A-Za-z](?=[\w.-]*[\d.-])[\w-]*(?:\.[\w-]+)*)"
_SECRETS = _compiled([
    (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", SECRET),
    (
        r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|npm_|pypi-|nvapi-)"
        r"[A-Za-z0-9_-]{8,}", SECRET,
    ),
    (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b|\bAIza[0-9A-Za-z_-]{30,}", SECRET),
    (r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*", SECRET),  # JSON web token
    (rf"(?i)\b(bearer\s+){_VALUE}", rf"\g<1>{SECRET}"),
    (rf"(?i)(?<!\w)(authorization['\"]?\s*[:=]\s*basic\s+){_VALUE}", rf"\g<1>{SECRET}"),
    (rf"(?i)(?<![A-Za-z])({_SECRET_WORD}['\"]?\s*[=:]\s*)(?!['\"]?(?:bearer|basic)\s){_VALUE}",
     rf"\g<1>{SECRET}"),
    (rf"(?i)(?<![A-Za-z])({_TOKEN_WORD}['\"]?\s*[=:]\s*){_NO_SECRET}{_VALUE}", rf"\g<1>{SECRET}"),
    (rf"(?i)(?<!\S)(--(?:{_SECRET_WORD}|{_TOKEN_WORD})\s+){_VALUE}", rf"\g<1>{SECRET}"),
    (r"(?i)((?<=[?&])(?:[\w-]+-)?(?:sig|signature|credential|key)=)[^\s&'\"<]+", rf"\g<1>{SECRET}"),
    (
        r"\b([A-Za-z][A-Za-z0-9+.-]*)://([^\s/'\"<>]*@)?"
        r"([^\s/:'\"<>?#,;()\[\]]+|\[[0-9A-Fa-f:.]+\])((?:[^\s'\"<>]|<\w+>)*)", _url,
    ),
    (r"[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b(?!\()", "<email>"),
    (r"\b[\w.-]+@(?!sha\d|v\d)(?=[\w-]*\d)[A-Za-z][\w-]*\b(?!\()", f"{USER}@{HOST}"),
])  # fmt: skip
_PATHS = _compiled([
    (r"(?<=file://)/[^\s'\"<>]+", _path),
    (r"(?<=')/\w[^'\n<>]*(?=')|(?<=\")/\w[^\"\n<>]*(?=\")", _path),
    (
        rf"{_PATH_START}/(?=[^\s/]*[A-Za-z_])"
        rf"(?:{_NAME}{{2,}}(?:/+{_NAME}+)*|{_NAME}(?:/+{_NAME}+)+)/?", _path,
    ),
    (r"\b[A-Za-z]:\\[^\s'\"<>]+", PATH),
])  # fmt: skip
_HOSTS = _compiled([
    (r"(?<![\w.-])(?P<host>[A-Za-z][\w.-]*)(?=:\d+:\d+ \[\d+\] NCCL)", _host),
    (r"(?<!\w)\[(?P<host>[A-Za-z][\w.-]*)\](?=:\d)", _host),
    (r"\(['\"]?(?P<host>[A-Za-z](?=[\w.-]*[\d.-])[\w.-]*)['\"]?(?=, \d{4,5}\))", _host),
    (rf"(?<![\w./-])(?P<host>(?:{_LABEL}\.)+[A-Za-z]{{2,}})(?=:\d{{2,5}}\b)", _host),
    (r"(?<![\w./-])(?P<host>[A-Za-z][A-Za-z_-]*\d[\w-]*)(?=:\d{4,5}\b)", _host),
    (
        rf"(?i)(?<![\w.-])(?P<host>(?:{_LABEL}\.)+(?:com|edu|gov|mil|org)"
        rf"|(?:(?:{_LABEL}\.){{2,}}|[A-Z]+-?(?:[\w-]*\d)[\w-]*\.)"
        r"(?:local|internal|lan|corp|intra|intranet|localdomain|cluster|svc|home|private|example))"
        r"(?![\w(-]|\.\w)", _host,
    ),
    (r"(?i)\b(?:host|hostname|nodename|master_addr|peer|server)['\"]?=['\"]?"
     r"(?P<host>[A-Za-z][\w.-]*)", _host),
    (rf"(?i)\b(?:host|hostname|node|peer|server)['\"]?:?\s+['\"]?{_HOST_WORD}", _host),
    (
        r"(?i)\b(?:connect(?:ing|ed|ion)?\s(?:closed\s|reset\s)?(?:to|by|from|with)|resolve|ssh"
        rf"|lookup)\s+['\"]?{_HOST_WORD}", _host,
    ),
])  # fmt: skip
_ADDRESSES: list[tuple[re.Pattern[str], Replacement]] = [
    (_QUAD, _address),
    (re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![\w:-])"), ADDRESS),  # MAC
    (re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])"), _address6),
]


def _apply(rules: Iterable[tuple[re.Pattern[str], Replacement]], text: str) -> str:
    for pattern, new in rules:
        text = pattern.sub(new, text)
    return text


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
        innermost_first = sorted(pairs, key=lambda folder: (-len(folder), folder))
        self._folders = _compiled(
            (_PATH_START + re.escape(folder) + _NAME_END, pairs[folder].replace("\\", r"\\"))
            for folder in innermost_first
        )
        host = socket.gethostname()
        names = dict.fromkeys((host, host.partition(".")[0]), HOST) | {_user(): USER}
        self._names = _compiled(
            (rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", new)
            for name, new in names.items()
            if len(name) >= _SHORTEST_NAME and name not in _NOBODY
        )

    def text(self, text: str) -> str:
        """Return ``text``, for people, with everything replaced."""
        return _apply(self._names, self._places(text))

    def _places(self, text: str, *, is_version: bool = False) -> str:
        """Return ``text`` without secrets, paths, other hosts and addresses."""
        for rules in (_SECRETS, self._folders, _PATHS, _HOSTS):
            text = _apply(rules, text)
        return text if is_version else _apply(_ADDRESSES, text)

    def document(self, value: Any, key: str = "", *, is_version: bool = False) -> Any:
        """Return ``value`` with every string of it redacted, at any depth.

        A single word may be one of ours, as a kind or the name of a span: the user's and the
        host's name are replaced within longer text, and where the key says what stands there.
        Under a key of versions four numbers are no address.
        """
        is_version = is_version or _VERSION_KEY.fullmatch(key) is not None
        if isinstance(value, dict):
            return {
                name: self.document(item, str(name), is_version=is_version)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return self._items(value, key, is_version=is_version)
        return self._string(value, key, is_version=is_version) if isinstance(value, str) else value

    def _items(self, values: Iterable[Any], key: str, *, is_version: bool) -> list[Any]:
        """Redact a list; of a command line also the word behind ``--password``."""
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
        if value and _HOST_KEY.fullmatch(key) and not _is_public(value):
            return HOST
        if value and _USER_KEY.fullmatch(key):
            return USER
        text = self._places(value, is_version=is_version)
        if _PATH_KEY.fullmatch(key) and value.startswith("/") and " " in text:
            return PATH
        return _apply(self._names, text) if re.search(r"[\s/'\"@]", value) else text
