"""Checks of a rank before it starts work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.in_process_runs import run_rank
from trainmark.record import reduce

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_rank_refuses_what_the_torch_of_its_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine that plans has a newer torch, so it refuses nothing. The rank's machine has torch
    # 2.7.1, which cannot save the checkpoints of this recipe.
    monkeypatch.setattr("trainmark.plan.choosing.refuse_missing_features", lambda *_: None)
    monkeypatch.setattr("trainmark.torch_version._read_version", lambda _: "2.7.1")
    # ``run_rank`` runs a rank in this process and returns the run's folder, of which ``reduce``
    # makes the record. "init" is the first part of a rank's run.
    fields = {"checkpoint_every_steps": "2"}
    run_dir = run_rank(tmp_path, "gpt_megatron", recipe="tiny", overrides=fields)
    cause = reduce.reduce(run_dir).cause
    assert cause is not None
    assert (cause.type, cause.place) == ("EnvironmentFault", "init")
    assert cause.message.args["text"].startswith("recipe field checkpoint_every_steps: ")
