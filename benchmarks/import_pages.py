"""Import of many result pages: time and memory of the whole command, every row accounted for.

Pages are of the size and forms of the public collection: prose, lists, code, a table of facts and
a result table. Each is another, so that no row is a duplicate.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.harness import Bar, choose_size, conclude

PAGES, ROWS, ROUNDS = choose_size(500, 5), 4, choose_size(5, 1)
SECONDS, MEGABYTES = 5.0, 500.0
FACTS = (
    "| 指标名称 | 指标值 | 特殊说明 |\n| --- | --- | --- |\n| 模型 | net{number} | |\n"
    "| 数据精度 | precision,见“性能指标” | 可选 fp32/amp/fp16 |\n"
    + "".join(f"| 指标 {n} | 见“性能指标” | 说明 |\n" for n in range(10))
    + "| 硬件设备简称 | acme X{number} | |\n\n"
)
HEADS = (
    "配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem",
    "配置 | precision | parallel | fix_hp | token/p/s | loss | mem | MFU",
    "训练资源 | 配置文件 | 运行时长(s) | 目标精度 | 收敛精度 | Steps数 | 性能(samples/s)",
    "配置 | config | precision | fix_hp | parallel_strategy | throughput | memory",
)


def format_row(form: int, number: int, random: Random) -> str:
    """Return a row of one of ``HEADS``."""
    value, label = random.uniform(10, 9999), f"X{number}单机8卡（1x8）"
    cells: tuple[object, ...] = (
        (
            label,
            "fp32",
            f"bs={random.randrange(999)},lr=1e-05",
            f"{value:.1f}",
            f"{value:,.2f}",
            value,
            value,
            "0.8026/0.802",
            "13.9/40.0",
        ),
        (label, "bf16", "TP2PP2DP2", "GAS=16(GBS=128)", value, 2.5, "75/80", "51.3%"),
        ("单机8卡", f"config_X{number}x1x8", value, 0.67, 0.6818, random.randrange(9999), value),
        (
            label,
            f"config_TP1PP1X{number}Gx1x8",
            'fp16, level="O2"',
            "per_device_bs=4",
            'recompute=True, sharding="stage2"',
            f"{value} * 2048 / 8 = {value * 256} tokens/s",
            f"{random.uniform(9, 79):.2f} * 8 GB",
        ),
    )[form]
    return f"| {' | '.join(map(str, cells))} |\n"


def write_pages(folder: Path) -> int:
    """Write the pages as ``VENDOR/MODEL-FRAMEWORK/README.md``; return their bytes."""
    random, total = Random(1), 0
    for number in range(PAGES):
        form = number % len(HEADS)
        head = f"| {HEADS[form]} |\n|{' --- |' * (HEADS[form].count('|') + 1)}\n"
        prose = "".join(f"- ##### 环境 {n}\n    - 加速卡: X{number}\n\n" for n in range(40))
        code = "```bash\n" + "export name=value | cat\n" * 30 + "```\n\n"
        rows = "".join(format_row(form, number, random) for _ in range(ROWS))
        text = f"### 结果 {number}\n\n{prose}{code}{FACTS.format(number=number)}{head}{rows}\n"
        path = folder / "nvidia" / f"net{number}-pytorch" / "README.md"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        total += len(text.encode())
    return total


def time_matmul_s() -> float:
    """Return the time of a square product, which tells how busy the machine is."""
    side = np.ones((1024, 1024), np.float32)
    began = time.perf_counter()
    for _ in range(4):
        side @ side
    return time.perf_counter() - began


def main() -> bool:
    times, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        total = write_pages(Path(folder))
        for _ in range(ROUNDS):
            began = time.perf_counter()
            arguments = [sys.executable, "-m", "trainmark", "import", folder, "--json"]
            process = subprocess.run(arguments, capture_output=True, text=True, check=True)
            times.append(time.perf_counter() - began)
            ratios.append(times[-1] / time_matmul_s())
            document = json.loads(process.stdout)
            assert len(document["rows"]) == PAGES * ROWS, len(document["rows"])
            assert document["unread"] == [], document["unread"][:3]
    times.sort()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, busy = usage.ru_maxrss * 1024 / 1e6, (usage.ru_utime + usage.ru_stime) / ROUNDS
    middle = times[len(times) // 2]
    what = f"{PAGES} pages of {total / PAGES / 1000:.1f} kB with {ROWS} rows each, the command, s"
    bars = [
        Bar(
            what,
            f"{middle:.2f} ({times[0]:.2f} to {times[-1]:.2f})",
            f"under {SECONDS:g}",
            middle < SECONDS,
        ),
        Bar("the same, peak memory, MB", f"{peak:.0f}", f"under {MEGABYTES:g}", peak < MEGABYTES),
    ]
    ratio = sorted(ratios)[len(ratios) // 2]
    details = (
        f"Start of the program and JSON of all rows included; {busy:.2f} s of processor time. "
        f"{ratio:.1f} times four products of 1024x1024 fp32 matrices, taken in turns with it."
    )
    return conclude("import_pages", "Import of result pages", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
