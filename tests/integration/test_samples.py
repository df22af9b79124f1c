"""The sampler beside real runs, and alone with tools that fail in every way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from support.real_runs import read_checked_record, wait_for_end, wait_for_fault
from trainmark.events.schema import TELEMETRY_FILE, EventFile
from trainmark.launch.processes import RUN_VARIABLE, find_processes

pytestmark = pytest.mark.nightly
TOOL = "test-smi"
MODULE = "trainmark.telemetry.sampler"
# A vendor whose tool prints a line for each device: its number and its power.
VENDOR = """
from trainmark.devices.vendors.cpu import Cpu
from trainmark.devices.tool import Command, ToolMonitor
from trainmark.protocols import DeviceSample, MonitorFault

def parse(text):
    try:
        rows = [line.split() for line in text.splitlines()]
        return [DeviceSample(index=int(index), power_w=float(watts)) for index, watts in rows]
    except ValueError as error:
        raise MonitorFault("unreadable", str(error)) from error

class Tooled(Cpu):
    name = "tooled"
    named_only = True
    counts_cores = False

    def monitor(self):
        return ToolMonitor(Command(("test-smi",), parse))

    def monitored(self, nproc):
        return list(range(nproc))
"""
WORKS = "printf '0 90.5\\n1 91.5\\n'"  # a shell's command for a tool that works


@pytest.fixture
def install_tool_vendor(tmp_path):
    """Return a function that installs the vendor ``tooled`` and its tool, a script of a shell.

    ``VENDOR`` is the code of that vendor; ``TOOL`` is the tool's name.
    It returns the environment variables with which both are found.
    """
    packages, folder = tmp_path / "packages", tmp_path / "bin"
    (packages / "tooled-1.dist-info").mkdir(parents=True)
    (packages / "tooled-1.dist-info/METADATA").write_text("Name: tooled\nVersion: 1\n")
    (packages / "tooled-1.dist-info/entry_points.txt").write_text(
        "[trainmark.devices]\ntooled = tooled:Tooled\n"
    )
    folder.mkdir()

    def write(script):
        """Write the vendor and its tool; return the variables with which both are found."""
        (packages / "tooled.py").write_text(VENDOR)
        (folder / TOOL).write_text(f"#!/bin/sh\n{script}\n")
        (folder / TOOL).chmod(0o755)
        paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        }

    return write


def read_events(run_dir):
    """Return the events that the sampler has written so far."""
    path = run_dir / "telemetry.jsonl"
    return list(EventFile(path)) if path.exists() else []


def wait_for_event(run_dir, is_awaited):
    """Return the sampler's events once ``is_awaited`` is true for one of them.

    It waits for up to ten minutes: on a busy machine the sampler may start late.
    """
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        events = read_events(run_dir)
        if any(is_awaited(event) for event in events):
            return events
        time.sleep(0.02)
    raise AssertionError(read_events(run_dir))


def find_processes_of_command(run_id, word):
    """Return the living processes of a run that have ``word`` in their command line."""
    matching_processes = []
    for process in find_processes(run_id):
        with suppress(psutil.NoSuchProcess):  # it has ended since it was found
            if word in " ".join(process.cmdline()):
                matching_processes.append(process)
    return matching_processes


def read_run_id(run_dir):
    """Return the id of the run in a folder, by which its processes are found."""
    return json.loads((run_dir / "plan.json").read_text())["run_id"]


# The first call of the tool works, later ones run what follows.
# It prints before it makes the file: a first call that took too long, and was killed, is repeated.
FIRST_WORKS = f"if [ ! -e done ]; then {WORKS}; touch done; exit; fi\n"
FAULTS = {  # the tool's script, and the kind of the fault
    "hangs": ("sleep 1000 & sleep 1000", "hung"),
    "prints another form": (FIRST_WORKS + "echo 'GPU 0: 90.5 W'", "unreadable"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_monitor_tool_is_a_recorded_fault(fault, install_tool_vendor, tmp_path):
    """The host is still sampled, and the sampler ends with all its processes on request.

    ``FAULTS`` has the script of the vendor's tool, and the kind of the fault that is reported.
    ``MODULE`` is the sampler, which runs the tool and writes its events to ``TELEMETRY_FILE``.
    The processes of a run are found by the variable ``RUN_VARIABLE`` of their environment.
    """
    script, kind = FAULTS[fault]
    variables = install_tool_vendor(script)
    plan = {"device": {"vendor": "tooled"}, "nproc": 2, "sample_every_s": 0.1}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(tmp_path), TELEMETRY_FILE],
        env=os.environ | variables | {RUN_VARIABLE: str(tmp_path)},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    events = wait_for_event(tmp_path, lambda event: event.get("kind") == kind)
    num_host_readings = sum(event["event"] == "host" for event in events)
    # Another reading of the host, after the fault.
    wait_for_event(
        tmp_path,
        lambda _: (
            [event["event"] for event in read_events(tmp_path)].count("host") > num_host_readings
        ),
    )
    _, errors = process.communicate()  # closes its input, which asks it to end
    assert (process.returncode, errors) == (0, b"")
    assert find_processes(str(tmp_path)) == []
    events = read_events(tmp_path)
    faults = [(event["source"], event["kind"]) for event in events if event["event"] == "fault"]
    # On a loaded machine a tool that works may take too long first: the sampler has no priority.
    if kind != "hung":
        faults = [entry for entry in faults if entry != ("monitor", "hung")]
    assert faults == [("monitor", kind)]
    assert events[-1]["event"] == "end"
    readings = [event["devices"] for event in events if event["event"] == "devices"]
    reported = [{"index": 0, "power_w": 90.5}, {"index": 1, "power_w": 91.5}]
    # A script with ``FIRST_WORKS`` prints one good answer before the fault.
    assert readings == ([reported] if FIRST_WORKS in script else [])


def test_run_passes_although_its_sampler_was_killed(start_run, fifo):
    """The sampler is a process that reads devices and the host during a run.

    ``start_run`` starts the case ``faulty``. ``fifo``: the pipe through which its rank reports the
    fault; ``hold``: it waits until the test writes to the pipe ``go``. ``sampling`` is the first
    event of the sampler, which says that it has started.
    """
    # The rank waits in a step until the sampler is dead.
    process, run_dir = start_run("fault=hold")
    wait_for_fault(fifo)
    wait_for_event(run_dir, lambda event: event["event"] == "sampling")
    # The process that reads devices and the host during a run.
    (sampler,) = find_processes_of_command(read_run_id(run_dir), MODULE)
    sampler.kill()
    fifo.with_name("go").write_text("on")  # let the rank train on
    assert wait_for_end(process)[0] == 0
    record = read_checked_record(run_dir)
    assert record.status == "passed"
    # A sampler that ends in order writes an "end"; a killed one cannot.
    assert "end" not in [event["event"] for event in read_events(run_dir)]


def test_a_killed_launcher_ends_sampler_and_hung_tool(start_run, fifo, install_tool_vendor):
    """The sampler is a process that reads devices during a run, here with the tool of a vendor.

    ``install_tool_vendor`` writes the vendor ``tooled``, whose tool runs this line of a shell,
    and returns the environment that finds both. The rank reports through ``fifo`` that it
    waits. ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty``
    unless another is named, and returns the process and the folder of the run.
    """
    # The tool hangs, and so does a process that it starts.
    variables = install_tool_vendor("sleep 1000 & sleep 1000")
    process, run_dir = start_run("--device", "tooled", "fault=wait", **variables)
    wait_for_fault(fifo)
    # The sampler starts the tool at some time, and again once it was given up.
    deadline = time.monotonic() + 600
    while not find_processes_of_command(read_run_id(run_dir), TOOL):
        assert time.monotonic() < deadline, "the sampler did not start the tool"
        time.sleep(0.02)
    processes = find_processes(read_run_id(run_dir))
    process.kill()
    wait_for_end(process)
    _ended, alive = psutil.wait_procs(processes, timeout=300)
    assert alive == []
    # The sampler noticed the end of its launcher, and closed its file in order.
    assert read_events(run_dir)[-1]["event"] == "end"
