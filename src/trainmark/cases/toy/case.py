"""A small network that classifies two Gaussian clouds: the case's recipe and target."""

from __future__ import annotations

from trainmark.recipe import Recipe
from trainmark.spec import Case, Text

CASE = Case(
    name="toy",
    model="mlp-16-32-2",
    dataset=Text("two Gaussian clouds", "两个高斯点云"),
    title=Text("Toy classification", "示例分类"),
    task=Text("Binary classification", "二分类"),
    metric="acc",
    metric_note=Text("classification accuracy", "分类准确率"),
    sample_note=Text("one row of 16 features", "一行数据，16 个特征"),
    recipe_type=Recipe,
    can_replay=True,
    recipes={
        "tiny": Recipe(
            data="generated",
            micro_batch_size=64,
            learning_rate=3e-3,
            max_epochs=10,
            target_value=0.90,
            warmup_steps=10,
            timeout_s=1_800.0,
        )
    },
)
