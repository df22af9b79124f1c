"""Readers and uploaders at a server that is killed once: nothing acknowledged is lost."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import threading
import time
from contextlib import closing
from hashlib import sha256

import httpx2
import pytest

from bundles import packed
from server_process import Server
from trainmark.server.client import Client
from trainmark.server.tokens import Tokens

# What `make test-engines` installs; without it, the short variant is enough.
LONG = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="a minute: make test-engines"
)


PAUSE_S = 0.5  # in which a reader reads


class Load:
    """Threads that read from a server and upload to it until they are told to end."""

    def __init__(self, server, files):
        self.server, self.files = server, itertools.cycle(files)
        self.secret = Tokens(server.folder / "runs").make("load", ["upload"])
        self.stored, self.faults, self.answered = {}, [], 0
        self.down, self.lock, self.half = [], threading.Lock(), len(files) // 2
        self.ended, self.half_stored = threading.Event(), threading.Event()

    def read(self, number):
        """Ask for pages one after another; every run that was acknowledged is there."""
        with httpx2.Client(base_url=self.server.address, timeout=60) as http:
            turn = number
            while not self.ended.wait(PAUSE_S):
                turn += 1
                paths = ["health", "api/runs?limit=20", "", "api/runs?filter=case%3Dtoy", "metrics"]
                with self.lock:
                    known = [run_id for stored in self.stored.values() for run_id in stored.runs]
                if known:
                    run_id = known[turn % len(known)].run_id
                    paths += [f"api/runs/{run_id}/bundle", f"runs/{run_id}"]
                self.ask(http, paths[turn % len(paths)])

    def ask(self, http, path):
        began = time.monotonic()
        try:
            status = http.get(path).status_code
        except httpx2.TransportError as error:
            status = repr(error)
        ended = time.monotonic()
        with self.lock:
            self.answered += status == 200
            if status != 200:
                self.faults.append((began, ended, path, status))

    def upload(self):
        """Send bundles, each more than once, as `trainmark push` does."""
        with closing(Client(self.server.address, self.secret, sleep=self.ended.wait)) as client:
            while not self.ended.is_set():
                with self.lock:
                    file = next(self.files)
                stored = client.send(file)
                with self.lock:
                    assert self.stored.setdefault(file, stored) == stored
                    if len(self.stored) >= self.half:
                        self.half_stored.set()

    def run(self, readers, uploaders, seconds):
        failed = []

        def kept(work, *words):
            try:
                work(*words)
            except BaseException as error:
                failed.append(error)
                self.ended.set()
                raise

        threads = [threading.Thread(target=kept, args=(self.read, n)) for n in range(readers)]
        threads += [threading.Thread(target=kept, args=(self.upload,)) for _ in range(uploaders)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        self.half_stored.wait(10 * seconds)  # the other uploaders are amid the next ones
        self.down = [time.monotonic()]
        self.server.kill()
        self.server.start()
        self.down.append(time.monotonic())
        self.ended.wait(max(end - time.monotonic(), seconds / 2))
        self.ended.set()
        for thread in threads:
            thread.join()
        assert failed == []

    def faults_while_up(self):
        first, last = self.down
        return [fault for fault in self.faults if fault[1] < first or fault[0] > last]


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("readers", "uploaders", "bundles", "seconds"),
    [(8, 3, 6, 6), pytest.param(50, 8, 24, 60, marks=LONG)],
)
def test_nothing_acknowledged_is_lost_and_no_reader_sees_a_fault(
    tmp_path, readers, uploaders, bundles, seconds
):
    files = [packed(tmp_path / str(n), f"load-{n}") for n in range(bundles)]
    server = Server(tmp_path, "--rate", "0")
    try:
        load = Load(server, files)
        load.run(readers, uploaders, seconds)
        assert load.faults_while_up() == []
        assert load.answered > readers
        assert len(load.stored) > load.half
        runs = httpx2.get(f"{server.address}api/runs?limit=1000", timeout=60).json()["runs"]
        listed = [run["run_id"] for run in runs]
        assert len(listed) == len(set(listed))
        for file, stored in load.stored.items():
            assert stored.digest == sha256(file.read_bytes()).hexdigest()
            (run,) = stored.runs
            assert run.run_id in listed
            place = f"{server.address}api/runs/{run.run_id}/bundle"
            assert httpx2.get(place, timeout=60).content == file.read_bytes()
    finally:
        server.kill()
    kept = tmp_path / "runs" / ".serve"
    assert not [line for line in server.said if "Traceback" in line]
    log = [json.loads(line) for line in (kept / "changes.jsonl").read_text().splitlines()]
    done = {line["digest"] for line in log if line["result"] == "stored"}
    assert {stored.digest for stored in load.stored.values()} <= done
    words = [sys.executable, "-m", "trainmark", "results", "rebuild"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    words[-1:] = ["--json", "--limit", "0"]
    again = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True).stdout
    assert sorted(run["run_id"] for run in json.loads(again)["runs"]) == sorted(listed)
