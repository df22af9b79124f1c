"""What a training step needs is known before it runs, and what does not fit is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trainmark.cases.llama2_7b_lora.memory import predict_peak_bytes
from trainmark.cases.llama2_7b_lora.model_files import PRESETS
from trainmark.cases.llama2_7b_lora.recipe import LlamaRecipe
from trainmark.errors import EnvironmentFault
from trainmark.spec import RankMemory
from trainmark.train.step_memory import refuse_too_little

GIB = 2**30
# Builds and trains in a process of its own, after a step that loads every kernel, and prints
# how far resident memory rose, at most, above where it stood.
MEASURED = """
import ctypes, gc, json, sys, torch
from pathlib import Path
from trainmark.cases.llama2_7b_lora import memory, model, model_files
from trainmark.cases.llama2_7b_lora.recipe import LlamaRecipe
from trainmark.devices.vendors.cpu import CpuDevice

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x for x in lines if x.startswith(key)).split()[1])

def peak(config, **fields):
    recipe = LlamaRecipe(init="random", **fields)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident("VmRSS")
    llama = model.build(config, recipe, weights=None, device=device)
    trained = [x for x in llama.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    ids = torch.randint(0, config.vocab_size, (recipe.micro_batch_size, recipe.seq_length))
    llama(ids, ids).backward()
    optimizer.step()
    return resident("VmHWM") - before, memory.predict_peak_bytes(config, recipe, 1).total

device = CpuDevice(threads=1)
# Map each block of 2 MiB singly (malloc.h: M_MMAP_MAX, M_MMAP_THRESHOLD): the prediction is of
# tensors, without the holes between them that a heap keeps.
assert ctypes.CDLL(None).mallopt(-4, 1 << 16) and ctypes.CDLL(None).mallopt(-3, 1 << 21)
sizes = json.loads(sys.argv[1])
peak(model_files.PRESETS["tiny"], micro_batch_size=1, seq_length=64)
config = model_files.ModelConfig.model_validate({**model_files.PRESETS["7b"].raw, **sizes})
print(json.dumps([peak(config, **fields) for fields in json.loads(sys.argv[2])]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.cpu_seconds(60)
def test_a_real_step_peaks_within_15_percent_of_the_prediction() -> None:
    sizes = {
        "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 2752, "vocab_size": 4000,
    }  # fmt: skip
    every = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    recipes = [
        {"micro_batch_size": 1},
        {"micro_batch_size": 1, "lora_targets": every},
        {"micro_batch_size": 2, "checkpoint_activations": True},
    ]
    found = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps(sizes), json.dumps(recipes)],
        check=True, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    pairs = json.loads(found.stdout.splitlines()[-1])
    assert len(pairs) == len(recipes)
    for (measured, predicted), recipe in zip(pairs, recipes, strict=True):
        assert measured == pytest.approx(predicted, rel=0.15), recipe


def test_the_count_for_the_published_setup_is_exact_where_it_can_be() -> None:
    found = predict_peak_bytes(PRESETS["7b"], LlamaRecipe(micro_batch_size=2), 1)
    assert found.weights == 4 * (6_738_415_616 + 4_194_304)
    assert found.gradients == 4 * 4_194_304
    assert found.optimizer == 8 * 4_194_304
    assert found.total == found.weights + 12 * 4_194_304 + found.activations
    # The published run took 37.3 of 40 GiB, of which this is what tensors need at least.
    assert 31 * GIB < found.total < 37.3 * GIB


def test_an_accelerator_s_dropout_masks_are_bytes() -> None:
    def activations(**fields: object) -> int:
        recipe = LlamaRecipe(micro_batch_size=1, **fields)
        return predict_peak_bytes(PRESETS["7b"], recipe, 1).activations

    inputs = 512 * 32 * 4096  # tokens, blocks, numbers of a layer's input
    for kernels, size in (("library", 1), ("own", 4)):
        none = activations(kernels=kernels, lora_dropout=0.0)
        # Two masks, and an input of its own for each of the two layers, which else share one.
        assert activations(kernels=kernels, lora_dropout=0.1) - none == (2 * size + 4) * inputs


def test_too_little_memory_is_refused_with_what_needs_less() -> None:
    with pytest.raises(EnvironmentFault, match="a rank needs about"):
        refuse(LlamaRecipe(micro_batch_size=4), 1, 36)


def refuse(recipe: LlamaRecipe, ranks: int, gib: float) -> None:
    memory = int(gib * GIB)
    refuse_too_little(
        lambda other: predict_peak_bytes(PRESETS["7b"], other, ranks),
        recipe, RankMemory(memory, machine_bytes=memory),
    )  # fmt: skip
