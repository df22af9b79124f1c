"""Every reason, note, finding and cause of a record, in English and Chinese.

A record carries codes with arguments (``spec.Message``); this table holds the sentence of
each code. To add a message: emit ``message("my_code", steps=3)`` and add ``"my_code"`` here
with both languages; the arguments stand in the sentences as for ``str.format``, format
specifications included: a share is stored as 0.25 and printed with ``{share:.1%}``. The codes
of one case stand in its ``Case.messages`` and begin with the case's name and a dot. A test
walks the source for every ``message(...)`` and finds code and arguments here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import Message, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGES: dict[str, Text] = {
    # Notes of a record
    "not_steady": Text(
        "not steady: median step time moved by {drift:+.1%} between the first and the last third "
        "of the measured steps",
        "不稳定：首尾各三分之一计量步的步耗时中位数变化 {drift:+.1%}",
    ),
    "steadiness_unknown": Text(
        "too few steps after the warm-up to tell whether they were steady",
        "预热后的步数过少，无法判断是否稳定",
    ),
    "mamfu_above_one": Text(
        "MAMFU {share:.1%} is above 100%: the matmul rate was disturbed, or the matrix units did "
        "other work",
        "MAMFU {share:.1%} 超过 100%：矩阵乘速率测量受到干扰，或矩阵单元实际执行了其他工作",
    ),
    "quality_above_best": Text(
        "{metric} {value:.4f} is above {best:.4f}, the best any model can score on this data: "
        "labels may leak",
        "{metric} {value:.4f} 高于该数据上任何模型的最佳得分 {best:.4f}：标签可能泄漏",
    ),
    "machine_busy": Text(
        "the machine was busy: other work used {share:.0%} of the cores during the run",
        "机器繁忙：运行期间其他任务占用了 {share:.0%} 的核",
    ),
    "oversubscribed": Text(
        "more ranks than cores: throughput says little about the machine",
        "rank 数多于核数：吞吐量不能反映机器性能",
    ),
    "loss_did_not_fall": Text(
        "the training loss did not fall beyond its noise: {first:.4f} over the first tenth of the "
        "steps, {last:.4f} over the last",
        "训练损失的下降未超出波动范围：前十分之一步均值 {first:.4f}，后十分之一步均值 {last:.4f}",
    ),
    "malformed_event_lines": Text(
        "rank {rank}: {lines} malformed event line(s)", "rank {rank}：{lines} 行事件格式错误"
    ),
    # What the steps of a model with embedding tables are bound by
    **{
        f"bound_by_{resource}{'_far_from_limit' if far else ''}": Text(
            f"the steps are bound by {resource}: embeddings take {{embedding_share:.1%}} of their "
            "time at {embedding_rate:.1%} of the copy rate, dense layers {dense_share:.1%} at "
            "{dense_rate:.1%} of the matmul rate, exchanges {exchange_share:.1%}, input "
            "{input_share:.1%}"
            + (
                "; that stage is far from its limit: many small operations cost more than their "
                "work"
                if far
                else ""
            ),
            f"训练步受限于{name}：嵌入占时间 {{embedding_share:.1%}}，达到拷贝速率的 "
            "{embedding_rate:.1%}；稠密层占 {dense_share:.1%}，达到矩阵乘速率的 {dense_rate:.1%}；"
            "交换占 {exchange_share:.1%}；输入占 {input_share:.1%}"
            + ("；该部分远未达到其上限：大量小操作的开销超过其计算" if far else ""),
        )
        for resource, name in (
            ("memory", "内存带宽"),
            ("compute", "计算"),
            ("exchange", "通信交换"),
            ("input", "数据输入"),
        )
        for far in (False, True)
    },
}


class _Unknown(str):
    """Stands for an argument that is null: printed as it is under every format."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


_UNKNOWN = {"en": _Unknown("unknown"), "zh": _Unknown("未知")}


def render(message: Message, lang: str, own: Mapping[str, Text] | None = None) -> str:
    """Return the sentence of ``message`` in ``lang``.

    Args:
        own: the sentences of the case's own codes, as the record carries them.

    A code or arguments that this version does not know (a record of another version, or one
    that was edited) are printed as they stand, so that nothing a record says is hidden.
    """
    found = MESSAGES.get(message.code) or (own or {}).get(message.code)
    args = {name: _UNKNOWN[lang] if v is None else v for name, v in message.args.items()}
    if found is not None:
        try:
            return found.in_language(lang).format(**args)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            pass  # not the arguments of this code: shown below as they stand
    shown = ", ".join(f"{name}={value}" for name, value in args.items())
    return f"{message.code} ({shown})" if shown else message.code
