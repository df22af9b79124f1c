"""What stands before all routes: limits, headers, counts, the log."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from trainmark.server.buckets import Buckets


@pytest.mark.parametrize("path", ["/health", "/api/nothing", "/api/runs?page=x", "/metrics"])
def test_every_answer_has_the_headers_of_security(served, path):
    headers = served().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-cache"
    assert "server" not in headers
    assert "set-cookie" not in headers


def test_a_fault_of_the_servers_own_says_nothing_of_itself(served, caplog):
    client = served()
    client.app.state.serving.database = None
    answer = client.get("/health", headers={"Authorization": "Bearer trainmark_secret"})
    assert answer.status_code == 500
    assert set(answer.json()["error"]) == {"what", "where", "rule", "remedy"}
    assert "NoneType" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "NoneType" in caplog.text
    assert "trainmark_secret" not in caplog.text


def test_an_address_that_asks_too_often_waits(served):
    client = served(rate=0.2)  # two at once, then one in five seconds
    answers = [client.get("/health") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "5"


def test_buckets_fill_again_and_count_a_network_of_ipv6_as_one():
    now = [0.0]
    buckets = Buckets(0.1, lambda: now[0])
    assert buckets.take("2001:db8::1") == 0.0
    assert buckets.take("2001:db8::2") == 10.0
    assert buckets.take("2001:db8:0:1::1") == 0.0
    now[0] = 10.0
    assert buckets.take("2001:db8::2") == 0.0


def test_buckets_forget_the_addresses_that_asked_the_longest_ago():
    buckets = Buckets(1.0, lambda: 0.0)
    for number in range(10_100):
        buckets.take(f"10.0.{number // 256}.{number % 256}")
    assert len(buckets) == 10_000


@pytest.mark.parametrize(("name", "status"), [("lab.example", 200), ("evil.example", 421)])
def test_only_names_of_the_server_are_answered(served, name, status):
    client = served(host_names=("lab.example",))
    assert client.get("/health", headers={"Host": f"{name}:8080"}).status_code == status


def test_what_is_too_large_is_refused_before_anything_reads_it(served):
    client = served()
    assert client.get(f"/api/runs?q={'x' * 50_000}").status_code == 414
    assert client.get("/health", headers={"X": "x" * 17_000}).status_code == 431


def test_head_is_answered_like_get_without_a_body(served):
    answer = served().head("/health")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/json"


def test_metrics_are_openmetrics_and_count_by_template_and_status(served):
    client = served()
    for path in ("/health", "/health", "/api/runs?page=x", "/nowhere", "/api/runs"):
        client.get(path)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = {x.name: x for x in text_string_to_metric_families(answer.text)}
    asked = families["trainmark_http_requests"].samples
    counts = [x for x in asked if x.name.endswith("_total")]
    assert {(x.labels["route"], x.labels["status"]): x.value for x in counts} == {
        ("/health", "200"): 2, ("/api/runs", "422"): 1, ("none", "404"): 1,
        ("/api/runs", "200"): 1,
    }  # fmt: skip
    assert families["trainmark_http_request_duration_seconds"].type == "histogram"
    assert families["trainmark_runs"].samples[0].value == 3


def test_the_access_log_has_no_query_and_no_line_of_the_clients_own(served, caplog):
    caplog.set_level(logging.INFO, "trainmark.access")
    served().get("/runs/a%0ab?token=trainmark_secret")
    (line,) = (x.getMessage() for x in caplog.records if x.name == "trainmark.access")
    assert '"GET /runs/a\\u000ab" 404' in line
    assert "secret" not in line
