"""The words of a page for a reader who buys machines and does not train models.

Owns these meanings: the tables of words and figures in both READMEs say the same, and a test
holds them to it.
"""

from __future__ import annotations

from trainmark.report.document import Facts, Section
from trainmark.report.texts import text
from trainmark.spec import Text

GLOSSARY: tuple[tuple[Text, Text], ...] = (
    (
        Text("throughput", "吞吐"),
        Text(
            "training work done in a second: samples, sequences or tokens",
            "每秒完成的训练量，以样本、序列或 token 计",
        ),
    ),
    (
        Text("e2e_time", "e2e_time"),
        Text(
            "launcher start to the last rank's end, s", "从启动器开始到最后一个 rank 结束，单位为 s"
        ),
    ),
    (
        Text("p_whole", "p_whole"),
        Text(
            "samples / training time, evaluation included, samples/s",
            "总吞吐：样本数 / 训练时间（含评估），单位为 samples/s",
        ),
    ),
    (
        Text("p_train", "p_train"),
        Text("the same without evaluation", "训练吞吐：同上，不含评估"),
    ),
    (
        Text("p_core", "p_core"),
        Text(
            "the same without evaluation and without waiting for data",
            "计算吞吐：同上，不含评估和等待数据",
        ),
    ),
    (
        Text("token", "token"),
        Text(
            "a word or a piece of one, as a language model reads it",
            "语言模型读入的单位：一个词或词的一部分",
        ),
    ),
    (
        Text("batch", "批（batch）"),
        Text(
            "samples that one device takes at once (bs); with gas, a step adds up several",
            "一个设备一次处理的样本（bs）；设有 gas 时，一步累积多个批",
        ),
    ),
    (
        Text("step", "步（step）"),
        Text(
            "one optimizer step over all ranks: the model is changed once",
            "所有 rank 共同完成的一次优化器更新：模型改变一次",
        ),
    ),
    (
        Text("precision", "精度（precision）"),
        Text(
            "the numbers that are multiplied: fp32, tf32, bf16, fp16; fewer bits are faster",
            "参与乘法的数值格式：fp32、tf32、bf16、fp16；位数越少越快",
        ),
    ),
    (
        Text("MFU", "MFU"),
        Text(
            "model FLOP/s over the published dense peak of the precision that ran",
            "模型 FLOP/s 与实际运行精度的公布稠密峰值之比",
        ),
    ),
    (
        Text("MAMFU", "MAMFU"),
        Text(
            "model FLOP/s over the matmul rate measured in this run",
            "模型 FLOP/s 与本次运行实测矩阵乘速率之比",
        ),
    ),
    (
        Text("quality target", "质量目标"),
        Text(
            "the score that ends a run: speeds compare where both runs reached the same one",
            "结束运行的得分：两次运行都达到同一目标时，速度才可比较",
        ),
    ),
)


def glossary(lang: str) -> Section:
    """Return the words and what they mean."""
    items = tuple((word.in_language(lang), means.in_language(lang)) for word, means in GLOSSARY)
    return Section(text("section.glossary", lang), 2, "glossary", (Facts(items),))
