"""Encode blocks of a corpus's lines into tokens.

Worker processes encode the blocks; those of a small corpus are encoded by the tokenizer's threads
in this process.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainmark.data.corpus import Block, parse_texts
from trainmark.data.indexed import choose_dtype
from trainmark.data.tokenizer import open_corpus_tokenizer
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.data.tokenizer import CorpusTokenizer


class EncodedBlock(NamedTuple):
    """The documents of a block.

    Args:
        tokens: token ids of all documents, concatenated (sum of sizes,).
        sizes: number of tokens of each document, int32 (documents,).
        empty_texts: number of lines with an empty text, which become no document.
    """

    tokens: NDArray[Any]
    sizes: NDArray[np.int32]
    empty_texts: int


class BlockEncoder:
    """Turns blocks of lines into tokens.

    Args:
        tokenizer: folder of the tokenizer.
        text_key: the key of the text in a line.
        ends: whether the end-of-document token ends every document.
    """

    def __init__(self, tokenizer: Path, text_key: str, *, ends: bool) -> None:
        # ``tokenizer`` is the tokenizer's folder; ``ends``: whether a token ends each document.
        # ``_begin_worker`` makes an equal encoder of these arguments in each worker process.
        self.worker_arguments = (tokenizer, text_key, ends)
        self.tokenizer: CorpusTokenizer = open_corpus_tokenizer(tokenizer, ends=ends)
        self.text_key = text_key  # the key of the text in a line
        self.dtype = choose_dtype(self.tokenizer.vocab_size)

    def encode(self, block: Block) -> EncodedBlock:
        """Return the tokens of the texts in a block, which holds consecutive lines of a file.

        Raises:
            DataError: a line has no text; the error names the first one.
        """
        texts = parse_texts(block.lines, self.text_key, block.path, block.first_line_number)
        # A text becomes a document; an empty one does not, but ``empty_texts`` below counts it.
        encodings = self.tokenizer.library.encode_batch_fast(
            [text for text in texts if text], add_special_tokens=False
        )
        end_ids = [] if self.tokenizer.end_id is None else [self.tokenizer.end_id]
        documents = [np.array([*encoding.ids, *end_ids], self.dtype) for encoding in encodings]
        no_tokens = np.empty(0, self.dtype)  # for a block without documents
        return EncodedBlock(
            tokens=np.concatenate([no_tokens, *documents]),
            sizes=np.array([len(document) for document in documents], np.int32),
            empty_texts=texts.count(""),
        )


_worker_encoder: BlockEncoder | None = None  # set in each worker process


def _begin_worker(tokenizer: Path, text_key: str, ends: bool) -> None:
    """Prepare a worker process: make its encoder.

    Args:
        tokenizer: folder of the tokenizer.
        text_key: the key of the text in a line.
        ends: whether the end-of-document token ends every document.
    """
    global _worker_encoder  # noqa: PLW0603 - a pool has no other place for a worker's state
    signal(SIGINT, SIG_IGN)  # on Ctrl-C the parent ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker uses one thread
    _worker_encoder = BlockEncoder(tokenizer, text_key, ends=ends)


def _end_with_parent() -> None:
    """Wait for the end of the parent, then end this process; runs in a thread of each worker.

    A killed parent cannot end its workers itself.
    """
    parent = parent_process()
    assert parent is not None, "a worker is a child of the process that made the pool"
    parent.join()
    os._exit(1)  # ends the process; ``sys.exit`` would only end this thread


def _encode_in_worker(block: Block) -> EncodedBlock:
    """Encode a block of lines in a process in which ``_begin_worker`` has set the encoder."""
    assert _worker_encoder is not None
    return _worker_encoder.encode(block)


def encode_blocks(
    blocks: Iterable[Block], encoder: BlockEncoder, workers: int
) -> Iterator[tuple[Block, EncodedBlock]]:
    """Yield each block with its documents' tokens, in order.

    Args:
        blocks: consecutive lines of the corpus.
        encoder: encodes if there is one worker; else each worker makes an equal one.
        workers: number of processes; 1: encode in this process.

    Raises:
        DataError: a line has no text.
        EnvironmentFault: a worker ended before its work was done.
    """
    if workers == 1:
        for block in blocks:
            yield block, encoder.encode(block)
        return
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_begin_worker, initargs=encoder.worker_arguments
    )
    pending: deque[tuple[Block, Future[EncodedBlock]]] = deque()
    try:
        for block in blocks:
            pending.append((block, pool.submit(_encode_in_worker, block)))
            # Not more than one block in work and one waiting for each worker, to limit the memory.
            if len(pending) == 2 * workers:
                oldest_block, future = pending.popleft()
                yield oldest_block, future.result()
        for block, future in pending:
            yield block, future.result()
    except BrokenProcessPool:
        raise EnvironmentFault(
            "a worker process died before it finished",
            rule=(
                "all workers must fit into memory; each worker loads the tokenizer and several "
                "blocks of lines"
            ),
            fix="set workers= to a smaller number",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
