"""Commands that run Python import nothing from the working directory, with any version of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainmark.launch.python_commands import build_code_command, build_module_command


@pytest.fixture(params=[sys.version_info, (3, 10, 13)])
def python_version(request, monkeypatch):
    """Let the program take this Python for another version, and so build the command for it.

    From 3.11 on a command has the option ``-P``. Before, its code changes the import path, which
    works with any version. So this test's own Python can run both.
    """
    monkeypatch.setattr(sys, "version_info", request.param)


def run_in_folder(folder, command):
    """Return the output of a command in a folder with modules that fail when imported."""
    (folder / "json.py").write_text("raise ImportError('planted')")
    (folder / "trainmark").mkdir()
    (folder / "trainmark" / "__init__.py").write_text("raise ImportError('planted')")
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_module_command_imports_nothing_from_working_directory(python_version, tmp_path):
    """The folder has a package ``trainmark`` and a ``json.py`` that raise when imported.

    ``run_in_folder`` makes them, and runs the command there. ``python_version`` is the version for
    which the command is built.
    """
    command = build_module_command("trainmark", "--version")
    assert run_in_folder(tmp_path, command).startswith("trainmark ")


def test_code_command_imports_nothing_from_working_directory(python_version, tmp_path):
    """The folder has a ``json.py`` that raises; the code prints its arguments with ``json``."""
    command = build_code_command("import json, sys; print(json.dumps(sys.argv[1:]))", "a", "b c")
    assert run_in_folder(tmp_path, command) == '["a", "b c"]\n'
