"""Finding cases, and what every case keeps: these tests discover the cases by themselves."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, get_args

import pytest

from support.fakes import FakeVendor
from trainmark import cases, devices
from trainmark.conformance.case_check import find_definition_faults
from trainmark.errors import UsageError
from trainmark.plan import plan, recipes, resolving
from trainmark.plan.request import RunRequest
from trainmark.recipe import Recipe, Rule, list_fields_with_rule
from trainmark.spec import Case, DataFacts

if TYPE_CHECKING:
    from pathlib import Path

RECIPES = [(name, recipe) for name in cases.list_names() for recipe in cases.load(name).recipes]


@pytest.mark.parametrize("name", cases.list_names())
def test_shipped_case_passes_all_checks(name: str) -> None:
    assert find_definition_faults(name) == []


@pytest.mark.parametrize("name", cases.list_names())
def test_a_case_is_found_by_all_its_names(name: str) -> None:
    case = cases.load(name)
    assert isinstance(case, Case)
    assert case.name == name == cases.get_folder(name).name
    assert case.name not in case.aliases
    for alias in case.aliases:
        assert cases.load(alias) == case


@pytest.mark.parametrize("name", cases.list_names())
def test_every_part_of_a_case_has_its_functions(name: str) -> None:
    # Of the parts, only ``prepare`` is optional.
    for part, functions in (("data", ("generate", "check")), ("job", ("load_data", "build"))):
        for function in functions:
            assert callable(getattr(cases.import_part(name, part), function))
    if cases.has_part(name, "prepare"):
        assert callable(cases.import_part(name, "prepare").prepare)


@pytest.mark.parametrize("name", cases.list_names())
def test_every_field_of_a_recipe_is_described(name: str) -> None:
    recipe_type = cases.load(name).recipe_type
    assert is_dataclass(recipe_type)
    assert issubclass(recipe_type, Recipe)
    # Its class is derived from ``Recipe`` itself, or by way of one class with the fields that
    # language models share: one or two classes more.
    assert len(recipe_type.__mro__) - len(Recipe.__mro__) <= 2
    names = {field.name for field in fields(recipe_type)}
    # Each field is declared with a rule: whether a run may change it and still be compared.
    rules = [list_fields_with_rule(recipe_type, rule) for rule in get_args(Rule)]
    assert set().union(*rules) == names


@pytest.mark.parametrize("name", cases.list_names())
def test_every_case_has_a_tiny_recipe_on_generated_data(name: str) -> None:
    tiny = cases.load(name).recipes["tiny"]
    assert (tiny.data, tiny.world) == ("generated", None)  # for any number of ranks
    assert tiny.target_value is not None
    # It is the choice of a user who names neither recipe nor data.
    chosen = recipes.choose_recipe(cases.load(name), name=None, world="1x1", real_data=False)
    assert chosen == "tiny"


@pytest.mark.parametrize(("name", "recipe_name"), RECIPES)
def test_every_recipe_resolves(
    name: str, recipe_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = cases.load(name)
    recipe = case.recipes[recipe_name]
    # Any valid facts, in place of a check of real data, which is not here.
    facts = DataFacts(
        train_samples=1_000,
        eval_samples=100,
        content_id="0123456789abcdef",
        layout="fake",
        quality_comparable=True,
    )
    monkeypatch.setattr(cases.import_part(name, "data"), "check", lambda folder, recipe: facts)
    vendor = FakeVendor(devices=8, collective_backend="nccl")  # recipes of 8 ranks are for cards
    monkeypatch.setattr(devices, "choose_vendor", lambda _: vendor)
    nnodes, nproc = map(int, (recipe.world or "1x1").split("x"))
    resolved = resolving.resolve(
        RunRequest(
            case=name,
            recipe=recipe_name,
            data=tmp_path,
            nnodes=1,
            # Recipes of several nodes resolve on one node too.
            nproc=nproc if nnodes == 1 else None,
            out=tmp_path / "run",
        ),
        generated_root=tmp_path,
    )
    assert resolved.recipe_name == recipe_name
    # The recipe changes no field that the closed rules fix (``extra`` would name such fields).
    assert (resolved.rules, resolved.extra) == ("closed", {})
    # The plan is unchanged by writing and reading it.
    assert plan.Plan.model_validate_json(resolved.model_dump_json()) == resolved


OUTSIDE_CASE = """
from dataclasses import replace
from trainmark.cases.toy.case import CASE as TOY
from .words import NAME
CASE = replace(TOY, name=NAME, aliases=("elsewhere",))
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a case into the second folder of the search path; return its own folder.

    ``OUTSIDE_CASE`` is a ``case.py`` that copies the toy case under the name in ``words.py``,
    far_case, with the alias elsewhere.
    """
    folder = tmp_path / "more" / "far_case"
    folder.mkdir(parents=True)
    (folder / "case.py").write_text(OUTSIDE_CASE)
    (folder / "words.py").write_text('NAME = "far_case"\n')
    (folder / "job.py").write_text("from .words import NAME\nJOB = NAME\n")
    (tmp_path / "empty").mkdir()
    roots = [tmp_path / "empty", tmp_path / "more"]
    monkeypatch.setenv(cases.PATH_VARIABLE, ":".join(map(str, roots)))
    # Modules of an earlier test would hide these files. The loader of cases names them
    # ``trainmark_outside_case_…``.
    for module in [name for name in sys.modules if "outside_case" in name]:
        monkeypatch.delitem(sys.modules, module)
    return folder


def test_case_can_live_in_any_folder(outside: Path) -> None:
    # ``outside`` is the folder of a case named far_case, with the alias elsewhere, outside the
    # package. Its job.py has ``JOB``, which it takes from another file of the folder by a relative
    # import.
    assert "far_case" in cases.list_names()
    assert cases.load("far_case").name == "far_case"
    assert cases.load("elsewhere") is cases.load("far_case")  # its alias
    assert cases.import_part("far_case", "job").JOB == "far_case"
    assert cases.get_folder("far_case") == outside
    assert not cases.has_part("far_case", "prepare")


def test_missing_module_of_the_case_itself_is_its_fault(outside: Path) -> None:
    # ``outside`` is the folder of a case named far_case; the loader of cases gives its modules
    # names that begin with trainmark_outside_case_far_case. The missing module would be a file of
    # it.
    (outside / "job.py").write_text("from .nothere import JOB\n")
    with pytest.raises(UsageError, match=r"No module named 'trainmark_outside_case_far_case\."):
        cases.import_part("far_case", "job")


def test_missing_package_that_a_case_needs_is_left_to_the_command(outside: Path) -> None:
    # ``outside`` is the folder of a case named far_case; the missing package is none of its files.
    (outside / "job.py").write_text("import nothere\n")
    # The command says how to install it.
    with pytest.raises(ModuleNotFoundError, match="nothere"):
        cases.import_part("far_case", "job")


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        ("import nothere\n", "No module named 'nothere'"),
        (
            "from trainmark.cases.toy.case import CASE\n",
            "CASE.name is 'toy', but the folder is named 'mine'",
        ),
    ],
)
def test_broken_case_is_named_and_other_cases_still_load(
    text: str, expected_error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``text`` is the case.py of the broken case in the folder "mine". ``PATH_VARIABLE`` is the
    # environment variable with the folders of cases. Modules of an earlier test are forgotten.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "case.py").write_text(text)
    monkeypatch.setenv(cases.PATH_VARIABLE, str(tmp_path))
    for module in ("trainmark_outside_case_mine", "trainmark_outside_case_mine.case"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(UsageError, match="mine") as caught:
        cases.load("mine")
    assert expected_error in str(caught.value)
    assert "mine/case.py" in str(caught.value)
    # Others load, and the faulty one is reported.
    loaded, faults = cases.load_all()
    assert {"toy", "distilbert_sst2"} <= {case.name for case in loaded}
    assert len(faults) == 1
    assert cases.load("distilbert").name == "distilbert_sst2"
