"""Turn C4's shards into the two pairs of indexed token files that this case reads."""

from functools import partial

from trainmark.data import c4_pairs

prepare = partial(c4_pairs.prepare, case="llama31_8b")
