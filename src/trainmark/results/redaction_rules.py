"""The rules of redaction that need nothing of this machine, in the order they are applied.

Owns what is a secret, a path, another host, an address, and what only looks like it. Secrets come
first, so that no other rule cuts one in two. Each pattern takes time in proportion to the text,
however long a word of it is: runs are bounded, or begin where a word begins.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SECRET, HOST, ADDRESS, USER, PATH = "<secret>", "<host>", "<address>", "<user>", "<path>"

# Public sources, which error messages and references name, and this machine by its common name.
PUBLIC_HOSTS = (
    "amd.com", "arxiv.org", "criteo.com", "fbaipublicfiles.com", "github.com",
    "githubusercontent.com", "gluebenchmark.com", "googleapis.com", "huggingface.co", "intel.com",
    "localhost", "mlcommons.org", "numpy.org", "nvidia.com", "openai.com", "pydantic.dev",
    "pypi.org", "python.org", "pytorch.org", "readthedocs.io",
)  # fmt: skip
# A path's last part stays where it tells what the file is, as in a traceback.
_FILE_END = re.compile(
    r"\.(?:py|so(?:\.\d+)*|c|cc|cpp|cu|h|hpp|jsonl?|toml|ya?ml|txt|md|log|csv|tsv|bin|idx|pth?"
    r"|np[yz]|h5|hdf5|safetensors|parquet|model|gz|zip|tar)\Z"
)
SECRET_WORD = (
    r"(?:passw(?:or)?d|pwd|passphrase|secret|(?:api|access|private|secret|auth)[_-]?key"
    r"|credentials?|authorization)"
)
TOKEN_WORD = "token"
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s'\"<]\S*)"
_NO_SECRET = r"(?![\"']?(?:-?[\d.]+|None|True|False|null|true|false)(?![\w.+/-]))"

_NAME = r"[\w.+%@~=-]"  # of a part of a path
PATH_START = r"(?:(?<![\w.~+%@<>/-])|(?<=\s-[IL]))"
NAME_END = rf"(?!{_NAME.replace('.', '')}|\.\w)"

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
    if not is_public(host):
        return f"{scheme}://{HOST}"
    return f"{scheme}://{'<credentials>@' if credentials else ''}{host}{rest}"


def is_public(host: str) -> bool:
    """Tell whether ``host`` is a public source, or this machine by its common name."""
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
    if is_public(name) or _FILE_END.search(name):
        return found.group()
    start, end = found.span("host")
    return found.string[found.start() : start] + HOST + found.string[end : found.end()]


class Rule(NamedTuple):
    """What is replaced where one of ``needles`` stands in the text, lower case, at all."""

    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    new: str | Callable[[re.Match[str]], str]


def apply(rules: Iterable[Rule], text: str) -> str:
    """Return ``text`` after each of ``rules`` in turn."""
    lowered = text.lower()
    for needles, pattern, new in rules:
        if any(needle in lowered for needle in needles):
            text = pattern.sub(new, text)
            lowered = text.lower()
    return text


def _rule(needles: str, pattern: str, new: str | Callable[[re.Match[str]], str]) -> Rule:
    return Rule(tuple(needles.split()), re.compile(pattern), new)


_LABEL = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
_LABELS = rf"(?:{_LABEL}\.){{1,8}}"
_HOST_WORD = r"(?P<host>[A-Za-z](?=[\w.-]{0,99}[\d.-])[\w-]*(?:\.[\w-]+)*)"
_KEEP = rf"\g<1>{SECRET}"
_PRIVATE = "local internal lan corp intra intranet localdomain cluster svc home private example"
_OPEN = "com edu gov mil org"
SECRETS = [
    _rule(
        "private",
        r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
        SECRET,
    ),
    _rule(
        "hf_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox sk- npm_ pypi- nvapi-",
        r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|npm_|pypi-|nvapi-)"
        # A capital, a digit or a long word: hf_hub_download is a function's name.
        r"(?=[a-z_-]{0,40}[A-Z0-9]|[a-z]{16})[A-Za-z0-9_-]{8,}",
        SECRET,
    ),
    _rule("akia asia aiza", r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b|\bAIza[0-9A-Za-z_-]{30,}", SECRET),
    _rule("eyj", r"(?<![\w-])eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*", SECRET),  # JSON web token
    _rule("bearer", rf"(?i)\b(bearer\s+){_VALUE}", _KEEP),
    _rule("authorization", rf"(?i)(?<!\w)(authorization['\"]?\s*[:=]\s*basic\s+){_VALUE}", _KEEP),
    _rule(
        "passw pwd passphrase key secret credential authorization",
        rf"(?i)({SECRET_WORD}['\"]?\s*[=:]\s*)(?!['\"]?(?:bearer|basic)\s){_VALUE}",
        _KEEP,
    ),
    _rule("token", rf"(?i)({TOKEN_WORD}['\"]?\s*[=:]\s*){_NO_SECRET}{_VALUE}", _KEEP),
    _rule("--", rf"(?i)(?<!\S)(--[\w-]{{0,40}}(?:{SECRET_WORD}|{TOKEN_WORD})\s+){_VALUE}", _KEEP),
    _rule(
        "? &",
        r"(?i)((?<=[?&])[\w-]{0,40}(?:sig|signature|credential|key)=)[^\s&'\"<]+",
        _KEEP,
    ),
    _rule(
        "://",
        r"([A-Za-z][A-Za-z0-9+.-]{0,20})://([^\s/'\"<>]*@)?"
        r"([^\s/:'\"<>?#,;()\[\]]+|\[[0-9A-Fa-f:.]+\])((?:[^\s'\"<>]|<\w+>)*)",
        _url,
    ),
    _rule("@", r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b(?!\()", "<email>"),
    _rule(
        "@",
        r"(?<![\w.-])[\w.-]+@(?!sha\d|v\d)(?=[\w-]{0,99}\d)[A-Za-z][\w-]*\b(?!\()",
        f"{USER}@{HOST}",
    ),
]
PATHS = [
    _rule("file://", r"(?<=file://)/[^\s'\"<>]+", _path),
    _rule("'/ \"/", r"(?<=')/\w[^'\n<>]*(?=')|(?<=\")/\w[^\"\n<>]*(?=\")", _path),
    _rule(
        "/",
        rf"{PATH_START}/(?=[^\s/]{{0,255}}[A-Za-z_])"
        rf"(?:{_NAME}{{2,}}(?:/+{_NAME}+)*|{_NAME}(?:/+{_NAME}+)+)/?",
        _path,
    ),
    _rule(":\\", r"\b[A-Za-z]:\\[^\s'\"<>]+", PATH),
]
HOSTS = [
    _rule("nccl", r"(?<![\w.-])(?P<host>[A-Za-z][\w.-]*)(?=:\d+:\d+ \[\d+\] NCCL)", _host),
    _rule("]:", r"(?<!\w)\[(?P<host>[A-Za-z][\w.-]*)\](?=:\d)", _host),
    _rule(
        "(",
        r"\(['\"]?(?P<host>[A-Za-z](?=[\w.-]{0,99}[\d.-])[\w.-]*)['\"]?(?=, \d{4,5}\))",
        _host,
    ),
    _rule(":", rf"(?<![\w./-])(?P<host>{_LABELS}[A-Za-z]{{2,}})(?=:\d{{2,5}}\b)", _host),
    _rule(":", r"(?<![\w./-])(?P<host>[A-Za-z][A-Za-z_-]*\d[\w-]*)(?=:\d{4,5}\b)", _host),
    _rule(
        " ".join(f".{ending}" for ending in f"{_OPEN} {_PRIVATE}".split()),
        rf"(?i)(?<![\w.-])(?P<host>{_LABELS}(?:{_OPEN.replace(' ', '|')})"
        rf"|(?:(?:{_LABEL}\.){{2,8}}|(?=[\w-]{{0,62}}[\d])[A-Z][\w-]{{0,62}}\.)"
        rf"(?:{_PRIVATE.replace(' ', '|')}))(?![\w(-]|\.\w)",
        _host,
    ),
    _rule(
        "host nodename addr peer server",
        r"(?i)\b(?:host|hostname|nodename|master_addr|peer|server)['\"]?=['\"]?"
        r"(?P<host>[A-Za-z][\w.-]*)",
        _host,
    ),
    _rule(
        "host node peer server",
        rf"(?i)\b(?:host|hostname|node|peer|server)['\"]?:?\s+['\"]?{_HOST_WORD}",
        _host,
    ),
    _rule(
        "connect resolve ssh lookup",
        r"(?i)\b(?:connect(?:ing|ed|ion)?\s(?:closed\s|reset\s)?(?:to|by|from|with)|resolve|ssh"
        rf"|lookup)\s+['\"]?{_HOST_WORD}",
        _host,
    ),
]
_MAC = r"(?<![\w:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![\w:-])"
ADDRESSES = [
    _rule(".", r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\w)", _address),
    _rule(": -", _MAC, ADDRESS),
    _rule(":", r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])", _address6),
]
