"""The torch side of the fine-tuning: optimizer, batches, loss, MMLU, and the adapters as files."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import peft
import torch
from peft import LoraConfig, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.spec import message
from trainmark.train.attention import fit_attention, fit_varying_shapes
from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.kernels import choose_kernel_kind
from trainmark.train.parallel import Ranks, parallelize
from trainmark.train.parameters import trained
from trainmark.train.read_ahead import read_ahead
from trainmark.train.shards import (
    Sharding,
    evaluation_batches,
    evaluation_rows,
    training_batches,
)
from trainmark.train.stepper import Stepper

from .case import parse_targets
from .data import MODEL, load
from .estimates import FORMULA, compute_model_flops_per_token, predict_peak_bytes
from .mmlu import plan_scoring
from .mmlu.scoring import score_mmlu, sum_right_answers
from .model import ADAPTER, build_model
from .sizes import select_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainmark.protocols import JobContext

    from .case import LlamaRecipe
    from .data import LlamaData
    from .mmlu.scoring import MmluResult
    from .model import LlamaLora

ADAPTERS = "adapters"  # folder among the run's artifacts


def load_data(context: JobContext) -> LlamaData:
    """Return packed dialogues, questions, tokenizer and the model's sizes."""
    return load(context.data_dir, context.recipe)


class LlamaJob:
    """See ``trainmark.protocols.Job``."""

    def __init__(self, context: JobContext, data: LlamaData) -> None:
        recipe: LlamaRecipe = context.recipe
        recipe = replace(recipe, kernels=choose_kernel_kind(recipe, context.device.torch_type))
        self.context, self.data, self.recipe = context, data, recipe
        fit_attention(context.device)
        ranks = Ranks.from_context(context, with_mesh=recipe.fsdp)
        self.sharded = recipe.fsdp and ranks.mesh is not None
        weights = context.data_dir / MODEL if recipe.init == "pretrained" else None
        self.model = build_model(
            data.config, recipe, weights=weights, device=context.device, sharded=self.sharded
        )
        parameters = list(self.model.parameters())
        self.parameters = sum(item.numel() for item in parameters)
        self.trained = sum(item.numel() for item in parameters if item.requires_grad)
        replicas = parallelize(
            self.model,
            ranks,
            compiled=recipe.compile,
            shards=self.model.list_decoder_layers() if self.sharded else None,
        )
        optimizer = torch.optim.AdamW(
            [item for item in self.model.parameters() if item.requires_grad],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self.sharding = Sharding.of(context, num_rows=len(data.train))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper(
            context,
            replicas,
            optimizer,
            self._compute_loss_sum,
            ranks=ranks,
            schedule_lr=lambda steps: recipe.lr_gamma ** (steps // self.steps_per_epoch),
            max_grad_norm=recipe.max_grad_norm,
        )
        self.step, self.check = self.stepper.step, self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        split, size = self.data.train, self.sharding.global_batch_size
        order = np.arange(len(split))
        if self.recipe.shuffle:
            np.random.default_rng([self.recipe.seed, epoch]).shuffle(order)
        step = 0
        for batch in training_batches(split, self.sharding, epoch, order=order):
            # The loss of a step is the mean over its targets on all ranks.
            targets = int(split.targets[order[step * size : (step + 1) * size]].sum())
            # A step of a single token has no target: its loss is 0, not 0 / 0.
            scale = batch.step_samples / max(targets, 1)
            yield replace(batch, tensors=(*batch.tensors, scale))
            if batch.closes_step:
                step += 1

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum over tokens, scaled so that a step's loss is its mean over tokens."""
        *tensors, scale = batch.tensors
        total: Tensor = self.stepper.model(*tensors) * scale
        return total

    def trained_parameters(self) -> Mapping[str, Tensor]:
        return trained(self.model)

    def evaluate(self) -> Evaluation:
        validation = self.compute_validation_loss()
        detail = {"val_loss": validation.value}
        if self.data.mmlu is None:
            reason = message("llama2_7b_lora.mmlu_off")
            scores = validation.scores and replace(validation.scores, of="val_loss")
            return Evaluation(float("nan"), validation.samples, detail, reason, scores=scores)
        scored = self.score_questions()
        detail |= {"macro": scored.macro, "shots": scored.mean_shots, "cut": float(scored.cut)}
        detail |= scored.per_category
        breakdown = {
            "subject": scored.per_subject,
            "items by shots": {str(shots): items for shots, items in scored.shots_used.items()},
        }
        scores = sum_right_answers(scored.items).scores()
        return Evaluation(scored.micro, scored.asked, detail, breakdown=breakdown, scores=scores)

    @torch.no_grad()
    def compute_validation_loss(self) -> Evaluation:
        """Return the mean loss over the validation tokens, each counted once, in eval mode.

        Every rank makes the same number of forward passes, as a sharded model requires.
        """
        rank, world_size = self.context.rank, self.context.world_size
        split, device = self.data.validation, self.stepper.device
        scored = EvaluationSum()
        # The number of targets in each of this rank's rows.
        targets = split.targets[evaluation_rows(len(split), rank=rank, world_size=world_size)]
        host_batches = evaluation_batches(
            split, size=self.recipe.micro_batch_size, rank=rank, world_size=world_size
        )
        self.model.eval()
        depth = self.recipe.read_ahead_batches
        for tensors, rows in read_ahead(
            scored_rows(host_batches), self.context.device, depth=depth
        ):
            with self.stepper.autocast():
                loss = self.model(*tensors)
            if rows.count:
                first = scored.rows
                scored.add(rows, loss, weight=int(targets[first : first + rows.count].sum()))
        self.model.train()
        return scored.mean(world_size=world_size, device=device)

    def score_questions(self) -> MmluResult:
        """Answer the MMLU questions over all ranks; see ``mmlu.scoring.score_mmlu``."""
        assert self.data.mmlu is not None
        legacy = self.recipe.mmlu_mode == "legacy"
        rank, world_size = self.context.rank, self.context.world_size
        max_length = self.recipe.seq_length if legacy else self.data.config.max_positions
        plan = plan_scoring(
            self.data.tokenizer,
            self.data.mmlu,
            legacy=legacy,
            shots=self.recipe.mmlu_shots,
            max_length=max_length,
            rank=rank,
            world_size=world_size,
        )
        with fit_varying_shapes(self.context.device), self.stepper.autocast():
            scored = score_mmlu(
                self.model.causal_lm,
                self.data.mmlu,
                plan,
                batch_tokens=self.recipe.micro_batch_size * self.recipe.seq_length,
                legacy=legacy,
                in_step=self.sharded,
                rank=rank,
                world_size=world_size,
            )
        self.model.train()
        return scored

    def save(self, folder: Path) -> None:
        """Write the adapters in peft's format."""
        pretrained = self.recipe.init == "pretrained"
        base = str(self.context.data_dir / MODEL) if pretrained else "random"
        save_adapters(self.model, folder / ADAPTERS, base)

    def model_flops(self, counts: Counts) -> float:
        recipe = self.recipe
        flops_per_token = compute_model_flops_per_token(
            self.data.config,
            rank=recipe.lora_rank,
            targets=parse_targets(recipe),
            seq_length=recipe.seq_length,
        )
        return flops_per_token * counts.tokens_padded

    def facts(self) -> Mapping[str, Any]:
        recipe, config = self.recipe, self.data.config
        predicted = predict_peak_bytes(config, recipe, self.context.world_size)
        parallel = {"data": self.context.world_size, "fsdp": self.sharded}
        technique = "FSDP2" if self.sharded else "DDP"
        strategy = {"technique": technique, "implementer": "PyTorch", "details": parallel}
        return {
            "parameters": self.parameters,
            "trainable_parameters": self.trained,
            "flops_formula": FORMULA,
            "init": recipe.init,
            "model_config": select_sizes(config),
            "kernels": self.model.kernels.describe_used("cross_entropy"),
            "optimisation": describe_adaptation(self.model),
            "parallel": parallel,
            "strategy": strategy if self.context.world_size > 1 else None,
            "predicted_peak_bytes": predicted.total,
            "documents": self.data.train.num_documents,
            "skipped_steps": self.stepper.skipped_steps(),
        }


# The fields of the configuration that the published page prints, in this order.
SHOWN = (
    "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "r",
    "target_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern",
)  # fmt: skip


def save_adapters(model: LlamaLora, folder: Path, base: str) -> None:
    """Write the adapters and their configuration into ``folder``; every rank must call this.

    Only rank 0 writes. The weights get their final name when they are complete.

    Args:
        base: name or path of the frozen model, which peft needs to load the adapters.
    """
    state = {name: _gather_tensor(value) for name, value in _collect_adapters(model).items()}
    if dist.is_initialized() and dist.get_rank() > 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".{SAFETENSORS_WEIGHTS_NAME}.writing"
    save_file(state, staging, metadata={"format": "pt"})
    staging.rename(folder / SAFETENSORS_WEIGHTS_NAME)
    settings = _get_lora_config(model)
    saved_settings = LoraConfig(
        **{
            **{item.name: getattr(settings, item.name) for item in fields(settings) if item.init},
            "base_model_name_or_path": base,
            "inference_mode": True,  # peft's default when it loads adapters
        }
    )
    saved_settings.save_pretrained(str(folder))


def describe_adaptation(model: LlamaLora) -> dict[str, str]:
    """Return the adaptation scheme, the library that implements it, and its configuration."""
    settings = _get_lora_config(model)
    arguments = []
    for name in SHOWN:
        value: Any = getattr(settings, name)
        if name == "target_modules":
            value = sorted(value)
        elif name == "task_type":
            value = str(getattr(value, "value", value))
        arguments.append(f"{name}={value!r}")
    return {
        "scheme": "lora",
        "implementer": f"peft {peft.__version__}",
        "details": f"LoraConfig({', '.join(arguments)})",
    }


def _get_lora_config(model: LlamaLora) -> LoraConfig:
    return model.peft.peft_config[ADAPTER]


def _collect_adapters(model: LlamaLora) -> dict[str, Tensor]:
    """Return the weights of the adapters by the names that peft uses in files."""
    # Without ``state_dict``, peft would collect the frozen weights too.
    named_parameters = model.peft.named_parameters()
    trained = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
    adapters: dict[str, Tensor] = get_peft_model_state_dict(
        model.peft, state_dict=trained, save_embedding_layers=False
    )
    return adapters


def _gather_tensor(value: Tensor) -> Tensor:
    """Return a tensor on the host, gathered if it is sharded over ranks."""
    plain = value.full_tensor() if isinstance(value, DTensor) else value
    return plain.detach().to("cpu").contiguous()


build = LlamaJob
