"""Give nodes names that stay the same in everything that leaves this user's machines.

A pseudonym is a keyed digest of the name. Without the key, which never leaves the machine, nobody
can find the name by trying likely ones.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from trainmark import cases

if TYPE_CHECKING:
    from pathlib import Path

KEY_FILE = "pseudonym.key"  # in the cache folder; a new one gives all nodes new names
UNNAMED = "<host>"
_KEY_BYTES = 32
_NUM_DIGITS = 8
_PSEUDONYM = re.compile(rf"<host(?:-[0-9a-f]{{{_NUM_DIGITS}}})?>")


def make_pseudonym(name: str, key: bytes | None) -> str:
    """Return the pseudonym of a node; a name that is a pseudonym already is returned unchanged.

    Args:
        key: of this user; None: there is none, and nodes cannot be told apart.
    """
    if _PSEUDONYM.fullmatch(name):
        return name
    if key is None:
        return UNNAMED
    name_bytes = name.encode("utf-8", "surrogateescape")  # a name need not be valid UTF-8
    digest = hmac.new(key, name_bytes, sha256).hexdigest()
    return f"<host-{digest[:_NUM_DIGITS]}>"


def load_key(folder: Path | None = None) -> bytes | None:
    """Return the user's key, with which pseudonyms are computed; make it if there is none.

    Args:
        folder: in which the key is kept; None: the user's cache folder.

    Returns:
        None: the key cannot be written or read.
    """
    key_folder = folder or cases.get_cache_root()
    path = key_folder / KEY_FILE
    with suppress(OSError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:  # an earlier call made it; the folder may be read-only now
            return key
    try:
        key_folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of several processes only one makes the key
            key = file.read()
            # The file is new, so that it is empty, or a process died while it wrote the key.
            if len(key) < _KEY_BYTES:
                key = secrets.token_bytes(_KEY_BYTES)
                file.seek(0)
                file.write(key)
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None  # a longer file is no key
