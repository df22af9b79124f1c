"""The ways to start a run, by name; each launcher knows one engine, and none knows another."""

from __future__ import annotations

import json
import shlex
from importlib import import_module
from typing import TYPE_CHECKING

from trainmark.errors import UsageError, nearest
from trainmark.launch.site import CLASSES, NAMES

if TYPE_CHECKING:
    from trainmark.launch.contract import Launcher


def load(name: str) -> Launcher:
    """Return the launcher called ``name``; not the local one, which is no engine.

    Raises:
        UsageError: no launcher is called so.
    """
    if name not in CLASSES:
        raise UsageError(
            f"unknown launcher {name!r}", where="--launcher", remedy=nearest(name, NAMES)
        )
    launcher: Launcher = getattr(import_module(f"{__name__}.{name}"), CLASSES[name])()
    return launcher


def template(file: str, **values: object) -> str:
    """Return a text of an engine: a template beside the launchers, filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__name__, "."), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"join_words": shlex.join, "json": json.dumps}
    return environment.get_template(file).render(**values)
