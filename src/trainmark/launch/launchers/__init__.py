"""The ways to start a run, by name; each launcher knows one engine, and none knows another."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trainmark.errors import UsageError, nearest

if TYPE_CHECKING:
    from trainmark.launch.contract import Launcher

LOCAL = "local"  # this machine: ``launch.local`` starts its ranks without an engine
_CLASSES: dict[str, str] = {}
NAMES = (LOCAL, *_CLASSES)


def load(name: str) -> Launcher:
    """Return the launcher called ``name``; not the local one, which is no engine.

    Raises:
        UsageError: no launcher is called so.
    """
    if name not in _CLASSES:
        raise UsageError(
            f"unknown launcher {name!r}", where="--launcher", remedy=nearest(name, NAMES)
        )
    launcher: Launcher = getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])()
    return launcher
