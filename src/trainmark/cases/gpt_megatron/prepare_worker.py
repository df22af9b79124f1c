"""A worker process of ``prepare``: blocks of lines in, token ids out.

Owns the worker's side of the pipe; ``prepare_pool`` has the other. Ends at once when the
pipe does, so that no worker outlives the call it works for.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from .prepare_encode import Encoder, LineFault
from .tokenizer import open_tokenizer


def main(handle: int) -> None:
    """Serve the pipe ``handle``: first the settings, then blocks until it closes."""
    pipe: Connection[Any, Any] = Connection(handle)
    folder, dtype, text_key = pipe.recv()
    encoder = Encoder(open_tokenizer(Path(folder)), np.dtype(dtype))
    blocks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, blocks), daemon=True).start()
    while True:
        data = blocks.get()
        try:
            reply: Any = encoder.block(data, text_key)
        except LineFault as fault:
            reply = fault
        del data
        pipe.send(reply)


def _receive(pipe: Connection[Any, Any], blocks: queue.SimpleQueue[bytes]) -> None:
    """Take what is sent even while a reply goes out, else both sides could wait for ever."""
    while True:
        try:
            block = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # the call is over, or was killed
        blocks.put(block)


if __name__ == "__main__":
    main(int(sys.argv[1]))
