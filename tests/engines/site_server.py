"""The results site as people open it: from a server, and from a folder of plain files."""

from __future__ import annotations

import functools
import http.server
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE_S = 600.0  # far longer than a busy machine takes


def wait_for_pages(address: str) -> None:
    """Wait until the server has written the site.

    Until the site is written, the server answers each request by 503. Any other error, such as 404,
    is raised, and so is a 503 after ten minutes (``_PATIENCE_S``).
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(address).close()
        except urllib.error.HTTPError as error:
            error.close()
            # 503: the site is not written yet.
            if error.code != 503 or time.monotonic() > until_s:
                raise
            time.sleep(0.1)
        else:
            return


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of what is asked for."""


@contextmanager
def serve_plain_files(folder: Path) -> Iterator[str]:
    """Serve a folder's files as any web host does; yield the address.

    ``_Quiet`` is Python's own server of files, without its log. The end of the block stops it.
    """
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{host.server_port}"
        host.shutdown()
        thread.join()
