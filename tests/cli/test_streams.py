"""Standard streams that are closed, full or without a reader: no traceback, and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fakes import GOLDEN
from trainmark.cli.app import VERBS
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE

FULL = "/dev/full"
OUTPUT_LOST = "trainmark: cannot write to standard output: No space left on device\n"


@pytest.fixture
def shell(tmp_path):
    """Return a function that runs a line of shell; ``$T`` is the program, ``runs/a`` a run."""
    (tmp_path / "runs/a").mkdir(parents=True)
    record = (GOLDEN / "record_toy.json").read_bytes()
    (tmp_path / "runs/a/record.json").write_bytes(record)

    def run(line: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        process = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ
            | {
                "T": f"{sys.executable} -m trainmark",
                "OMP_NUM_THREADS": "1",
                "TRAINMARK_CACHE": str(tmp_path / "cache"),
            },
        )
        return process.returncode, process.stdout, process.stderr

    return run


PRINTS = ("list", "report runs/a", "results", "export runs/a --to json", "--help", "--version")


@pytest.mark.parametrize("args", PRINTS)
def test_full_output_is_one_message(shell, args):
    assert shell(f"$T {args} > {FULL}") == (EXIT_FAILED, "", OUTPUT_LOST)


@pytest.mark.parametrize("args", PRINTS)
def test_closed_streams_behave_like_the_null_device(shell, args):
    assert shell(f"$T {args} >&- 2>&- <&-") == (EXIT_PASSED, "", "")


@pytest.mark.nightly
@pytest.mark.parametrize("verb", [name for group in VERBS.values() for name in group])
def test_help_of_every_verb_handles_closed_and_full_streams(shell, verb):
    # ``>&-`` closes a stream; ``FULL`` is a device on which every write fails. ``OUTPUT_LOST`` is
    # the message that standard output cannot be written; exit code ``EXIT_FAILED`` says so too.
    assert shell(f"$T {verb} --help >&-") == (EXIT_PASSED, "", "")
    assert shell(f"$T {verb} --help >&- 2>&-") == (EXIT_PASSED, "", "")
    assert shell(f"$T {verb} --help > {FULL}") == (EXIT_FAILED, "", OUTPUT_LOST)
    assert shell(f"$T {verb} --help > {FULL} 2> {FULL}") == (EXIT_FAILED, "", "")


@pytest.mark.parametrize("errors", [FULL, "&-"])
def test_error_that_cannot_be_printed_keeps_its_exit_code(shell, errors):
    assert shell(f"$T run nothing 2> {errors}".replace("> &", ">&")) == (EXIT_USAGE, "", "")


def test_broken_pipe_gives_no_message(shell):
    # Descriptor 4 writes to a pipe whose only reader, descriptor 3, is closed before the start. The
    # exit code says that output was lost.
    line = "mkfifo p; exec 3<>p; exec 4>p; exec 3<&-; $T list >&4"
    assert shell(line) == (EXIT_FAILED, "", "")


def test_run_keeps_its_exit_code_and_record_without_its_streams(shell, tmp_path):
    args = "run toy --device cpu max_epochs=1 target_value=none"
    # First standard output is full (``FULL``: every write fails), then both streams are closed.
    # ``OUTPUT_LOST`` is the message that standard output cannot be written. The run passed anyway.
    code, _, err = shell(f"$T {args} --out runs/full > {FULL}")
    assert code == EXIT_PASSED
    assert OUTPUT_LOST in err
    assert shell(f"$T {args} --out runs/closed >&- 2>&-") == (EXIT_PASSED, "", "")
    for name in ("full", "closed"):
        assert Path(tmp_path / "runs" / name / "record.json").exists()
        assert Path(tmp_path / "runs" / name / "page.html").exists()
