"""GLM on ReCoRD, the cloze task of SuperGLUE: what is trained and how; no torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import Case, Mission, Text

from .recipe import GlmRecipe

if TYPE_CHECKING:
    from trainmark.recipe import Precision


def _standard(world: str, *, grad_accum_steps: int = 1) -> GlmRecipe:
    """Return the published training: AdamW 1e-5, 8 samples a device, accuracy 0.80.

    The published program ends after 40 epochs at the latest and recomputes every block. Its
    schedule has 4,338 steps in every world: four epochs where a step has 128 samples.
    """
    return GlmRecipe(
        world=world, micro_batch_size=8, grad_accum_steps=grad_accum_steps,
        learning_rate=1e-5, weight_decay=0.1, max_epochs=40,
        eval_every_epochs=None, eval_every_samples=19_200, eval_from_sample=100,
        target_value=0.80, checkpoint_activations=True, timeout_s=7 * 86_400.0,
    )  # fmt: skip


def _throughput(world: str, precision: Precision) -> GlmRecipe:
    """Return a recipe that measures speed only."""
    return GlmRecipe(
        world=world, micro_batch_size=8, learning_rate=1e-5, weight_decay=0.1,
        precision=precision, max_steps=320, warmup_steps=20, eval_every_epochs=None,
        group_by_choices=True,
    )  # fmt: skip


CASE = Case(
    name="glm_superglue",
    title=Text("GLM on SuperGLUE", "GLM 自然语言理解（SuperGLUE）"),
    task=Text(
        "Natural Language Understanding, Unconditional and Conditional Text Generation",
        "自然语言理解、无条件文本生成、有条件文本生成",
    ),
    model="GLM",
    dataset="superglue",
    metric="acc",
    metric_note=Text(
        "share of questions whose best-scored entity is a right answer",
        "得分最高的候选实体为正确答案的问题占比（准确率）",
    ),
    sample_note=Text(
        "one question: a sequence of seq_length tokens for each candidate entity",
        "一个问题：每个候选实体对应一条长度为 seq_length 个 token 的序列",
    ),
    mission=Mission(repository="nlp", model="glm", name="阅读理解", direction_id=1),
    recipe_type=GlmRecipe,
    recipes={
        "tiny": GlmRecipe(
            data="generated", init="random", num_layers=2, hidden_size=64, num_heads=2,
            vocab_size=128, seq_length=52, dropout=0.0, micro_batch_size=16, learning_rate=2e-3,
            weight_decay=0.1, lr_decay_steps=1_000, max_epochs=5, target_value=0.9,
            eval_every_epochs=None, eval_every_samples=3_200, timeout_s=600.0,
        ),
        "standard-1x1": _standard("1x1", grad_accum_steps=8),
        "standard-1x8": _standard("1x8"),
        "standard-2x8": _standard("2x8"),
        "throughput-1x1": _throughput("1x1", "bf16"),
        "throughput-1x8": _throughput("1x8", "bf16"),
    },
    data_fields=frozenset({"seed", "init"}),
    aliases=("glm",),
    layers={"mlp": (40960, 1024, 4096)},  # 8 questions of up to 10 candidates, 512 tokens each
    precision_labels={"fp16": "amp"},
)  # fmt: skip
