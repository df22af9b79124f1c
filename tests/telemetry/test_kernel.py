"""The kernel's messages about devices: which count, from where, and what if none can be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import S, make_event
from support.telemetry_files import make_end_line, make_start_line, write_sampled_run
from trainmark.protocols import MonitorFault
from trainmark.record import reduce
from trainmark.results.redaction import Redactor
from trainmark.spec import message
from trainmark.telemetry import kernel
from trainmark.telemetry.kernel import DmesgSource, KernelReader, KmsgSource, classify_message

if TYPE_CHECKING:
    from collections.abc import Iterator

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
MCE = "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 4: b200000000100402"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (XID, "xid"),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "nvidia"),
        ("amdgpu 0000:83:00.0: amdgpu: ring sdma0 timeout, signaled seq=4", "amdgpu"),
        ("amdgpu 0000:83:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc", "amdgpu"),
        (MCE, "mce"),
        (
            "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1",
            "hardware_error",
        ),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1", "hardware_error"),
        ("pcieport 0000:00:1c.0: AER: Corrected error received: 0000:00:1c.0", "pcie"),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06", None),
        ("mce: CPU supports 22 MCE banks", None),
        ("usb 1-1: new high-speed USB device number 2", None),
        ("Out of memory: Killed process 4711 (python3)", None),
    ],
)
def test_messages_about_devices_have_a_kind(text: str, kind: str | None) -> None:
    assert classify_message(text) == kind


def test_kmsg_yields_messages_written_after_opening(tmp_path: Path) -> None:
    # A pipe answers as /dev/kmsg does: a record a read, and nothing to wait for at its end.
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    source = KmsgSource(path)
    assert list(source.read()) == []
    writer = os.open(path, os.O_WRONLY)

    # Priority, number, time and flags precede the text; a line of properties follows it. ``XID`` is
    # the text of a message about a failed device.
    os.write(writer, f"3,1421,5013256,-;{XID}\n SUBSYSTEM=pci\n".encode())

    assert list(source.read()) == [XID]
    assert list(source.read()) == []
    os.close(writer)


def test_missing_message_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(MonitorFault) as caught:
        KmsgSource(tmp_path / "kmsg")
    assert caught.value.kind == "absent"


def test_message_file_that_cannot_be_read_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder can be opened like a file, but not read.
    # ``KMSG`` is the path of the kernel's messages; what cannot read it falls back to dmesg.
    monkeypatch.setattr(kernel, "KMSG", tmp_path)
    monkeypatch.setattr(kernel, "DmesgSource", lambda: "dmesg")
    descriptors = Path("/proc/self/fd")
    open_before = sorted(descriptors.iterdir())

    assert kernel.open_source() == "dmesg"

    assert sorted(descriptors.iterdir()) == open_before


def test_dmesg_yields_messages_newer_than_its_first_output() -> None:
    # ``printed[0]`` is the whole output of the tool dmesg, which has all messages at each call.
    printed = ["[    1.000000] old\n[    2.500000] also old\n"]
    source = DmesgSource(lambda _: printed[0])
    assert list(source.read()) == []

    # A line without a time is part of the message before it. ``XID`` is a message's text.
    printed[0] += f"[   10.250000] {XID}\ncontinuation\n"

    assert list(source.read()) == [XID]
    assert list(source.read()) == []  # each message once


class FakeSource:
    """A kernel's log, each reading of which yields the next one of given lists of messages."""

    name = "fake kmsg"

    def __init__(self, *readings: list[str]) -> None:
        self.readings = list(readings)

    def read(self) -> Iterator[str]:
        yield from self.readings.pop(0)


def test_reader_writes_each_kind_once_per_reading_with_its_first_message() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    # ``XID`` is a message of a graphics driver, with the error number 79, replaced by 48 in one;
    # ``MCE`` is one of a processor. Their kinds are ``xid`` and ``mce``. That of ``usb`` has none.
    # Three readings: two messages of one kind, one of another and one of none; nothing; one
    # message.
    source = FakeSource([XID, "usb 1-1: new device", XID.replace("79", "48"), MCE], [], [XID])
    reader = KernelReader(lambda name, **fields: events.append((name, fields)), lambda: source)

    for _ in range(3):
        reader.take()

    assert events == [
        ("kernel_log", {"source": "fake kmsg"}),
        ("kernel", {"kind": "xid", "count": 2, "kernel_text": XID}),
        ("kernel", {"kind": "mce", "count": 1, "kernel_text": MCE}),
        ("kernel", {"kind": "xid", "count": 1, "kernel_text": XID}),
    ]


def test_messages_before_a_failing_read_are_written() -> None:
    # ``XID`` is a message of a graphics driver, of the kind ``xid``.
    class FailingSource:
        name = "fake kmsg"

        def read(self) -> Iterator[str]:
            yield XID
            raise MonitorFault("failed", "Input/output error")

    events: list[tuple[str, dict[str, Any]]] = []
    reader = KernelReader(lambda name, **fields: events.append((name, fields)), FailingSource)

    with pytest.raises(MonitorFault, match="Input/output error"):
        reader.take()

    # An event before it names the source.
    assert events[-1] == ("kernel", {"kind": "xid", "count": 1, "kernel_text": XID})


def test_unreadable_log_is_one_fault() -> None:
    def refuse() -> FakeSource:
        raise MonitorFault("absent", "Operation not permitted")

    reader = KernelReader(lambda *_: pytest.fail("nothing is written"), refuse)

    # The first reading raises the fault; the first argument above would fail at an event.
    with pytest.raises(MonitorFault):
        reader.take()
    reader.take()  # reads nothing more, without an error


def make_kernel_line(t_s: float, kind: str, count: int, text: str) -> dict[str, Any]:
    """Return the event of a reading of the kernel's log that found messages of a kind.

    Args:
        t_s: when, in seconds since the launch.
        kind: such as "xid", which a graphics driver reports.
        count: messages of the kind since the reading before.
        text: of the first of them.
    """
    return make_event("kernel", round(t_s * S), kind=kind, count=count, kernel_text=text)


def test_messages_during_a_run_are_a_finding_with_count_and_first_message(tmp_path: Path) -> None:
    # ``XID`` and ``MCE`` are texts of messages of a graphics driver and of a processor. The events
    # below are of the run's seconds 3, 4 and 8, and count the messages of each kind.
    opened = make_event("kernel_log", 0, source="/dev/kmsg")
    samples = [
        make_start_line(0),
        opened,
        make_kernel_line(3.0, "xid", count=2, text=XID),
        make_kernel_line(4.0, "mce", count=1, text=MCE),
        make_kernel_line(8.0, "xid", count=3, text="later"),
        make_end_line(),
    ]

    record = reduce.reduce(write_sampled_run(tmp_path / "run", samples))

    assert record.telemetry is not None
    assert record.telemetry.kernel is not None
    assert record.telemetry.kernel.model_dump() == {
        "source": "/dev/kmsg",
        "reason": None,
        "messages": [
            {"node": 0, "kind": "xid", "count": 5, "kernel_text": XID},  # 2 + 3; the first text
            {"node": 0, "kind": "mce", "count": 1, "kernel_text": MCE},
        ],
    }
    (finding,) = (item for item in record.findings if item.code == "kernel_messages")
    # 5 + 1 messages, and the first of them all.
    assert finding.args == {"count": 6, "kinds": "xid, mce", "node": 0, "kernel_text": XID}
    assert finding in record.trust.reasons  # and a reason of doubt


def test_unreadable_log_is_null_with_a_reason_and_no_finding(tmp_path: Path) -> None:
    # A telemetry file of a run: its first and its last line, and what went wrong at 0 s.
    fault = make_event("fault", 0, source="kernel", kind="absent", text="/dev/kmsg: not permitted")

    record = reduce.reduce(
        write_sampled_run(tmp_path / "run", [make_start_line(0), fault, make_end_line()])
    )

    assert record.telemetry is not None
    log = record.telemetry.kernel
    assert log is not None
    # The log of the kernel could not be opened; what the record says of it in place of messages.
    assert (log.source, log.messages) == (None, [])
    assert log.reason == message("kernel_log_unreadable", text="/dev/kmsg: not permitted")
    assert not [
        finding for finding in record.findings if finding.code.startswith(("kernel", "source"))
    ]


def test_addresses_and_process_ids_are_removed_from_messages() -> None:
    # By text, what is left of it. ``XID`` is a driver's message with the address 0000:3b:00 of a
    # card, and the id and the name of a process.
    texts = {
        XID: "NVRM: Xid (PCI:<address>): 79, pid=<process>, name=<process>, "
        "GPU has fallen off the bus.",
        "amdgpu 0000:83:00.0: amdgpu: Process python3 pid 42 thread python3 pid 42": "amdgpu "
        "<address>: amdgpu: Process <process> thread <process>",
        "mce: [Hardware Error]: TSC 0 ADDR 1fe3c40 MISC d012000101": "mce: [Hardware Error]: TSC 0 "
        "ADDR <address> MISC <address>",
    }
    for text, expected in texts.items():
        # ``Redactor`` removes what identifies a machine from a record that is to be published.
        redacted = Redactor().redact_document({"args": {"kernel_text": text}})
        assert redacted["args"]["kernel_text"] == expected
        assert Redactor().redact_document(redacted) == redacted
