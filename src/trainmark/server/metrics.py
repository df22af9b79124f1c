"""What the server counts of itself, as OpenMetrics text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics import exposition

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BOUNDS_S = (0.005, 0.02, 0.05, 0.1, 0.3, 0.5, 1.0, 5.0, 30.0)  # 0.3, 0.5: of list and run page


class Metrics:
    """Counts of requests by route and status, their latencies, and uploads by outcome."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "trainmark_http_requests",
            "Requests that were answered.",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self._latencies = Histogram(
            "trainmark_http_request_duration",
            "From the head of a request to the end of its answer.",
            ["route"],
            unit="seconds",
            buckets=_BOUNDS_S,
            registry=self._registry,
        )
        self._uploads = Counter(
            "trainmark_uploads",
            "Bundles that were sent: stored, known already, or refused.",
            ["outcome"],
            registry=self._registry,
        )
        self._runs = Gauge("trainmark_runs", "Rows of the index.", registry=self._registry)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered; ``route`` is its template."""
        known = method if method in METHODS else "other"
        self._requests.labels(route, known, str(status)).inc()
        self._latencies.labels(route).observe(seconds)

    def upload(self, outcome: str) -> None:
        """Count an upload; ``outcome`` is "stored", "known" or "refused"."""
        self._uploads.labels(outcome).inc()

    def text(self, *, runs: int) -> str:
        """Return everything counted, and how many runs and rows the index holds."""
        self._runs.set(runs)
        told: bytes = exposition.generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return told.decode()
