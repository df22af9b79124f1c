"""The model equals that of transformers with peft adapters, from any folder."""

from __future__ import annotations

import json
import warnings
from pathlib import Path  # noqa: TC003
from typing import Any

import peft
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from trainmark.cases.llama2_7b_lora.case import TARGETS, LlamaRecipe
from trainmark.cases.llama2_7b_lora.data.dialogues import IGNORED
from trainmark.cases.llama2_7b_lora.job import save_adapters
from trainmark.cases.llama2_7b_lora.model import LlamaLora, build_model
from trainmark.cases.llama2_7b_lora.model_files import (
    PRESETS,
    ModelConfig,
    compute_expected_shapes,
    count_lora_parameters,
    count_parameters,
    read_config,
)
from trainmark.data.model_folder import INDEX_FILE, SINGLE_FILE
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.errors import DataError

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = PRESETS["tiny"]
ALL_TARGETS = ",".join(TARGETS)


def write_folder(
    folder: Path, *, dtype: torch.dtype = torch.float32, shards: int = 1, **sizes: Any
) -> ModelConfig:
    """Write config.json and random weights as they are downloaded from the Hugging Face hub.

    Args:
        shards: number of weight files; an index maps weights to them if there are several.
        sizes: keys of config.json that differ from the tiny model's.
    """
    folder.mkdir(exist_ok=True)
    raw = {**TINY.raw, **sizes}
    (folder / "config.json").write_text(json.dumps(raw))
    config = ModelConfig.model_validate(raw)
    torch.manual_seed(5)
    # Those of norms, of one dimension, are near 1.
    weights = {
        name: (1 + 0.1 * torch.randn(shape) if len(shape) == 1 else 0.2 * torch.randn(shape))
        for name, shape in compute_expected_shapes(config).items()
    }
    names = (
        [SINGLE_FILE] if shards == 1 else [f"part-{number}.safetensors" for number in range(shards)]
    )
    file_by_weight = {name: names[index % shards] for index, name in enumerate(weights)}
    for file in names:
        part = {name: x.to(dtype) for name, x in weights.items() if file_by_weight[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    if shards > 1:
        (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": file_by_weight}))
    return config


def make_model(folder: Path | None = None, config: ModelConfig = TINY, **fields: Any) -> LlamaLora:
    """Return a model whose adapters are not zero, as new ones are, so that they have an effect.

    Args:
        folder: has the frozen weights; None: they are random.
        fields: of the recipe, with other values than its defaults; dropout is off.
    """
    recipe = LlamaRecipe(**{"lora_dropout": 0.0, **fields})
    model = build_model(config, recipe, weights=folder, device=CpuDevice(threads=1))
    torch.manual_seed(9)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def make_token_rows(config: ModelConfig = TINY) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels, each of 2 rows of 24 tokens, any small numbers.

    Labels are the ids; four of the second row are ``IGNORED``, so they are not to be predicted.
    """
    torch.manual_seed(11)
    ids = torch.randint(0, config.vocab_size, (2, 24))
    labels = ids.clone()
    labels[1, 5:9] = IGNORED
    return ids, labels


def collect_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of trained parameters by name; all others must have none."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            gradients[name] = parameter.grad
        else:
            assert parameter.grad is None, name
    return gradients


def train_step(model: LlamaLora, *inputs: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and the gradients; ``inputs`` are ids and labels."""
    loss = model(*inputs)
    loss.backward()
    return loss.item(), collect_gradients(model)


def load_with_peft_alone(model_folder: Path, adapter_folder: Path) -> torch.nn.Module:
    """Load the base model with transformers and the adapters with peft."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks the library for a property's old name
        base = LlamaForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        return peft.PeftModel.from_pretrained(base, adapter_folder, is_trainable=True)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_tied_head_is_the_embedding_table(tmp_path: Path, *, is_loaded: bool) -> None:
    """A folder whose model has a tied head stores only the table; random weights draw it once."""
    folder = tmp_path / "model"
    config = write_folder(folder, tie_word_embeddings=True)
    causal_lm = make_model(folder if is_loaded else None, config).causal_lm
    table = causal_lm.model.embed_tokens.weight
    assert causal_lm.lm_head.weight is table
    if is_loaded:
        stored = load_file(folder / SINGLE_FILE)
        assert "lm_head.weight" not in stored
        assert table.equal(stored["model.embed_tokens.weight"])
    assert not any(parameter.is_meta for parameter in causal_lm.parameters())


@pytest.mark.parametrize("targets", ["q_proj,v_proj", ALL_TARGETS])
def test_saved_adapters_give_the_same_loss_and_gradients_in_peft(
    tmp_path: Path, targets: str
) -> None:
    # ``ALL_TARGETS``: the names of all layers of a block that can have an adapter. The tiny model
    # is stored as models are often downloaded: as fp16, in several files (3).
    config = write_folder(tmp_path / "model", dtype=torch.float16, shards=3)
    model = make_model(tmp_path / "model", config, lora_targets=targets)
    save_adapters(model, tmp_path / "adapters", str(tmp_path / "model"))
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    saved = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    # Two matrices for each adapted layer.
    assert len(saved) == 2 * config.num_layers * len(targets.split(","))

    peft_model = load_with_peft_alone(tmp_path / "model", tmp_path / "adapters")
    ids, labels = make_token_rows()
    our_loss, our_gradients = train_step(model, ids, labels)
    # ``labels`` are the tokens to predict, of which ``IGNORED`` ones do not count.
    # The library's loss is a mean, ours a sum.
    counted = int((labels[:, 1:] != IGNORED).sum())
    loss = peft_model(input_ids=ids, labels=labels).loss * counted
    loss.backward()
    assert our_loss == pytest.approx(loss.item(), rel=1e-5)
    expected = collect_gradients(peft_model)
    assert {f"peft.{name}" for name in expected} == set(our_gradients)
    for name, grad in expected.items():
        torch.testing.assert_close(our_gradients[f"peft.{name}"], grad, rtol=1e-3, atol=1e-4)
    settings = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "model")
    assert (settings["r"], settings["lora_alpha"]) == (8, 32)  # defaults of the recipe


def test_only_adapters_are_trained_and_counted() -> None:
    model = make_model()
    sizes = {True: 0, False: 0}  # by whether trained
    for parameter in model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    # ``TINY`` is the configuration of the tiny model, ``PRESETS["7b"]`` that of Llama 2 7B.
    # Two layers, 64 wide, of attention, feed-forward (172 wide) and two norms. Besides, the table
    # and the head have 256 tokens x 64 each, and the last norm has 64.
    layer = 4 * 64 * 64 + 3 * 64 * 172 + 2 * 64
    assert sizes[False] == count_parameters(TINY) == 2 * layer + 2 * 256 * 64 + 64 == 131_904
    # Two matrices of 8 x 64 for each of two targets in each layer.
    assert sizes[True] == count_lora_parameters(TINY, rank=8, targets=["q_proj", "v_proj"]) == 4096
    # The published sizes.
    assert count_parameters(PRESETS["7b"]) == 6_738_415_616
    assert count_lora_parameters(PRESETS["7b"], rank=8, targets=["q_proj", "v_proj"]) == 4_194_304


class HostWatch(TorchDispatchMode):
    """Note the number of elements of the largest tensor that any operation makes on the host."""

    max_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type == "cpu":
            self.max_elements = max(self.max_elements, out.numel())
        return out


def test_random_weights_are_never_allocated_on_the_host() -> None:
    """They are made on the device, here torch's meta device, which has no memory at all.

    ``HostWatch`` notes the largest result on the host of any operation while the model is built. So
    weights that were made on the host and then moved would be noticed too.
    """

    class MetaDevice(CpuDevice):
        def place(self, value: Any) -> Any:
            return value.to("meta")

    recipe = LlamaRecipe(init="random", precision="bf16", weights_dtype="bf16")
    with HostWatch() as watch:
        model = build_model(PRESETS["7b"], recipe, weights=None, device=MetaDevice(threads=1))
    # Adapters are drawn on the host. The smallest frozen matrix has 4,096 x 4,096 elements.
    assert watch.max_elements < 4096 * 4096
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert sum(item.numel() for item in frozen) == 6_738_415_616
    assert {item.dtype for item in frozen} == {torch.bfloat16}
    assert {item.device.type for item in (*model.parameters(), *model.buffers())} == {"meta"}


def test_a_recomputed_block_gives_the_same_gradients() -> None:
    # ``make_model`` draws the same weights each time, ``make_token_rows`` the same ids and labels.
    # With ``checkpoint_activations`` a block is computed again in the backward pass.
    rows = make_token_rows()
    loss, expected = train_step(make_model(), *rows)
    recomputed_loss, recomputed_gradients = train_step(
        make_model(checkpoint_activations=True), *rows
    )
    assert recomputed_loss == loss
    for name, grad in expected.items():
        torch.testing.assert_close(recomputed_gradients[name], grad)


@pytest.mark.parametrize(
    ("changes", "expected_error"),
    [
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3"),  # no divisor of the width
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling is"),
        ({"eos_token_id": 256}, "eos_token_id is 256"),  # not in the vocabulary
    ],
)
def test_a_config_that_cannot_be_trained_is_refused(
    tmp_path: Path, changes: dict[str, Any], expected_error: str
) -> None:
    # ``TINY.raw``: the keys of the tiny model's config.json; ``changes`` spoil one of them.
    (tmp_path / "config.json").write_text(json.dumps({**TINY.raw, **changes}))
    with pytest.raises(DataError, match=expected_error) as caught:
        read_config(tmp_path)
    assert "config.json" in str(caught.value.where)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"head_dim": 32}, "head_dim is 32"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}'),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
         "rope_parameters is {'rope_type': 'default', 'partial_rotary_factor': 0.5}"),
    ],
)  # fmt: skip
def test_key_of_another_model_is_refused(tmp_path: Path, changes: Any, what: str) -> None:
    # Each of these keys changes what the model computes, so that results would be wrong. Errors
    # show the value of a key that the case uses, such as ``rope_parameters``, as Python does, and
    # that of any other key as JSON.
    write_folder(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(DataError) as caught:
        read_config(tmp_path)
    assert caught.value.what == what
    assert caught.value.where == f"{file}, {next(iter(changes))}"


def test_invalid_hidden_size_gives_no_second_error_of_head_dim() -> None:
    # ``TINY.raw``: the keys of the tiny model's config.json, whose 16 values a head are right.
    # ``head_dim`` cannot be compared with a size that is itself invalid.
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate({**TINY.raw, "head_dim": 16, "hidden_size": -1})
    assert [error["loc"] for error in caught.value.errors()] == [("hidden_size",)]


def test_two_values_of_rope_theta_are_refused(tmp_path: Path) -> None:
    # Older and newer versions of transformers write it at different keys. ``TINY.raw``: the keys of
    # the tiny model's config.json, without faults.
    theta = {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    (tmp_path / "config.json").write_text(json.dumps({**TINY.raw, **theta}))
    with pytest.raises(DataError, match="must equal rope_theta"):
        read_config(tmp_path)


def test_keys_of_the_published_llama_2_are_read(tmp_path: Path) -> None:
    """The keys of Llama-2-7b-hf's config.json apart from sizes, and a consistent head_dim."""
    published = {
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
        "pretraining_tp": 1, "rope_scaling": None, "torch_dtype": "float16",
        "transformers_version": "4.31.0.dev0", "use_cache": True, "max_length": 4096,
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "head_dim": 16,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**TINY.raw, **published}))
    # ``raw`` has only the keys that the case uses; those added here are checked or ignored.
    assert read_config(tmp_path).raw == TINY.raw


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_weight_with_a_number_that_is_not_finite_is_refused(tmp_path: Path, number: float) -> None:
    config = write_folder(tmp_path)
    file = tmp_path / SINGLE_FILE
    weights = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name][1, 2] = number
    save_file(weights, file)
    with pytest.raises(DataError) as caught:
        make_model(tmp_path, config)
    assert caught.value.where == f"{file}, {name}"


def test_weight_beyond_the_range_of_the_training_precision_is_refused(tmp_path: Path) -> None:
    # 70,000 is finite in the float32 of the file, but more than fp16 can hold.
    config = write_folder(tmp_path)
    file = tmp_path / SINGLE_FILE
    weights = load_file(file)
    name = "model.norm.weight"
    weights[name][0] = 70_000.0
    save_file(weights, file)
    with pytest.raises(DataError) as caught:
        make_model(tmp_path, config, precision="fp16", weights_dtype="fp16")
    assert caught.value.where == f"{file}, {name}"
