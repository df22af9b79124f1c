"""Trainmark from Python: the page's examples as one script, its types, signals and import cost."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.run_fixtures import CASES

ROOT = Path(__file__).parents[2]
STUB = ROOT / "src" / "trainmark" / "__init__.pyi"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read_script(page: str) -> str:
    """Return all examples of a page as one script."""
    return "\n".join(BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")))


def call(*args: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``args`` in a folder; ``variables``: of the environment."""
    env = os.environ | {
        "TRAINMARK_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def script_folder_and_output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the folder in which the page's script ran, and the lines that it printed."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "page.py").write_text(read_script("measuring.md"), encoding="utf-8")
    process = call("page.py", folder=folder)
    assert process.returncode == 0, process.stderr
    return folder, process.stdout.splitlines()


def test_documented_script_does_what_its_page_says(
    script_folder_and_output: tuple[Path, list[str]],
) -> None:
    """The lines that the examples print, in the order of the page."""
    folder, lines = script_folder_and_output
    # A line for each of two launches: place, status, rate. Then the error of a call with an unknown
    # field, "batch". Then the grade of the first record, whose data is generated, so that its
    # figures say nothing about real training.
    assert [line.split()[1] for line in lines[:2]] == ["passed", "passed"]
    assert lines[2].startswith("unknown recipe field 'batch' | did you mean batch_size?")
    assert lines[3].startswith("do_not_quote ['trust_generated_data'")
    for launch in ("first/r1", "first/r2", "second"):
        assert (folder / "runs" / launch / "page.html").is_file()
    assert (folder / "runs" / "first" / "page.html").is_file()
    rules = {
        line.split()[1]: line.split()[0] for line in lines if line.startswith(("True", "False"))
    }
    # Lines with a rule and whether it is kept: there are too few launches, but the data is right.
    assert (rules["launches"], rules["data"]) == ("False", "True")
    # The last line: the exit code of verifying a bundle, and the states of its checks.
    code, states = lines[-1].split(" ", 1)
    assert code == "0"
    assert "broken" not in ast.literal_eval(states)


def test_type_checker_accepts_the_documented_script_and_rejects_wrong_calls(tmp_path: Path) -> None:
    wrong = ("trainmark.run(case=5)", 'print(1 + records[0].figure("p_train"))')
    lines = [*read_script("measuring.md").splitlines(), *wrong]
    (tmp_path / "page.py").write_text("\n".join(lines), encoding="utf-8")
    # The project's own settings, which are strict, and its cache: this takes a minute without.
    settings = ("--config-file", str(ROOT / "pyproject.toml"))
    cache = ("--cache-dir", str(ROOT / ".mypy_cache"))
    process = call(
        "-m", "mypy", *settings, *cache, "page.py", folder=tmp_path, MYPYPATH=str(ROOT / "src")
    )
    # Only the two wrong lines at the end: a number for the case, and a figure that may be None.
    errors = re.findall(r"^page.py:(\d+): error: .*\[([a-z-]+)\]$", process.stdout, re.MULTILINE)
    assert errors == [(str(len(lines) - 1), "arg-type"), (str(len(lines)), "operator")], (
        process.stdout
    )


def test_importing_the_package_loads_no_heavy_module(tmp_path: Path) -> None:
    # The second line is printed after a function of the API was looked up.
    code = (
        "import json, sys, trainmark\n"
        "heavy = {'torch', 'pydantic', 'numpy', 'pandas', 'pyarrow', 'sqlite3', 'typer'}\n"
        "print(json.dumps([sorted(heavy & sys.modules.keys()), dir(trainmark)]))\n"
        "trainmark.run\n"
        "print('torch' in sys.modules, hasattr(trainmark, 'no_such_name'))\n"
    )
    process = call("-c", code, folder=tmp_path)
    first, second = process.stdout.splitlines()
    loaded, names = json.loads(first)
    assert loaded == []
    assert second == "False False"
    # ``dir`` lists the names of the stub, which are imported only when they are used.
    stub = ast.parse(STUB.read_text(encoding="utf-8"))
    stub_names = {x.names[0].name for x in stub.body if isinstance(x, ast.ImportFrom)}
    assert set(names) == stub_names | {"__version__"}


# A script that runs a case whose rank waits; it handles Ctrl-C as any script does.
HELD = """
import signal, sys, trainmark
try:
    trainmark.run("faulty", {"fault": "wait"}, out="held", quiet=False)
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print(trainmark.load("held")[0].status)
"""


def test_ctrl_c_leaves_a_record_and_then_interrupts_the_script(tmp_path: Path) -> None:
    """``HELD`` is a script that runs a case whose rank waits, and prints the record's status.

    The rank writes to the pipe ``fifo`` when it is in a step, where it waits for a signal.
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    env = os.environ | {
        "TRAINMARK_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "FAULT_FIFO": str(fifo),
        "TRAINMARK_CASE_PATH": str(CASES),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", HELD],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        fifo.read_text()  # the rank is in its training
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        process.kill()
    # The status in the record, which the script reads after its ``KeyboardInterrupt``.
    assert out.strip() == "interrupted", err
