"""Every check is made within bounds, and none can end the program."""

from __future__ import annotations

import threading
from dataclasses import asdict

import pytest

from machines import Card, machine
from trainmark import devices as registry
from trainmark.check.doctor import examination
from trainmark.check.doctor.examination import CHECKS, SLOW, examine, subject_of
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.protocols import Condition

# Scripts compare codes: one that is renamed or dropped is a change for users.
CODES = [
    "memory", "swap", "cores", "governor", "shared_memory", "open_files", "device", "ports",
    "threads", "strays", "packages", "package_pairs", "load", "out_folder", "data_folder",
    "host_name", "precisions", "numa", "occupants", "device_state", "monitor", "driver", "data",
    "out_speed", "data_speed", "torch",
]  # fmt: skip


def of(severity: str, what: str = "found"):
    def check(subject):
        yield Condition("", severity, what, "" if severity == "fine" else "do this")

    check.__module__ = "trainmark.check.doctor.host"
    return check


def test_the_codes_are_stable():
    assert [check.__name__ for check in (*CHECKS, *SLOW)] == CODES


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ((), 0), (("fine",), 0), (("fine", "unknown"), 0), (("spoils", "fine"), 1),
        (("unknown", "spoils"), 1), (("stops", "spoils"), 2), (("fine", "stops"), 2),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_worst(tmp_path, severities, code):
    found = examine(machine(tmp_path), [of(severity) for severity in severities])
    assert found.exit_code == code
    assert [one.severity for one in found.checks] == list(severities)


def test_a_document_has_everything(tmp_path):
    found = examine(machine(tmp_path, quick=True), [of("spoils", "7 of 9"), *SLOW])
    assert asdict(found) == {
        "schema_version": 1,
        "device": "fake",
        "nproc": 2,
        "exit_code": 1,
        "checks": [
            {"group": "host", "code": "check", "severity": "spoils", "what": "7 of 9",
             "remedy": "do this"}
        ],
        "left_out": ["out_speed", "data_speed", "torch"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        ValueError("odd"), PermissionError(13, "Permission denied", "/sys/x"), SystemExit(3),
        EnvironmentFault("no library"),
    ],
)  # fmt: skip
def test_a_check_that_fails_is_unknown_and_keeps_what_it_found(tmp_path, error):
    def check(subject):
        yield Condition("", "spoils", "before", "do this")
        raise error

    found = examine(machine(tmp_path), [check, of("fine")])
    assert [one.severity for one in found.checks] == ["spoils", "unknown", "fine"]
    assert all(one.remedy for one in found.checks if one.severity != "fine")
    said = found.checks[1].what
    assert str(error).splitlines()[0] in said


def test_a_check_that_hangs_is_unknown_and_the_rest_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(examination, "_CHECK_S", 0.01)

    def hangs(subject):
        yield Condition("", "fine", "before")
        threading.Event().wait()

    found = examine(machine(tmp_path), [hangs, of("spoils")])
    assert [one.severity for one in found.checks] == ["fine", "unknown", "spoils"]
    assert found.checks[1].code == "hangs"
    assert "no answer in" in found.checks[1].what


def test_time_that_is_up_leaves_the_rest_unknown_and_says_so(tmp_path):
    found = examine(machine(tmp_path, end_s=0.0), [of("stops"), of("stops")])
    assert [one.severity for one in found.checks] == ["unknown", "unknown"]
    assert all("time ran out" in one.what for one in found.checks)


@pytest.fixture
def subject(tmp_path):
    """Return what the words of a command line mean."""

    def read(word=None, **given):
        words = {"recipe": None, "device": None, "nproc": None, "data": None, "quick": False}
        return subject_of(word, **(words | {"out": tmp_path} | given))

    return read


def test_the_ranks_are_those_of_the_case_or_of_the_devices(subject, monkeypatch):
    assert subject(device="cpu").nproc == 1
    assert subject("toy", device="cpu", nproc=3).nproc == 3
    assert subject("toy:pytorch:cpu:1:2:1").nproc == 2
    assert subject("toy:pytorch:cpu:1:2:1").vendor.name == "cpu"
    monkeypatch.setattr(registry, "all_vendors", lambda: {"fake": Card(devices=8)})
    found = subject()
    assert (found.vendor.name, found.nproc) == ("fake", 8)


def test_a_device_that_is_not_here_is_a_finding_and_an_unknown_one_is_not(subject, monkeypatch):
    monkeypatch.setattr(registry, "all_vendors", lambda: {"fake": Card(devices=0)})
    found = subject(device="fake")
    assert (found.vendor, found.nproc) == (None, 1)
    assert found.fault.where == "--device"
    with pytest.raises(UsageError):
        subject(device="fkae")
    with pytest.raises(UsageError):
        subject("no_such_case")
    with pytest.raises(UsageError):
        subject(recipe="tiny")


def test_a_vendor_that_cannot_count_is_a_finding(subject, monkeypatch):
    class Broken(Card):
        def count(self):
            raise OverflowError("of cards")

    monkeypatch.setattr(registry, "all_vendors", lambda: {"fake": Broken()})
    found = subject(device="fake")
    assert (found.vendor, found.nproc) == (None, 1)
    assert "fake" in found.fault.what
    assert "OverflowError: of cards" in found.fault.what


def test_a_driver_that_does_not_answer_is_a_finding(subject, monkeypatch):
    monkeypatch.setattr(examination, "_CHOICE_S", 0.01)
    monkeypatch.setattr(examination, "choose", lambda _: threading.Event().wait())
    found = subject(device="fake")
    assert found.vendor is None
    assert "no answer in" in found.fault.what
