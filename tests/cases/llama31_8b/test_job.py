"""Llama 3.1: its loss is the library's, its learning rates the reference's, on any mesh."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support import tiny_llama31
from support.live_tensors import LiveTensors
from support.old_torch import needs_fsdp, predicts_memory
from support.real_ranks import call_on_ranks
from support.tiny_gpt import train, train_on_ranks
from trainmark.cases.llama31_8b.case import CASE, Llama31Recipe
from trainmark.cases.llama31_8b.data import _predict_block, _predict_head_bytes, check_fit, predict
from trainmark.cases.llama31_8b.figures import compute
from trainmark.cases.llama31_8b.job import compute_lr_factor
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.protocols import Counts
from trainmark.spec import Figure, RankMemory
from trainmark.train.step_memory import PROCESS_BYTES

# By number of ranks: the recipe fields that distribute the model.
SPREADS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"micro_batch_size": 4},
        {"tensor_parallel": 2, "fsdp": False},
        {"tensor_parallel": 2, "sequence_parallel": True, "kernels": "library"},
    ],
    4: [
        {"tensor_parallel": 2, "micro_batch_size": 4},
        {"tensor_parallel": 2, "micro_batch_size": 4, "sequence_parallel": True,
         "checkpoint_activations": "selective"},
    ],
}  # fmt: skip


def test_loss_equals_that_of_transformers() -> None:
    job = tiny_llama31.new_job()
    # The first eight samples, each of 12 tokens and one more, the target of the last one.
    ids = torch.from_numpy(job.data.train.build_unshuffled_epoch().gather_tokens(range(8)))
    # Our model returns the sum over tokens.
    our_loss = job.model(ids[:, :-1], ids[:, 1:]) / ids[:, 1:].numel()
    library_logits = job.model.library(input_ids=ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(library_logits.flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(our_loss, loss, rtol=0, atol=1e-6)


def test_weights_are_drawn_as_the_reference_draws_them() -> None:
    # Wider than usual, so that the deviations of the drawn weights are precise enough.
    job = tiny_llama31.new_job(hidden_size=256, ffn_size=512)
    drawn = dict(job.model.named_parameters())
    block = "library.model.layers.1."
    # The reference's standard deviation is 0.02, and smaller for output layers of a block.
    for name, std in (
        ("library.model.embed_tokens.weight", 0.02),
        ("library.lm_head.weight", 0.02),
        (f"{block}mlp.up_proj.weight", 0.02),
        (f"{block}mlp.down_proj.weight", 0.01),  # 0.02 / sqrt(2 x 2 layers)
        (f"{block}self_attn.o_proj.weight", 0.01),
    ):
        assert drawn[name].std().item() == pytest.approx(std, rel=0.02), name
    assert torch.all(  # norms begin as 1
        drawn[f"{block}input_layernorm.weight"] == 1
    )


def test_learning_rates_are_the_published_ones() -> None:
    recipe = CASE.recipes["standard-1x8"]
    assert isinstance(recipe, Llama31Recipe)
    # Factors of the learning rate. Warm-up of 512 steps: the n-th step, counted from 1, has n /
    # 513. Then a cosine down to 10% at step 1,200,000; half-way it is the mean of 1 and 0.1.
    assert compute_lr_factor(recipe, 0) == 1 / 513
    assert compute_lr_factor(recipe, 511) == 512 / 513
    assert compute_lr_factor(recipe, 512) == 1.0
    halfway_step = 512 + (1_200_000 - 512) // 2
    assert compute_lr_factor(recipe, halfway_step) == pytest.approx(0.55)
    assert compute_lr_factor(recipe, 1_200_000) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["standard-1x8", "standard-2x8"])
def test_a_published_step_takes_32_sequences(name: str) -> None:
    recipe = CASE.recipes[name]
    assert recipe.world is not None
    # The world is written as nodes x ranks of each.
    ranks = math.prod(int(number) for number in recipe.world.split("x"))
    assert recipe.micro_batch_size * recipe.grad_accum_steps * ranks == 32


def test_matmul_weights_are_those_of_the_published_model() -> None:
    # Without the token table: 8,030,261,248 parameters less 128,256 x 4096, and 65 norms of 4096.
    assert Llama31Recipe().matmul_weights == 8_030_261_248 - 128_256 * 4096 - 65 * 4096


def test_parameters_and_flops_of_the_tiny_model_match_a_count_by_hand() -> None:
    job = tiny_llama31.new_job()
    assert job.num_parameters == sum(parameter.numel() for parameter in job.model.parameters())
    tokens = Counts(samples=1, sequences=1, tokens=12, tokens_padded=12)
    # FLOPs per token: 12 L D T for attention (2 layers, width 32, 12 tokens), and 6 for each weight
    # that is multiplied, ``matmul_weights``: all but the norms and the table of the tokens.
    attention = 12 * 2 * 32 * 12
    assert job.model_flops(tokens) == 12 * (6 * job.recipe.matmul_weights + attention)


TINY = {
    "num_layers": 4,
    "hidden_size": 256,
    "ffn_size": 512,
    "vocab_size": 256,
    "micro_batch_size": 64,
}
MIDDLE = {
    "num_layers": 3,
    "hidden_size": 384,
    "ffn_size": 1024,
    "vocab_size": 2048,
    "micro_batch_size": 160,
    "num_heads": 6,
    "checkpoint_activations": "full",
}


@predicts_memory
@pytest.mark.parametrize(
    "changes",
    [
        TINY,
        TINY | {"precision": "bf16"},
        TINY | {"checkpoint_activations": "full"},
        TINY | {"checkpoint_activations": "selective", "precision": "bf16"},
        TINY | {"grad_accum_steps": 2, "micro_batch_size": 16},
        MIDDLE | {"precision": "bf16"},
        MIDDLE | {"micro_batch_size": 8},  # all gradients take more than activations
    ],
)
def test_real_step_needs_the_predicted_memory(changes: dict[str, Any]) -> None:
    # ``TINY`` and ``MIDDLE`` are the sizes of two models of 4 and 3 layers, 256 and 384 wide.
    # ``live.peak``: the most bytes that all tensors together had at a time.
    with LiveTensors() as live:
        job = tiny_llama31.new_job(**changes)
        # The first step of two epochs: the second one has the optimizer's state from the start.
        for epoch in range(2):
            job.step(job.batches(epoch))
    recipe = tiny_llama31.make_recipe(**changes)
    needed = predict(recipe, 1).total  # on one rank
    # The prediction may be up to 5% too low, and hardly too high, so that it refuses no run that
    # fits. It is at most 0.1% too high here; a rank needs far more than that beside its tensors.
    assert 0.95 * live.peak <= needed <= 1.002 * live.peak
    # Exactly so much memory does not suffice, as the process needs some for other things.
    with pytest.raises(EnvironmentFault, match="a rank needs about"):
        check_fit(Path(), recipe, world_size=1, memory=RankMemory(needed))


@needs_fsdp
@predicts_memory
def test_tensor_parallel_block_saves_the_predicted_memory(tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = []
    for sequence_parallel in (False, True):
        variant = TINY | {
            "precision": "bf16",
            "tensor_parallel": 2,
            "sequence_parallel": sequence_parallel,
        }
        variants += [variant, variant | {"num_layers": 2}]  # 4 and 2 layers
    # For each variant, the bytes that a forward pass saves on the first of two ranks, which share
    # one model (``tensor_parallel``). ``measure_saved_bytes`` gets a rank's number, the number of
    # ranks (2 again) and the variants.
    saved_bytes, _ = call_on_ranks(2, tmp_path, tiny_llama31.measure_saved_bytes, 2, variants)
    for number in range(0, len(variants), 2):
        # The difference is two blocks, without the tensors of the embedding and the head.
        block_bytes = (saved_bytes[number] - saved_bytes[number + 1]) / 2
        recipe = tiny_llama31.make_recipe(**variants[number])
        # The head, of the table's size, is among the matmul weights, but in no block.
        head_weights = recipe.vocab_size * recipe.hidden_size
        block_weights = (recipe.matmul_weights - head_weights) // recipe.num_layers
        predicted = _predict_block(recipe, block_weights).saved
        assert 0.99 * block_bytes <= predicted <= block_bytes, variants[number]


def test_each_tensor_parallel_rank_has_the_whole_input_of_the_head() -> None:
    changes = TINY | {"precision": "bf16", "kernels": "own", "tensor_parallel": 2}
    recipe = tiny_llama31.make_recipe(**changes)
    divided = tiny_llama31.make_recipe(**changes, sequence_parallel=True)
    tokens = recipe.micro_batch_size * recipe.seq_length
    # Bytes of the activations between two blocks, of a micro-batch; 4 bytes a float32.
    stream = 4 * tokens * recipe.hidden_size
    # With a divided sequence a rank has half of the two inputs of the last norm, but all of the
    # head's input, of its gradient and of its copy in bf16.
    saved = _predict_head_bytes(recipe, stream) - _predict_head_bytes(divided, stream // 2)
    assert saved == stream
    # 4.5 times ``stream``: the two inputs of the last norm, the head's input, its gradient, and its
    # copy in bf16, which is half as large. The head's own parts: half of the gradient of its table
    # (4 bytes each), and half of the scores in fp32 and bf16 (4 + 2 bytes each), as two ranks share
    # them.
    table = recipe.vocab_size * recipe.hidden_size
    scores = tokens * recipe.vocab_size
    assert _predict_head_bytes(recipe, stream) == 4.5 * stream + 4 * table / 2 + 6 * scores / 2


def test_gradients_of_earlier_micro_batches_exist_beside_the_whole_head_gradient() -> None:
    # Recomputation makes the backward pass of the last block the moment that needs most. In the
    # second of two micro-batches, each of two ranks then holds half of all gradients of the first
    # one, also of the head's. Beside it is the head's gradient of this micro-batch, which FSDP2
    # reduces last: until then it is whole.
    changes = TINY | {"checkpoint_activations": "full", "grad_accum_steps": 2, "fsdp": True}
    recipe = tiny_llama31.make_recipe(**changes)
    all_gradients = 4 * tiny_llama31.new_job(**changes).num_parameters  # 4 bytes a float32
    head_gradient = 4 * recipe.vocab_size * recipe.hidden_size
    assert predict(recipe, 2).gradients == all_gradients // 2 + head_gradient


def test_error_names_the_batch_and_layers_that_fit() -> None:
    # The recipe does not fit; its error must propose the largest batch, or the most layers, that
    # do. 5 of 8 and 3 of 6 are examples, for each of which the memory is chosen.
    recipe = tiny_llama31.make_recipe(micro_batch_size=8, num_layers=6)
    smaller_batch, fewer_layers = replace(recipe, micro_batch_size=5), replace(recipe, num_layers=3)
    for fits, expected_text in (
        (smaller_batch, "micro_batch_size=5"),
        (fewer_layers, "num_layers=3"),
    ):
        # Memory that is just enough for the smaller recipe on one rank, with what a process needs
        # apart from tensors (``PROCESS_BYTES``).
        enough = RankMemory(predict(fits, 1).total + PROCESS_BYTES)
        with pytest.raises(EnvironmentFault) as caught:
            check_fit(Path(), recipe, world_size=1, memory=enough)
        # As a word of its own: ``micro_batch_size=50`` would be another proposal.
        assert expected_text in str(caught.value.fix).split()
    # No smaller recipe fits into nothing: no proposal.
    with pytest.raises(EnvironmentFault) as caught:
        check_fit(Path(), recipe, world_size=1, memory=RankMemory(PROCESS_BYTES))
    assert "to fit into memory" not in str(caught.value.fix)


def test_mfu_is_reported_by_both_published_attention_formulas() -> None:
    # MFU counts all of attention, MFU_causal half of it; FLOPs below are per token, with
    # 12 L D T for attention (2 layers, width 32, 12 tokens).
    # 50.0 is any MFU in %, from which the other one follows by the share of attention.
    share = tiny_llama31.new_job().facts()["attention_flops_share"]
    ranks: Any = [SimpleNamespace(facts={"attention_flops_share": share})]
    causal_mfu = compute(ranks, {"MFU": Figure(50.0)}).figures["MFU_causal"].value
    weights, attention = 6 * tiny_llama31.make_recipe().matmul_weights, 12 * 2 * 32 * 12
    assert causal_mfu == pytest.approx(50 * (weights + attention / 2) / (weights + attention))
    # A rank that ended before its job reported any fact: the share of attention is unknown.
    unknown = compute([SimpleNamespace(facts={})], {"MFU": Figure(50.0)})  # type: ignore[list-item]
    assert unknown.figures["MFU_causal"].value is None


@pytest.mark.parametrize("activations", ["selective", "full"])
def test_recomputing_changes_no_loss(activations: str) -> None:
    # Activations are computed again in the backward pass: some of each block, or all.
    plain = train(tiny_llama31.new_job())
    training = train(tiny_llama31.new_job(checkpoint_activations=activations))
    assert training["losses"] == pytest.approx(plain["losses"], abs=1e-6)


@pytest.mark.filterwarnings("default")  # torchao's own imports warn
def test_fp8_rounds_all_linear_layers_but_the_first_and_last() -> None:
    pytest.importorskip("torchao")
    # fp8 needs matmuls whose sizes are multiples of 16: 8 x 12 tokens.
    sizes = {"micro_batch_size": 8, "seq_length": 12}
    recipe = tiny_llama31.make_recipe(**sizes, precision="fp8")
    recipe.check(1)  # raises nothing
    exact = train(tiny_llama31.new_job(**sizes))
    job = tiny_llama31.new_job(**sizes, precision="fp8")
    kinds = [
        type(layer).__name__ for layer in job.model.modules() if isinstance(layer, torch.nn.Linear)
    ]
    # Two blocks of seven layers (q, k, v, o; gate, up, down). Of these 14, the first and the last
    # stay ``Linear``, and so does the head, which follows them: 1 + 12 + 1 + 1.
    assert kinds == ["Linear", *["Float8Linear"] * 12, "Linear", "Linear"]
    training = train(job)
    assert training["losses"] == pytest.approx(exact["losses"], rel=0.02)
    # But not equal: something was rounded.
    assert training["losses"] != pytest.approx(exact["losses"], rel=1e-5)


def test_fp8_without_its_extra_or_with_other_sizes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = Llama31Recipe(precision="fp8")
    # 8,200 is no multiple of 16.
    with pytest.raises(UsageError, match=r"micro_batch_size x seq_length is 8200"):
        replace(recipe, micro_batch_size=1, seq_length=8200).check(1)
    # As if torchao were not installed.
    monkeypatch.setattr("trainmark.cases.llama31_8b.case.find_spec", lambda _: None)
    with pytest.raises(EnvironmentFault, match="torchao"):
        recipe.check(1)


@pytest.mark.parametrize(
    ("installed", "usable"),
    [("2.7.1", False), ("2.10.0", False), ("2.11.0", True), ("2.13.0", True)],
)
def test_fp8_is_refused_with_a_torch_that_torchao_cannot_use(
    monkeypatch: pytest.MonkeyPatch, installed: str, usable: bool
) -> None:
    # ``installed``: a version of torch. torchao's fp8 needs torch 2.11 or newer.
    recipe = Llama31Recipe(precision="fp8")
    # As if torchao were installed.
    monkeypatch.setattr("trainmark.cases.llama31_8b.case.find_spec", lambda _: object())
    monkeypatch.setattr("trainmark.torch_version._read_version", lambda _: f"{installed}+cu130")
    if usable:
        recipe.check(1)  # raises nothing
        return
    with pytest.raises(EnvironmentFault, match=r"2\.11 or newer") as caught:
        recipe.check(1)
    assert installed in str(caught.value)
    assert caught.value.where == "recipe field precision"


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")  # torch's compiler warns of torch
@pytest.mark.parametrize("activations", ["none", "selective", "full"])
def test_blocks_compile_to_one_graph_per_pass(activations: str) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    torch._dynamo.reset()
    changes = {"checkpoint_activations": activations}
    plain = train(tiny_llama31.new_job(**changes))
    training = train(tiny_llama31.new_job(compile=True, **changes))
    assert training["losses"] == pytest.approx(plain["losses"], abs=1e-5)
    # All blocks of the model share a graph: one of training, and one of evaluation.
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


@needs_fsdp
@pytest.mark.parametrize("ranks", SPREADS)
def test_distributed_model_trains_as_on_one_rank(tmp_path: Path, ranks: int) -> None:
    single_rank = train(tiny_llama31.new_job())
    # ``SPREADS``: by number of ranks, sets of changed recipe fields that distribute the training.
    # For each set: the results of all ranks.
    trainings = train_on_ranks(tiny_llama31.new_job, tmp_path, ranks, SPREADS[ranks])
    for changes, results in zip(SPREADS[ranks], trainings, strict=True):
        # One rank of each replica: only it counts the samples that all its ranks train.
        counting = results[:: changes.get("tensor_parallel", 1)]
        assert sum(sum(item["samples"]) for item in counting) == tiny_llama31.SAMPLES
        means = np.mean([item["losses"] for item in counting], axis=0).tolist()  # over ranks
        assert len(means) == 20  # an epoch: the 160 ``SAMPLES``, 8 in each step
        assert means == pytest.approx(single_rank["losses"], abs=1e-5), changes
        for item in results:
            # The validation loss, and the number of scored samples: the tiny job has 7 of them.
            assert item["quality"] == (pytest.approx(single_rank["quality"][0], abs=1e-5), 7)


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({"num_heads": 5}, 1),  # the width is 4096
        ({"num_kv_heads": 3}, 1),  # 32 heads
        ({"tensor_parallel": 16}, 16),  # 8 heads of keys and values
        ({"tensor_parallel": 2}, 3),  # the number of ranks
        ({"tensor_parallel": 2, "sequence_parallel": True, "seq_length": 8191}, 2),  # an odd length
    ],
)
def test_shapes_that_do_not_divide_are_refused(changes: dict[str, Any], ranks: int) -> None:
    Llama31Recipe().check(8)  # the unchanged recipe raises nothing
    with pytest.raises(UsageError, match="does not divide"):
        Llama31Recipe(**changes).check(ranks)
