"""What a program prints of its speed is read as it stands, whatever its lines look like."""

from __future__ import annotations

import pytest

from trainmark.plan.witness import Witness, WitnessSpec
from trainmark.witness.printed import read_number, read_printed


def make_witness(pattern, folder, **fields):
    """Return the witness of a program in ``folder``: what Trainmark knows of a program it watches.

    The file of ``--witness`` has ``pattern`` as its ``speed_line``, by which the lines with a speed
    are found in the program's output, and ``fields``. Its other values have no effect here.
    """
    spec = WitnessSpec(
        name="program", precision="fp32", step={"samples": 8}, speed_line=pattern, **fields
    )
    return Witness(spec=spec, command=("python",), folder=str(folder), starts_ranks=False)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12.0),
        ("1,234.5", 1234.5),
        ("1.2k", 1200.0),
        ("3M", 3e6),
        ("1e3", 1000.0),
        ("nothing", None),
        ("", None),
        (None, None),
        ("1.2.3", None),
    ],
)
def test_number_is_read_as_printed(text, number):
    assert read_number(text) == number


def test_each_pattern_group_is_a_quantity(tmp_path):
    # A group of the pattern has the name of a quantity. ``log.launcher.txt`` has what the program
    # printed; two of its three lines match.
    lines = ["step 1 tps: 1,000 tflops: 2.5", "evaluating", "step 2 tps: 3,000 tflops: 7.5"]
    (tmp_path / "log.launcher.txt").write_text("\n".join(lines))
    pattern = r"tps: (?P<tokens_per_second_per_device>[0-9,]+) tflops: (?P<tflops_per_device>\S+)"
    printed = read_printed(tmp_path, make_witness(pattern, tmp_path))
    # ``raw`` is the first line that holds the quantity.
    assert printed == [
        {
            "quantity": "tokens_per_second_per_device",
            "lines": 2,
            "values": [1000.0, 3000.0],
            "raw": lines[0],
        },
        {"quantity": "tflops_per_device", "lines": 2, "values": [2.5, 7.5], "raw": lines[0]},
    ]


def test_each_state_of_a_progress_bar_is_a_line(tmp_path):
    (tmp_path / "log.launcher.txt").write_bytes(b"1/3 5.0it/s\r2/3 6.0it/s\r3/3 7.0it/s\n")
    # A bar returns to the begin of its line, by "\r", for its next state.
    witness = make_witness(r"(?P<steps_per_second>[0-9.]+)it/s", tmp_path)
    assert read_printed(tmp_path, witness)[0]["values"] == [5.0, 6.0, 7.0]


def test_files_of_all_nodes_are_read(tmp_path):
    # Each node keeps what its program printed in a file of its own.
    for node in range(2):
        (tmp_path / f"log.node{node}.txt").write_text(f"{node + 1} ms\n")
    witness = make_witness(r"(?P<step_ms>[0-9]+) ms", tmp_path)
    assert read_printed(tmp_path, witness)[0]["values"] == [1.0, 2.0]


def test_log_file_of_the_program_replaces_its_output(tmp_path):
    (tmp_path / "log.launcher.txt").write_text("1 ms\n")  # what the program printed
    (tmp_path / "own.log").write_text("5 ms\n")
    witness = make_witness(r"(?P<step_ms>[0-9]+) ms", tmp_path, log="own.log")
    assert read_printed(tmp_path, witness)[0]["values"] == [5.0]


def test_without_a_pattern_nothing_is_read(tmp_path):
    (tmp_path / "log.launcher.txt").write_text("1 ms\n")
    assert read_printed(tmp_path, make_witness(pattern=None, folder=tmp_path)) == []
