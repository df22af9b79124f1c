"""Where a run is handed to: the words after ``--follow``, and whether what they need is installed.

Owns the names of the backends: the programs to which runs can be handed, such as MLflow. An extra
of the installation has the name of its backend.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import EnvironmentFault, UsageError, suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainmark.export.followers.points import Backend, FollowedRun

    OpenBackend = Callable[[FollowedRun, str | None], Backend]

OPTION = "--follow"


class BackendEntry(NamedTuple):
    """What is known of a backend before it is imported.

    Args:
        class_name: its class in the module of its name, in the folder ``backends``.
        packages: those that it needs.
    """

    class_name: str
    packages: tuple[str, ...]


# The backends by the names that users write.
BACKENDS = {
    "tensorboard": BackendEntry("TensorBoard", ("tensorboard",)),
    "wandb": BackendEntry("WeightsAndBiases", ("wandb",)),
    "mlflow": BackendEntry("MLflow", ("mlflow",)),
    "openmetrics": BackendEntry("OpenMetrics", ("prometheus_client",)),
}
# Packages that MLflow needs for a store in a database, and that its small distribution lacks.
_MLFLOW_DATABASE = ("alembic", "sqlalchemy")


@dataclass(frozen=True, slots=True)
class FollowTarget:
    """A backend and the place in it.

    Args:
        destination: a folder, project, address or file, as the backend takes it; None: its default.
    """

    backend: str
    destination: str | None = None

    def __str__(self) -> str:
        return self.backend if self.destination is None else f"{self.backend}={self.destination}"


def parse_targets(words: Iterable[str], *, where: str = OPTION) -> list[FollowTarget]:
    """Return the targets that words name, as ``tensorboard`` or ``mlflow=http://host:5000``.

    Args:
        where: where the words come from, as an error names it.

    Raises:
        UsageError: an unknown backend, an empty destination, or a word twice.
    """
    targets: list[FollowTarget] = []
    for word in words:
        backend, equals, destination = word.partition("=")
        if backend not in BACKENDS:
            raise UsageError(
                f"unknown backend {backend!r}", where=where, fix=suggest_nearest(backend, BACKENDS)
            )
        if equals and not destination:
            raise UsageError(
                f"{word} has an empty destination",
                where=where,
                fix=f"use {backend} for the default destination, or {backend}=DESTINATION",
            )
        target = FollowTarget(backend, destination or None)
        if target in targets:
            raise UsageError(f"{target} is given twice", where=where, fix=f"use {target} only once")
        targets.append(target)
    return targets


def require_backends(targets: Iterable[FollowTarget], *, where: str = OPTION) -> None:
    """Refuse a target whose program is not installed.

    Args:
        where: where the targets come from, as an error names it.

    Raises:
        EnvironmentFault: packages of a target are missing. The error names the first one, and the
            extra that installs all of them.
    """
    for target in targets:
        missing = list_missing_packages(target)
        if missing:
            raise EnvironmentFault(
                f"{target.backend} needs {missing[0]}, which is not installed",
                where=where,
                fix=f"pip install 'trainmark[{target.backend}]'",
            )


def list_missing_packages(target: FollowTarget) -> list[str]:
    """Return the packages that a target needs and that are not installed."""
    return [package for package in _list_packages(target) if find_spec(package) is None]


def _list_packages(target: FollowTarget) -> tuple[str, ...]:
    """Return the packages that a target needs."""
    packages = BACKENDS[target.backend].packages
    if target.backend == "mlflow" and not get_tracking_uri(target.destination).startswith("http"):
        return packages + _MLFLOW_DATABASE  # without a server, this process opens the database
    return packages


def get_tracking_uri(destination: str | None) -> str:
    """Return the server, database or folder to which MLflow writes; empty: MLflow's default.

    Args:
        destination: of a target; None: the one that MLflow's environment variable names.
    """
    return destination or os.environ.get("MLFLOW_TRACKING_URI", "")


def load_backend(target: FollowTarget) -> OpenBackend:
    """Import the program of a target, such as MLflow; return the class that hands runs to it.

    The class is constructed with facts of a run and the target's destination.
    """
    module = import_module(f"trainmark.export.followers.backends.{target.backend}")
    module.prepare(target.destination)  # imports what takes long
    backend_class: OpenBackend = getattr(module, BACKENDS[target.backend].class_name)
    return backend_class
