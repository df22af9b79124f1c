"""A request that is refused: the status of its answer, and what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.errors import TrainmarkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Refused(TrainmarkError):
    """A request that is answered with ``status``.

    Args:
        headers: of the answer.
        checks: of a bundle, those that do not hold, as ``trainmark verify --json`` prints them.
        told: where, rule and remedy.
    """

    def __init__(
        self,
        status: int,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        checks: Sequence[dict[str, Any]] = (),
        **told: str | None,
    ) -> None:
        super().__init__(what, **told)
        self.status, self.headers, self.checks = status, dict(headers or {}), list(checks)
