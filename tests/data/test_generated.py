"""Generated data lies whole or not at all, and never meets another generator's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainmark import cases
from trainmark.cases.toy.case import CASE as TOY
from trainmark.data import generated
from trainmark.data.generated import generated_folder
from trainmark.recipe import Recipe

if TYPE_CHECKING:
    from trainmark.spec import Case

RECIPE = Recipe(data="generated")


Generate = Callable[[Path, Any], None]


def folder_by(generate: Generate, root: Path, *, case: Case = TOY, recipe: Recipe = RECIPE) -> Path:
    """Return the folder with what ``generate`` writes; the case has no sources of its own."""
    return generated_folder(case, recipe, root, generate=generate, sources=root)


def counting(calls: list[Path]) -> Generate:
    def generate(folder: Path, recipe: Recipe) -> None:
        calls.append(folder)
        (folder / "a.txt").write_text(str(recipe.seed))

    return generate


def test_data_is_generated_once(tmp_path: Path) -> None:
    calls: list[Path] = []
    first = folder_by(counting(calls), tmp_path / "root")
    assert folder_by(counting(calls), tmp_path / "root") == first
    assert len(calls) == 1
    assert (first / "a.txt").read_text() == "1"
    assert [path.name for path in (tmp_path / "root").iterdir()] == [first.name]
    assert first.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("name", "recipe_name"),
    [
        (name, recipe_name)
        for name in cases.names()
        for recipe_name, recipe in cases.load(name).recipes.items()
        if recipe.data == "generated"
    ],
)
def test_only_the_fields_that_data_depends_on_name_the_folder(
    name: str, recipe_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.load(name)
    recipe = case.recipes[recipe_name]
    monkeypatch.setattr(generated, "write_folder", lambda folder, fill: folder.mkdir())
    folder = cases.generated_folder(case, recipe, tmp_path)
    same = replace(
        recipe, timeout_s=recipe.timeout_s + 1, window_steps=recipe.window_steps + 1,
        learning_rate=recipe.learning_rate / 2, target_value=None, precision="bf16",
    )  # fmt: skip
    assert cases.generated_folder(case, same, tmp_path) == folder
    other = replace(recipe, seed=recipe.seed + 1)
    assert cases.generated_folder(case, other, tmp_path) != folder


def test_a_changed_generator_has_another_folder(tmp_path: Path) -> None:
    file = tmp_path / "generator.py"

    def folder_of(source: str) -> Path:
        file.write_text(source)
        names: dict[str, Any] = {}
        exec(compile(source, str(file), "exec"), names)
        return folder_by(names["generate"], tmp_path / "root")

    source = "def generate(folder, recipe):\n    (folder / 'a.txt').write_text('1')\n"
    first = folder_of(source)
    assert folder_of(source) == first
    assert folder_of(source.replace("'1'", "'2'")) != first


def test_a_generator_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path, recipe: Recipe) -> None:
        (folder / "half.txt").write_text("half")
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        folder_by(fail, tmp_path)
    assert list(tmp_path.iterdir()) == []
