"""What the card's training sections compute from measured times, and what they feed their peers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from benchmarks.card import dlrm, glm, largest_tables, section, training
from benchmarks.card.section import Card
from benchmarks.card.training import Measured
from benchmarks.dlrm_plain import DIM, NUM_TABLES
from benchmarks.glm_plain import PlainGlm
from benchmarks.peers import PeerFailedError

from benchmarks import glm_loader
from trainmark import devices
from trainmark.cases.dlrm_criteo.placement import place_tables
from trainmark.cases.glm_superglue.case import GlmShape
from trainmark.cases.glm_superglue.job import SequenceTensors
from trainmark.cases.glm_superglue.model import build_model
from trainmark.errors import EnvironmentFault
from trainmark.protocols import MemoryUse
from trainmark.spec import RankMemory

if TYPE_CHECKING:
    from pathlib import Path

# Three rounds: seconds of a step of each variant, and the rate of matmuls beside it.
MEASURED = Measured(
    seconds={"ours": [2.0, 4.0, 2.0], "peer": [4.0, 4.0, 4.0]},
    peak_bytes={"ours": 3 << 30, "peer": 4 << 30},
    matmul=[100.0, 50.0, 80.0], flops=80.0, units={"tokens": 10}, peak_flops=200.0,
    product_name="device",
)  # fmt: skip


def test_shares_are_relative_to_the_peak_and_to_matmuls_of_the_same_round() -> None:
    """A step of 80 FLOP takes 2, 4 and 2 s in three rounds, the peer's 4 s.

    That is 0.2, 0.1 and 0.2 of the peak of 200 FLOP/s, and 0.4, 0.4 and 0.5 of the matmuls of the
    same round, which have 100, 50 and 80 FLOP/s.
    """
    mfu = MEASURED.mfu("ours")
    assert mfu is not None
    assert (mfu.low, mfu.median, mfu.high) == (0.1, 0.2, 0.2)
    mamfu = MEASURED.mamfu("ours")  # over the rate of matmuls, not over the peak
    assert (mamfu.low, mamfu.median, mamfu.high) == (0.4, 0.4, 0.5)
    # Bars: the name of what is judged, and the least that is required.
    assert MEASURED.mfu_bar("ours", "it", 0.2).met
    assert not MEASURED.mfu_bar("ours", "it", 0.21).met
    # Our step takes half of the peer's time.
    assert MEASURED.speed_bar("ours", "peer", "it", 2.0).met
    assert not MEASURED.speed_bar("peer", "ours", "it", 0.6).met
    assert MEASURED.fastest("peer", "ours") == "ours"


class FakePeer:
    """Takes a second per step; a variant named ``hangs`` ends only when it is killed."""

    def __init__(self, _module: str, *words: str) -> None:
        """Begin as the process of a variant would.

        Args:
            words: the command line of the variant: its name and its arguments.
        """
        self.words = words
        self.killed = threading.Event()  # set when the process is killed
        # What a peer reports of each turn after its seconds: here the peak memory in bytes. Only
        # the last turn's is read, so one entry stands for all.
        self.more = [[5.0]]
        self.process = SimpleNamespace(kill=self.killed.set)

    def settle(self, _turn_s: float) -> None:
        """Take the first steps, which compile; a variant named ``hangs`` waits to be killed."""
        if "hangs" in self.words:
            assert self.killed.wait(600.0)
            raise PeerFailedError("killed")

    def turn(self) -> float:
        """Return the seconds of a step."""
        return 1.0

    def __enter__(self) -> FakePeer:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_variant_that_compiles_for_too_long_is_killed_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The variant that compiles for too long is a fake that waits until it is killed."""
    monkeypatch.setattr(training, "Peer", FakePeer)
    monkeypatch.setattr(training, "SETTLE_S", 0.0)  # the time limit of a variant's first steps
    # By variant the words of its command line; the fake hangs if one of them is ``hangs``. Its
    # precision, FLOPs and units do not matter here.
    turns = training.take_turns(
        Card("cpu", "tiny", tmp_path),
        "module",
        {"ours": ("ours",), "compiled": ("hangs",)},
        precision="fp32",
        flops=1.0,
        units={},
    )
    assert turns.failed == {"compiled": "killed"}  # the variant, and the text of its error
    assert set(turns.seconds) == set(turns.peak_bytes) == {"ours"}
    # Without our own variant there is nothing to compare.
    with pytest.raises(PeerFailedError):
        training.take_turns(
            Card("cpu", "tiny", tmp_path),
            "module",
            {"ours": ("hangs",)},
            precision="fp32",
            flops=1.0,
            units={},
        )


def test_variants_and_rounds_without_time_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The section must end at 100 s (``ends_at_s``) of a fake clock, which begins at 0 s.

    A variant takes 30 s to start and 2 s for a turn; up to seven rounds (``ROUNDS``) are wanted.
    ``parts`` has by variant the words of its command line.
    """
    now_s = 0.0

    class SlowPeer(FakePeer):
        """Starts in 30 seconds and takes turns of two.

        ``settle`` is the start of a variant; the peer that multiplies matrices never calls it.
        """

        def settle(self, _turn_s: float) -> None:
            nonlocal now_s
            now_s += 30.0

        def turn(self) -> float:
            nonlocal now_s
            now_s += 2.0
            return 2.0

    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr(training, "time", clock)
    monkeypatch.setattr(section, "time", clock)
    monkeypatch.setattr(training, "Peer", SlowPeer)
    monkeypatch.setattr(training, "TURN_S", 2.0)
    monkeypatch.setattr(training, "ROUNDS", 7)
    parts = {"ours": ("ours",), "plain": ("plain",), "trainer": ("trainer",)}

    turns = training.take_turns(
        Card(device="cpu", size="full", scratch=tmp_path, ends_at_s=100.0, is_brief=True),
        "module",
        parts,
        precision="fp32",
        flops=1.0,
        units={},
    )

    # Two starts take 60 s, and a third one would leave too little. A round has turns of both
    # variants and of a matmul, 6 s. It starts only if more than the time of two is left: after five
    # rounds only 10 s are.
    assert (turns.left_out, turns.failed) == (["trainer"], {})
    assert turns.seconds == {"ours": [2.0] * 5, "plain": [2.0] * 5}
    assert now_s == 90.0


def test_plain_embedding_bags_without_time_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The section has 60 s by a fake clock; one of its two parts takes 40 s.

    It times our own training step and, to compare, one with the embedding bags of torch.
    """
    now_s = 0.0  # of the fake clock
    # What a part reports: numbers that the section needs, but which do not matter here.
    measured = {
        "seconds": [1.0],
        "embedding_seconds": [0.5],
        "read_seconds": [1.0],
        "embedding_bytes_per_sample": 8,
        "copy_bytes_per_second": 100.0,
        "peak_bytes": 3,
    }

    def measure(*_: str) -> dict[str, Any]:
        """Take 40 s for a part of the section; for a second one there is no time."""
        nonlocal now_s
        now_s += 40.0
        return measured

    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr(dlrm, "time", clock)
    monkeypatch.setattr(section, "time", clock)
    monkeypatch.setattr(dlrm, "measure_part", measure)
    monkeypatch.setattr(dlrm, "TINY_ROWS", 10)  # instead of as many as fit on the device
    monkeypatch.setattr(dlrm, "write_clicks", lambda *_, **__: "folder")

    card = Card(device="cpu", size="full", scratch=tmp_path, ends_at_s=60.0, is_brief=True)
    result = dlrm.run(card)

    # The part "plain" is our own step. After it 20 s are left, but a part takes 40 s, so there is
    # no time for "bags". The bar compares the speed of both, so it is neither met nor missed
    # (None).
    (bar,) = result.bars
    assert (bar.measured, bar.met) == ("unknown: there was no time for it", None)
    assert result.figures["plain_step_seconds"] == 1.0
    assert now_s == 40.0


@pytest.mark.parametrize("total_gib", [2, 80])
def test_largest_tables_fit_and_one_more_row_each_does_not(
    monkeypatch: pytest.MonkeyPatch, total_gib: int
) -> None:
    """The embedding tables of the benchmark are as large as the device's memory allows.

    There are ``NUM_TABLES``, 26, tables with rows of ``DIM``, 128, float32.
    """
    total = total_gib << 30  # bytes of memory of a fake device
    use = MemoryUse(allocator_peak_bytes=0, used_bytes=0, total_bytes=total, scope="device")
    opened: Any = SimpleNamespace(memory=lambda: use)
    vendor = SimpleNamespace(open=lambda *_: opened)
    monkeypatch.setattr(devices, "choose_vendor", lambda _: vendor)
    rows = largest_tables.count_rows_that_fit("card")  # of each of ``NUM_TABLES`` equal tables
    # The process that asks for the memory occupies up to ``CONTEXT_BYTES``, 1 GiB, of it. The rank
    # that trains has the rest; ``place_tables`` refuses tables that do not fit into its part of it.
    rank_memory = RankMemory(total - largest_tables.CONTEXT_BYTES)
    place_tables(rank_memory, [rows] * NUM_TABLES, DIM, world_size=1)  # raises if they do not fit
    with pytest.raises(EnvironmentFault):
        place_tables(rank_memory, [rows + 1] * NUM_TABLES, DIM, world_size=1)


def test_original_model_scores_a_batch_as_our_model_does() -> None:
    """``PlainGlm`` is the original model, written out; it gets the weights of ours.

    A sample of ``make_cloze`` has several candidates, each of which is a sequence with a score.
    """
    examples = glm_loader.make_cloze()
    shape = GlmShape(
        num_layers=1,
        hidden_size=8,
        num_heads=2,
        vocab_size=glm_loader.VOCAB_SIZE,
        max_positions=glm_loader.SEQ_LENGTH,
    )
    our_model = build_model(shape, dropout=0.0, seed=1)
    # With checkpoints, as the section of the card trains it; the scores are the same without.
    plain = PlainGlm(shape, dropout=0.0, checkpoint_activations=True)
    plain.load_state_dict(our_model.state_dict())
    # ``split_sequences(2)`` cuts the batch, whose only sample is the first one, into batches of two
    # sequences. The first of them is used: the sample's first two candidates.
    some = next(examples.batch(np.arange(1))[0].split_sequences(2))
    sequences = SequenceTensors.from_batch(some)
    # Our model takes a list of targets and of their positions. The original one takes a target for
    # every position, and a mask of those that count: ``spread`` makes both, after the other inputs.
    torch.testing.assert_close(
        plain(*glm.spread(sequences.inputs)),
        sequences.sum_scores(our_model(*sequences.inputs)),
        rtol=1e-4,
        atol=1e-4,
    )


# In another process, because the switches apply to a whole process.
