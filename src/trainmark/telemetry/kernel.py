"""Read the kernel's messages about faults of accelerators, memory, processors and buses.

Only messages that are written after the log was opened count. If this user may not read the log,
that is reported, and never makes a run fail.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainmark.devices import tool
from trainmark.protocols import MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KMSG = Path("/dev/kmsg")
DMESG_COMMAND = ("dmesg",)
_MAX_RECORD_BYTES = 8192  # https://docs.kernel.org/admin-guide/abi.html, /dev/kmsg, 2026-11-28
_MAX_TEXT_LENGTH = 500
# Kinds of messages in the order in which a message is compared with them: the first one counts.
# https://docs.nvidia.com/deploy/xid-errors/, https://docs.kernel.org/gpu/amdgpu/ras.html,
# https://docs.kernel.org/arch/x86/x86_64/machinecheck.html,
# https://docs.kernel.org/PCI/pcieaer-howto.html, 2026-11-28
_PATTERNS = {
    "xid": r"NVRM: Xid\b",
    "nvidia": r"NVRM: .*(?:error|fail|fault|fallen off|uncorrectable|uncorrected)",
    "amdgpu": r"amdgpu\b.*(?:error|fail|fault|hang|reset|timeout|timed out|uncorrectable|poison)",
    "mce": r"\bmce: |machine check",
    "hardware_error": r"\[Hardware Error\]|Hardware error from APEI|EDAC .*\b[CU]E\b",
    "pcie": r"PCIe Bus Error|AER: .*error",
}
_KINDS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _PATTERNS.items()}
# Printed while a driver is loaded, without any fault.
_HARMLESS = re.compile(
    r"mce: (?:CPU supports|Using \d+ MCE banks)|RAS: .*initialized", re.IGNORECASE
)
_DMESG_LINE = re.compile(r"^\[\s*(\d+\.\d+)\]\s?(.*)$")


def classify_message(text: str) -> str | None:
    """Return the kind of a message about a device; None for any other message."""
    if _HARMLESS.search(text):
        return None
    for kind, pattern in _KINDS.items():
        if pattern.search(text):
            return kind
    return None


class MessageSource(Protocol):
    """Yields the texts of the kernel's messages."""

    name: str

    def read(self) -> Iterator[str]:
        """Yield the messages since the last call, or since the source was opened.

        Raises:
            MonitorFault: they cannot be read.
        """


class KmsgSource:
    """The kernel's own file of messages.

    Args:
        path: of ``/dev/kmsg``, or of a file or pipe of the same form. What it already contains is
            skipped, except in a pipe, which can only be read from its beginning.

    Raises:
        MonitorFault: it is not there, or this user may not read it.
    """

    name = str(KMSG)

    def __init__(self, path: Path = KMSG) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise MonitorFault("absent", f"{path}: {error.strerror}") from error
        # Skip to the end, so that only new messages are read. This fails in a pipe, which has no
        # position.
        with suppress(OSError):
            os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> Iterator[str]:
        """Yield the messages since the last call, or since the source was opened."""
        while True:
            try:
                record = os.read(self._fd, _MAX_RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # messages were overwritten before they were read
                    continue
                if error.errno == errno.EAGAIN:  # there is no further message
                    return
                raise MonitorFault("failed", f"{self.name}: {error.strerror}") from error
            if not record:  # the end of a file
                return
            # A record is ``priority,number,microseconds,flags;text``, then lines that begin with a
            # blank.
            first_line = record.decode("utf-8", "replace").partition("\n")[0]
            yield first_line.partition(";")[2]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class DmesgSource:
    """The messages that ``dmesg`` prints, for users who may not read ``/dev/kmsg``.

    Raises:
        MonitorFault: the tool is missing, or this user may not run it.
    """

    name = "dmesg"

    def __init__(self, run: Callable[[Sequence[str]], str] = tool.run_tool) -> None:
        self._run = run
        # Seconds since the start of the machine, of the last message that was seen.
        self._last_s = max((time_s for time_s, _ in self._iterate_messages()), default=0.0)

    def _iterate_messages(self) -> Iterator[tuple[float, str]]:
        """Yield seconds since the start of the machine and text of each message."""
        for line in self._run(DMESG_COMMAND).splitlines():
            match = _DMESG_LINE.match(line)
            if match is not None:
                yield float(match[1]), match[2]

    def read(self) -> Iterator[str]:
        """Yield the messages since the last call, or since the source was opened."""
        # All are compared with the last message of the last call, because several messages may have
        # the same time.
        last_s = self._last_s
        for time_s, text in self._iterate_messages():
            if time_s > last_s:
                self._last_s = max(self._last_s, time_s)
                yield text


def open_source() -> MessageSource:
    """Return the first source that can be read.

    Raises:
        MonitorFault: neither ``/dev/kmsg`` nor ``dmesg`` can be read; it gives both reasons.
    """
    try:
        return _open_readable_kmsg(KMSG)
    except MonitorFault as fault:
        try:
            return DmesgSource()
        except MonitorFault as second_fault:
            raise MonitorFault("absent", f"{fault.text}; {second_fault.text}") from None


def _open_readable_kmsg(path: Path) -> KmsgSource:
    """Return the kernel's file of messages, from which one read has succeeded.

    Raises:
        MonitorFault: the file cannot be opened, or opens but cannot be read.
    """
    source = KmsgSource(path)
    try:
        list(source.read())  # some systems open the file for everybody and refuse to read it
    except MonitorFault:
        source.close()
        raise
    return source


@dataclass
class KernelReader:
    """Writes the kernel's messages about devices, grouped by kind.

    Args:
        write: writes an event; see ``SampleLog.write``.
        open: opens the source of messages.
    """

    write: Callable[..., None]
    open: Callable[[], MessageSource] = open_source
    _source: MessageSource | None = field(default=None, init=False)
    _is_unreadable: bool = field(default=False, init=False)

    def take(self) -> None:
        """Write an event for each kind of messages since the last call.

        Raises:
            MonitorFault: at the first call: no source can be read, and none is tried again; at any
                call: reading the source fails this time.
        """
        if self._is_unreadable:
            return
        if self._source is None:
            try:
                self._source = self.open()
            except MonitorFault:
                self._is_unreadable = True
                raise
            self.write("kernel_log", source=self._source.name)
        texts_by_kind: dict[str, list[str]] = {}
        try:
            for text in self._source.read():
                kind = classify_message(text)
                if kind is not None:
                    texts_by_kind.setdefault(kind, []).append(text)
        finally:  # also if reading fails: the source does not yield the messages before it again
            for kind, texts in texts_by_kind.items():
                first = texts[0].strip()[:_MAX_TEXT_LENGTH]
                self.write("kernel", kind=kind, count=len(texts), kernel_text=first)
