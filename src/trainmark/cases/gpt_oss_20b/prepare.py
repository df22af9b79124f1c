"""C4's shards as the two pairs of indexed tokens that this case reads, as the published ones."""

from functools import partial

from trainmark.data import c4_pairs

prepare = partial(c4_pairs.prepare, case="gpt_oss_20b")
