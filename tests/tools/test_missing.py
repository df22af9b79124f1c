"""What an installation without a network would lack, before anything is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

if TYPE_CHECKING:
    import pytest

TOOL = Path(__file__).parents[2] / "tools" / "missing.py"


def write_wheel(
    folder: Path, name: str, version: str, *requires: str, tag: str = "py3-none-any"
) -> None:
    """Write a wheel that has nothing but the metadata of a package.

    Args:
        requires: the packages that it requires, as in its metadata.
        tag: for which Python and machines the wheel is; the default is any.
    """
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    with ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")


def run_tool(folder: Path, *lines: str) -> tuple[int, list[str], list[str]]:
    """Run ``tools/missing.py``, which names packages that an installation would lack.

    Return the exit code (1: some are missing), their names, and the commands that it prints to
    fetch them.

    Args:
        folder: has wheels, which count as present.
        lines: the requirements.
    """
    (folder / "needed.txt").write_text("# a comment\n" + "\n".join(lines) + "\n")
    process = subprocess.run(
        [
            *(sys.executable, str(TOOL)),
            *("--wheels", str(folder)),
            *("--requirements", str(folder / "needed.txt")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stderr == ""
    package_names = re.findall(r"^  ([\w-]+)\S* \(for", process.stdout, re.MULTILINE)
    return (
        process.returncode,
        package_names,
        re.findall(r"^    (python3 .*)", process.stdout, re.MULTILINE),
    )


def test_complete_installation_misses_nothing(tmp_path: Path) -> None:
    assert run_tool(tmp_path, f"rich=={version('rich')}") == (0, [], [])


def test_each_package_is_named_at_once_with_a_command_for_this_python(tmp_path: Path) -> None:
    code, package_names, (command,) = run_tool(tmp_path, "no-such-one>=2", "no-such-two<3")

    assert (code, package_names) == (1, ["no-such-one", "no-such-two"])
    assert command.endswith("--dest wheels 'no-such-one>=2' 'no-such-two<3'")
    # ``run_tool`` returns the exit code, the packages that are missing, and the commands that fetch
    # them. The command is for a machine with network, which may have another Python.
    assert f"--python-version {sys.version_info[0]}.{sys.version_info[1]} " in command


def test_wheel_satisfies_a_requirement_and_adds_its_requirements(tmp_path: Path) -> None:
    # A wheel of version 2.1 of a package that requires another one, and with its extra a third.
    write_wheel(tmp_path, "no_such_one", "2.1", "no-such-two>=1", 'no-such-three; extra == "more"')

    # ``run_tool`` returns the exit code, the packages that are missing, and the commands.
    assert run_tool(tmp_path, "no-such-one>=2")[:2] == (1, ["no-such-two"])
    assert run_tool(tmp_path, "no-such-one[more]>=2")[1] == ["no-such-two", "no-such-three"]

    write_wheel(tmp_path, "no_such_two", "1.0")
    assert run_tool(tmp_path, "no-such-one>=2") == (0, [], [])


def test_a_version_out_of_range_is_missing_and_comes_in_its_tested_version(tmp_path: Path) -> None:
    # The tests run with a later rich. ``run_tool`` returns the exit code, the packages that are
    # missing, and the commands that fetch them.
    code, package_names, (command,) = run_tool(tmp_path, "rich<1")

    assert (code, package_names) == (1, ["rich"])
    # rich is in the lock, so the command fetches the version of the lock, with which the tests run.
    assert re.search(r"--no-deps .* rich==[\d.]+( |$)", command)


def load_tool() -> Any:
    """Return ``tools/missing.py``, which names packages that are not installed, as a module."""
    spec = importlib.util.spec_from_file_location("missing", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["missing"] = module
    spec.loader.exec_module(module)
    return module


def test_what_a_missing_package_requires_is_named_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = load_tool()
    find_installed = missing.find_installed
    pins = missing.read_locks().pins
    # Without arguments, the tool checks what the project requires. ``pins`` has the locked version
    # of each package. What a machine with torch alone has of them: an older core, and fitting
    # helpers of typing.
    # None: the package is not installed; an empty list: it requires no other package.
    replaced = {
        "pydantic": None,
        "annotated-types": None,
        "msgspec": None,
        "starlette": None,
        "pydantic-core": missing.Found("2.0.0", []),
    }
    for name in ("typing-extensions", "typing-inspection"):
        replaced[name] = missing.Found(pins[name], [])

    monkeypatch.setattr(
        missing,
        "find_installed",
        lambda name: replaced[name] if name in replaced else find_installed(name),
    )
    monkeypatch.setattr(sys, "argv", ["missing.py"])

    assert missing.main() == 1

    printed = capsys.readouterr().out
    package_names = re.findall(r"^  ([\w-]+)\S* \(for", printed, re.MULTILINE)
    assert set(package_names) == {
        "annotated-types",
        "msgspec",
        "pydantic",
        "pydantic-core",
        "starlette",
    }
    assert re.search(r"pydantic-core==[\d.]+ \(for pydantic\); 2\.0\.0 is installed", printed)
    (command,) = re.findall(r"^    (python3 .*)", printed, re.MULTILINE)
    assert command.endswith(" ".join(f"{name}=={pins[name]}" for name in sorted(package_names)))


def test_every_package_of_the_locks_but_torch_follows_from_the_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = load_tool()
    find_installed = missing.find_installed
    # As if nothing but torch were installed: the command then names all other packages.
    monkeypatch.setattr(
        missing, "find_installed", lambda name: find_installed(name) if name == "torch" else None
    )
    monkeypatch.setattr(sys, "argv", ["missing.py"])

    assert missing.main() == 1

    # The command for locked packages names each of them.
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--no-deps" in line]
    package_names = {word.partition("==")[0] for word in line.split() if "==" in word}
    lines = (TOOL.parents[1] / "requirements.lock").read_text().splitlines()
    locked = {line.partition("==")[0] for line in lines if not line.lstrip().startswith("#")}
    assert locked - package_names <= {"torch"}
