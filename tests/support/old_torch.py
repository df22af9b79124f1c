"""Marks of tests of what an older torch lacks: see docs/measuring.md.

What planning refuses is asked of planning, so a test runs as soon as planning admits its work.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import torch
from packaging.version import Version
from torch.utils import backend_registration

from trainmark.cases.llama31_8b.case import Llama31Recipe
from trainmark.devices.vendors.cpu import Cpu
from trainmark.errors import EnvironmentFault
from trainmark.torch_version import refuse_missing_features

if TYPE_CHECKING:
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe


def find_missing_feature(recipe: Recipe, vendor: Vendor, ranks: int) -> str | None:
    """Return what the installed torch lacks for a recipe, as planning reports it; None: nothing.

    Args:
        vendor: the kind of devices that would train.
        ranks: how many there would be.
    """
    try:
        refuse_missing_features(recipe, vendor, ranks)
    except EnvironmentFault as fault:
        return fault.what
    return None


def _skip_without(recipe: Recipe, *, ranks: int) -> pytest.MarkDecorator:
    """Return the mark that skips a test if planning refuses its recipe with this torch on a CPU."""
    missing = find_missing_feature(recipe, Cpu(), ranks)
    return pytest.mark.skipif(missing is not None, reason=f"planning refuses it: {missing}")


def _has_kernel(operation: str, dispatch_key: str) -> bool:
    """Return whether torch has its own operation for a kind of device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation, dispatch_key)


needs_fsdp = _skip_without(Llama31Recipe(fsdp=True), ranks=2)
needs_checkpoints = _skip_without(Llama31Recipe(checkpoint_every_steps=1), ranks=1)
needs_fp8_matmul = pytest.mark.skipif(
    not _has_kernel("aten::_scaled_mm", "CPU"), reason="torch has no fp8 matmul for a CPU"
)
needs_python_devices = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="torch cannot register a device from Python, as the stand-in does",
)
# Estimates of memory follow what torch 2.11 and 2.13 allocate; older ones allocate a little more.
predicts_memory = pytest.mark.skipif(
    Version(version("torch")).release < (2, 11), reason="memory is estimated for torch 2.11 on"
)
