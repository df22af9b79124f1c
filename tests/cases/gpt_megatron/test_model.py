"""The GPT equals GPT-2 of transformers, however it is distributed over ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from support import tiny_gpt
from support.old_torch import needs_fsdp
from trainmark.cases.gpt_megatron.case import GptRecipe
from trainmark.cases.gpt_megatron.job import compute_lr_factor
from trainmark.cases.gpt_megatron.model import Gpt, build_model
from trainmark.errors import UsageError
from trainmark.protocols import Counts
from trainmark.train.kernels import LIBRARY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")


def make_library_model(config: GptRecipe) -> torch.nn.Module:
    """Return GPT-2 of transformers with the sizes of ``config``, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.seq_length,
            n_embd=config.hidden_size,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )


def reorder_by_heads(weight: torch.Tensor, config: GptRecipe) -> torch.Tensor:
    """Turn rows of all queries, all keys, all values into rows head by head.

    Args:
        weight: of shape (3 x hidden_size, hidden_size), or a bias of 3 x hidden_size; the result
            has the same shape, with the queries, keys and values of the first head first.
    """
    heads, width = config.num_heads, config.hidden_size // config.num_heads
    return weight.view(3, heads, width, -1).transpose(0, 1).reshape(weight.shape)


@torch.no_grad()
def copy_from_library(
    our_model: torch.nn.Module, library_model: torch.nn.Module, config: GptRecipe
) -> None:
    """Copy weights into ``our_model``, whose table may have more rows than the vocabulary.

    Args:
        library_model: GPT-2 of transformers, with the same sizes.
        config: these sizes.
    """
    source = dict(library_model.transformer.named_parameters())
    our_model.wte.weight[: config.vocab_size] = source["wte.weight"]
    our_model.wpe.weight.copy_(source["wpe.weight"])
    names = {  # ours: those of transformers
        "norm_1": "ln_1",
        "norm_2": "ln_2",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }
    for name, parameter in our_model.named_parameters():
        part, _, kind = name.rpartition(".")  # ``kind`` is weight or bias
        if part == "norm":
            parameter.copy_(source[f"ln_f.{kind}"])
        if not part.startswith("blocks."):
            continue
        _, number, inner = part.split(".", 2)
        value = source[f"h.{number}.{names[inner]}.{kind}"]
        if kind == "weight" and not inner.startswith("norm"):
            value = value.t()  # the library keeps (in, out)
        parameter.copy_(reorder_by_heads(value, config) if inner == "attention.qkv" else value)


CONFIG = GptRecipe(
    num_layers=3, hidden_size=48, num_heads=4, seq_length=20, vocab_size=300, dropout=0.0
)


def test_logits_and_gradients_equal_those_of_transformers() -> None:
    """``CONFIG`` has the sizes of a small GPT with 300 tokens in its vocabulary, without dropout.

    Our token table is padded with further rows to a multiple of 128, that of the library is not: so
    only the first 300 are compared. Our queries, keys and values are ordered by head.
    """
    our_model, library_model = build_model(CONFIG, seed=1), make_library_model(CONFIG)
    copy_from_library(our_model, library_model, CONFIG)
    ids = torch.randint(0, CONFIG.vocab_size, (5, CONFIG.seq_length + 1))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    expected = library_model(inputs).logits
    torch.testing.assert_close(
        our_model.compute_logits(inputs)[..., : CONFIG.vocab_size], expected, rtol=1e-5, atol=1e-5
    )
    loss = our_model(inputs, targets)
    expected_loss = torch.nn.functional.cross_entropy(
        expected.flatten(0, 1), targets.flatten(), reduction="sum"
    )
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-4)
    loss.backward()
    expected_loss.backward()
    # Gradients of both tables, and of two parameters of the first block.
    table = our_model.wte.weight.grad
    assert not table[CONFIG.vocab_size :].any()  # padding has no probability, so no gradient
    for our_value, library_value in (
        (table[: CONFIG.vocab_size], library_model.transformer.wte.weight.grad),
        (our_model.wpe.weight.grad, library_model.transformer.wpe.weight.grad),
        (our_model.blocks[0].norm_1.weight.grad, library_model.transformer.h[0].ln_1.weight.grad),
    ):
        torch.testing.assert_close(our_value, library_value, rtol=1e-4, atol=1e-4)
    library_qkv_grad = library_model.transformer.h[0].attn.c_attn.weight.grad.t()
    torch.testing.assert_close(
        our_model.blocks[0].attention.qkv.weight.grad,
        reorder_by_heads(library_qkv_grad, CONFIG),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("vocab_size", "tensor_parallel", "padded"),
    [(50257, 1, 50304), (50257, 8, 51200), (128, 1, 128), (129, 2, 256), (1, 1, 128)],
)
def test_the_vocabulary_is_padded_as_megatron_pads(
    vocab_size: int, tensor_parallel: int, padded: int
) -> None:
    # To a multiple of 128 times the tensor-parallel ranks.
    recipe = GptRecipe(vocab_size=vocab_size, tensor_parallel=tensor_parallel)
    assert recipe.padded_vocab_size == padded


def test_the_standard_shape_has_the_published_parameters() -> None:
    with torch.device("meta"):
        # The kernels, ours or those of torch (``LIBRARY``), have no parameters.
        model = Gpt(GptRecipe(), LIBRARY)
    # GPT-2 small has 124,439,808; the padded table holds 47 rows of 768 more.
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808 + 47 * 768


def test_flop_formula_matches_a_count_by_hand() -> None:
    job = tiny_gpt.new_job(seq_length=12)
    # The tiny GPT has L = 2 layers, D = 32 wide, samples of T = 12 tokens, and a vocabulary of 100,
    # for which its table is padded to V = 128 rows. FLOPs of a token: 6 for each of the
    # 12 L D^2 + D V weights, and 12 L D T for attention. 96 tokens: a micro-batch of 8 samples.
    by_hand = (6 * (12 * 2 * 32**2 + 32 * 128) + 12 * 2 * 32 * 12) * 96
    assert job.model_flops(Counts(tokens_padded=96)) == by_hand


def test_activation_checkpointing_changes_no_result() -> None:
    # ``train`` trains one epoch of the tiny job. Both jobs begin with the same weights and data;
    # the second one drops activations and computes them again in the backward pass.
    plain = tiny_gpt.train(tiny_gpt.new_job())
    recomputed = tiny_gpt.train(tiny_gpt.new_job(checkpoint_activations=True))
    assert recomputed["losses"] == plain["losses"]
    # The validation loss after the epoch, and the number of scored samples.
    assert recomputed["quality"] == plain["quality"]


def test_the_learning_rate_rises_and_falls_as_a_cosine() -> None:
    recipe = GptRecipe(
        learning_rate=1e-3, min_learning_rate=1e-4, lr_decay_steps=100, lr_warmup_fraction=0.1
    )
    # Factors of the learning rate: 10 steps of warm-up, then a fall to 1e-4 / 1e-3 = 0.1 at step
    # 100; step 55 is half-way.
    factors = [compute_lr_factor(recipe, step) for step in (0, 4, 9, 10, 55, 100, 5000)]
    halfway_factor = 0.1 + 0.9 / 2
    assert factors == pytest.approx([0.0, 0.4, 0.9, 1.0, halfway_factor, 0.1, 0.1])
    assert compute_lr_factor(GptRecipe(lr_warmup_fraction=0.0), 0) == 1.0
    assert compute_lr_factor(GptRecipe(), 3200) == 1.0  # 1% of 320,000 steps
    assert math.isclose(compute_lr_factor(GptRecipe(), 3199), 3199 / 3200)


# Number of ranks and recipe fields of distributed runs, which must equal one rank.
SPREADS: dict[str, tuple[int, dict[str, Any]]] = {
    "data": (2, {"micro_batch_size": 4}),
    "tensor": (2, {"tensor_parallel": 2}),
    "tensor-library": (2, {"tensor_parallel": 2, "kernels": "library"}),
    "fsdp-tensor-library": (
        4,
        {"tensor_parallel": 2, "micro_batch_size": 4, "fsdp": True, "kernels": "library"},
    ),
    "fsdp": (2, {"fsdp": True, "micro_batch_size": 2, "grad_accum_steps": 2}),
    "fsdp-tensor": (4, {"tensor_parallel": 2, "micro_batch_size": 4, "fsdp": True}),
}


def test_tensor_parallel_replicas_need_fsdp() -> None:
    # ``check(ranks)`` raises if so many ranks cannot train the recipe. With ``tensor_parallel=2``
    # two ranks share a replica of the model: 2 ranks are one replica, 4 ranks are two.
    GptRecipe(tensor_parallel=2).check(2)  # raises nothing: a single replica
    GptRecipe(tensor_parallel=2, fsdp=True).check(4)  # raises nothing either
    with pytest.raises(UsageError, match="2 replicas with tensor_parallel=2 need fsdp=true"):
        GptRecipe(tensor_parallel=2).check(4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[needs_fsdp] if "fsdp" in changes else [])
        for name, (_, changes) in SPREADS.items()
    ],
)
def test_distributed_model_trains_as_on_one_rank(tmp_path: Path, name: str) -> None:
    ranks, changes = SPREADS[name]  # the number of ranks, and the changed fields of the recipe
    tensor_size = changes.get("tensor_parallel", 1)  # ranks that share a replica of the model
    single_rank = tiny_gpt.train(tiny_gpt.new_job())
    (results,) = tiny_gpt.train_on_ranks(tiny_gpt.new_job, tmp_path, ranks, [changes])
    # All ranks of a replica train the same samples, so only the first of them counts them.
    # ``SAMPLES``: the 20 training samples of the tiny job, which are one epoch.
    counting = results[::tensor_size]
    assert sum(sum(item["samples"]) for item in counting) == tiny_gpt.SAMPLES
    for rank, item in enumerate(results):
        if rank % tensor_size > 0:
            assert sum(item["samples"]) == 0
    # The loss of each step is the mean over the replicas.
    means = np.mean([item["losses"] for item in counting], axis=0).tolist()
    assert means == pytest.approx(single_rank["losses"], abs=1e-5)
    for item in results:
        # The quality is a pair: the validation loss, and the number of scored samples. The tiny job
        # has 7 samples for validation; each is scored once, on whichever rank.
        assert item["quality"][1] == 7
        assert item["quality"][0] == pytest.approx(single_rank["quality"][0], abs=1e-5)
        for key, value in single_rank["weights"].items():
            # Adam turns rounding of a gradient near 0 into part of a step of 0.01.
            # A table may have more rows of padding than on one rank.
            torch.testing.assert_close(
                item["weights"][key][: len(value)], value, rtol=0, atol=1e-3, msg=f"{name} {key}"
            )
    parallel = {"data": ranks // tensor_size, "tensor": tensor_size, "fsdp": "fsdp" in changes}
    assert results[0]["facts"]["parallel"] == parallel  # as the job reports it
