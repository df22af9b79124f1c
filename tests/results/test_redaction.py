"""Redaction: secrets, persons, hosts and paths are replaced, nothing else."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.results.redaction import Redactor


@pytest.fixture
def redactor(monkeypatch) -> Redactor:
    return make_redactor(monkeypatch, user="alice", host="node-07.cluster.example")


def make_redactor(monkeypatch, *, user="alice", host="node-07.cluster.example") -> Redactor:
    """Return a redactor for a run in ``/mnt/runs/r1`` with its data in ``/data``."""
    monkeypatch.setattr(getpass, "getuser", lambda: user)
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setenv("HOME", "/home/alice")
    return Redactor((Path("/mnt/runs/r1"), "<run>"), (Path("/data"), "<data>"))


REPLACED = [
    ("login with hf_AbCdEfGh12345678 now", "login with <secret> now"),
    ("AKIAIOSFODNN7EXAMPLE in the log", "<secret> in the log"),
    ("Authorization: Bearer abc.def", "Authorization: Bearer <secret>"),
    ("password=hunter2 next", "password=<secret> next"),
    ("HF_TOKEN=hush WANDB_API_KEY=deadbeef x", "HF_TOKEN=<secret> WANDB_API_KEY=<secret> x"),
    ("--password hunter2 --steps 3", "--password <secret> --steps 3"),
    ("https://huggingface.co/x?sig=abc&y=1", "https://huggingface.co/x?sig=<secret>&y=1"),
    ("https://user:p@ss@github.com/x.git", "https://<credentials>@github.com/x.git"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- end", "<secret> end"),
    ("git@github.com:x/y.git", "<email>:x/y.git"),
    ("ann@b.xn--p1ai", "<email>"), ("ann@b.de.bob@c.de", "<email>"),
    ("ann@node1.b@node2", "<user>@<host>"),
    ("ssh bob@node17 failed", "ssh <user>@<host> failed"),
    ("failed to connect to [node17.cluster.local]:29500", "failed to connect to [<host>]:29500"),
    ("http://127.node.corp.internal:80/x", "http://<host>"),
    ("node17:1234:1300 [0] NCCL INFO Bootstrap", "<host>:1234:1300 [0] NCCL INFO Bootstrap"),
    ("on node-07 and node-07.cluster.example", "on <host> and <host>"),
    ("connect to 4.1.2.3", "connect to <address>"),
    ("[10.0.0.4]:4567 and eth0:10.0.0.5<0>", "[<address>]:4567 and eth0:<address><0>"),
    ("fe80::1a2b:3c4d 02:42:ac:11:00:02", "<address> <address>"),
    ("/mnt/runs/r1/log.txt", "<run>/log.txt"),
    ("/home/alice/x in /home/bob/y", "~/x in <path>"),
    ("'/mnt/My Files/secret plan/x'", "'<path>'"),
    ('File "/srv/p/models/net.py", line 3', 'File "<path>/net.py", line 3'),
    ("LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
     "LD_PRELOAD=<path>/libjemalloc.so.2"),
    ("SLURM_JOB_NODELIST='gpu[01-04,07],x9'", "SLURM_JOB_NODELIST='<host>'"),
]  # fmt: skip

HARMLESS_TEXTS = [
    "driver 10.1.2.3",
    "libcudnn.so.8.9.7.29",
    "v12.4.5.6",
    "peer 127.0.0.1 and 0.0.0.0 and [::1]:29500 and localhost:29500",
    "c10::Error at::native::add x[1::2] 12:34:56",
    "5.2 samples/s, token/p/s, tokens: 512, and/or a / b",
    "eos_token=2 pad_token: None num_tokens=12 tokens=abc tokenizer=gpt2",
    "flops_per_token = 'auto' and --flops-per-token auto",
    "in hf_hub_download of hf_transfer and npm_config_cache, task-generation",
    "nvcr.io/nvidia/pytorch:25.06-py3 pytorch@sha256:0a1b2c3d pkg@v2",
]


def test_secrets_in_text_are_replaced(redactor):
    # ``REPLACED`` has pairs such as "password=hunter2 next", "password=<secret> next": texts with
    # tokens, addresses, or names of users, hosts and folders, and what must become of them. The
    # redactor belongs to the user alice on the host node-07.cluster.example, with a run in
    # /mnt/runs/r1.
    for text, clean in REPLACED:
        assert redactor.redact_text(text) == clean
        assert redactor.redact_text(clean) == clean  # a second time changes nothing


def test_text_similar_to_secrets_is_kept(redactor):
    for text in HARMLESS_TEXTS:
        assert redactor.redact_text(text) == text


def test_user_or_host_named_like_a_known_word_keeps_that_word(monkeypatch):
    # "train" is a word of the program. A value that is this single word stays, although a
    # user or host has the same name: otherwise files would become unreadable. ``kind`` has another
    # word of the program, which is nobody's name.
    word = "train"
    document = {"event": word, "name": word, "labels": [word], "kind": "error"}
    assert make_redactor(monkeypatch, user=word, host=word).redact_document(document) == document
    redactor = make_redactor(monkeypatch, user=word)
    # But if its key announces a user, and in longer text, it is replaced.
    redacted = redactor.redact_document({"user": word, "comment": f"by {word}"})
    assert redacted == {"user": "<user>", "comment": "by <user>"}


def test_documents_are_redacted_by_their_keys(redactor):
    # Neither ``gpuhost`` nor ``bob`` is known to the redactor: only their keys tell what they are.
    document = {
        "peer": "12.13.0.1",
        "hostname": "gpuhost",
        "hosts": ["gpuhost", "me@gpuhost:22"],
        "user": "bob",
        "wandb_api_key": "k",
        "token": "t",
        "developer_token": "t",
        "tokens": 5,
        "flops_per_token": "auto",
        "folder": "/mnt/My Files",
        "argv": ["run", "--password", "hunter2", "bs=3", "--data", "/data/x"],
        "nested": [{"message": "connect to 4.1.2.3"}],
        "none": None,
    }
    assert redactor.redact_document(document) == {
        "peer": "<address>",
        "hostname": "<host>",
        "hosts": ["<host>", "<host>"],
        "user": "<user>",
        "wandb_api_key": "<secret>",
        "token": "<secret>",
        "developer_token": "<secret>",
        "tokens": 5,
        "flops_per_token": "auto",
        "folder": "<path>",
        "argv": ["run", "--password", "<secret>", "bs=3", "--data", "<data>/x"],
        "nested": [{"message": "connect to <address>"}],
        "none": None,
    }
    # A second time changes nothing.
    once = redactor.redact_document(document)
    assert redactor.redact_document(once) == once


def test_innermost_folder_is_replaced_first(tmp_path):
    redactor = Redactor((tmp_path, "<data>"), (tmp_path / "runs" / "a", "<run>"))
    assert redactor.redact_text(f"{tmp_path}/runs/a/x {tmp_path}/b") == "<run>/x <data>/b"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--follow=mlflow=sqlite:////srv/bob/runs.db", "--follow=mlflow=sqlite:///<path>"),
        ("mlflow=sqlite:///runs.db", "mlflow=sqlite:///runs.db"),
        ("mlflow=file:/srv/bob/mlruns", "mlflow=file:<path>"),
        ("mlflow=http://bob:s3cret@tracker.lab.internal:5000/x", "mlflow=http://<host>"),
        ("openmetrics=/srv/bob/trainmark.prom", "openmetrics=<path>"),
    ],
)
def test_follower_destinations_in_a_command_are_redacted(argument, expected):
    assert Redactor().redact_text(argument) == expected


@pytest.mark.parametrize("unit", ["a", "a.", "1.", "eyJ-", "a1a", "0:"])
def test_redaction_time_is_linear_in_word_length(unit):
    text = unit * 200_000  # a quadratic pattern would take an hour
    assert Redactor().redact_text(text) == text


def test_redaction_time_is_linear_in_number_of_addresses():
    assert Redactor().redact_text("a@b.cc." * 200_000) == "<email>."


_LABEL = st.from_regex(r"[a-z][a-z0-9]{2,8}", fullmatch=True)
_PLACES = st.lists(_LABEL, min_size=2, max_size=5).map(lambda names: "/" + "/".join(names))
_PRIVATE = (
    st.ip_addresses(v=4).map(str).filter(lambda text: not text.startswith(("127.", "0.", "255.")))
)
_WORDS = st.sampled_from(
    ["loss", "step 3,", "failed:", "(errno: 111)", '"x"', "'", "a=1", "50%", "<run>", "::", "[0]",
     "torch", "4.1.2.3", "token", "host", "@", "/", "//", "http://", "\n", "é中", "password"]
)  # fmt: skip


@given(
    st.lists(st.one_of(_WORDS, _PLACES, _PRIVATE, _LABEL, st.emails()), max_size=12),
    st.sampled_from([" ", "", ": ", "="]),
)
def test_redacting_twice_changes_nothing(parts, between):
    # ``parts``: harmless words and signs, paths of folders, IPv4 addresses, lower-case names and
    # e-mail addresses in random order. What was redacted has marks such as <path>, which must not
    # be replaced again.
    redactor = Redactor((Path("/data"), "<data>"))
    text = between.join(parts)
    once = redactor.redact_text(text)
    assert redactor.redact_text(once) == once
    document = {"message": text, "peer": [text]}
    assert redactor.redact_document(redactor.redact_document(document)) == redactor.redact_document(
        document
    )
