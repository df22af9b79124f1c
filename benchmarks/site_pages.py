"""The pages of many records: how long a case, a comparison and a site of files take."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Bar, choose_size, conclude
from benchmarks.store_queries import DEVICES, measure_median_s, time_matmul_s, write_records

RECORDS, FILES = choose_size(100_000, 300), choose_size(1_000, 20)
CASE = "gpt_megatron"


def main() -> bool:
    from trainmark.pages.site import launches, lists, views
    from trainmark.pages.site.writing import write_site
    from trainmark.results.store.index import Index
    from trainmark.results.store.query import list_runs

    with tempfile.TemporaryDirectory() as place:
        runs, few = Path(place) / "runs", Path(place) / "few"
        for folder, count in ((runs, RECORDS), (few, FILES)):
            folder.mkdir()
            write_records(folder, count)
            Index(str(folder)).refresh()
        square_s, database = time_matmul_s(), Index(str(runs))
        links = views.Links(f"cases/{CASE}.html")
        case_s = measure_median_s(
            lambda: lists.build_case_page(
                views.list_all_runs(database, launches.PAGE_COLUMNS), CASE, links
            )
        )
        arguments = [f"case={CASE}", "precision=bf16", f"device={DEVICES[0]}", "status=passed"]
        rows = list_runs(database, arguments, columns=["run_id"], limit=6).rows
        chosen = [row[0] for row in rows]
        compare_s = measure_median_s(lambda: views.build_comparison_page(database, chosen))
        files_s = []
        for _ in range(2):
            start = time.perf_counter()
            write_site(Index(str(few)), Path(place) / "public")
            files_s.append(time.perf_counter() - start)
    bars = [
        Bar("case, ms", f"{1e3 * case_s:.0f}", "", None),
        Bar("six runs side by side, ms", f"{1e3 * compare_s:.0f}", "", None),
        Bar(f"{FILES:,} runs as plain files, s", f"{files_s[0]:.1f}", "", None),
        Bar("the same again, nothing new, s", f"{files_s[1]:.1f}", "", None),
    ]
    details = (
        f"Pages of a store of {RECORDS:,} records, each by its function in an open process, on "
        f"{len(os.sched_getaffinity(0))} cores with a load of {os.getloadavg()[0]:.1f}; a matmul "
        f"of 1024 x 1024 in fp32 took {1e3 * square_s:.1f} ms."
    )
    return conclude("site_pages", "The pages of many records", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
