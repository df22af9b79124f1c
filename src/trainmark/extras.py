"""Packages that only some tasks need, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path


def import_extra(name: str, *, where: Path | str) -> Any:
    """Import a module of the extra ``prepare``, which reads published data.

    Args:
        name: dotted name of the module.
        where: the file or argument that needs it, for the error.

    Raises:
        EnvironmentFault: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"{error.name} is not installed",
            where=str(where),
            fix="pip install 'trainmark[prepare]'",
        ) from None
