"""Chinese for the names that devices and evaluations give to what they tell."""

from __future__ import annotations

TERMS: dict[str, str] = {
    # What a device says of itself
    "threads": "线程数",
    "usable cores": "可用核数",
    "memory total": "总内存",
    "keeps freed memory": "保留已释放内存",
    "capability": "计算能力",
    "multiprocessors": "流多处理器数",
    "runtime": "运行时版本",
    # What is told of an evaluation beside the quality
    "correct": "答对数",
    "val_loss": "验证损失",
    "macro": "macro 平均",
    "shots": "平均示例数",
    "cut": "被截断的题数",
    "other": "其他",
    "social sciences": "社会科学",
    "humanities": "人文",
    "subject": "科目",
    "subcategory": "子类别",
    "items by shots": "按示例数统计的题数",
}


def term(name: str, lang: str) -> str:
    """Return ``name`` in ``lang``; as it is where no translation is known."""
    return TERMS.get(name, name) if lang == "zh" else name
