"""Ranks under their supervisor: how they end, and that nothing outlives them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from support import killed_launcher
from support.run_fixtures import CASES
from trainmark.errors import MeasurementError
from trainmark.launch.supervisor import supervise_ranks
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.rank.parent import PARENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainmark.launch.supervisor import RankProcess

NO_PROCESS = 2**22 + 1  # above the largest process id of Linux
# A process in its own session, with an empty environment, that ignores SIGTERM; the rank waits
# until it has written its process id into the file.
HIDDEN_CHILD = (
    "setsid env -i {python} -c 'import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    'open("{file}.part", "w").write(str(os.getpid())); os.rename("{file}.part", "{file}"); '
    "signal.pause()' & while ! test -e {file}; do sleep 0.01; done; "
)


@pytest.fixture
def start_ranks() -> Callable[..., object]:
    """Return a function that starts ``count`` ranks, each with a shell that runs the script."""

    def start(script: str, count: int = 1) -> object:
        variables_of_ranks = [{"RANK": str(number)} for number in range(count)]
        null = subprocess.DEVNULL
        return supervise_ranks(
            ["sh", "-c", script], os.environ, variables_of_ranks, output=null, errors=null
        )

    return start


def wait_for(file: Path) -> None:
    """Wait until another process has made the file."""
    while not file.exists():
        time.sleep(0.01)


def wait_for_exit_codes(ranks: list[RankProcess]) -> list[int | None]:
    """Return the exit codes once all ranks have ended; of a killed rank -N for the signal N."""
    codes = [rank.poll() for rank in ranks]
    while None in codes:
        time.sleep(0.01)
        codes = [rank.poll() for rank in ranks]
    return codes


def test_exit_of_each_rank_is_reported(start_ranks):
    # Each rank runs this shell script: rank 0 succeeds, 1 exits with 3, and 2 kills itself. A
    # signal shows as its negative number.
    script = "case $RANK in 0) exit 0;; 1) exit 3;; 2) kill -KILL $$;; esac"
    with start_ranks(script, count=3) as running:
        assert wait_for_exit_codes(running) == [0, 3, -signal.SIGKILL]


def test_rank_that_ignores_sigterm_is_killed_at_the_end(start_ranks, tmp_path):
    # The rank ignores SIGTERM, says by a file that it does so by now, and never ends by itself.
    script = f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.1; done"
    with start_ranks(script) as running:
        wait_for(tmp_path / "ready")
        assert running[0].poll() is None
    # At the end of ``with``, the supervisor has sent SIGTERM in vain and then SIGKILL.
    assert running[0].poll() == -signal.SIGKILL
    assert not psutil.pid_exists(running[0].pid)


@pytest.mark.parametrize("end", ["exit 0", "sleep 1000"])
def test_a_process_with_its_own_session_and_environment_ends_with_the_ranks(
    start_ranks, tmp_path, end
):
    """It ends with the supervisor, whether the rank that started it has ended before or not.

    ``HIDDEN_CHILD``: shell commands that start the process and wait until it has written its
    process id into the file.

    Args:
        end: what the rank does then: it ends by itself, or runs until the supervisor ends it.
    """
    file = tmp_path / "pid"
    with start_ranks(HIDDEN_CHILD.format(python=sys.executable, file=file) + end) as running:
        wait_for(file)
        hidden = psutil.Process(int(file.read_text()))
        if end == "exit 0":
            assert wait_for_exit_codes(running) == [0]
        assert hidden.is_running()
        assert PARENT_VARIABLE not in hidden.environ()  # it cannot be found by its environment
    assert not hidden.is_running()


def test_ranks_that_cannot_be_started_give_one_error():
    # ``[{}]``: a single rank, without variables of its own. Its program does not exist, so the
    # block is never entered.
    with (
        pytest.raises(MeasurementError, match="/nowhere/python"),
        supervise_ranks(
            ["/nowhere/python"],
            os.environ,
            [{}],
            output=subprocess.DEVNULL,
            errors=subprocess.DEVNULL,
        ),
    ):
        pass


def test_ranks_of_a_killed_supervisor_count_as_killed(start_ranks):
    with start_ranks("sleep 1000", count=2) as running:
        psutil.Process(running[0].pid).parent().kill()  # the supervisor
        assert wait_for_exit_codes(running) == [-signal.SIGKILL, -signal.SIGKILL]
        # Clean up: real ranks die with their supervisor, but these shells do not.
        for rank in running:
            os.kill(rank.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def plan_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the plan of two ranks that never end, and the fifo they wait for.

    ``faulty`` is a case of the tests (in the folder ``CASES``); with its setting ``fault: wait``
    each rank writes its id to the fifo that the variable FAULT_FIFO names, which waits for a
    reader, and then waits for a signal.
    """
    folder = tmp_path_factory.mktemp("killed")
    os.mkfifo(folder / "fifo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINMARK_CASE_PATH", str(CASES))
        patch.setenv("TRAINMARK_CACHE", str(folder / "cache"))
        request = RunRequest.build(
            case="faulty", overrides={"fault": "wait"}, nproc=2, device="cpu", out=folder / "run"
        )
        resolve(request).save(folder)
    return folder


def test_no_process_outlives_a_killed_launcher(plan_folder):
    """The launcher kills itself at a moment: after so many processes, and then so many calls.

    The moments reach from before the first process, the sampler, over that of the second, the
    supervisor of the ranks, to the wait for the ranks. About 1,000 calls are between the two
    processes, and 150 between the second and the wait.
    """
    moments = [
        *("0-1", "0-1000"),
        *(f"1-{num_calls}" for num_calls in (1, 150, 300, 450, 600, 750, 900)),
        *(f"2-{num_calls}" for num_calls in (1, 75, 150, 300)),
    ]
    process = subprocess.run(
        [sys.executable, killed_launcher.__file__, str(plan_folder), *map(str, moments)],
        env=os.environ
        | {
            "TRAINMARK_CASE_PATH": str(CASES),
            "FAULT_FIFO": str(plan_folder / "fifo"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    ends = [json.loads(line) for line in process.stdout.splitlines()]
    # ``orphans``: those that the launcher left, and that ended; ``left``: those that did not.
    orphans = {end["moment"]: end.pop("orphans") for end in ends}
    assert ends == [{"moment": x, "code": -signal.SIGKILL, "left": []} for x in moments]
    # At least the processes that it had started were there; a supervisor may have started ranks.
    assert orphans["0-1"] == 0
    assert all(num >= int(moment.partition("-")[0]) for moment, num in orphans.items()), orphans


def test_rank_whose_launcher_is_already_dead_does_nothing(tmp_path):
    # A rank reads the id of its launcher from the variable named ``PARENT_VARIABLE``. No process
    # has the id ``NO_PROCESS``, so the rank ends with 1 before it writes any file into the folder.
    process = subprocess.run(
        [sys.executable, "-m", "trainmark.rank.worker", str(tmp_path)],
        env=os.environ | {"RANK": "0", "LOCAL_RANK": "0", PARENT_VARIABLE: str(NO_PROCESS)},
        check=False,
    )
    assert (process.returncode, list(tmp_path.iterdir())) == (1, [])


def test_command_whose_launcher_is_already_dead_is_not_started(tmp_path):
    """``trainmark.rank.parent PID COMMAND`` runs a command if PID is its parent.

    No process has the id ``NO_PROCESS``; this test is the parent in the second case.
    """
    args = [sys.executable, "-m", "trainmark.rank.parent"]
    command = ["touch", str(tmp_path / "started")]
    assert subprocess.run([*args, str(NO_PROCESS), *command], check=False).returncode == 1
    assert not (tmp_path / "started").exists()
    subprocess.run([*args, str(os.getpid()), *command], check=True)
    assert (tmp_path / "started").exists()
