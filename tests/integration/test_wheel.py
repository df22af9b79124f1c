"""The wheel as users install it: built, put into a bare environment, running the toy case."""

from __future__ import annotations

import json
import shlex
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INGREDIENTS = ("src", "pyproject.toml", "README.md", "LICENSE")  # what the wheel is built from


def run_successfully(*args: str | Path, cwd: Path) -> str:
    """Return the output of a command, which gets no variable of this process but a ``PATH``.

    So a ``PYTHONPATH`` cannot put the sources in place of the wheel.
    """
    process = subprocess.run(
        [str(word) for word in args],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def program_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of an environment that holds the wheel.

    Its dependencies are those of this test's own environment, whose folders a path file names.
    Path files in these folders are not followed, so that the editable install is not seen.
    ``INGREDIENTS`` are the files and folders of the project from which a wheel is built.
    """
    build_folder = tmp_path_factory.mktemp("wheel")
    source = build_folder / "source"
    source.mkdir()
    for name in INGREDIENTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    for leftover in source.rglob("*.egg-info"):  # of an editable install: lists files of its own
        shutil.rmtree(leftover)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run_successfully(
        *pip,
        *shlex.split("wheel --no-deps --no-build-isolation --no-index"),
        *("--wheel-dir", build_folder),
        source,
        cwd=build_folder,
    )
    (wheel,) = build_folder.glob("trainmark-*.whl")

    venv.create(build_folder / "venv", with_pip=False)
    python = build_folder / "venv/bin/python"
    run_successfully(
        *pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=build_folder
    )
    site_packages = run_successfully(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=build_folder
    )
    (Path(site_packages.strip()) / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return python.parent


def test_wheel_contains_the_program_and_its_data(program_folder: Path, tmp_path: Path) -> None:
    """``program_folder`` has the programs of an environment in which the wheel is installed.

    ``ROOT`` is the folder of the project; ``is_data`` tells whether a path is a file but no module.
    """
    module_file = run_successfully(
        program_folder / "python", "-c", "import trainmark; print(trainmark.__file__)", cwd=tmp_path
    )
    assert Path(module_file).is_relative_to(program_folder.parent)
    # Every file of the tree that is no module is in the installed package too.
    packaged, tree = Path(module_file).parent, ROOT / "src/trainmark"
    data = {path.relative_to(tree) for path in tree.rglob("*") if is_data(path)}
    assert len(data) > len(list(tree.glob("cases/*/README.md"))) > 0  # the tree was found
    assert {name for name in data if not (packaged / name).is_file()} == set()


def is_data(path: Path) -> bool:
    """Return whether a path is a file but no module of Python."""
    return path.is_file() and path.suffix not in (".py", ".pyc")


def test_the_installed_program_runs_the_toy_case(program_folder: Path, tmp_path: Path) -> None:
    """``program_folder`` has the programs of an environment in which the wheel is installed.

    The page is in Chinese: its texts are files of the package, too.
    """
    run_successfully(program_folder / "trainmark", "run", "toy", "--out", "run", cwd=tmp_path)

    record = json.loads((tmp_path / "run/record.json").read_text())
    assert record["status"] == "passed"
    page = run_successfully(
        program_folder / "trainmark", "report", "run", "--lang", "zh", cwd=tmp_path
    )
    assert "p_train" in page
