"""How Llama's adapters are trained: the fields of a recipe and their rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import UsageError, nearest
from trainmark.recipe import NonNegativeInt, PositiveFloat, PositiveInt, Recipe, recipe_field

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe(Recipe):
    """How adapters are trained; the model's shape comes from ``model/config.json``."""

    seq_length: PositiveInt = recipe_field(512, "tokens of a sample, dialogues packed into it")
    shuffle: bool = recipe_field(
        False, "train rows in a new order each epoch; false: in the files' order, as published"
    )
    short_row: Literal["drop", "train"] = recipe_field(
        "drop", "training's last row, shorter than seq_length: left out as published, or trained"
    )
    lora_rank: Annotated[int, Gt(0), Le(65_536)] = recipe_field(8, "rank of an adapter")
    lora_alpha: PositiveFloat = recipe_field(32.0, "an adapter's output is scaled by alpha / rank")
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.05, "probability of dropping an adapter's input"
    )
    lora_targets: str = recipe_field("q_proj,v_proj", "linear layers of a block that get adapters")
    lr_gamma: Annotated[float, Gt(0), Le(1)] = recipe_field(
        0.85, "factor on the learning rate after each epoch"
    )
    max_grad_norm: PositiveFloat | None = recipe_field(
        None, "clip the gradient norm to it; none: no clipping"
    )
    init: Literal["pretrained", "random"] = recipe_field(
        "pretrained", "frozen weights: from model/, or random (measures speed only)", rule="scope"
    )
    model_size: Literal["tiny", "1b", "7b", "7b-2layers", "13b"] = recipe_field(
        "7b", "shape of the model that is generated with the data"
    )
    weights_dtype: Literal["fp32", "bf16", "fp16"] = recipe_field(
        "fp32", "type of the frozen weights; adapters stay fp32", rule="closed"
    )
    checkpoint_activations: bool = recipe_field(
        False, "recompute blocks in the backward pass to save memory", rule="closed"
    )
    fsdp: bool = recipe_field(
        False, "shard parameters, gradients and optimizer over ranks (FSDP2)", rule="closed"
    )
    cross_document: Literal["attend", "separate"] = recipe_field(
        "attend", "whether a token attends to the dialogues packed before its own"
    )
    mmlu_mode: Literal["full", "legacy", "off"] = recipe_field(
        "full", "score MMLU with all shots, as the published page did, or not at all", rule="scope"
    )
    mmlu_shots: NonNegativeInt = recipe_field(5, "solved examples before an MMLU question")

    def prevents_replay(self) -> str | None:
        """Return why checkpointing prevents it: it saves the state of dropout's generator."""
        if not self.checkpoint_activations:
            return None
        return "checkpoint_activations saves random states, which a graph cannot record"

    def check(self, world_size: int) -> None:
        """Refuse fields that contradict each other.

        Raises:
            UsageError: naming the field, its rule and the way out.
        """
        del world_size
        targets(self)
        if self.seq_length < 2:
            raise UsageError(
                f"seq_length={self.seq_length}",
                where="recipe field seq_length",
                rule="next-token prediction needs at least 2",
                remedy="add seq=512",
            )
        if self.weights_dtype not in ("fp32", self.precision):
            raise UsageError(
                f"weights_dtype={self.weights_dtype} with precision={self.precision}",
                where="recipe field weights_dtype",
                rule="frozen weights are fp32, or of the same type as precision",
                remedy=f"add precision={self.weights_dtype}, or leave weights_dtype at fp32",
            )
        if self.target_value is None:
            return
        for field, value, why in (
            ("mmlu_mode", "off", "the target is a score on MMLU"),
            ("init", "random", "random weights reach no score: such a run measures speed only"),
        ):
            if getattr(self, field) == value and (field, self.data) != ("init", "generated"):
                raise UsageError(
                    f"{field}={value} with target_value={self.target_value:g}",
                    where=f"recipe field {field}",
                    rule=why,
                    remedy="add target=none eval_every_epochs=none",
                )


def targets(recipe: LlamaRecipe) -> list[str]:
    """Return the names of the linear layers that get an adapter.

    Raises:
        UsageError: a name is not in ``TARGETS``, or is given twice.
    """
    names = recipe.lora_targets.split(",")
    strange = next((name for name in names if name not in TARGETS), None)
    if strange is not None:
        raise UsageError(
            f"no linear layer is called {strange!r}",
            where="recipe field lora_targets",
            rule="layer names separated by commas, without spaces",
            remedy=nearest(strange, TARGETS),
        )
    if len(set(names)) < len(names):
        raise UsageError(
            f"{recipe.lora_targets} names a layer twice",
            where="recipe field lora_targets",
            remedy="name it once",
        )
    return names
