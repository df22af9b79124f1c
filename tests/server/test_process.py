"""The server as a process: it starts, says where it is, ends in order."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from run_fixtures import signals_as_usual  # noqa: F401 - a fixture
from store_bodies import document, write
from trainmark.server import running

# A server one of whose answers is written when a pipe is read.
SLOW = Path(__file__).with_name("slow_server.py")


@pytest.fixture
def serve(tmp_path):
    """Start a server on a free port; return the process and the address it prints."""
    processes = []

    def start(*words, program=("-m", "trainmark", "serve")):
        process = subprocess.Popen(
            [sys.executable, *program, "--port", "0", *map(str, words)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        return process, process.stdout.readline().strip()

    (tmp_path / "runs").mkdir()
    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_it_serves_its_store_and_ends_with_0_on_sigterm(serve, tmp_path):
    write(tmp_path / "runs" / "a", document("a"))
    process, address = serve()
    assert httpx2.get(f"{address}health").json() == {"status": "ok", "runs": 1}
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert '"GET /health" 200' in said
    assert "Traceback" not in said


def test_a_request_that_runs_at_sigint_is_answered_before_the_end(serve, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    process, address = serve(tmp_path / "fifo", program=(SLOW,))
    answers = []
    thread = threading.Thread(target=lambda: answers.append(httpx2.get(f"{address}slow")))
    thread.start()
    with (tmp_path / "fifo").open("w") as fifo:  # opens when the request reads
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        fifo.write("whole")
    thread.join(60)
    assert answers[0].text == "whole"
    assert process.wait(60) == 0


def test_a_port_in_use_is_told_plainly(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process, address = serve("--port", taken.getsockname()[1])
        _, said = process.communicate(timeout=60)
    assert (process.returncode, address) == (2, "")
    assert "the port is in use" in said
    assert "Traceback" not in said


def test_a_database_whose_driver_is_missing_is_told_plainly(serve, tmp_path):
    hidden = "import sys; sys.modules['psycopg'] = None; sys.argv[0] = 'trainmark'; " \
        "from trainmark.cli.app import main; main()"  # fmt: skip
    words = ("-c", hidden, "serve", "--store", "postgresql://team@127.0.0.1/results")
    process, _ = serve(program=words)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "trainmark[postgres]" in said
    assert "Traceback" not in said


def test_a_client_that_never_ends_its_head_is_hung_up_on(serve, tmp_path):
    process, address = serve(tmp_path / "none", program=(SLOW,))
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert slow.recv(1) == b""  # the time for a head is short in this server
    assert process.poll() is None
    assert httpx2.get(f"{address}health").status_code == 200


def test_a_client_that_never_ends_a_body_that_nobody_reads_is_hung_up_on(serve, tmp_path):
    _, address = serve(tmp_path / "none", program=(SLOW,))
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        said = b""
        while not said.endswith(b"}"):
            said += slow.recv(1 << 16)
        slow.sendall(b"x")  # late: the answer is whole
        assert slow.recv(1) == b""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has this")
def test_a_client_that_reads_nothing_of_its_answer_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(running, "_UNREAD_S", 1)
    with (
        running.bound("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        connection.settimeout(60)
        with pytest.raises(TimeoutError) as caught:
            connection.sendall(bytes(64 << 20))  # more than the buffers of both sides hold
    assert caught.value.errno == errno.ETIMEDOUT  # the system's, not this test's own


@pytest.mark.parametrize(
    ("words", "client"),
    [((), "127.0.0.1"), (("--behind-proxy", "127.0.0.1"), "203.0.113.9"),
     (("--behind-proxy", "10.1.1.1"), "127.0.0.1")],
)  # fmt: skip
def test_only_the_named_proxy_says_whom_a_request_comes_from(serve, words, client):
    process, address = serve(*words)
    httpx2.get(f"{address}health", headers={"X-Forwarded-For": "198.51.100.7, 203.0.113.9"})
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert f' {client} "GET /health" 200' in said


def test_readers_tokens_without_a_folder_are_told_at_the_start(serve, tmp_path):
    process, _ = serve("--store", f"sqlite:///{tmp_path}/x.sqlite", "--read", "token")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--data" in said
