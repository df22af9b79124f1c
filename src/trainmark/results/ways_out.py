"""What to do about a run that did not pass, by what ended it.

Owns which advice fits a cause; the sentences are part of the table of messages. A cause's own
code goes before its kind, because a killed rank needs other advice than a stopped launcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import Message, Text, message

if TYPE_CHECKING:
    from trainmark.results.record import Cause

_PREFIX = "way_out."
_ADVICE: dict[str, Text] = {
    # By code
    "rank_killed": Text(
        "a killed rank leaves no traceback: read in the kernel's log (dmesg -T) what ended it, "
        "check the machine's free memory, and read the end of log.rank{rank}.txt",
        "被终止的 rank 不会留下调用栈：请在内核日志（dmesg -T）中查看终止原因，检查机器的可用内存，"
        "并查看 log.rank{rank}.txt 的末尾",
    ),
    "rank_killed_out_of_memory": Text(
        "the host's memory ran out: start fewer ranks, or lower bs with gas raised by the same "
        "factor; the kernel's log (dmesg -T) names the process that was ended",
        "主机内存耗尽：减少 rank 数，或减小 bs 并按相同倍数增大 gas；内核日志（dmesg -T）"
        "列出了被终止的进程",
    ),
    "rank_unfinished": Text(
        "the rank stopped early and raised nothing: read the end of log.rank{rank}.txt, then run "
        "it again",
        "该 rank 提前结束且未抛出异常：请查看 log.rank{rank}.txt 的末尾，然后重新运行",
    ),
    "stopped_by_signal": Text("run it again", "重新运行"),
    "target_missed_without_evaluation": Text(
        "let the run reach an evaluation: raise max_steps or max_epochs, or evaluate more often "
        "with eval_every_epochs or eval_every_samples",
        "使运行能够到达评估：增大 max_steps 或 max_epochs，或用 eval_every_epochs、"
        "eval_every_samples 更频繁地评估",
    ),
    "epoch_without_batch": Text(
        "give more training data, or lower bs, gas or the number of ranks",
        "增加训练数据，或减小 bs、gas 或 rank 数",
    ),
    # By kind
    "oom": Text(
        "lower bs, with gas raised by the same factor where the case takes it, or choose a "
        "smaller precision",
        "减小 bs（用例支持时按相同倍数增大 gas），或改用更低的精度",
    ),
    "diverged": Text(
        "lower lr, or choose bf16 or fp32 instead of fp16",
        "减小 lr，或以 bf16、fp32 代替 fp16",
    ),
    "disk_full": Text(
        "free space, or write elsewhere with --out", "清理磁盘空间，或用 --out 写到别处"
    ),
    "timeout": Text(
        "stacks.rank<N>.txt shows where each rank stood: if one waits, look at what it waits for; "
        "if all were computing, raise --timeout or make the work smaller",
        "stacks.rank<N>.txt 记录了各 rank 所在位置：若某个 rank 在等待，请检查其等待的对象；"
        "若都在计算，请增大 --timeout 或减小工作量",
    ),
    "launcher_killed": Text(
        "run it again, with nohup or in tmux so that it outlives its terminal; if nobody ended "
        "it, read the kernel's log (dmesg -T)",
        "重新运行，并用 nohup 或 tmux 使其不随终端结束；若无人终止它，请查看内核日志（dmesg -T）",
    ),
    "files_lost": Text(
        "run it again, with --out in a folder that nobody cleans up meanwhile",
        "重新运行，并用 --out 指定运行期间不会被清理的目录",
    ),
    "launcher": Text(
        "read log.launcher.txt beside the record; if it says nothing, read the kernel's log "
        "(dmesg -T)",
        "请查看记录旁的 log.launcher.txt；若其中没有内容，请查看内核日志（dmesg -T）",
    ),
    "exit": Text(
        "the rank ended its own process without an exception: read the end of log.rank{rank}.txt",
        "该 rank 未抛出异常而自行退出：请查看 log.rank{rank}.txt 的末尾",
    ),
    "events_incomplete": Text(
        "run it again with --out on a local disk; nothing else may write into the run's folder",
        "用 --out 写到本地磁盘并重新运行；运行目录中不得有其他程序写入",
    ),
    "target_missed": Text(
        "train longer (max_epochs, max_steps), or go back to the recipe's own hyper-parameters",
        "延长训练（max_epochs、max_steps），或恢复配方自带的超参",
    ),
    "impossible_figure": Text(
        "report it: a count, a time or the device's peak is wrong",
        "请反馈：计数、计时或设备峰值有误",
    ),
    "error": Text(
        "read the traceback, on the page and in log.rank{rank}.txt beside the record",
        "请查看结果页或记录旁 log.rank{rank}.txt 中的调用栈",
    ),
    "unknown": Text(
        "read log.rank<N>.txt and log.launcher.txt beside the record",
        "请查看记录旁的 log.rank<N>.txt 和 log.launcher.txt",
    ),
}
WAYS_OUT = {_PREFIX + name: text for name, text in _ADVICE.items()} | {
    # Of the error itself: only its author knows it, and wrote it in English.
    "own_way_out": Text("{text}", "错误自带的建议（英文）：{text}"),
}


def way_out(cause: Cause) -> Message:
    """Return what to do about ``cause``: an error's own advice before any other."""
    own = cause.message.args.get("remedy")
    if own:
        return message("own_way_out", text=own)
    names = [name for name in (cause.message.code, cause.kind) if name in _ADVICE]
    name = names[0] if names else "unknown"
    if name == "error" and cause.traceback is None:
        name = "unknown"
    return message(f"way_out.{name}", rank=cause.rank)
