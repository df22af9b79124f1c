"""Every case on the simulated accelerator: the CPU's losses, exact device times, known memory."""

from __future__ import annotations

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from support import stand_in_jobs
from support.old_torch import needs_python_devices
from trainmark import cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = needs_python_devices
CASES = cases.list_names()
FP32_ERROR = 1e-6  # largest seen: 2.4e-7, GLM's
BF16_ERROR = 2e-2
# Experts without a grouped kernel: the host reads how many rows each one gets.
KNOWN_WAITS = {"gpt_oss_20b": ["step_waits"]}


@pytest.fixture(scope="module")
def call_in_process() -> Iterator[Callable[..., Any]]:
    """Return a function that calls another in a process where torch knows the stand-in device.

    The stand-in is a simulated device that computes on the processor; its package is in
    ``stand_in_jobs.SITE``, the folder ``tests/stand_in``. One process serves all tests of the
    module.
    """
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(stand_in_jobs.SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("OMP_NUM_THREADS", "1")
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawned, initializer=stand_in_jobs.register) as process:
            yield lambda function, *args, **more: process.submit(function, *args, **more).result()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the cases' generated data."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def train_in_fp32(call_in_process: Any, cache: Path) -> Callable[[str], dict[str, Any]]:
    """Return a function that trains a case's tiny recipe on the stand-in, each case once.

    ``train_on_stand_in`` runs in the process of ``call_in_process``, where torch knows this device.
    It returns losses, events and what the device's simulated clock knows. ``cache`` is the folder
    of generated data.
    """
    return functools.cache(
        lambda case: call_in_process(stand_in_jobs.train_on_stand_in, case, cache)
    )


def test_vendor_and_device_conform(call_in_process: Any) -> None:
    assert call_in_process(stand_in_jobs.list_faults) == ([], [])


@pytest.mark.parametrize("case", CASES)
def test_case_trains_as_on_a_cpu_with_exact_times(
    call_in_process: Any, cache: Path, train_in_fp32: Any, case: str
) -> None:
    # ``CASES`` are the names of all cases. ``stand_in_jobs.train`` trains a case's tiny recipe on
    # the CPU for 4 steps (``STEPS``); the stand-in is a simulated device that computes on the CPU,
    # so that losses differ by rounding alone, at most 1e-6 (``FP32_ERROR``).
    expected = call_in_process(stand_in_jobs.train, case, cache)
    training = train_in_fp32(case)
    assert training["losses"] == pytest.approx(expected["losses"], rel=FP32_ERROR)
    assert len(training["losses"]) == stand_in_jobs.STEPS
    # ``list_wrong_figures`` names the times and waits that the training reported otherwise than the
    # simulated device knows them: none, except in the cases of ``KNOWN_WAITS``, whose steps are
    # known to wait.
    assert stand_in_jobs.list_wrong_figures(training) == KNOWN_WAITS.get(case, [])
    assert training["quality"] == pytest.approx(expected["quality"], rel=1e-5)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("toy", {"grad_accum_steps": 3, "micro_batch_size": 16}),
        ("gpt_megatron", {"grad_accum_steps": 2}),
        ("llama2_7b_lora", {"init": "random"}),
    ],
)
def test_gradient_accumulation_and_random_weights_equal_those_of_a_cpu(
    call_in_process: Any, cache: Path, case: str, changes: dict[str, Any]
) -> None:
    # ``changes`` are fields of the case's tiny recipe. ``stand_in_jobs.train`` trains on the CPU,
    # ``train_on_stand_in`` on a simulated device that computes there: losses differ by at most 1e-6
    # (``FP32_ERROR``). ``list_wrong_figures`` names the times and waits that differ from what the
    # clock of that device knows; ``KNOWN_WAITS`` has those of the cases whose steps are known to
    # wait.
    expected = call_in_process(stand_in_jobs.train, case, cache, **changes)
    training = call_in_process(stand_in_jobs.train_on_stand_in, case, cache, **changes)
    assert training["losses"] == pytest.approx(expected["losses"], rel=FP32_ERROR)
    assert stand_in_jobs.list_wrong_figures(training) == KNOWN_WAITS.get(case, [])


@pytest.mark.parametrize(
    ("case", "precision"), [*((case, "bf16") for case in CASES), ("toy", "fp16")]
)
def test_losses_with_autocast_are_near_those_in_fp32_and_steps_wait_for_nothing(
    call_in_process: Any, cache: Path, train_in_fp32: Any, case: str, precision: str
) -> None:
    # ``train_in_fp32`` and ``train_on_stand_in`` train a case's tiny recipe on a simulated device,
    # which knows how long each operation took and when the host waited for it. Losses differ from
    # those in fp32, as 16 bits round more, but by at most 2% (``BF16_ERROR``).
    # ``list_wrong_figures`` compares the times and the waits that the training reported with what
    # that device knows, and returns the names of those that differ; "step_waits": the host waited
    # in a step. ``KNOWN_WAITS``: the wrong figures of the only case whose steps are known to wait.
    fp32 = train_in_fp32(case)
    training = call_in_process(stand_in_jobs.train_on_stand_in, case, cache, precision=precision)
    assert training["losses"] != fp32["losses"]
    assert training["losses"] == pytest.approx(fp32["losses"], rel=BF16_ERROR)
    assert stand_in_jobs.list_wrong_figures(training) == KNOWN_WAITS.get(case, [])


# Pieces of the source of the measured loop, and by mistake which of them is replaced by what.
EDGE = "        device.synchronize()\n        end_ns = self.clock()\n"
START = '        self.enter("train")\n        self.device.synchronize()\n        self.barrier()\n'
MARKS = "            marks.append(device.mark())\n"
CHANGES = {
    "no synchronisation at the window's end": (EDGE, "        end_ns = self.clock()\n"),
    "time read before the synchronisation": (
        EDGE,
        "        end_ns = self.clock()\n        device.synchronize()\n",
    ),
    "no synchronisation before training": (START, '        self.enter("train")\n'),
    "a mark before the step's work": (
        "            loss = self.job.step(batches)\n",
        "            marks.append(device.mark())\n            loss = self.job.step(batches)\n",
    ),
    "a synchronisation after each step": (MARKS, MARKS + "            device.synchronize()\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_mistake_in_the_loop_gives_wrong_figures_that_are_detected(
    call_in_process: Any, cache: Path, change: tuple[str, str]
) -> None:
    """``change``: a piece of the source of the measured loop, and the mistake that replaces it.

    ``CHANGES`` has five mistakes, such as a time that is read before the device is waited for.
    ``train_on_stand_in`` trains the case toy with the changed loop, on a device whose simulated
    clock says which times are right; ``list_wrong_figures`` names those that are not.
    """
    training = call_in_process(stand_in_jobs.train_on_stand_in, "toy", cache, change_loop=change)
    assert stand_in_jobs.list_wrong_figures(training) != []


def test_job_that_reads_its_loss_within_a_step_is_detected(
    call_in_process: Any, cache: Path
) -> None:
    """Only the check of waits within steps fails, as the times stay right.

    ``read_each_loss`` makes the job read its loss in each step, for which the host must wait.

    ``train_on_stand_in`` trains the case toy on a simulated device, which knows how long each
    operation took and when the host waited. ``list_wrong_figures`` names what is not as it must be:
    "step_waits" says that a step waited, other names would be of times.
    """
    training = call_in_process(
        stand_in_jobs.train_on_stand_in, "toy", cache, change_job=stand_in_jobs.read_each_loss
    )
    assert stand_in_jobs.list_wrong_figures(training) == ["step_waits"]


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        # A mark is the host's time, which passes while the host queues a step, not while the device
        # computes it: steps are too short. Windows begin and end after a wait, so they are right,
        # but not the sum of their steps.
        ("host_marks", ["step_ns", "window_ns"]),
        # Synchronizing does not wait, so training and windows begin and end before the device is
        # ready. Marks are still right, and so are the steps.
        ("no_wait", ["start_ns", "loop_waits", "window_ns"]),
        # Placing a mark waits, which each step does. All times are right.
        ("waiting_marks", ["step_waits", "mark_waits"]),
    ],
)
def test_device_with_a_wrong_clock_is_detected(
    call_in_process: Any, cache: Path, fault: str, wrong: list[str]
) -> None:
    # ``train_on_stand_in`` trains the case toy on a simulated device with this fault. The device
    # knows how long each operation took and when the host waited for it. ``list_wrong_figures``
    # names what the training reported otherwise: the start of training, the times of steps and
    # windows, and whether steps, the loop or marks wait.
    training = call_in_process(stand_in_jobs.train_on_stand_in, "toy", cache, fault=fault)
    assert stand_in_jobs.list_wrong_figures(training) == wrong


def test_preflight_refuses_marks_of_the_host(call_in_process: Any) -> None:
    # ``measure_preflight_rate`` lets preflight time products of 256 x 256 matrices on the simulated
    # device with this fault; it returns the rate, or where the error says the fault is.
    # "host_marks": a mark is the host's time and not the device's.
    refused_device = call_in_process(stand_in_jobs.measure_preflight_rate, "host_marks")
    assert refused_device == "device standin"
    # Without a fault of the device: 2 x 256^3 FLOP in an operation of 30 ms.
    assert call_in_process(stand_in_jobs.measure_preflight_rate, "none") == 2 * 256**3 / 0.03


def test_only_operations_that_need_the_host_wait(call_in_process: Any) -> None:
    # The host waits for a result that it needs (``equal`` returns a bool, a mask selects an unknown
    # number of elements), and until a copy has read its memory, unless the copy is queued.
    # ``list_waiting_operations`` does each of these on the simulated device and returns whether the
    # host waited for it.
    assert call_in_process(stand_in_jobs.list_waiting_operations) == {
        "item": True,
        "tolist": True,
        "to the host": True,
        "from the host": True,
        "from the host, queued": False,
        "nonzero": True,
        "a mask as index": True,
        "a tensor of indices": False,
        "matmul": False,
        "backward": False,
        "equal": True,
    }
