"""Sending runs to a server: retries, and the exit code of each refusal."""

from __future__ import annotations

import signal
import socket

import httpx2
import pytest

from support.bundles import write_bundle, write_recorded_run
from support.server_process import Server
from trainmark.cli.app import main
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError
from trainmark.server.client import RefusedBundleError, open_client, send_bundle
from trainmark.server.serving import Tokens

STORED = {"digest": "d" * 64, "runs": [{"run_id": "a-1", "page": "/runs/a-1.html"}]}
REFUSED = {"error": {"what": "no", "where": "record", "rule": None, "fix": "look"}}


@pytest.fixture
def bundle_file(tmp_path, monkeypatch):
    """Return a file to send; the token is in the environment, with a line end as a file has it."""
    monkeypatch.setenv("TRAINMARK_TOKEN", "secret\n")
    (tmp_path / "a.trainmark.zip").write_bytes(b"content")
    return tmp_path / "a.trainmark.zip"


def push_to_server(bundle_file, answer, address="https://lab.example/site"):
    """Send a file to a server that gives ``answer``; return the outcome and the requests.

    The outcome is what the server stored, or the error. A request is its address, the header with
    the token, and its body. An ``answer`` that is an exception is raised, as by a broken
    connection.
    """
    requests = []

    def answer_request(request):
        requests.append((str(request.url), request.headers["authorization"], request.read()))
        if isinstance(answer, Exception):
            raise answer
        return answer

    transport = httpx2.MockTransport(answer_request)
    try:
        return send_bundle(open_client(address, transport), bundle_file), requests
    except TrainmarkError as error:
        return error, requests


def test_bundle_is_sent_with_its_token_and_the_answer_has_page_addresses(bundle_file):
    # ``STORED``: the answer to a stored bundle, which has the run a-1 with the page /runs/a-1.html.
    # The server is at https://lab.example/site. ``bundle_file`` has the bytes "content", and the
    # token in the environment is "secret".
    stored, requests = push_to_server(bundle_file, httpx2.Response(201, json=STORED))
    assert [run.page for run in stored.runs] == ["https://lab.example/site/runs/a-1.html"]
    assert requests == [("https://lab.example/site/api/runs", "Bearer secret", b"content")]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx2.Response(422, json=REFUSED), RefusedBundleError),
        (httpx2.Response(401, json=REFUSED), EnvironmentFault),
        (httpx2.Response(200, text="<html>"), EnvironmentFault),
        (httpx2.ConnectError("CERTIFICATE_VERIFY_FAILED"), EnvironmentFault),
    ],
)
def test_refused_bundle_and_other_errors_have_different_exit_codes(bundle_file, answer, kind):
    # ``REFUSED``: the JSON of an error, as the server sends it. Status 422: the bundle itself is
    # wrong, which exits with 1. Everything else exits with 2: an invalid token (401), an answer
    # that is not a server's of this program, and a connection that fails.
    error, _ = push_to_server(bundle_file, answer)
    assert type(error) is kind
    assert error.exit_code == (1 if kind is RefusedBundleError else 2)


@pytest.mark.parametrize(
    "address", ["lab.example", "ftp://lab.example", "http://lab.example", "http://["]
)
def test_invalid_address_or_address_without_tls_is_refused(address, monkeypatch):
    monkeypatch.setenv("TRAINMARK_TOKEN", "secret")
    with pytest.raises(UsageError, match="not a valid server address"):
        open_client(address)
    open_client("http://[::1]:8722")  # this machine needs no TLS


def test_client_without_a_token_is_refused(monkeypatch):
    # The token of a server is read from this variable.
    monkeypatch.delenv("TRAINMARK_TOKEN", raising=False)
    with pytest.raises(UsageError, match="no token"):
        open_client("https://lab.example")


def test_token_that_no_header_can_carry_is_refused(monkeypatch):
    for token in ("tökén", "first\nsecond"):
        monkeypatch.setenv("TRAINMARK_TOKEN", token)
        with pytest.raises(UsageError, match="TRAINMARK_TOKEN"):
            open_client("https://lab.example")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a server of an empty store, with a token that may upload, and stop it in the end."""
    started = Server(tmp_path_factory.mktemp("served"))
    tokens = Tokens(started.folder / "runs")
    started.secret = tokens.create("lab")
    yield started
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait() == 0
    started.kill()  # it has ended: this reads the last of its output
    assert "Traceback" not in "".join(started.lines)


def run_program(monkeypatch, *args):
    """Run the program in this process; return its exit code."""
    monkeypatch.setattr("sys.argv", ["trainmark", *map(str, args)])
    with pytest.raises(SystemExit) as ending:
        main()
    return int(ending.value.code or 0)


def test_runs_and_bundles_are_sent_and_refused_ones_are_named(server, tmp_path, monkeypatch, capfd):
    # The server's store is empty at first. Two runs are valid; the third one is a bundle that is
    # cut off. ``run_program`` returns the exit code.
    monkeypatch.setenv("TRAINMARK_TOKEN", server.secret)
    runs = [
        write_recorded_run(tmp_path / "runs" / f"push-{number}", f"push-{number}")
        for number in (1, 2)
    ]
    altered = write_bundle(tmp_path, "push-3")
    altered.write_bytes(altered.read_bytes()[:-100])  # cut
    args = ("bundle", "--push", server.address, tmp_path / "runs", altered)
    assert run_program(monkeypatch, *args) == 1
    out, err = capfd.readouterr()
    # stdout has the address of the page of each run that was stored.
    pages = out.split()
    assert all(f"/runs/{path.name}" in page for path, page in zip(runs, pages, strict=True))
    assert err.count(str(altered)) == 1
    answer = httpx2.get(f"{server.address}health")
    assert answer.json() == {"status": "ok", "results": 2}
    # In every answer the server forbids scripts that are not its own files.
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_invalid_token_exits_with_2_before_the_bundle_is_sent(server, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TRAINMARK_TOKEN", "wrong")
    large_file = tmp_path / "large.trainmark.zip"
    with large_file.open("wb") as large:
        large.truncate(100 << 20)  # 100 MiB: the answer comes while most of it is unsent
    # How many bytes of each request's body were sent. ``content`` is the open file, or b"" if
    # there is no body; its position says how far it was read for sending.
    sent_bytes = []
    post = httpx2.Client.post

    def post_and_note(client, url, *, content):
        try:
            return post(client, url, content=content)
        finally:
            sent_bytes.append(content.tell() if content else 0)

    monkeypatch.setattr(httpx2.Client, "post", post_and_note)
    assert run_program(monkeypatch, "bundle", "--push", server.address, large_file) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "401" in err
    assert sent_bytes
    assert sum(sent_bytes) < 100 << 20
    assert "Traceback" not in err


def test_unauthorized_or_too_large_upload_is_refused_before_its_body_is_read(server):
    # Without a token the answer is 401; with a valid one it is 413, as a bundle may have 256 MiB.
    for secret, status in (("", 401), (server.secret, 413)):
        head = "POST /api/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/zip\r\n"
        # A PB of content is announced, and nothing of it is sent.
        head += f"Content-Length: {10**15}\r\nAuthorization: Bearer {secret}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
            connection.sendall(head.encode())
            # The server closes the connection: it must not read the body as the next request.
            with connection.makefile("rb") as stream:
                answer = stream.read()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_token_command_creates_tokens(tmp_path, monkeypatch, capfd):
    # The token is called "a"; ``tmp_path`` is the store. ``run_program`` returns the exit code.
    assert run_program(monkeypatch, "serve", "token", "a", "--store", tmp_path) == 0
    out, err = capfd.readouterr()
    assert out.startswith("trainmark_")
    assert str(tmp_path / ".serve" / "tokens") in err
    # A store that does not exist.
    assert run_program(monkeypatch, "serve", "token", "a", "--store", tmp_path / "nothing") == 2


def test_token_is_saved_in_the_named_store(tmp_path, monkeypatch, capfd):
    # ``runs`` is the store if none is named. "lab" and "x" are names of tokens; ``read_hashes``
    # returns the tokens' hashes by name. ``run_program`` returns the exit code.
    store, runs = tmp_path / "srv", tmp_path / "runs"
    for folder in (store, runs):
        folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert run_program(monkeypatch, "serve", "--store", "srv", "token", "lab") == 0
    assert list(Tokens(store).read_hashes()) == ["lab"]
    assert list(runs.iterdir()) == []
    capfd.readouterr()
    # The store is named twice, and not the same one.
    assert run_program(monkeypatch, "serve", "--store", "srv", "token", "x", "--store", "runs") == 2
    assert "the server uses srv, but the token is for runs" in capfd.readouterr().err
    assert list(Tokens(store).read_hashes()) == ["lab"]
