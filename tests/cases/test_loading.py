"""Cases that cannot be loaded are reported with their file; the others are still found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trainmark import cases
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def make_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that writes a case outside the package and returns its name.

    Its arguments are the text of ``case.py`` and, by name, those of further modules.
    """
    monkeypatch.setenv(cases.PATH_VARIABLE, str(tmp_path))

    def make(case: str, **modules: str) -> str:
        name = f"made_{tmp_path.name}"  # modules of a case are imported once in a process
        folder = tmp_path / name
        folder.mkdir()
        for module, text in {"case": case, **modules}.items():
            (folder / f"{module}.py").write_text(text)
        return name

    return make


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("CASE = {'name': 'made'}", "TypeError: CASE is a dict, not a Case"),
        ("CASE = None", "TypeError: CASE is a NoneType, not a Case"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_file_that_defines_no_case_is_reported_and_hides_no_other_case(
    make_case: Callable[..., str], tmp_path: Path, text: str, cause: str
) -> None:
    """``text`` is the ``case.py``; ``cause`` is the part of the error after the colon."""
    name = make_case(text)
    with pytest.raises(UsageError) as caught:
        cases.load(name)
    assert caught.value.what == f"cannot be read as a case: {cause}"
    assert caught.value.where == f"{tmp_path / name}/case.py"
    loaded_cases, errors = cases.load_all()
    assert "toy" in [case.name for case in loaded_cases]
    assert [error.what for error in errors] == [caught.value.what]


def test_case_with_another_name_than_its_folder_is_refused(make_case: Callable[..., str]) -> None:
    name = make_case("from trainmark.cases.toy.case import CASE")
    with pytest.raises(UsageError) as caught:
        cases.load(name)
    assert {"'toy'", repr(name)} <= set(caught.value.what.replace(",", "").split())  # both names
    assert "rename the folder" in str(caught.value)


def test_case_with_another_name_than_its_entry_point_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry point ``other`` names the package of the case ``toy``."""
    monkeypatch.setattr(cases, "_locate_cases", lambda: {"other": "trainmark.cases.toy"})
    with pytest.raises(UsageError) as caught:
        cases.load("other")
    assert {"'toy'", "'other'"} <= set(caught.value.what.replace(",", "").split())  # both names
    assert caught.value.where == "trainmark.cases.toy.case"
    assert "rename the entry point" in str(caught.value)


def test_module_that_ends_the_program_on_import_is_reported(make_case: Callable[..., str]) -> None:
    name = make_case("from trainmark.cases.toy.case import CASE", data="raise SystemExit(3)")
    with pytest.raises(UsageError) as caught:
        cases.import_part(name, "data")
    assert caught.value.what == "cannot be imported: SystemExit: 3"
    assert caught.value.where == f"case {name}, module data"
