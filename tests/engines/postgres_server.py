"""A PostgreSQL server on a unix socket, for as long as a ``with`` block lasts.

It does not run as root: then it runs as nobody, in a folder below /tmp that is its own. It is
ended by its process id.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_S = 60.0


def programs() -> Path | None:
    """Return the folder of initdb and postgres; Debian has one for each version."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    whole = (x for x in folders if (x / "initdb").exists() and (x / "postgres").exists())
    return next(whole, None)


@contextmanager
def server() -> Iterator[str]:
    """Start a server of its own data; give the URL of its database."""
    folder = programs()
    assert folder is not None
    place = Path(tempfile.mkdtemp(prefix="tm-pg-", dir="/tmp"))
    other: dict[str, object] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        other = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    # Locale C: the server's own order of text must not matter.
    words = [
        folder / "initdb", "-D", place / "data", "-U", "trainmark", "--auth=trust",
        "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
    ]  # fmt: skip
    with (place / "log").open("wb") as log:
        subprocess.run(words, cwd=place, stdout=log, stderr=log, check=True, **other)
        words = [folder / "postgres", "-D", place / "data", "-k", place, "-h", "", "-F"]
        process = subprocess.Popen(words, cwd=place, stdout=log, stderr=log, **other)
    try:
        until = time.monotonic() + _START_S
        while (
            not (place / ".s.PGSQL.5432").exists()
            or b"ready to accept" not in (place / "log").read_bytes()
        ):
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < until, (place / "log").read_text()
            time.sleep(0.05)
        yield f"postgresql+psycopg://trainmark@/postgres?host={place}"
    finally:
        process.send_signal(signal.SIGINT)  # without waiting for its clients
        process.wait(_START_S)
        shutil.rmtree(place)
