"""Marks of tests of what torch 2.7.1 lacks, which planning refuses: see docs/measuring.md."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version

LACKS_FEATURES = Version(version("torch")).release < (2, 11)
# Estimates of memory follow what torch 2.11 and 2.13 allocate; older ones allocate a little more.
predicts_memory = pytest.mark.skipif(LACKS_FEATURES, reason="memory is estimated for torch 2.11 on")
needs_torch_2_11 = pytest.mark.skipif(LACKS_FEATURES, reason="planning refuses it: torch < 2.11")
