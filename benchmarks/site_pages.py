"""The pages of many records: how long a list, a run and a case take, and a site of plain files."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Bar, conclude, sized
from benchmarks.store_queries import matmul_s, median_s, write_records

RECORDS, FILES = sized(100_000, 300), sized(1_000, 20)
LIST_S, RUN_S = 0.3, 0.5
LISTS = {
    "the newest runs": {},
    "a case on a device": {"words": ["case=distilbert_sst2", "device=NVIDIA H200"]},
    "found by text": {"words": ["text~h100"]},
    "the fastest of all": {"sort": "-p_train"},
    "the last page": {"page": -(-RECORDS // 50)},
}


def main() -> bool:
    from trainmark.library.store.database import Database
    from trainmark.library.store.index import Index
    from trainmark.library.store.query import listing
    from trainmark.pages.site import views
    from trainmark.pages.site.links import Links
    from trainmark.pages.site.writing import write_site

    links, list_s = Links(), {}
    with tempfile.TemporaryDirectory() as place:
        runs, few = Path(place) / "runs", Path(place) / "few"
        for folder, count in ((runs, RECORDS), (few, FILES)):
            folder.mkdir()
            write_records(folder, count)
            Index(Database(str(folder))).refresh()
        square_s, database = matmul_s(), Database(str(runs))
        for name, given in LISTS.items():
            list_s[name] = median_s(
                lambda given=given: views.list_page(database, links=links, **given)
            )
        ids = iter([row[0] for row in listing(database, columns=["run_id"], limit=50).rows])
        run_s = median_s(lambda: views.run_page(database, next(ids), links=links))
        case_s = median_s(lambda: views.case_page(database, "gpt_megatron", links=links))
        chosen = [next(ids) for _ in range(6)]
        compare_s = median_s(
            lambda: views.compare_page(
                database, chosen, allow=["case", "precision", "device_products"], links=links
            )
        )
        files_s = []
        for _ in range(2):
            start = time.perf_counter()
            write_site(Database(str(few)), Path(place) / "public")
            files_s.append(time.perf_counter() - start)
    bars = [
        *(
            Bar(f"list, {name}, ms", f"{1e3 * spent:.0f}", f"under {1e3 * LIST_S:g}",
                spent < LIST_S)
            for name, spent in list_s.items()
        ),
        Bar("run, ms", f"{1e3 * run_s:.0f}", f"under {1e3 * RUN_S:g}", run_s < RUN_S),
        Bar("case, ms", f"{1e3 * case_s:.0f}", "", None),
        Bar("six runs side by side, ms", f"{1e3 * compare_s:.0f}", "", None),
        Bar(f"{FILES:,} runs as plain files, s", f"{files_s[0]:.1f}", "", None),
        Bar("the same again, nothing new, s", f"{files_s[1]:.1f}", "", None),
    ]  # fmt: skip
    details = (
        f"Pages of a store of {RECORDS:,} records, each by its function in an open process, on "
        f"{len(os.sched_getaffinity(0))} cores with a load of {os.getloadavg()[0]:.1f}; a matmul "
        f"of 1024 x 1024 in fp32 took {1e3 * square_s:.1f} ms, the slowest list "
        f"{max(list_s.values()) / square_s:.1f} and a run {run_s / square_s:.1f} times as long."
    )
    return conclude("site_pages", "The pages of many records", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
