"""Worker processes that encode a corpus end with the process that started them."""

import os
import select
import signal
import subprocess
import sys

from support.gpt_tokenizers import write_two_files

PARENT = """
import sys
from itertools import repeat
from multiprocessing import active_children
from pathlib import Path

from trainmark.data.corpus import CORPUS_BEGIN, Block
from trainmark.data.encoding import BlockEncoder, encode_blocks

if __name__ == "__main__":
    block = Block([b'{"text": "hello"}'], Path("corpus"), 1, CORPUS_BEGIN)
    encoder = BlockEncoder(Path(sys.argv[1]), "text", ends=True)
    encoded = encode_blocks(repeat(block), encoder, 2)
    next(encoded)
    print(*(child.pid for child in active_children()), flush=True)
    sys.stdin.read()
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    tokenizer = write_two_files(tmp_path / "gpt2")
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tokenizer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # ``PARENT`` is a program that has two workers encode an endless corpus with the tokenizer. It
    # prints their process ids and then waits. A descriptor of a process
    # becomes readable when the process ends.
    workers = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
    assert workers
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for worker in workers:
        assert select.select([worker], [], [], 60.0)[0] == [worker]  # within 60 s
        os.close(worker)
    parent.stdin.close()
    parent.stdout.close()
