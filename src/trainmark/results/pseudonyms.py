"""Give nodes names that stay the same in everything that leaves this user's machines.

A pseudonym is a keyed digest of the name. Without the key, which never leaves the machine, nobody
can find the name by trying likely ones.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
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
        None: the key cannot be written or read, or another process is still writing it.
    """
    key_folder = folder or cases.get_cache_root()
    path = key_folder / KEY_FILE
    try:
        key_folder.mkdir(parents=True, exist_ok=True)
        # ``O_EXCL``: of several processes only one makes the key.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # an earlier call made the key
        pass
    except OSError:
        return None
    else:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    try:
        key = path.read_bytes()
    except OSError:
        return None
    # It is too short while another process is writing it.
    return key if len(key) == _KEY_BYTES else None
