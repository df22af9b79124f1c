"""What a user may ask for, and the rounds that follow from it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from support.acceptance_evidence import make_acceptance
from trainmark.acceptance.acceptance import prepare_acceptance
from trainmark.acceptance.request import AcceptRequest
from trainmark.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_all_phases_are_the_default_and_their_order_is_fixed() -> None:
    """The phases are measured in the order of the first list, however the request lists them."""
    assert AcceptRequest().chosen_phases == ["devices", "nodes", "pairs", "groups"]
    assert AcceptRequest(phases="pairs, devices").chosen_phases == ["devices", "pairs"]


@pytest.mark.parametrize("phases", ["", " , ", "device", "devices,links"])
def test_unknown_phase_is_refused(phases: str) -> None:
    """No phase at all, and names that are not those of phases."""
    with pytest.raises(UsageError) as refused:
        _ = AcceptRequest(phases=phases).chosen_phases
    assert refused.value.where == "--phases"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", 0),
        ("seconds", 0),
        ("deadline", -1),
        ("worse_by", 0),
        ("repeats", 0),
        ("nproc", 0),
    ],
)
def test_value_out_of_bounds_names_its_option(field: str, value: float) -> None:
    """Numbers of rounds and ranks must be at least 1, seconds and the share more than 0."""
    with pytest.raises(UsageError) as refused:
        AcceptRequest.build(**{field: value})
    assert refused.value.where == f"--{field.replace('_', '-')}"


def test_four_devices_have_rounds_of_devices_nodes_and_pairs(tmp_path: Path) -> None:
    """``make_acceptance`` prepares an acceptance of four devices in one machine, in all phases.

    Nothing is measured; ``rounds`` are those that are planned.
    """
    rounds = make_acceptance(tmp_path).rounds

    phases = [planned_round.phase for planned_round in rounds]
    # Five repeats by default; once the only node, which has no other to be compared with; and
    # three rounds, in which each of four devices meets each other one.
    assert phases == ["devices"] * 5 + ["nodes"] + ["pairs"] * 3
    # A team: the numbers of the devices that train together; a round may have several teams.
    teams: dict[str, list[tuple[int, ...]]] = {phase: [] for phase in phases}
    for planned_round in rounds:
        teams[planned_round.phase] += planned_round.teams
    assert teams["devices"] == [(0,), (1,), (2,), (3,)] * 5
    assert teams["nodes"] == [(0, 1, 2, 3)]
    assert sorted(teams["pairs"]) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_other_work_in_a_folder_with_an_acceptance_is_refused(tmp_path: Path) -> None:
    """The folder keeps the first request, of two ranks; later ones must plan the same work.

    ``bs`` is any setting of the recipe.
    """
    folder = tmp_path / "folder"
    first = AcceptRequest.build(case="toy", device="cpu", nproc=2, out=folder)
    with prepare_acceptance(first) as acceptance:
        assert acceptance.plan.case == "toy"
    with prepare_acceptance(first.model_copy(update={"worse_by": 0.1})):
        pass  # thresholds of the verdicts may change

    with (
        pytest.raises(UsageError) as refused,
        prepare_acceptance(first.model_copy(update={"nproc": 1})),  # other work
    ):
        pass
    assert refused.value.what == "nproc changed from 2 to 1"

    with (
        pytest.raises(UsageError) as refused,
        prepare_acceptance(first.model_copy(update={"overrides": {"bs": "32"}})),
    ):
        pass
    assert refused.value.what == "overrides changed from none to bs=32"


def test_folder_that_is_in_use_or_holds_other_files_is_refused(tmp_path: Path) -> None:
    """An acceptance that has not ended uses folder ``a``; ``b`` has a file of something else."""
    request = AcceptRequest.build(case="toy", device="cpu", nproc=1, out=tmp_path / "a")
    with (
        prepare_acceptance(request),  # it holds the folder's lock
        pytest.raises(EnvironmentFault) as refused,
        prepare_acceptance(request),
    ):
        pass
    assert "another process" in refused.value.what

    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "photo.jpg").touch()
    with (
        pytest.raises(EnvironmentFault) as refused,
        prepare_acceptance(request.model_copy(update={"out": tmp_path / "b"})),
    ):
        pass
    assert refused.value.where == str(tmp_path / "b")


def test_folder_that_cannot_be_made_is_refused_with_a_fix(tmp_path: Path) -> None:
    """The error names the folder, the reason as the system states it, and the option to change."""
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "a"  # a file has no folders in it; this fails for root, too
    request = AcceptRequest.build(case="toy", device="cpu", nproc=1, out=out)

    with pytest.raises(EnvironmentFault) as refused, prepare_acceptance(request):
        pass

    assert refused.value.where == str(out)
    assert os.strerror(errno.ENOTDIR) in refused.value.what
    assert refused.value.fix is not None
    assert "--out" in refused.value.fix
