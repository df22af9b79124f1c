"""The server with many records: time of a page over HTTP, alone and with many readers.

The server is a process of its own, as `trainmark serve` starts it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

from benchmarks.harness import Bar, choose_size, conclude
from benchmarks.store_queries import time_matmul_s, write_records

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDS, ROUNDS, READERS = choose_size(1_200, 30), choose_size(11, 2), choose_size(64, 2)
PAGE_S, RATE, SECONDS = 0.3, 500, choose_size(4.0, 0.2)


def _list_paths(run_id: str) -> dict[str, tuple[str, float | None]]:
    """Return what is asked for, and the bar in seconds; None: there is none."""
    return {
        "list page": ("/", PAGE_S),
        "run page": (f"/runs/{run_id}.html", PAGE_S),
        "case page": ("/cases/distilbert_sst2.html", None),
        "all runs as JSON": ("/runs.json", PAGE_S),
        "`/health`": ("/health", None),
    }


def _time_request_s(address: str) -> float:
    start = time.perf_counter()
    with urlopen(address) as answer:
        answer.read()
    return time.perf_counter() - start


def _await_pages(address: str) -> None:
    while True:
        try:
            _time_request_s(f"{address}/")
        except HTTPError:
            time.sleep(0.5)
        else:
            return


def _time_quiet_requests_s(address: str) -> list[float]:
    _time_request_s(address)  # the first of a kind loads templates
    return sorted(_time_request_s(address) for _ in range(ROUNDS))


def _measure_pages_per_second(address: str, path: str) -> float:
    """Return how many pages readers get in a second, each over a connection of its own."""
    counts, until = [0] * READERS, time.perf_counter() + SECONDS

    def read(place: int) -> None:
        asking = HTTPConnection(address.removeprefix("http://"))
        while time.perf_counter() < until:
            asking.request("GET", path, headers={"Accept-Encoding": "gzip"})
            assert asking.getresponse().read()
            counts[place] += 1
        asking.close()

    threads = [threading.Thread(target=read, args=(place,)) for place in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def _format_times(spent_s: Sequence[float]) -> str:
    high = spent_s[int(0.95 * (len(spent_s) - 1))]
    return f"{1e3 * statistics.median(spent_s):.0f} (95%: {1e3 * high:.0f})"


def main() -> bool:
    from trainmark.results.store.index import Index

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        folder.mkdir()
        write_records(folder, RECORDS)
        run_id = sorted(folder.iterdir())[RECORDS // 2].name
        Index(str(folder)).refresh()
        print("  indexed", file=sys.stderr, flush=True)
        arguments = ["serve", "--store", str(folder), "--port", "0"]
        start = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "trainmark", *arguments], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip().rstrip("/")
            started_s = time.perf_counter() - start
            _await_pages(address)
            written_s = time.perf_counter() - start
            square_s = time_matmul_s()
            quiet = {
                name: _time_quiet_requests_s(address + path)
                for name, (path, _) in _list_paths(run_id).items()
            }
            busy = {
                name: _measure_pages_per_second(address, path)
                for name, (path, most_s) in _list_paths(run_id).items()
                if most_s
            }
        finally:
            server.terminate()
            code = server.wait()
    assert code == 0, f"the server ended with {code}"
    bars = []
    for name, (_, most_s) in _list_paths(run_id).items():
        middle_s = statistics.median(quiet[name])
        bar = f"under {1e3 * most_s:g}" if most_s else ""
        bars.append(
            Bar(
                f"{name}, ms",
                _format_times(quiet[name]),
                bar,
                middle_s < most_s if most_s else None,
            )
        )
    bars += [
        Bar(
            f"{name}, {READERS} readers, pages a second",
            f"{rate:.0f}",
            f"at least {RATE}",
            rate >= RATE,
        )
        for name, rate in busy.items()
    ]
    bars.append(Bar("start of the server, s", f"{started_s:.1f}", "", None))
    bars.append(Bar("until all pages are written, s", f"{written_s:.1f}", "", None))
    slowest_s = max(map(statistics.median, quiet.values()))
    details = (
        f"{RECORDS:,} records on {len(os.sched_getaffinity(0))} cores with a load of "
        f"{os.getloadavg()[0]:.1f}. Medians of {ROUNDS} requests, "
        f"from the first byte sent to the last received; readers take part of the same cores. A "
        f"matmul of 1024 x 1024 in fp32 took {1e3 * square_s:.1f} ms, the slowest "
        f"page alone {slowest_s / square_s:.1f} times as long."
    )
    return conclude("site_server", "The server with many records", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
