"""``trainmark push``: what is sent to whom, again when, and how each refusal ends."""

from __future__ import annotations

import json
import os
import socket
import ssl
from contextlib import closing

import httpx2
import pytest

from bundles import packed, recorded
from server_process import Server
from trainmark.cli.app import main
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.server.client import Client, RefusedBundleError, token_of
from trainmark.server.tokens import Tokens

STORED = {"digest": "d" * 64, "runs": [{"run_id": "a-1", "page": "/runs/a-1"}]}
REFUSED = {"error": {"what": "no", "where": "record", "rule": None, "remedy": "look"}}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.trainmark.zip").write_bytes(b"content")
    return tmp_path / "a.trainmark.zip"


def asked(file, *answers, address="https://lab.example/site"):
    """Send a file to a server that gives ``answers``; return what came, the waits, the requests."""
    left, waits, requests = list(answers), [], []

    def answer(request):
        requests.append((str(request.url), request.headers["authorization"], request.read()))
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    transport = httpx2.MockTransport(answer)
    with closing(Client(address, "secret", sleep=waits.append, transport=transport)) as client:
        try:
            return client.send(file), waits, requests
        except TrainmarkError as error:
            return error, waits, requests


def test_a_bundle_is_sent_with_its_token_and_its_pages_are_addresses(file):
    stored, waits, requests = asked(file, httpx2.Response(201, json=STORED))
    assert [run.page for run in stored.runs] == ["https://lab.example/site/runs/a-1"]
    assert requests == [("https://lab.example/site/api/runs", "Bearer secret", b"content")]
    assert waits == []


def test_it_is_sent_again_whole_after_what_may_pass(file):
    busy = httpx2.Response(503, json=REFUSED, headers={"Retry-After": "7"})
    answers = (busy, httpx2.ReadError("lost"), httpx2.Response(429), httpx2.Response(502, text="<"))
    stored, waits, requests = asked(file, *answers, httpx2.Response(200, json=STORED))
    assert stored.digest == "d" * 64
    assert waits == [7, 2, 4, 8]
    assert [content for *_, content in requests] == [b"content"] * 5


def test_it_gives_up_after_a_minute_or_where_the_server_asks_for_longer(file):
    error, waits, _ = asked(file, *[httpx2.ConnectError("refused")] * 7)
    assert isinstance(error, EnvironmentFault)
    assert waits == [1, 2, 4, 8, 16, 30]
    error, waits, _ = asked(file, httpx2.Response(429, headers={"Retry-After": "3600"}))
    assert (type(error), waits) == (EnvironmentFault, [])


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (httpx2.Response(401, json=REFUSED), EnvironmentFault, 2),
        (httpx2.Response(403, json=REFUSED), EnvironmentFault, 2),
        (httpx2.Response(409, json=REFUSED), RefusedBundleError, 1),
        (httpx2.Response(413, text="<html>"), RefusedBundleError, 1),
        (httpx2.Response(422, json=REFUSED), RefusedBundleError, 1),
        (httpx2.Response(500, json=["error"]), EnvironmentFault, 2),
        (httpx2.Response(200, text="<html>"), EnvironmentFault, 2),
        (httpx2.Response(200, text="[" * 100_000), EnvironmentFault, 2),
        (httpx2.Response(200, json={"digest": "", "runs": []}), EnvironmentFault, 2),
        (httpx2.Response(301, headers={"Location": "https://evil.example/"}), EnvironmentFault, 2),
    ],
)
def test_a_refusal_is_told_once_and_nothing_is_sent_elsewhere(file, answer, kind, code):
    error, waits, requests = asked(file, answer)
    assert (type(error), error.exit_code) == (kind, code)
    assert (waits, len(requests)) == ([], 1)


def test_a_certificate_that_is_not_trusted_ends_it_at_once(file):
    wrapped = httpx2.ConnectError("certificate verify failed")
    wrapped.__cause__ = ssl.SSLCertVerificationError("self-signed")
    error, waits, _ = asked(file, wrapped)
    assert (type(error), waits) == (EnvironmentFault, [])


@pytest.mark.parametrize(
    "address",
    ["lab.example", "http://lab.example", "http://127.0.0.1.example", "ftp://lab.example",
     "https://", "https://user:word@lab.example", "https://lab.example/?x", "http://[::2]:80"],
)  # fmt: skip
def test_a_token_goes_nowhere_without_tls(address):
    with pytest.raises(UsageError):
        Client(address, "secret")


@pytest.mark.parametrize("address", ["http://localhost:1", "http://127.0.0.2", "http://[::1]:80"])
def test_to_this_machine_itself_it_may(address):
    assert Client(address, "secret").address == f"{address}/"
    assert Client("http://lab.example", "secret", insecure_http=True)


def test_a_token_comes_from_a_file_that_nobody_else_can_read(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o640)
    monkeypatch.setenv("TRAINMARK_TOKEN", "of the variable")
    for place in (file, tmp_path, tmp_path / "nothing"):
        with pytest.raises(EnvironmentFault):
            token_of(place)
    file.chmod(0o600)
    assert (token_of(file), token_of(None)) == ("secret", "of the variable")
    for text in ("", " \n", "a\x1bb", "é"):
        monkeypatch.setenv("TRAINMARK_TOKEN", text)
        with pytest.raises(UsageError):
            token_of(None)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server, and the secrets of a token that may upload and of one that may not."""
    made = Server(tmp_path_factory.mktemp("served"), "--rate", "0")
    tokens = Tokens(made.folder / "runs")
    made.secret, made.reader = tokens.make("lab", ["upload"]), tokens.make("reader", ["read"])
    yield made
    made.kill()


def ends(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["trainmark", *map(str, words)])
    with pytest.raises(SystemExit) as ending:
        main()
    return ending.value.code or 0


def test_one_run_that_cannot_be_packed_or_is_refused_does_not_stop_the_others(
    server, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("TRAINMARK_TOKEN", server.secret)
    bad = tmp_path / "bad.trainmark.zip"
    bad.write_bytes(b"PK")
    altered = tmp_path / "plan" / "altered"
    recorded(altered, "push-0")
    (altered / "events.rank0.jsonl").write_text("")
    recorded(tmp_path / "plan" / "one", "push-1")
    recorded(tmp_path / "plan" / "two", "push-2")
    words = ("push", "--to", server.address, bad, tmp_path / "plan", packed(tmp_path, "push-3"))
    assert ends(monkeypatch, *words) == 1
    out, err = capfd.readouterr()
    assert out.split() == [f"{server.address}runs/push-{n}" for n in (1, 2, 3)]
    assert str(bad) in err
    assert err.count(str(altered)) == 1
    assert ends(monkeypatch, *words, "--json") == 1
    found = json.loads(capfd.readouterr().out)
    assert [run["run_id"] for item in found for run in item["runs"]] == [
        "push-1",
        "push-2",
        "push-3",
    ]
    known = httpx2.get(f"{server.address}api/runs").json()["runs"]
    assert sorted(run["run_id"] for run in known) == ["push-1", "push-2", "push-3"]


def test_a_token_that_does_not_admit_ends_with_2(server, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TRAINMARK_TOKEN", "wrong")
    file = tmp_path / "large.trainmark.zip"
    with file.open("wb") as large:
        large.truncate(100 << 20)  # the answer comes while most of it is unsent
    assert ends(monkeypatch, "push", "--to", server.address, file) == 2
    out, err = capfd.readouterr()
    assert (out, "401" in err, "Traceback" in err) == ("", True, False)


def test_tokens_are_made_listed_and_revoked_by_the_program(tmp_path, monkeypatch, capfd):
    token = ("serve", "token")
    assert ends(monkeypatch, *token, "make", "a", "--data", tmp_path) == 0
    secret = capfd.readouterr().out.strip()
    words = ("make", "b", "--scope", "read", "--expires", "2999-01-01", "--data", tmp_path)
    assert ends(monkeypatch, *token, *words) == 0
    capfd.readouterr()
    assert ends(monkeypatch, *token, "revoke", "a", "--data", tmp_path) == 0
    assert ends(monkeypatch, *token, "list", "--json", "--data", tmp_path) == 0
    out = capfd.readouterr().out
    assert secret not in out
    known = [(x["name"], x["scopes"], x["expires"], x["revoked"] is None) for x in json.loads(out)]
    last = ("b", ["read"], "2999-01-01T00:00:00Z", True)
    assert known == [("a", ["upload"], None, False), last]
    assert ends(monkeypatch, *token, "list", "--data", tmp_path) == 0
    assert capfd.readouterr().out.split()[:2] == ["a", "upload"]
    assert ends(monkeypatch, *token, "list", "--data", tmp_path / "nothing") == 2


HEAD = (
    "POST /api/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/zip\r\nContent-Length: {}\r\n"
)


@pytest.mark.parametrize("more", ["", "Expect: 100-continue\r\n"])
@pytest.mark.parametrize(
    ("name", "length", "status"),
    [(None, 10**15, 401), ("wrong", 1000, 401), ("reader", 1000, 403), ("secret", 10**15, 413)],
)
def test_who_may_not_is_told_before_the_body_is_read(server, name, length, status, more):
    token = getattr(server, name or "", name)
    head = HEAD.format(length) + more
    head += f"Authorization: Bearer {token}\r\n" if name else ""
    with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as asking:
        asking.sendall(f"{head}\r\n".encode())
        answer = b""
        while chunk := asking.recv(65536):  # it ends the connection: the body would be no request
            answer += chunk
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_who_may_is_asked_for_the_body(server):
    told = f"Authorization: Bearer {server.secret}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as asking:
        asking.sendall((HEAD.format(10) + told).encode())
        assert asking.recv(65536).startswith(b"HTTP/1.1 100 ")
        asking.sendall(b"no zip ...")
        assert asking.recv(65536).startswith(b"HTTP/1.1 422 ")


def test_a_connection_that_ends_in_the_body_leaves_nothing(server):
    incoming = server.folder / "runs" / ".serve" / "incoming"
    log = server.folder / "runs" / ".serve" / "changes.jsonl"
    before = log.read_text()
    told = f"Authorization: Bearer {server.secret}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as asking:
        asking.sendall((HEAD.format(10**6) + told).encode() + b"x" * 1000)
    with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as asking:
        asking.sendall((HEAD.format(4) + told).encode() + b"no z")
        assert asking.recv(65536).startswith(b"HTTP/1.1 422 ")
    while log.read_text().count("\n") < before.count("\n") + 2:
        os.sched_yield()
    assert list(incoming.iterdir()) == []
