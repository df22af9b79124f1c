"""Chinese for the sentences that records carry in English.

A record is written once, in English; its Chinese page should not be half English. A
sentence that is not here is shown as the record has it.
"""

from __future__ import annotations

import re
from functools import cache

# ``{}`` stands for a value that is kept. Order matters only where one pattern contains another.
PHRASES: dict[str, str] = {
    # Reasons of figures
    "a rank did not report its training time": "有 rank 未上报训练时间",
    "nothing was trained": "没有训练任何样本",
    "no rank started": "没有 rank 启动",
    "training did not start": "训练未开始",
    "no step after the {} warm-up steps": "{} 步预热之后没有训练步",
    "no FLOP formula for this case": "该用例没有 FLOP 公式",
    "no dense {} peak is known for {}": "{1} 的 {0} 稠密峰值未知",
    "the matmul rate was not measured": "未实测矩阵乘速率",
    "this case has no tokens": "该用例没有 token",
    "not measured": "未测量",
    "no rank reported its memory": "没有 rank 上报内存",
    "no rank reported its device": "没有 rank 上报设备",
    "this device has no counting allocator": "该设备的内存分配器不支持统计",
    "the run ended before an evaluation": "运行在首次评估前结束",
    "this recipe evaluates nothing": "该配方不做评估",
    "the last evaluation gave no number": "最后一次评估未得到数值",
    "mmlu_mode=off asks no questions": "已设 mmlu_mode=off，不做 MMLU 答题",
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
    # Notes of figures
    "tokens without padding, per device, evaluation left out": (
        "不含填充，按单个设备计，不含评估时间"
    ),
    "{} sequences a sample on average": "平均每个样本 {} 条序列",
    "dense {} peak {} TFLOP/s ({})": "{} 稠密峰值 {} TFLOP/s（{}）",
    "measured in preflight": "预检时实测",
    "sum of the ranks' peak resident memory": "各 rank 常驻内存峰值之和",
    "fullest device, device-wide, at window edges": "占用最高的设备，整卡口径，在窗口边界采样",
    "embedding look-ups, not products, are the work here: see bytes/s and FLOP/s": (
        "该用例的主要工作是嵌入查找而非矩阵乘：见 bytes/s 与 FLOP/s"
    ),
    "rows and gradients read, rows read and written": "读取行和梯度，读写被更新的行",
    "sent to other ranks, forward and backward": "前向与反向发往其他 rank",
    "one rank exchanges nothing": "单个 rank 无需交换",
    "a large copy, measured after training": "大块拷贝，训练后实测",
    "look-ups and updates of rows": "嵌入行的查找与更新",
    "what is no look-up, exchange or input: the dense layers mostly": (
        "查找、交换与输入之外的时间：主要是稠密层"
    ),
    "by the device's own marks": "由设备自身的计时标记得出",
    "the embedding stage was not timed": "嵌入阶段未计时",
    "embedding bytes/s within the stage over the copy rate": "嵌入阶段内的字节速率除以拷贝速率",
    "no step after the warm-up": "预热之后没有训练步",
    # Precisions
    "fp32 (TF32 off)": "fp32（TF32 关闭）",
    "fp32 storage, TF32 matrix units": "fp32 存储，TF32 矩阵单元",
    "{}, frozen weights too; trained weights in fp32": "{}，冻结权重同为该精度；训练权重为 fp32",
    # Causes
    "{} did not reach {} in {} epoch(s) and {} steps: no evaluation was made": (
        "{} 在 {2} 轮、{3} 步内未达到 {1}：未做评估"
    ),
    "{} did not reach {} in {} epoch(s) and {} steps: the last value was {}": (
        "{} 在 {2} 轮、{3} 步内未达到 {1}：最后一次为 {4}"
    ),
    "the run was still going after {} s and was stopped; {} steps were done": (
        "运行超过 {} s 仍未结束，已被停止；完成 {} 步"
    ),
    "stopped by {} after {} steps": "在 {1} 步后被 {0} 停止",
    "the launcher was killed; {} steps were done": "启动器被终止；完成 {} 步",
    "MAMFU {}% is above 100%: the matmul rate was disturbed, or the matrix units did other work": (
        "MAMFU {}% 超过 100%：矩阵乘速率测量受到干扰，或矩阵单元实际执行了其他工作"
    ),
    "the launcher failed: {}": "启动器出错：{}",
    "rank {} was killed by {}: the kernel killed for want of memory meanwhile": (
        "rank {} 被 {} 终止：其间内核因内存不足终止了进程"
    ),
    "rank {} was killed by {}": "rank {} 被 {} 终止",
    "rank {} exited with code {}": "rank {} 退出，退出码 {}",
    "rank {} ended without finishing its events": "rank {} 结束时事件不完整",
    "the launcher left no word of the ranks' end": "启动器未留下 rank 结束的信息",
}


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], str], ...]:
    pairs = []
    for english, chinese in PHRASES.items():
        pattern = "(.+?)".join(re.escape(part) for part in english.split("{}"))
        # "{}" and "{0}" do not mix in one format string: number every bare place.
        first, *rest = chinese.split("{}")
        numbered = first + "".join(f"{{{place}}}{part}" for place, part in enumerate(rest))
        pairs.append((re.compile(pattern, re.DOTALL), numbered))
    return tuple(pairs)


def said(sentence: str, lang: str) -> str:
    """Return a record's sentence in ``lang``; as it is where no translation is known."""
    if lang != "zh":
        return sentence
    for pattern, chinese in _compiled():
        found = pattern.fullmatch(sentence)
        if found:
            return chinese.format(*found.groups())
    return sentence
