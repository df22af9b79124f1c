"""The report of a run with a million steps as one HTML file: its size, and the time to make it."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Bar, choose_size, conclude

if TYPE_CHECKING:
    from trainmark.record.record import Record

STEPS, RUNS = choose_size((1_000_000, 5), (1_000, 1))
SIZE = choose_size(2048, 64)
BYTES, OPEN_S = 5_000_000, 2.0
_PAINTED_MS = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_DRAWN = """() => {
    for (const fold of document.querySelectorAll('details')) fold.open = true;
    const charts = [...document.querySelectorAll('figure.chart')].filter(x => x.checkVisibility());
    return document.readyState === 'complete' && charts.length > 0
        && charts.every(x => x.querySelector('svg'));
}"""
RECORD = Path(__file__).parents[1] / "tests" / "golden" / "record_distilbert.json"


def measure_matmul_gflops() -> float:
    """Return the rate of a matrix product by numpy, in GFLOP/s."""
    import numpy as np

    matrix = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - start)
    return 2e-9 * SIZE**3 / min(times)


def record_of(steps: int) -> Record:
    """Return a record of so many steps, with an evaluation every hundredth part of them.

    Its series are made up: a falling noisy loss, step times with rare spikes. All else is the
    record of the golden files.
    """
    import numpy as np

    from trainmark.record.record import Record

    known = Record.model_validate_json(RECORD.read_text(encoding="utf-8"))
    random, place = np.random.default_rng(1), np.arange(steps)
    time_ns = random.normal(4e8, 4e6, steps) * np.where(random.random(steps) < 1e-5, 8, 1)
    loss = 0.1 + 0.6 * np.exp(-4 * place / steps) + random.normal(0, 0.02, steps)
    series = {
        "time_ns": time_ns.astype(int).tolist(),
        "loss": loss.tolist(),
        "samples": [192] * steps,
    }
    point, every = known.quality.history[-1], max(steps // 100, 1)
    history = [
        point.model_copy(update={"step": step, "epoch": number, "value": 0.91 - 0.3 / (number + 1)})
        for number, step in enumerate(range(every, steps + 1, every))
    ]
    return known.model_copy(
        update={
            "steps": known.steps.model_copy(update=series),
            "quality": known.quality.model_copy(update={"history": history}),
        }
    )


def make_page(path: Path) -> None:
    """Make the page as ``trainmark report`` does, from the record; print figures as JSON."""
    record = record_of(STEPS)
    start, processor = time.perf_counter(), time.process_time()
    from trainmark.pages.page import build_documents
    from trainmark.pages.rendering import to_html

    page = to_html(build_documents([record]))
    spent, processor_s = time.perf_counter() - start, time.process_time() - processor
    path.write_text(page, encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"page_s": spent, "processor_s": processor_s}
    found["peak_mb"] = peak
    print(json.dumps(found | {"gflops": measure_matmul_gflops()}))


def time_opening_s(path: Path) -> tuple[float, float] | None:
    """Return after how many seconds a page shows content, and all its charts.

    In a new Chromium, in a window that is as high as the page: all its charts in one language are
    drawn. None: there is no Chromium here, or no driver of it.
    """
    from tools.chromium import find_program, start_chromium

    if find_program() is None or find_spec("playwright") is None:
        return None
    with start_chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 12_000})
        start = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_function(_DRAWN, timeout=60_000)
        drawn_s = time.perf_counter() - start
        return page.evaluate(_PAINTED_MS) / 1000, drawn_s


def main() -> bool:
    runs = []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "report.html"
        for _ in range(RUNS):
            arguments = [sys.executable, "-m", "benchmarks.report_page", str(path)]
            process = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
            print(f"  {process.stdout.strip()}", file=sys.stderr, flush=True)
            runs.append(json.loads(process.stdout))
        size = path.stat().st_size
        opened = [found for _ in range(RUNS) if (found := time_opening_s(path))]
    times = sorted(run["page_s"] for run in runs)
    products = [run["page_s"] * run["gflops"] for run in runs]
    peak = max(run["peak_mb"] for run in runs)
    bars = [
        Bar(
            f"{STEPS:,} steps: report.html, MB",
            f"{size / 1e6:.2f}",
            f"under {BYTES / 1e6:g}",
            size < BYTES,
        ),
        Bar(
            "the same, made in, s",
            f"{statistics.median(times):.1f} ({times[0]:.1f} to {times[-1]:.1f})",
            "",
            None,
        ),
        Bar("the same, peak memory, MB", f"{peak:.0f}", "", None),
    ]
    if opened:
        for what, found in zip(
            ("first content shown", "all charts drawn"), zip(*opened, strict=True), strict=True
        ):
            median = statistics.median(found)
            ends = f"{median:.1f} ({min(found):.1f} to {max(found):.1f})"
            under = median < OPEN_S
            bars.append(Bar(f"opened in Chromium: {what}, s", ends, f"under {OPEN_S:g}", under))
    processor_s = statistics.median(run["processor_s"] for run in runs)
    gflops = statistics.median(run["gflops"] for run in runs)
    details = (
        "Both languages, the record without its series, and the scripts that draw. Made in a "
        "new process, its imports included, the reading of the "
        f"record not, it took {processor_s:.1f} s of processor time. In the same process a matmul "
        f"in fp32 reached {gflops:.0f} GFLOP/s: the page "
        f"costs as much as {statistics.median(products):.0f} GFLOP of it. Load "
        f"{os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores. Chromium's "
        f"window is as high as the page, so that all its charts are drawn at once."
    )
    return conclude("report_page", "The report of a million steps", bars, details)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        make_page(Path(sys.argv[1]))
    else:
        sys.exit(not main())
