"""A recommendation model on Criteo's click logs: MLPs over large embedding tables; no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainmark.errors import UsageError
from trainmark.recipe import NonNegativeInt, PositiveInt, Precision, Recipe, recipe_field
from trainmark.spec import Case, Mission, PrepareOption, Text

# A number above 0, of at most 12 digits.
WIDTH = re.compile("0*[1-9][0-9]{0,11}")


@dataclass(frozen=True, kw_only=True)
class DlrmRecipe(Recipe):
    """The model's sizes and how it is trained."""

    embedding_dim: PositiveInt = recipe_field(128, "width of an embedding row")
    bottom_layers: str = recipe_field(
        "512,256,128", "layer widths of the bottom MLP; the last width must equal embedding_dim"
    )
    top_layers: str = recipe_field(
        "1024,1024,512,256,1", "layer widths of the top MLP; the last width must be 1 (the logit)"
    )
    warmup_lr_steps: NonNegativeInt = recipe_field(
        8_000, "steps over which the learning rate rises linearly"
    )
    decay_start_step: NonNegativeInt = recipe_field(
        48_000, "step at which the learning rate starts its quadratic decay to 0"
    )
    decay_steps: PositiveInt = recipe_field(24_000, "length of the learning rate decay, in steps")
    shuffle_batches: bool = recipe_field(
        False,
        "train on the batches in random order; the rows within a batch stay in order",
        rule="closed",
    )

    def check(self, world_size: int) -> None:
        """Refuse options that do not work with tables updated within the backward pass.

        Invalid layer widths are refused too.

        Raises:
            UsageError: a field has such a value.
        """
        del world_size  # the checks do not depend on it
        parse_layer_widths(self)  # raises an error if they are invalid
        for field, value, supported in (
            ("grad_accum_steps", self.grad_accum_steps, 1),
            ("weight_decay", self.weight_decay, 0.0),
            ("compile", self.compile, False),
        ):
            if value != supported:
                raise UsageError(
                    f"{field}={str(value).lower()} cannot be used with fused tables",
                    where=f"recipe field {field}",
                    rule=(
                        "fused tables are updated in the backward pass, with plain SGD and "
                        "without compilation"
                    ),
                    fix=f"set {field}={str(supported).lower()}",
                )


def parse_layer_widths(recipe: DlrmRecipe) -> tuple[list[int], list[int]]:
    """Return the widths of the bottom and of the top MLP, parsed from ``512,256,128``.

    Raises:
        UsageError: a width is not an integer above 0, or the last one is wrong.
    """
    # The bottom MLP's output is combined with embeddings and has their width; the top MLP's output
    # is the logit.
    bottom = _parse_widths("bottom_layers", recipe.bottom_layers, last_width=recipe.embedding_dim)
    top = _parse_widths("top_layers", recipe.top_layers, last_width=1)
    return bottom, top


def _parse_widths(field: str, text: str, *, last_width: int) -> list[int]:
    """Return the widths in the text of a recipe field; the last one must be ``last_width``."""
    words = text.split(",")
    are_valid = all(WIDTH.fullmatch(word) for word in words)
    if not are_valid or int(words[-1]) != last_width:
        raise UsageError(
            f"{field}={text} is not valid",
            where=f"recipe field {field}",
            rule=(
                "the sizes must be positive integers, separated by commas; the last size must be "
                f"{last_width}"
            ),
            fix="make the last size in bottom_layers equal to embedding_dim, and the last size in "
            "top_layers equal to 1",
        )
    return [int(word) for word in words]


SEED = 0  # of the published runs


def _make_standard_recipe(world: str, micro_batch_size: int) -> DlrmRecipe:
    """Return the published training: one epoch at a global batch of 65,536.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
        micro_batch_size: 65,536 divided by the number of ranks.
    """
    return DlrmRecipe(
        seed=SEED,
        world=world,
        micro_batch_size=micro_batch_size,
        learning_rate=24.0,
        precision="fp16",
        max_epochs=1,
        target_value=0.802,
        timeout_s=3 * 86_400.0,
    )


def _make_throughput_recipe(
    world: str, micro_batch_size: int, precision: Precision = "fp16"
) -> DlrmRecipe:
    """Return a recipe that measures only speed, as the published throughput runs do.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
        micro_batch_size: the published global batch divided by the number of ranks.
    """
    return DlrmRecipe(
        seed=SEED,
        world=world,
        micro_batch_size=micro_batch_size,
        learning_rate=24.0,
        precision=precision,
        max_epochs=1,
        max_steps=1_000,
        warmup_steps=50,
        eval_every_epochs=None,
        timeout_s=86_400.0,
    )


CASE = Case(
    name="dlrm_criteo",
    title=Text("DLRM click prediction", "DLRM 点击率预估"),
    task=Text("Recommendation", "推荐系统"),
    model="dlrm",
    dataset="Criteo Terabyte click logs",
    metric="auc",
    metric_note=Text("area under the ROC curve, exact", "ROC 曲线下面积（精确计算）"),
    sample_note=Text(
        "one impression: 13 numbers and 26 categories",
        "一次广告展示：13 个数值特征和 26 个类别特征",
    ),
    recipe_type=DlrmRecipe,
    recipes={
        "tiny": DlrmRecipe(
            data="generated",
            embedding_dim=16,
            bottom_layers="64,16",
            top_layers="64,32,1",
            micro_batch_size=512,
            learning_rate=2.0,
            warmup_lr_steps=100,
            decay_start_step=2_000,
            decay_steps=1_500,
            shuffle_batches=True,
            max_epochs=4,
            target_value=0.847,
            timeout_s=1_800.0,
        ),
        "standard-1x1": _make_standard_recipe("1x1", 65_536),
        "standard-1x8": _make_standard_recipe("1x8", 8_192),
        "standard-2x8": _make_standard_recipe("2x8", 4_096),
        "throughput-1x1": _make_throughput_recipe("1x1", 262_144),
        "throughput-1x8": _make_throughput_recipe("1x8", 262_144),
        "throughput-2x8": _make_throughput_recipe("2x8", 172_032),
    },
    prepare_options=(
        PrepareOption(
            "frequency_threshold",
            int,
            "number of times that a category must occur to get an id of its own; rarer categories "
            "share id 0; default: 15",
            range(1, 1 << 32),
        ),
        PrepareOption(
            "log_offset",
            int,
            "offset in log(x + offset), which is applied to the numbers; with offset 1, negative "
            "numbers are replaced by 0; default: 3",
            (3, 1),
        ),
        PrepareOption("seed", int, "seed of the shuffle; default: 0", range(1 << 32)),
        PrepareOption(
            "workers", int, "number of threads; default: one per usable core", range(1, 513)
        ),
    ),
    aliases=("dlrm",),
    precision_labels={"fp16": "amp"},
    mission=Mission(repository="rec", model="dlrm", name="推荐模型", direction_id=2),
)
