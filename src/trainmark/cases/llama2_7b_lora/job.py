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
from trainmark.train.attention import choose_attention_kernels, choose_kernels_for_varying_shapes
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
    """The training of adapters on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: LlamaData) -> None:
        recipe: LlamaRecipe = context.recipe
        # Decided once, so that the model and the prediction of its memory agree.
        recipe = replace(recipe, kernels=choose_kernel_kind(recipe, context.device.torch_type))
        self.context = context
        self.data = data
        self.recipe = recipe
        choose_attention_kernels(context.device)
        ranks = Ranks.from_context(context, with_mesh=recipe.fsdp)
        self.is_model_sharded = recipe.fsdp and ranks.mesh is not None  # a single rank has no mesh
        weights = context.data_dir / MODEL if recipe.init == "pretrained" else None
        self.model = build_model(
            data.config,
            recipe,
            weights=weights,
            device=context.device,
            sharded=self.is_model_sharded,
        )
        # Counted before ``_build_stepper``, which may replace parameters by this rank's shards.
        parameters = list(self.model.parameters())
        self.num_parameters = sum(item.numel() for item in parameters)
        self.num_trained = sum(item.numel() for item in parameters if item.requires_grad)
        # Which rows of the data this rank trains in each step.
        self.sharding = Sharding.of(context, num_rows=len(data.train))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = self._build_stepper(ranks)
        # Methods of the protocol ``Job``, which the stepper already has.
        self.step = self.stepper.step
        self.check = self.stepper.check
        self.updates = self.stepper.updates

    def _build_stepper(self, ranks: Ranks) -> Stepper:
        """Distribute the model over ``ranks``; return the stepper that trains its adapters."""
        recipe = self.recipe
        # The module to call for a forward pass: the model, in DDP's wrapper if ranks have replicas.
        replicas = parallelize(
            self.model,
            ranks,
            compiled=recipe.compile,
            shards=self.model.list_decoder_layers() if self.is_model_sharded else None,
        )
        # Built after ``parallelize``, so that it gets this rank's shards if the model is sharded.
        optimizer = torch.optim.AdamW(
            [item for item in self.model.parameters() if item.requires_grad],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        return Stepper(
            self.context,
            replicas,
            optimizer,
            self._compute_loss_sum,
            ranks=ranks,
            # After each epoch, the learning rate is multiplied by ``lr_gamma``.
            schedule_lr=lambda steps: recipe.lr_gamma ** (steps // self.steps_per_epoch),
            max_grad_norm=recipe.max_grad_norm,
        )

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches, each with a factor for its losses; see ``Job``."""
        split = self.data.train
        batch_size = self.sharding.global_batch_size
        order = np.arange(len(split))
        if self.recipe.shuffle:
            np.random.default_rng([self.recipe.seed, epoch]).shuffle(order)
        step = 0
        for batch in training_batches(split, self.sharding, epoch, order=order):
            rows_of_step = order[step * batch_size : (step + 1) * batch_size]
            num_targets = int(split.targets[rows_of_step].sum())
            # The stepper divides the loss by the step's samples. It must be the mean over the
            # targets on all ranks. A step of a single token has none: its loss is 0, not 0 / 0.
            scale = batch.step_samples / max(num_targets, 1)
            yield replace(batch, tensors=(*batch.tensors, scale))
            if batch.closes_step:
                step += 1

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of a micro-batch's tokens, times a factor.

        ``batches`` adds the factor behind the tensors of the model. With it, the loss of a step is
        the mean over the tokens that it predicts.
        """
        *tensors, scale = batch.tensors
        total: Tensor = self.stepper.model(*tensors) * scale
        return total

    def trained_parameters(self) -> Mapping[str, Tensor]:
        """Return the parameters that training changes, by name."""
        return trained(self.model)

    def evaluate(self) -> Evaluation:
        """Return the share of right answers on MMLU (NaN without MMLU) and the validation loss."""
        validation = self.compute_validation_loss()
        detail = {"val_loss": validation.value}
        if self.data.mmlu is None:
            reason = message("llama2_7b_lora.mmlu_off")
            scores = validation.scores
            # What this rank scored, from which the harness computes the mean again. Here the mean
            # is not the value of the evaluation, but the detail ``val_loss``. None: the harness
            # cannot do so.
            if scores is not None:
                scores = replace(scores, of="val_loss")
            no_quality = float("nan")
            return Evaluation(no_quality, validation.samples, detail, reason, scores=scores)
        result = self.score_questions()
        # ``micro``, the value below, is the share over all questions; ``macro`` is the mean of the
        # subjects' shares; ``shots`` is the mean number of examples in a prompt. ``cut``: number of
        # questions whose prompt was too long even without examples.
        detail |= {
            "macro": result.macro,
            "shots": result.mean_shots,
            "cut": float(result.num_truncated),
        }
        detail |= result.per_category
        breakdown = {
            "subject": result.per_subject,
            "items by shots": {str(shots): items for shots, items in result.shots_used.items()},
        }
        scores = sum_right_answers(result.items).scores()
        return Evaluation(result.micro, result.asked, detail, breakdown=breakdown, scores=scores)

    @torch.no_grad()
    def compute_validation_loss(self) -> Evaluation:
        """Return the mean loss over the validation tokens, each counted once, in eval mode.

        Every rank makes the same number of forward passes, as a sharded model requires.
        """
        rank = self.context.rank
        world_size = self.context.world_size
        split = self.data.validation
        evaluation_sum = EvaluationSum()
        rows_of_rank = evaluation_rows(len(split), rank=rank, world_size=world_size)
        num_targets_of_row = split.targets[rows_of_rank]
        host_batches = evaluation_batches(
            split, size=self.recipe.micro_batch_size, rank=rank, world_size=world_size
        )
        self.model.eval()
        depth = self.recipe.read_ahead_batches
        for tensors, rows in read_ahead(
            scored_rows(host_batches), self.context.device, depth=depth
        ):
            with self.stepper.autocast():
                loss = self.model(*tensors)  # the sum over the targets of the batch
            if rows.count:  # 0: a filler, because other ranks still have rows
                first = evaluation_sum.rows  # rows that were added before this batch
                num_targets = int(num_targets_of_row[first : first + rows.count].sum())
                # The mean is the sum of all losses divided by the sum of all weights.
                evaluation_sum.add(rows, loss, weight=num_targets)
        self.model.train()
        return evaluation_sum.mean(world_size=world_size, device=self.stepper.device)

    def score_questions(self) -> MmluResult:
        """Answer the MMLU questions over all ranks; see ``mmlu.scoring.score_mmlu``."""
        assert self.data.mmlu is not None
        legacy = self.recipe.mmlu_mode == "legacy"
        rank = self.context.rank
        world_size = self.context.world_size
        # The published code cuts prompts to the length of a training sample.
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
        # Prompts differ in length, so attention kernels that are compiled for each shape are not
        # used in this block. After it, the kernels are again those that ``__init__`` chose.
        with choose_kernels_for_varying_shapes(self.context.device), self.stepper.autocast():
            result = score_mmlu(
                self.model.causal_lm,
                self.data.mmlu,
                plan,
                batch_tokens=self.recipe.micro_batch_size * self.recipe.seq_length,
                legacy=legacy,
                # In each pass of a sharded model, all ranks exchange weights.
                equal_passes=self.is_model_sharded,
                rank=rank,
                world_size=world_size,
            )
        self.model.train()  # ``score_mmlu`` leaves it in eval mode
        return result

    def save(self, folder: Path) -> None:
        """Write the adapters in peft's format."""
        pretrained = self.recipe.init == "pretrained"
        # The name of the base model in the adapters' configuration. Random weights have no folder.
        base = str(self.context.data_dir / MODEL) if pretrained else "random"
        save_adapters(self.model, folder / ADAPTERS, base)

    def model_flops(self, counts: Counts) -> float:
        """Return the model FLOPs of training ``counts``; the model computes the padding too."""
        recipe = self.recipe
        flops_per_token = compute_model_flops_per_token(
            self.data.config,
            rank=recipe.lora_rank,
            targets=parse_targets(recipe),
            seq_length=recipe.seq_length,
        )
        return flops_per_token * counts.tokens_padded

    def facts(self) -> Mapping[str, Any]:
        """Return what the record states about the job: sizes, formula, kernels, parallelism."""
        recipe = self.recipe
        config = self.data.config
        predicted = predict_peak_bytes(config, recipe, self.context.world_size)
        parallel = {"data": self.context.world_size, "fsdp": self.is_model_sharded}
        technique = "FSDP2" if self.is_model_sharded else "DDP"
        strategy = {"technique": technique, "implementer": "PyTorch", "details": parallel}
        return {
            "parameters": self.num_parameters,
            "trainable_parameters": self.num_trained,
            "flops_formula": FORMULA,
            "init": recipe.init,
            "model_config": select_sizes(config),
            "kernels": self.model.kernels.describe_used("cross_entropy"),
            "optimisation": describe_adaptation(self.model),
            "parallel": parallel,
            # How training is distributed: on one rank, it is not.
            "strategy": strategy if self.context.world_size > 1 else None,
            "predicted_peak_bytes": predicted.total,
            "documents": self.data.train.num_documents,
            "skipped_steps": self.stepper.skipped_steps(),
        }


# The fields of peft's configuration that the published page prints, in this order.
PUBLISHED_LORA_FIELDS = (
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "inference_mode",
    "r",
    "target_modules",
    "lora_alpha",
    "lora_dropout",
    "fan_in_fan_out",
    "bias",
    "modules_to_save",
    "init_lora_weights",
    "layers_to_transform",
    "layers_pattern",
)


def save_adapters(model: LlamaLora, folder: Path, base: str) -> None:
    """Write the adapters and their configuration into ``folder``; every rank must call this.

    Only rank 0 writes. The weights get their final name when they are complete.

    Args:
        base: name or path of the frozen model, which peft needs to load the adapters.
    """
    # Before the other ranks return, because gathering shards involves all of them.
    state = {name: _gather_tensor(value) for name, value in _collect_adapters(model).items()}
    if dist.is_initialized() and dist.get_rank() > 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".{SAFETENSORS_WEIGHTS_NAME}.writing"
    save_file(state, staging, metadata={"format": "pt"})
    staging.rename(folder / SAFETENSORS_WEIGHTS_NAME)
    # A copy with two other values; the model keeps its configuration. ``init``: the fields that
    # ``LoraConfig`` takes as arguments.
    settings = _get_lora_config(model)
    values = {item.name: getattr(settings, item.name) for item in fields(settings) if item.init}
    values["base_model_name_or_path"] = base
    values["inference_mode"] = True  # peft's default when it loads adapters
    LoraConfig(**values).save_pretrained(str(folder))


def describe_adaptation(model: LlamaLora) -> dict[str, str]:
    """Return the adaptation scheme, the library that implements it, and its configuration."""
    settings = _get_lora_config(model)
    arguments = []
    # The page of this case's published results prints these fields in this order.
    for name in PUBLISHED_LORA_FIELDS:
        value: Any = getattr(settings, name)
        if name == "target_modules":
            value = sorted(value)
        elif name == "task_type":
            value = str(getattr(value, "value", value))  # in some versions of peft an enum
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
    adapters: dict[str, Tensor] = get_peft_model_state_dict(
        model.peft,
        # The parameters with gradients; by default peft would collect the frozen weights too.
        state_dict=trained(model.peft),
        # Embeddings are frozen. By default peft would look for the base model's configuration, even
        # on the hub, to find whether they were resized.
        save_embedding_layers=False,
    )
    return adapters


def _gather_tensor(value: Tensor) -> Tensor:
    """Return a tensor on the host, gathered if it is sharded over ranks."""
    plain = value.full_tensor() if isinstance(value, DTensor) else value
    return plain.detach().to("cpu").contiguous()


build = LlamaJob
