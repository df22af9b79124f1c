"""Samples in the record: golden, verified from redacted files, with findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import S, check_golden, make_event
from support.telemetry_files import (
    TIMES_S,
    make_device_lines,
    make_end_line,
    make_host_line,
    make_start_line,
    write_sampled_run,
)
from trainmark.events.schema import TELEMETRY_FILE
from trainmark.export.tables import render_csv
from trainmark.record import record, reduce, verify

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record

# Often enough that the readings around an edge are within a tenth of the training.
OFTEN_S = [0.125 * number for number in range(97)]


def make_lines(**readings: Any) -> list[dict[str, Any]]:
    """Return the lines of a telemetry file of two devices and the host.

    Args:
        readings: further readings of the devices, whose clocks are not lowered.
    """
    # ``TIMES_S`` are 11 times of the run, from 0 to 12 s. The host's readings are any; its memory
    # is 16 GiB in bytes. 0 and 1 are the indexes of the devices.
    usual = {"throttle_reasons": []}
    host_lines = [
        make_host_line(t_s, utilization_percent=25.0, memory_used_bytes=2**34) for t_s in TIMES_S
    ]
    return [
        make_start_line(0, 1),
        *host_lines,
        *make_device_lines(0, 1, **usual | readings),
        make_end_line(),
    ]


def build_record(tmp_path: Path, samples: Sequence[dict[str, Any]] | bytes | None) -> Record:
    """Return the record of a run of two ranks with these readings of its devices.

    Args:
        samples: events of the file of readings, or its bytes; None: there were no readings.
    """
    return reduce.reduce(write_sampled_run(tmp_path / "run", samples))


def test_record_of_a_sampled_run_matches_its_golden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the whole record of a run with telemetry with the text in ``tests/golden``.

    ``make_lines`` gives the readings of the two ranks' devices and of the host, at set times. All
    values follow from files written by hand, so that the text is the same everywhere.
    """
    monkeypatch.setattr(reduce, "__version__", "0.0.0")  # as in the file, for every release
    run_dir = write_sampled_run(tmp_path / "run", make_lines())
    path = record.write_record(reduce.reduce(run_dir), run_dir)
    check_golden("record_sampled.json", path.read_text(encoding="utf-8"))


def test_summary_is_reproduced_from_the_sample_file(tmp_path: Path) -> None:
    # ``TELEMETRY_FILE`` is the file in the run's folder with the readings of ``make_lines``, in
    # which each of two devices draws 400 W while it trains. ``verify_evidence`` returns messages on
    # what contradicts the record.
    run_dir = write_sampled_run(tmp_path / "run", make_lines())
    record.write_record(reduce.reduce(run_dir), run_dir)
    text = (run_dir / TELEMETRY_FILE).read_text(encoding="utf-8")
    assert verify.verify_evidence(record.read_record(run_dir), run_dir) == []
    assert (run_dir / TELEMETRY_FILE).read_text(encoding="utf-8") == text  # only read

    (run_dir / TELEMETRY_FILE).write_text(text.replace('"power_w":400.0', '"power_w":200.0'))
    # The file has another hash, and other figures follow from it.
    altered, disagrees = verify.verify_evidence(record.read_record(run_dir), run_dir)
    assert (altered.code, altered.args) == ("evidence_altered", {"file": TELEMETRY_FILE})
    assert disagrees.args["field"] == "figures.power.value"
    (run_dir / TELEMETRY_FILE).unlink()
    assert (
        verify.verify_evidence(record.read_record(run_dir), run_dir)[0].code == "evidence_missing"
    )


def test_lowered_clocks_in_the_measured_time_make_the_result_noisy(tmp_path: Path) -> None:
    # Readings of two devices with clocks that are not lowered. ``build_record`` returns the record
    # of a run with such readings. Of the measured time, from 8 s to 9.625 s, they are at 8 s, 9 s
    # and its end.
    samples = make_lines()
    for line in samples:
        if line["event"] == "devices" and line["t_ns"] >= 9 * S:
            line["devices"][1]["throttle_reasons"] = ["hw_thermal"]  # the device of rank 1
    record = build_record(tmp_path, samples)
    (finding,) = record.findings
    # A reading counts for the time to which it is nearest. So the clocks are lowered from 8.5 s,
    # halfway between the readings at 8 s and 9 s, to 9.625 s: 1.125 s of the measured 1.625 s, 69%.
    share = pytest.approx(1.125 / 1.625)
    assert finding.code == "throttled_while_measured"
    assert finding.args == {
        "devices": 1,  # with lowered clocks
        "of": 2,
        "rank": 1,  # whose device it is
        "share": share,
        "reasons": "hw_thermal 69%",
    }
    assert record.trust.grade == "noisy"
    assert record.trust.reasons[0].code == "throttled_while_measured"


def make_lines_with_errors(
    counts: dict[str, list[int]], fault: str | None = None
) -> list[dict[str, Any]]:
    """Return samples in which device 1 has these counts in its last readings, by counter.

    All other readings have 7 corrected errors, 2 replays of a link and no uncorrected error, which
    are those from before the run.

    Args:
        counts: by the name of a counter such as ``ecc_corrected``; the last one is that of the very
            last reading.
        fault: text of a fault in the very last reading.
    """
    samples = make_lines(ecc_corrected=7, link_replays=2, ecc_uncorrected=0)
    of_devices = [line for line in samples if line["event"] == "devices"]
    for name, values in counts.items():
        for line, value in zip(of_devices[-len(values) :], values, strict=True):
            line["devices"][1][name] = value
    if fault is not None:
        of_devices[-1]["devices"][1]["last_fault"] = fault
    return samples


def test_unchanged_error_counters_are_no_finding(tmp_path: Path) -> None:
    # ``{}``: no reading of device 1 has other counts than the usual ones. Both devices
    # report 7 corrected errors, 2 replays and no uncorrected error all the time.
    record = build_record(tmp_path, make_lines_with_errors({}))

    assert record.findings == []
    assert record.telemetry is not None
    first, _ = record.telemetry.devices
    # Errors before the run do not count, only the rise of a counter.
    assert {name: (x.last, x.rise) for name, x in first.errors.items()} == {
        "ecc_corrected": (7, 0),
        "ecc_uncorrected": (0, 0),
        "link_replays": (2, 0),
    }


def test_corrected_errors_are_a_finding_that_keeps_the_grade(tmp_path: Path) -> None:
    # The counts of device 1 in its last two readings, after 7 corrected errors and 2 replays in all
    # earlier ones. A counter that falls was reset: 2 errors from 7 to 9, then 1 after the reset, so
    # 3. The replays rise from 2 to 5, by 3.
    record = build_record(
        tmp_path, make_lines_with_errors({"ecc_corrected": [9, 1], "link_replays": [2, 5]})
    )

    (finding,) = record.findings
    assert finding.code == "device_errors_corrected"
    assert finding.args == {
        "devices": 1,  # with errors
        "of": 2,
        "rank": 1,  # whose device it is
        "node": 0,
        "errors": "ecc_corrected +3, link_replays +3",
    }
    assert finding not in record.trust.reasons


def test_uncorrected_errors_and_faults_give_the_grade_do_not_quote(tmp_path: Path) -> None:
    # In its last reading, device 1 has 2 uncorrected errors, after 0 in all earlier ones, and a
    # fault that its driver reported.
    record = build_record(
        tmp_path, make_lines_with_errors({"ecc_uncorrected": [2]}, fault="Xid 48")
    )

    (finding,) = record.findings
    assert (finding.code, finding.args["errors"]) == ("device_errors", "ecc_uncorrected +2, Xid 48")
    assert record.trust.grade == "do_not_quote"
    assert record.telemetry is not None
    assert record.telemetry.devices[1].faults == ["Xid 48"]


@pytest.mark.parametrize("kind", ["absent", "hung", "failed", "unreadable"])
def test_a_monitor_that_failed_is_a_finding(tmp_path: Path, kind: str) -> None:
    # A monitor reads the devices of a vendor, once a second; the first line of ``make_lines``
    # has its name, which the finding gives as ``source``. The text is any.
    fault = make_event("fault", 3 * S, source="monitor", kind=kind, text="nvidia-smi: why")
    second_fault = fault | {"t_ns": 5 * S}
    # Before the line that ends the file.
    record = build_record(tmp_path, [*make_lines()[:-1], fault, second_fault, make_end_line()])
    (note,) = record.findings
    assert note.code == f"source.{kind}"
    # One finding for both faults.
    assert note.args == {"source": "nvml 13.580", "text": "nvidia-smi: why", "times": 2}
    assert record.passed  # the training itself is not in doubt


def test_estimated_energy_is_marked_in_record_and_export(tmp_path: Path) -> None:
    # ``OFTEN_S``: a reading every eighth of a second. Each device draws 400 W from 6 s on, when
    # training begins.
    samples = [
        make_start_line(0, 1),
        *make_device_lines(0, 1, times_s=OFTEN_S, energy_j=None),  # power, but no counter of energy
        make_end_line(),
    ]
    record = build_record(tmp_path, samples)
    head, row = (line.split(",") for line in render_csv([record]).splitlines())
    cells = dict(zip(head, row, strict=True))
    assert cells["energy_to_target_j"] == cells["energy_per_sample_j"] == ""
    # Two devices of 400 W: for 5 s, until the evaluation at 11 s reaches the target, and for the
    # 3.625 s of the training windows (6 s to 9.625 s), in which each of two ranks trains 1024
    # samples.
    assert float(cells["estimated_energy_to_target_j"]) == pytest.approx(2 * 400 * 5)
    assert float(cells["estimated_energy_per_sample_j"]) == pytest.approx(2 * 400 * 3.625 / 2048)
    assert cells["monitor"] == "nvml 13.580"
    # The temperature is 50 + t degrees at t seconds: the highest is that of the last window's end.
    assert (cells["power_W"], cells["temperature_c"]) == ("400.0", "59.625")
    note = record.figures["estimated_energy_to_target"].note
    assert note is not None
    assert note.code == "estimated_of_devices"
