"""Generated data is complete or absent, and each generator has its own folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from trainmark import cases
from trainmark.cases.toy.case import CASE as TOY
from trainmark.errors import CaseError
from trainmark.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = Recipe(data="generated")


@pytest.fixture
def make_generated_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that generates the toy case's data with a generator of its own.

    The generator is ``generate(folder, recipe)``, of which the caller gives the body as text.
    """
    file = tmp_path / "sources" / "generator.py"
    file.parent.mkdir()

    def make_generated_folder(body: str) -> Path:
        """Return the folder of the data, whose name depends on the source file written here."""
        file.write_text(f"def generate(folder, recipe):\n    {body}\n")
        names: dict[str, Any] = {}
        exec(compile(file.read_text(), str(file), "exec"), names)
        monkeypatch.setattr(cases.import_part("toy", "data"), "generate", names["generate"])
        monkeypatch.setattr(cases, "get_folder", lambda _: file.parent)
        return cases.ensure_generated_data(TOY, RECIPE, tmp_path / "root")

    return make_generated_folder


def test_data_is_generated_once_for_each_generator(
    make_generated_folder: Any, tmp_path: Path
) -> None:
    first = make_generated_folder("(folder / 'a.txt').write_text(str(recipe.seed))")
    assert (first / "a.txt").read_text() == "1"  # the recipe's default seed
    assert [path.name for path in (tmp_path / "root").iterdir()] == [first.name]
    # Readable by other users, unlike a temporary folder.
    assert first.stat().st_mode & 0o777 == 0o755
    # The same generator is not called again, so a changed file stays; another generator writes to
    # another folder.
    (first / "a.txt").write_text("kept")
    assert make_generated_folder("(folder / 'a.txt').write_text(str(recipe.seed))") == first
    assert (first / "a.txt").read_text() == "kept"
    assert make_generated_folder("(folder / 'a.txt').write_text('other')") != first


def test_a_generator_that_fails_leaves_nothing(make_generated_folder: Any, tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="ZeroDivisionError") as raised:
        make_generated_folder("(folder / 'half.txt').write_text('half'); 1 / 0")
    # The part of the case that failed, and the file and line: line 2 is the generator's body.
    assert raised.value.place == "data_generate"
    assert f"{tmp_path}/sources/generator.py:2" in str(raised.value)
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.parametrize("name", cases.list_names())
def test_folder_name_depends_only_on_fields_that_change_the_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.load(name)
    # Only the name of the folder matters, so nothing is generated.
    monkeypatch.setattr(cases, "write_folder", lambda folder, fill: folder.mkdir())
    for recipe in case.recipes.values():
        folder = cases.ensure_generated_data(case, recipe, tmp_path)
        # Fields of the training alone, which change none of the generated data; the seed does.
        same = replace(
            recipe,
            timeout_s=recipe.timeout_s + 1,
            window_steps=recipe.window_steps + 1,
            learning_rate=recipe.learning_rate / 2,
            target_value=None,
            precision="bf16",
        )
        assert cases.ensure_generated_data(case, same, tmp_path) == folder
        other = replace(recipe, seed=recipe.seed + 1)
        assert cases.ensure_generated_data(case, other, tmp_path) != folder
