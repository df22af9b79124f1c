"""Teams of ranks: how it ends if they give no complete results."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.acceptance import teams
from trainmark.acceptance.tasks import RankFailure, RankTask, encode
from trainmark.launch.local import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("codes", "output", "error"),
    [
        ([None, None], "", "ranks that did not end: 0, 1"),
        ([1, None], encode(RankFailure(rank=0, error="boom")), "boom; ranks that did not end: 1"),
        # All ranks ended by themselves just before the deadline.
        ([1, 1], "", "exit codes of the ranks: [1, 1]"),
        ([1, 1], encode(RankFailure(rank=0, error="boom")), "boom"),
    ],
)
def test_team_at_its_deadline_names_only_ranks_that_did_not_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codes: list[int | None],
    output: str,
    error: str,
) -> None:
    """A team of two ranks is still running, or has just ended, when its deadline comes.

    Args:
        codes: the exit code of each rank, which are 0 and 1; None: it has not ended.
        output: what the ranks have printed: nothing, or a line in which rank 0 reports an error.
        error: the text that is expected: the reported error, and which ranks did not end.
    """

    @contextmanager
    def start_fake_ranks(*args: Any, **options: Any) -> Iterator[list[SimpleNamespace]]:
        """Start ranks that have printed their output, and have ended with ``codes`` or run on."""
        if output:
            options["output"].write(f"{output}\n".encode())
        yield [SimpleNamespace(poll=lambda code=code: code) for code in codes]

    monkeypatch.setattr(teams, "start_ranks", start_fake_ranks)
    # What a rank would do. Only the number of devices matters here: no rank is really started.
    task = RankTask(
        plan_dir="",
        devices=[0, 1],
        ranks_here=2,
        control_steps=0,
        windows=1,
        budget_s=1.0,
        measures_device=False,
    )
    setup = Setup(nproc=2, variables={}, environment={})
    with (tmp_path / "log").open("wb") as log:
        (outcome,) = teams.measure_teams(
            [teams.Team(members=("a", "b"), task=task)],
            setup,
            log=log,
            deadline_s=0.0,  # over at once
            is_stopped=lambda: False,
        )
    assert (outcome.reason, outcome.error) == ("deadline", error)
