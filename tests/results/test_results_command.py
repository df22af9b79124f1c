"""``trainmark results``: exact answers on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.store_bodies import make_document, write_record_file


@pytest.fixture
def runs(tmp_path):
    """Return the folder ``runs`` of the working directory, which the command lists by default.

    It has three runs: a, an ordinary one; b, of a plan file and on another device; c, which failed.
    Each is a copy of a stored record with another id and other values: ``plan__recipe__precision``
    is the value at these three keys, and ``figures`` has values of figures by name.
    """
    folder = tmp_path / "runs"
    h100 = {"environment__devices": [{"name": "NVIDIA H100 80GB HBM3"}] * 2}
    write_record_file(folder / "a", make_document("a", started="2026-11-01T08:00:00+00:00"))
    write_record_file(
        folder / "plan" / "b",
        make_document("b", started="2026-11-03T08:00:00+00:00", figures={"p_core": 900.5}, **h100),
    )
    cause = {"kind": "oom", "message": {"code": "oom", "args": {}}}
    failed = make_document(
        "c",
        started="2026-11-02T08:00:00+00:00",
        status="oom",
        cause=cause,
        figures={"p_core": None},
        plan__recipe__precision="bf16",
        labels=["self-reported", "odd"],
        environment__packages={"torch": "2.11.0"},
    )
    write_record_file(folder / "c", failed)
    return folder


def list_run_ids(cli, *args):
    """Return the ids of the runs that the command lists with ``args``."""
    code, out, err = cli("results", *args, "--json")
    assert code == 0, err
    return [run["run_id"] for run in json.loads(out)["runs"]]


def test_runs_are_listed_with_the_newest_first(cli, runs):
    # The folder ``runs`` has a (the oldest), c (which failed) and b (the newest), which is in a
    # subfolder. The case is distilbert_sst2. The devices of a and c are A100s, that of b are H100s;
    # c has no ``p_core``, and runs without the value come last.
    assert list_run_ids(cli, "device~a100", "--sort", "p_core") == ["a", "c"]
    code, out, err = cli("results")
    assert (code, err) == (0, "")
    assert [x.split()[-1] for x in out.splitlines() if "runs/" in x] == [
        "runs/plan/b",
        "runs/c",
        "runs/a",
    ]
    assert out.count("distilbert_sst2") == 3  # in each row
    # All three are changed copies of one golden record, without its events: so a, of which only id
    # and date are changed, is "unverified". The changed values of b and c, such as their throughput
    # ``p_core``, contradict the others in the same record.
    assert (out.count("unverified"), out.count("contradicted")) == (1, 2)
    code, out, err = cli("results", "--limit", "1", "--columns", "run_id,p_core")
    assert [line.split() for line in out.splitlines()][-1] == ["b", "900.5"]
    assert "1 of 3 launches" in err
    assert cli("results", "cas=toy")[0] == 2  # no such key


def test_verification_is_a_column_if_it_is_asked_for(cli, runs):
    _, out, _ = cli("results", "--columns", "run_id,trust,verification")
    assert out.splitlines()[0].split() == ["run_id", "trust", "verification"]


def test_json_values_keep_their_types(cli, runs):
    # ``runs`` has run c, which failed for want of memory (oom) and has no ``p_core``. ``cli``
    # returns exit code, stdout and stderr; ``total`` counts the listed runs, ``unread`` has the
    # unreadable.
    document = json.loads(cli("results", "run_id=c", "--json")[1])
    (run,) = document["runs"]
    assert (document["total"], document["unread"]) == (1, [])
    # All but what the fixture changed is of the golden record.
    assert (run["p_core"], run["p_train"]) == (None, 457.1609984523195)
    assert (run["nproc"], run["steady"], run["cause_kind"]) == (2, True, "oom")
    args = "run_id=c", "--columns", "path,torch,labels", "--json"
    (run,) = json.loads(cli("results", *args)[1])["runs"]
    assert run == {"path": "runs/c", "torch": "2.11.0", "labels": "self-reported odd"}


def test_unreadable_record_is_listed(cli, runs):
    # Of the three runs a, b and c, the record of a is cut off. ``cli`` returns exit code, stdout
    # and stderr of the command; ``unread`` has the runs that could not be read.
    (runs / "a" / "record.json").write_text('{"suite": ')
    code, out, err = cli("results")
    assert code == 1  # although the others are listed
    assert "runs/c" in out
    assert "runs/a" not in out
    assert err.startswith("runs/a: the record was not added to the index")
    document = json.loads(cli("results", "--json")[1])
    assert [(x["file"], x["reason"]["code"]) for x in document["unread"]] == [
        ("runs/a", "record_unreadable")
    ]


def test_store_without_runs_is_reported(cli, tmp_path):
    # The command lists the runs of the folder ``runs``, which is empty. ``cli`` returns its exit
    # code, stdout and stderr.
    (tmp_path / "runs").mkdir()
    code, out, err = cli("results")
    assert (code, out.strip()) == (0, "")
    assert err == "trainmark: runs: no runs found\n"  # no filter was given
    assert "matches the filters" in cli("results", "case=toy")[2]
    assert json.loads(cli("results", "--json")[1]) == {"total": 0, "runs": [], "unread": []}


@pytest.mark.parametrize(
    ("package", "args", "extra"),
    [
        ("markdown_it", ["import", "."], "published"),
        ("starlette", ["serve", "--port", "0"], "server"),
    ],
)
def test_command_without_its_extra_names_the_extra(package, args, extra, tmp_path):
    # ``extra``: the group of optional packages that has ``package``, which the command of ``args``
    # needs. None in ``sys.modules`` makes an import of the package fail.
    script = (
        f"import sys\nsys.modules[{package!r}] = None\nsys.argv[1:] = {args}\n"
        "from trainmark.cli.app import main\nmain()\n"
    )
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert process.returncode == 2
    assert f"pip install 'trainmark[{extra}]'" in process.stderr


@pytest.fixture
def runs_of_batch_sizes(tmp_path):
    """Return the folder of a store with four runs, copies of a stored record with other values.

    a, b and c are of one case and differ in batch size, seed and compile; d is of another case. A
    name such as ``plan__recipe__seed`` is the path of the value's keys.
    """
    folder = tmp_path / "runs"
    for name, bs, compiled in (("a", 8, False), ("b", 32, True), ("c", 128, False)):
        changes = {
            "plan__recipe__micro_batch_size": bs,
            "plan__recipe__compile": compiled,
            "environment__devices": [{"name": "A100"}] * 2,
        }
        # Seeds differ too, but are no setting.
        write_record_file(folder / name, make_document(name, **changes, plan__recipe__seed=bs))
    other = make_document("d", plan__case="toy", plan__recipe__learning_rate=0.5)
    write_record_file(folder / "d", other)
    return folder


def parse_table(out):
    """Return the rows of a table with one line a row, by their headings."""
    heads, _, *rows = (line.split() for line in out.strip().splitlines())
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_differing_settings_have_columns(cli, runs_of_batch_sizes):
    # Runs a, b and c of one case have the batch sizes (``bs``) 8, 32 and 128, equal to their seeds,
    # and b alone is compiled. Run d is of another case, with another learning rate (``lr``).
    # Settings that differ within a case get a column. The line of "─" is the rule below the
    # headings.
    heads, *rows = (line.split() for line in cli("results")[1].splitlines() if line.strip("─ "))
    assert {"bs", "compile"} <= set(heads)
    # lr differs only between cases, whose recipes are not alike anyway.
    assert not {"seed", "lr", "learning_rate", "recipe"} & set(heads)
    settings = [(row[heads.index("bs")], row[heads.index("compile")]) for row in rows]
    assert sorted(settings)[:2] == [  # two of the four rows, sorted as text
        ("128", "false"),
        ("32", "true"),
    ]


def test_recipe_fields_are_keys_of_filters_and_columns(cli, runs_of_batch_sizes):
    # Runs a, b and c of this case have the batch sizes (``bs``) 8, 32 and 128, and b alone is
    # compiled. Their learning rate is that of the stored record that they are copies of.
    assert sorted(list_run_ids(cli, "bs>8", "case=distilbert_sst2")) == ["b", "c"]
    assert list_run_ids(cli, "compile=true") == ["b"]
    # ``bs`` is short for it.
    assert list_run_ids(cli, "micro_batch_size=8") == ["a"]
    assert list_run_ids(cli, "case=distilbert_sst2", "--sort", "-bs") == ["c", "b", "a"]
    code, out, _ = cli("results", "--columns", "run_id,bs,lr,compile", "--sort", "run_id")
    assert code == 0
    assert parse_table(out)[1:3] == [  # without run a, and run d of another case
        {"run_id": "b", "bs": "32", "lr": "0.00015", "compile": "true"},
        {"run_id": "c", "bs": "128", "lr": "0.00015", "compile": "false"},
    ]


def test_unknown_key_names_public_keys_only(cli, runs):
    # ``cli`` returns exit code, stdout and stderr. No key is like "xyzzyq"; ``p_core`` is one.
    for args in (("--columns", "xyzzyq"), ("xyzzyq>1",)):
        code, _, err = cli("results", *args)
        assert code == 2
        assert "known: " in err  # no key is similar, so all are listed
        # Columns of the index that are no public keys.
        assert not {"bytes,", "mtime_ns,", "unreadable,", "settings,", "id,"} & set(err.split())
    _, _, err = cli("results", "p_cor>1")
    assert "did you mean p_core?" in err


def test_path_among_the_filters_gets_examples_that_a_shell_takes(cli, runs):
    code, _, err = cli("results", "runs/RUN")
    assert code == 2
    # The shell would take `>` without quotes for the file of the output.
    assert "for example case=toy, device~H100 or 'p_core>100'; a shell needs quotes" in err


def test_longest_recipe_stays_readable_in_the_index(cli, runs):
    # A recipe with 61 fields more, of 90 and 5000 characters. ``list_run_ids`` returns the ids of
    # the runs that meet the conditions, as the command lists them.
    many = {f"field_{number}": "x" * 90 for number in range(60)} | {"note": "y" * 5000}
    document = make_document("long")
    document["plan"]["recipe"] |= many
    write_record_file(runs / "long", document)
    # Long values may be cut in the index, but bs, which is 96 in the record, can still be read.
    assert list_run_ids(cli, "bs=96", "run_id=long") == ["long"]


def test_rows_are_counted_as_launches(cli, runs):
    _, _, err = cli("results", "--limit", "1")
    assert "1 of 3 launches; --limit 0 shows all" in err
