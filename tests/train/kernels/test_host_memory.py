"""What glibc is told about memory, each in a process of its own that it is told in."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")

PRELUDE = """
import ctypes
from trainmark.train.kernels.host_memory import *

def resident_mib():
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * 4096 / 2**20

malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
free.restype, free.argtypes = None, [ctypes.c_void_p]

def touched(size):
    block = malloc(size)
    ctypes.memset(block, 1, size)
    return block
"""


def printed(script: str) -> list[str]:
    command = [sys.executable, "-c", PRELUDE + script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_large_block_stays_with_the_process() -> None:
    taken, left = map(float, printed("""
assert keep_freed_memory()
before = resident_mib()
block = touched(2**26)
print(resident_mib() - before)
free(block)
print(resident_mib() - before)
"""))  # fmt: skip
    assert taken > 60
    assert left > 60
