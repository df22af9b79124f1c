"""Vendors' tools are run within bounds, and what they print is read or refused."""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING

import pytest

from trainmark.devices import tool
from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tool_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder whose tools are found before those of the system."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


def write_tool(folder: Path, text: str, name: str = "vendor-smi") -> Path:
    """Write a tool that is a shell script with this text; return its path."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def read_fault(*argv: str, timeout_s: float = 5.0) -> MonitorFault:
    """Return the fault with which running a tool ends.

    A ``MonitorFault`` has a ``kind`` ("absent", "failed", "hung", "unreadable") and a text.

    Args:
        argv: name and arguments of the tool.
        timeout_s: how long it may take; then it is killed as "hung".
    """
    with pytest.raises(MonitorFault) as caught:
        tool.run_tool(argv, timeout_s=timeout_s)
    return caught.value


def test_tool_runs_in_the_c_locale(tool_folder: Path) -> None:
    write_tool(tool_folder, 'echo "$LC_ALL $1"; echo warning >&2')
    assert tool.run_tool(["vendor-smi", "-q"]) == "C -q\n"


def test_a_tool_in_the_vendors_folder_is_found(tool_folder: Path) -> None:
    # ``tool_folder`` is on the path, but not the folder in it. A tool is searched on the path, and
    # in the ``folders`` that are named, where the vendor's driver puts it.
    folder = tool_folder / "opt"
    folder.mkdir()
    file = write_tool(folder, "echo here", "hidden-smi")
    assert tool.find_tool("hidden-smi", folders=[str(folder)]) == str(file)
    assert tool.run_tool([str(file)]) == "here\n"
    with pytest.raises(MonitorFault) as caught:
        tool.find_tool("hidden-smi")
    assert caught.value.kind == "absent"


def test_a_tool_that_fails_or_is_missing_is_a_fault(tool_folder: Path) -> None:
    # ``write_tool`` writes a script "vendor-smi" into ``tool_folder``, which is searched first for
    # tools. ``read_fault`` runs the tool and returns its error.
    assert read_fault("vendor-smi").kind == "absent"
    write_tool(tool_folder, "echo 'no permission' >&2; exit 1")
    error = read_fault("vendor-smi")
    assert error.kind == "failed"
    assert "no permission" in error.text


@pytest.mark.skipif(sys.platform != "linux", reason="epoll")
@pytest.mark.parametrize("then", ["wait", "echo done"])
def test_a_hanging_tool_is_killed_with_its_children(tool_folder: Path, then: str) -> None:
    """The tool waits for its child, or ends and leaves it with the tool's output still open."""
    pipe_path = tool_folder / "held"
    os.mkfifo(pipe_path)
    reading_end = os.open(pipe_path, os.O_RDONLY | os.O_NONBLOCK)
    write_tool(tool_folder, f"sleep 600 9> {pipe_path} & {then}")  # the child holds the pipe open
    assert read_fault("vendor-smi", timeout_s=0.3).kind == "hung"
    # The pipe ends, and so can be read, when the last process that may write to it is gone.
    with select.epoll() as poll:
        poll.register(reading_end, select.EPOLLHUP)
        assert poll.poll(30.0)
    os.close(reading_end)


def test_a_monitor_without_devices_is_unreadable(tool_folder: Path) -> None:
    # The tool is a script, "vendor-smi", in ``tool_folder``, which is searched first for tools.
    write_tool(tool_folder, "echo nothing")
    # A ``Command`` is a tool's command line and the function that reads its output, which here
    # finds no device in any text.
    monitor = tool.ToolMonitor(tool.Command(("vendor-smi",), lambda text: []))
    assert monitor.name == "vendor-smi"
    with pytest.raises(MonitorFault) as caught:
        monitor.read()
    assert caught.value.kind == "unreadable"
    # The same output with a reader that finds a device in it.
    command = tool.Command(("vendor-smi",), lambda text: [DeviceSample(index=0, name=text)])
    monitor = tool.ToolMonitor(command)
    assert monitor.read() == [DeviceSample(index=0, name="nothing\n")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("45.5 W", 45.5),
        ("45.5W", 45.5),
        ("97%", 97.0),
        (" 1e3", 1000.0),
        (12, 12.0),
        (0.5, 0.5),
        ("N/A", None),
        ("", None),
        (None, None),
        (True, None),
        ("-3", None),
        ("9" * 400, None),
        (10**400, None),
        (float("nan"), None),
        (float("inf"), None),
        ([1], None),
        ({}, None),
        (18446744073709551615, None),  # 2**64 - 1: how tools write that a value is not known
    ],
)
def test_numbers_are_read_or_unknown(text: object, value: float | None) -> None:
    assert tool.parse_number(text) == value


def test_readings_outside_of_their_bounds_are_unknown() -> None:
    """Tools write 65535 and the like for a value that they do not know.

    Bounds are 100%, 10,000 W, 20,000 MHz, -60 to 250 degrees and 1e15 bytes; ``unit`` is that of a
    number without one. Tools mean 2 ** 20 bytes by MB and 2 ** 30 by GB. A list is no number.
    """
    assert tool.percent("100") == 100.0
    assert tool.percent("101") is None
    assert (tool.watts("700 W"), tool.watts("65535W")) == (700.0, None)
    assert (tool.megahertz("1980MHz"), tool.megahertz("65535")) == (1980.0, None)
    assert tool.temperature_c("-5 C") == -5.0
    assert tool.temperature_c("65535") is None
    assert tool.size_bytes("81559 MiB") == 81559 << 20
    assert tool.size_bytes("64GB") == 64 << 30
    assert tool.size_bytes("16", unit="m") == 16 << 20
    assert tool.size_bytes(1024) == 1024
    assert tool.size_bytes("9" * 30) is None
    assert tool.size_bytes(["16"]) is None


def test_json_is_found_after_warnings() -> None:
    assert tool.parse_json("WARNING: old\n\n[{}]\n") == [{}]
    assert tool.parse_json('[WARN] old\n{"a": 1}\nbye') == {"a": 1}
    for text in ("", '{"a"'):
        with pytest.raises(MonitorFault, match="unreadable"):
            tool.parse_json(text)
