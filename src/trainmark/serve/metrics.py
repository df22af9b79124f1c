"""What the server counts of itself, as OpenMetrics text.

Source of the form: https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
(read 2026-11-22). Label values are ours: templates of routes, methods and statuses that there are.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BOUNDS_S = (0.005, 0.02, 0.05, 0.1, 0.3, 0.5, 1.0, 5.0, 30.0)  # 0.3, 0.5: of list and run page


class Metrics:
    """Counts of requests by route and status, their latencies, and uploads by outcome."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._latencies: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._uploads: Counter[str] = Counter()

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered; ``route`` is its template."""
        with self._lock:
            self._requests[route, method if method in METHODS else "other", status] += 1
            buckets = self._latencies.setdefault(route, [0] * (len(_BOUNDS_S) + 1))
            buckets[bisect_left(_BOUNDS_S, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]  # typeshed: of int alone

    def upload(self, outcome: str) -> None:
        """Count an upload; ``outcome`` is one of a few words."""
        with self._lock:
            self._uploads[outcome] += 1

    def text(self, *, runs: int) -> str:
        """Return everything counted, and how many runs and rows the index holds."""
        with self._lock:
            lines = ["# TYPE trainmark_runs gauge", f"trainmark_runs {runs}"]
            lines.append("# TYPE trainmark_http_requests counter")
            for (route, method, status), count in sorted(self._requests.items()):
                told = f'route="{route}",method="{method}",status="{status}"'
                lines.append(f"trainmark_http_requests_total{{{told}}} {count}")
            name = "trainmark_http_request_duration_seconds"
            lines += [f"# TYPE {name} histogram", f"# UNIT {name} seconds"]
            for route, buckets in sorted(self._latencies.items()):
                bounds = (*map(str, _BOUNDS_S), "+Inf")
                for bound, count in zip(bounds, accumulate(buckets), strict=True):
                    lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {count}')
                lines.append(f'{name}_count{{route="{route}"}} {sum(buckets)}')
                lines.append(f'{name}_sum{{route="{route}"}} {self._seconds[route]:.6f}')
            lines.append("# TYPE trainmark_uploads counter")
            for outcome, count in sorted(self._uploads.items()):
                lines.append(f'trainmark_uploads_total{{outcome="{outcome}"}} {count}')
        return "\n".join([*lines, "# EOF", ""])
