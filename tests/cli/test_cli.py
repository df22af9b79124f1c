"""Arguments, messages and exit codes of the command line; no test starts a rank."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from support.fake_nvml import H100, FakeCard, put_cards
from support.fakes import GOLDEN
from trainmark import devices
from trainmark.cli.app import EXAMPLES, import_verb, load_command
from trainmark.cli.options import lay_out_examples
from trainmark.cli.output import print_text, redirect_to_stderr
from trainmark.conformance.case_check import CHECKS, CaseCheck, CaseReport
from trainmark.launch.local import build_rank_command
from trainmark.plan.plan import Plan
from trainmark.record import record
from trainmark.spec import message

VERBS = (
    "run", "accept", "list", "doctor", "ceilings", "prepare", "report", "results", "compare",
    "gate", "export", "check", "audit", "analyze", "import", "bundle", "verify", "site", "serve",
    "follow",
)  # fmt: skip

EXAMPLES_OF = {verb: import_verb(verb).EXAMPLES for verb in VERBS}


def test_every_help_begins_with_examples(cli):
    for args in ((), *((verb,) for verb in VERBS)):
        code, out, _ = cli(*args, "--help")
        assert code == 0
        first, second = out.splitlines()[:2]
        assert first == "Examples:"
        assert second.startswith("  trainmark ")


def test_number_of_verbs_and_options_is_limited():
    commands = [load_command(name) for name in VERBS]
    # Verbs of several commands.
    commands += [child for verb in commands for child in getattr(verb, "commands", {}).values()]
    options = [
        param for child in commands for param in child.params if param.param_type_name == "option"
    ]
    # Limits of our own: what exceeds them needs a decision.
    assert len(VERBS) <= 20
    assert len([option for option in options if option.name != "help"]) <= 124


def test_help_of_output_option_describes_its_default(cli, leave_runs):
    leave_runs("a")  # writes the record of a toy run into runs/a
    args = {"report": ["runs/a"], "export": ["runs/a", "--to", "json"], "bundle": ["runs/a"]}
    outcomes = {}  # of a call of each verb without --output: exit code, whether it printed
    for verb, arguments in args.items():
        (option,) = [
            option_of_verb
            for option_of_verb in load_command(verb).params
            if option_of_verb.name == "output"
        ]
        code, out, _ = cli(verb, *arguments)
        outcomes[verb] = (code, out != "")
        assert ("standard output" in option.help) is outcomes[verb][1]
    # ``bundle`` cannot print: it needs -o or --push.
    assert outcomes == {"report": (0, True), "export": (0, True), "bundle": (2, False)}


def test_help_groups_every_verb_with_an_uncut_description(cli):
    _, out, _ = cli("--help")
    assert [verb for verb in VERBS if f"\n  {verb} " not in out] == []
    assert "Commands:" not in out  # the heading of verbs without a group
    # Typer ends a cut description so.
    assert "...\n" not in out.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("args", "expected_error"),
    [
        (["rn"], ["trainmark: no such command 'rn'\n  try: did you mean run? Known: accept, "]),
        (
            ["run", "toy", "--data", str(Path(__file__).parent)],
            ["train.npz: no such file\n  try: omit --data; the case generates its data"],
        ),
        (["run", "distilbrt"], ["distilbrt", "did you mean distilbert"]),
        (["run", "toy", "bs=many"], ["micro_batch_size", "whole number"]),
        (["run", "toy", "batchsize=8"], ["unknown recipe field 'batchsize'", "batch_size"]),
        (["run", "toy", "bs"], ["'bs' is not of the form KEY=VALUE"]),
        (["run", "toy", "bs=1", "bs=2"], ["given twice"]),
        (["run", "--witness", "work.toml"], ["--witness", "-- PROGRAM"]),
        (["run", "toy", "seed=1", "--seed", "2"], ["--seed", "seed is given twice"]),
        (["run", "toy", "timeout_s=9", "--timeout", "5"], ["timeout_s is given twice"]),
        (["run", "toy", "--attach", "x"], ["toy and --attach cannot be used together"]),
        (["run", "--attach", "x", "--dry-run"], ["--attach cannot be used with options"]),
        (["run", "--attach", "x", "--nproc", "2"], ["--attach cannot be used with options"]),
        (["run", "toy", "--cancel"], ["--cancel cannot be used without --attach"]),
        (["run", "toy", "--detach"], ["--detach cannot be used with launcher local;"]),
        (
            ["run", "toy", "--detach", "--repeat", "2"],
            ["--detach cannot be used with launcher local and --repeat 2"],
        ),
        (["run"], ["`trainmark run` needs a case"]),
        (["run", "toy", "--recipe", "tny"], ["no recipe 'tny'", "did you mean tiny"]),
        (["run", "toy", "--launcher", "container", "--dry-run"], ["there is no cluster file"]),
        (["run", "toy", "--out", str(Path(__file__).parent)], ["the folder is not empty"]),
        (
            ["run", "toy", "--dry-run", "--out", str(Path(__file__).parent)],
            ["the folder is not empty"],
        ),
        (["run", "toy", "--device", "cdua"], ["unknown device 'cdua'", "cuda"]),
        (["run", "TOY"], ["unknown case 'TOY'", "did you mean toy?"]),
        (["run", "toy", "BS=8"], ["unknown recipe field 'BS'", "did you mean bs?"]),
        (["run", "toy", "--device", "CPU"], ["unknown device 'CPU'", "did you mean cpu?"]),
        (["run", "toy", "--device", "gpu"], ["unknown device 'gpu'\n  try: known: amd, "]),
        (
            ["run", "toy", "--device", "cpu:0"],
            [
                "unknown device 'cpu:0'; --device names a kind of device, without an index\n"
                "  try: set --device cpu, and --nproc to the number of devices\n"
            ],
        ),
        (
            ["run", "toy", "--device", "cuda:1"],
            ["unknown device 'cuda:1'", "variable CUDA_VISIBLE_DEVICES or ", " selects them"],
        ),
        (
            ["run", "toy", "--launcher", "ssh", "--nnodes", "2", "--device", "nvidia:1"],
            ["there is no vendor 'nvidia:1'", "variable CUDA_VISIBLE_DEVICES selects them"],
        ),
        # A case key names case, framework, device, nodes, ranks of each, and launches. The error
        # ends with the installed version of PyTorch.
        (["run", "toy:pytorch:cpu:1"], ["not a case key", "model:framework"]),
        (["run", "toy:paddle:cpu:1:1:1"], ["asks for paddle, but pytorch_"]),
        # The case toy generates its data.
        (["prepare", "toy", "--from", ".", "--data", "x"], ["nothing to prepare"]),
        (
            ["prepare", "distilbert", "text_key=y", "--from", ".", "--data", "x"],
            ["case distilbert_sst2 has no option", "this case has no options"],
        ),
        (
            ["prepare", "gpt_megatron", "--from", ".", "--data", "x"],
            ["option tokenizer is missing", "add tokenizer=VALUE"],
        ),
        (
            ["prepare", "llama3", "--from", ".", "--data", "x"],
            ["option tokenizer is missing", "trainmark prepare llama31_8b"],
        ),
        (
            ["prepare", "gpt", "tokenizer=", "--from", ".", "--data", "x"],
            ["tokenizer is ''", "a path"],
        ),
        # The tokenizer's folder without the name of the option.
        (
            ["prepare", "gpt", "gpt2/", "--from", ".", "--data", "x"],
            ["use, for example, tokenizer=VALUE"],
        ),
        (["prepare", "dlrm", "--from", "nowhere", "--data", "x"], ["no such file or folder"]),
        (["prepare", "gpt", "tokenizer=.", "--from", "no", "--data", "x"], ["no such file"]),
        (["report"], ["no runs found"]),  # the test's folder has no runs
        (["report", "nowhere"], ["no such file or folder"]),
        (
            ["report", "--format", "md", "-o", "page.html"],
            ["page.html cannot be written in the md format"],
        ),
        (
            ["report", "--json", "-o", "page.html"],
            ["page.html cannot be written in the json format"],
        ),
    ],
)
def test_invalid_arguments_give_one_clear_error(cli, args, expected_error):
    # ``args``: the words of a command line with one mistake; ``expected_error``: parts of the
    # message on stderr, beside which nothing is printed. ``bs`` is short for the field
    # micro_batch_size.
    code, out, err = cli(*args)
    assert code == 2
    assert out == ""
    assert err.startswith("trainmark: ")
    assert "Traceback" not in err
    for part in expected_error:
        assert part in err


OWN_CASE = """
from dataclasses import replace
from pathlib import Path
from trainmark.cases.toy.case import CASE as TOY
from trainmark.spec import PrepareOption
CASE = replace(
    TOY,
    name="own",
    aliases=("mine",),
    prepare_options=(
        PrepareOption("folds", int, "parts of the data; default: 5", range(2, 11)),
        PrepareOption("text_order", str, "of the rows; default: input", ("input", "sorted")),
        PrepareOption("labels", Path, "file of the labels"),
    ),
)
"""
OWN_PREPARE = """
def prepare(raw, data, say, **options):
    say(f"from {raw}")
    data.mkdir()
    (data / "options").write_text(repr(options))
"""


@pytest.fixture
def own_case(tmp_path, monkeypatch):
    """A case outside the package that declares options.

    ``OWN_CASE`` is a ``case.py`` that copies the toy case under the name own, with the alias mine;
    ``OWN_PREPARE`` writes the options that it gets into a file.
    """
    folder = tmp_path / "cases" / "own"
    folder.mkdir(parents=True)
    (folder / "case.py").write_text(OWN_CASE)
    (folder / "prepare.py").write_text(OWN_PREPARE)
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(folder.parent))
    # A module of an earlier test may hold another case.
    for name in [name for name in sys.modules if name.startswith("trainmark_outside_case_own")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("own_case")
def test_case_receives_its_declared_options(cli):
    args = ("text_order=sorted", "labels=a.txt")
    # The case declares the options folds (2 to 10), text_order (input or sorted) and labels (a
    # path). ``mine`` is an alias of the case ``own``. Its preparation prints "from" and the folder.
    assert cli("prepare", "mine", *args, "--from", "raw", "--data", "out") == (
        0,
        "out\n",
        "from raw\n",
    )
    # Values have the declared types; an option that is not given is left out.
    expected_options = "{'text_order': 'sorted', 'labels': PosixPath('a.txt')}"
    assert Path("out/options").read_text() == expected_options
    _, out, _ = cli("list", "options", "--json")
    options = [entry["option"] for entry in json.loads(out)["options"] if entry["case"] == "own"]
    assert options == ["folds", "text_order", "labels"]


@pytest.mark.usefixtures("own_case")
@pytest.mark.parametrize(
    ("option", "expected_error"),
    [("folds=1", "folds is '1'; 2 to 10"), ("text_order=x", "input or sorted")],
)
def test_option_outside_its_declared_values_is_refused(cli, option, expected_error):
    # The case ``own`` declares that folds is 2 to 10, and text_order input or sorted.
    code, out, err = cli("prepare", "own", option, "--from", "raw", "--data", "none")
    assert (code, out) == (2, "")
    assert not Path("none").exists()  # refused before anything is written
    assert expected_error in err


def test_unusable_accelerator_is_named_and_the_cpu_run_is_labelled(cli, monkeypatch):
    from trainmark.devices.accelerator import TorchBuild
    from trainmark.devices.vendors import nvidia

    monkeypatch.setattr(nvidia, "read_torch_build", lambda: TorchBuild("2.13.0+cpu", cuda=None))
    put_cards(monkeypatch, FakeCard())  # an H100, with a torch that was built without CUDA
    # Without --device, the CPU is chosen, with a hint.
    code, out, err = cli("run", "toy", "--dry-run", "--json")
    assert code == 0
    plan = json.loads(out)["plan"]
    assert plan["device"]["vendor"] == "cpu"
    assert "accelerator-not-used" in plan["labels"]
    assert f"{H100} found, but torch 2.13.0+cpu has no CUDA" in err
    assert "runs on cpu instead" in err
    code, out, err = cli("run", "toy", "--dry-run", "--json", "--device", "cpu")
    assert (code, err) == (0, "")  # no hint: the user chose the CPU
    assert "accelerator-not-used" not in json.loads(out)["plan"]["labels"]
    code, out, err = cli("list", "devices")
    assert code == 0
    assert "has no CUDA" in err
    code, _, err = cli("run", "toy", "--device", "cuda")
    assert code == 2
    assert "has no CUDA" in err


def test_dry_run_prints_plan_and_command_without_starting(cli, tmp_path):
    code, out, _ = cli("run", "toy", "bs=32", "--nproc", "2", "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["plan"]["recipe"]["micro_batch_size"] == 32
    assert document["plan"]["fix_hp"] == {"micro_batch_size": 32}  # what the command line changed
    assert document["plan"]["nproc"] == 2
    run_dir = document["plan"]["run_dir"]
    # ``build_rank_command`` gives the words of the command that starts each rank of this run.
    assert document["command"] == build_rank_command("python", run_dir)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("args", "warned"), [([], True), (["--device", "cpu"], False)])
def test_plan_for_other_machines_warns_that_it_chose_the_cpu(cli, args, warned, monkeypatch):
    # This machine has no accelerator, which says nothing of the nodes that Slurm starts the run on.
    # ``warned``: only if the user did not choose the CPU with --device.
    monkeypatch.setattr(devices, "choose_vendor", lambda _: devices.list_vendors()["cpu"])
    code, _, err = cli("run", "toy", "--launcher", "slurm", "--dry-run", *args)
    assert code == 0
    assert ("uses the CPUs of the nodes" in err) is warned


OTHER_MACHINES = "device: nvidia\npython: /opt/env/bin/python\n"


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_dry_run_for_other_machines_warns_that_data_was_not_checked(cli, launcher):
    Path("cluster.yaml").write_text(OTHER_MACHINES)  # settings of nodes with accelerators
    args = ("run", "distilbert", "--nproc", "8", "--launcher", launcher, "--data", "/not/here")
    args += ("--cluster", "cluster.yaml")
    code, out, err = cli(*args, "--dry-run")
    assert code == 0
    assert "/not/here is not on this machine, so its data could not be checked" in err
    assert '"content_id": "unchecked"' in out
    # In the summary, whose lines are folded.
    assert "data: /not/here, which is not on this machine and was not checked" in " ".join(
        err.split()
    )
    assert '"folder": "/not/here"' in out
    # Without --dry-run the data must be there.
    code, out, err = cli(*args)
    assert (code, out) == (2, "")
    assert "/not/here: no such folder" in err
    (Path.cwd() / "empty").mkdir()  # a folder that exists is checked
    args_of_empty = [word.replace("/not/here", "empty") for word in args]
    code, out, err = cli(*args_of_empty, "--dry-run")
    assert (code, out) == (2, "")
    assert "no data files" in err


def test_dry_run_for_this_machine_checks_the_data(cli):
    code, out, err = cli("run", "distilbert", "--data", "/not/here", "--dry-run")
    assert (code, out) == (2, "")
    assert "/not/here: no such folder" in err


def test_dry_run_of_a_plan_file_for_other_machines_names_each_folder_once(cli):
    Path("cluster.yaml").write_text(OTHER_MACHINES)  # settings of nodes with accelerators
    # Two launches with the same folder of data.
    Path("plan.yaml").write_text(
        "runs:\n  - {case: [distilbert, glm], nproc: 8, launcher: slurm, cluster: cluster.yaml, "
        "data: /not/here}\n"
    )
    code, out, err = cli("run", "plan.yaml", "--dry-run")
    assert code == 0
    assert "launches to do: 2" in out
    assert err.count("/not/here is not on this machine") == 1


def test_output_of_c_libraries_does_not_reach_standard_output(capfd):
    # Within ``redirect_to_stderr`` what is written to stdout's descriptor goes to stderr. What the
    # program itself prints, here "{}", is printed afterwards. At last: stdout and stderr, as a
    # pair.
    with redirect_to_stderr():
        # As C code writes: to the descriptor, past Python.
        os.write(sys.stdout.fileno(), b"a vendor's greeting\n")
    print_text("{}")
    assert capfd.readouterr() == ("{}\n", "a vendor's greeting\n")


def test_list_prints_the_sections_that_its_help_names(cli):
    _, out, _ = cli("list", "--json")
    assert list(json.loads(out)) == ["cases", "recipes", "devices"]
    _, out, _ = cli("list", "--help")
    assert "default: cases, recipes and devices." in " ".join(out.split())


def test_schema_command_prints_a_valid_json_schema(cli):
    code, out, _ = cli("list", "schema")
    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))
    assert out == record.describe_schema()


@pytest.mark.parametrize("args", [["--help"], ["list"]])
def test_start_imports_no_heavy_module(args, tmp_path):
    # Each of them takes long to import; a new process shows what a start imports.
    script = (
        "import sys\n"
        "from trainmark.cli.app import app\n"
        f"sys.argv = {['trainmark', *args]!r}\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'pyarrow', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert process.stderr.splitlines()[-1] == "[]"


def test_closed_pipe_exits_with_1_without_a_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads what the program prints
    program = Path(sys.executable).with_name("trainmark")
    process = subprocess.run(
        [program, "list"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert process.returncode == 1
    assert "Traceback" not in process.stderr


@pytest.fixture
def leave_runs(tmp_path):
    """Return a function that writes the record of a toy run, newer than those before it."""
    golden_record = record.read_record(GOLDEN / "record_toy.json")
    # Of the last changes of the files, in seconds since 1970: any times in the past.
    times_s = itertools.count(1_000_000_001)

    def write_toy_record(place, index=1, count=1, **recipe):
        """Write a record to ``runs/place``, as launch ``index`` of ``count`` of a series.

        ``recipe`` are fields of the recipe with other values.
        """
        folder = tmp_path / "runs" / place
        folder.mkdir(parents=True)
        changes = {
            "repeat_index": index,
            "repeat_count": count,
            "recipe": golden_record.plan.recipe | recipe,
        }
        plan = golden_record.plan.model_copy(update=changes)
        path = record.write_record(
            golden_record.model_copy(update={"plan": plan, "run_id": place}), folder
        )
        time_s = next(times_s)
        os.utime(path, (time_s, time_s))

    return write_toy_record


def test_report_of_a_series_shows_all_its_runs(cli, leave_runs):
    leave_runs("older")
    leave_runs("twice/r1", index=1, count=2)
    leave_runs("twice/r2", index=2, count=2)
    # Without a path: the newest run, ``twice/r2``, with the other launch of its series.
    code, newest, _ = cli("report")
    assert code == 0
    assert newest == cli("report", "runs/twice")[1]
    _, both, _ = cli("export", "--to", "json")
    assert [record["run_id"] for record in json.loads(both)] == ["twice/r1", "twice/r2"]


def test_report_of_several_runs_names_the_folder_of_each(cli, leave_runs):
    """All titles are the same, because the three runs differ only in the batch size."""
    leave_runs("a")
    # ``b`` is a series of two launches.
    leave_runs("b/r1", index=1, count=2, micro_batch_size=8)
    leave_runs("b/r2", index=2, count=2, micro_batch_size=8)
    leave_runs("c", micro_batch_size=4)
    _, out, _ = cli("report", "runs/a", "runs/b", "runs/c/record.json")
    titles = [line for line in out.splitlines() if "Toy classification" in line]
    assert [title.split(": ")[0] for title in titles] == ["runs/a", "runs/b", "runs/c"]
    # The report of a single run needs no folder in its title.
    assert "runs/a: " not in cli("report", "runs/a")[1]


@pytest.mark.parametrize(
    ("verb", "options", "described"),
    [
        ("report", [], "exit code is 2 if no record can be read"),
        ("export", ["--to", "json"], "exit code is 2 if no record can be read"),
        ("audit", [], "exit code is 2 if no result can be read"),
        ("compare", ["runs/good"], "2 = the work differs, or no record of A or of B can be read"),
        (
            "gate",
            ["--baseline", "runs/good"],
            "2 = the work differs, or no record of the runs, the baseline or the history "
            "can be read",
        ),
    ],
)
def test_help_states_the_exit_code_of_damaged_records(cli, leave_runs, verb, options, described):
    leave_runs("good")
    leave_runs("damaged")
    Path("runs/damaged/record.json").write_text("{}")
    assert cli(verb, "runs/damaged", *options)[0] == 2  # no record can be read
    _, help_text, _ = cli(verb, "--help")
    assert described in " ".join(help_text.split())  # lines are wrapped


def test_results_without_runs_or_of_an_unknown_key_are_one_clear_error(cli, leave_runs):
    # ``results`` reads the folder runs, which does not exist yet.
    _, _, err = cli("results")
    assert "no such folder" in err
    leave_runs("a")
    # A filter and an order by ``started``, which is no key of a run; the key is ``started_utc``.
    for args in (["started>2026"], ["--sort", "started"]):
        code, out, err = cli("results", *args)
        assert (code, out, err.count("Traceback")) == (2, "", 0)
        assert "did you mean started_utc" in err


@pytest.mark.parametrize(
    ("lang", "first", "last"),
    [
        ("en", "ok    flops: the FLOP formula", "no faults found in 8 checks"),
        ("zh", "公式", "8 项"),
    ],
)
def test_each_check_of_a_case_is_described(cli, lang, first, last, monkeypatch):
    # ``CHECKS``: the names of the eight checks of a case. All passed, without runs. The Chinese
    # texts are "formula" and "8 items"; ``first`` may be anywhere, ``last`` is in the last line.
    report = CaseReport([CaseCheck(name) for name in CHECKS], {})
    monkeypatch.setattr("trainmark.conformance.case_check.check_case", lambda *_, **__: report)
    code, out, _ = cli("check", "toy", "--lang", lang)
    assert code == 0
    assert first in out
    assert last in out.splitlines()[-1]


@pytest.mark.parametrize("words", [("bs=4",), ("--device", "cpu")])
def test_settings_of_a_run_are_refused_for_a_new_case(cli, words):
    # Without ``words`` the command writes a template of the case "points" into the folder "mine".
    code, _, err = cli("check", "points", *words, "--new", "mine")
    assert (code, "--new only writes a template" in err) == (2, True)
    assert not Path("mine").exists()


def test_checks_of_a_case_are_printed_as_json(cli, monkeypatch):
    fault, note = message("check_too_few_steps", steps=3), message("check_without_probe")
    # One check that passed, one that failed and one that was skipped.
    checks = [CaseCheck("flops"), CaseCheck("runs", (fault,)), CaseCheck("batches", skipped=note)]
    report = CaseReport(checks, {})
    monkeypatch.setattr("trainmark.conformance.case_check.check_case", lambda *_, **__: report)
    code, out, _ = cli("check", "toy", "--json")
    # 1: a check failed. ``messages`` are the texts of the two messages made above.
    assert code == 1
    assert json.loads(out) == {
        "case": "toy",
        "passed": False,
        "checks": [
            {"check": "flops", "state": "ok", "messages": []},
            {
                "check": "runs",
                "state": "fault",
                "messages": ["3 steps are too few to judge the loss"],
            },
            {
                "check": "batches",
                "state": "skipped",
                "messages": ["the job could not be inspected"],
            },
        ],
    }


def test_records_of_a_report_are_printed_as_json(cli, leave_runs, tmp_path):
    leave_runs("a")
    code, out, _ = cli("report", "--json")
    (record,) = json.loads(out)
    assert record["plan"]["case"] == "toy"
    assert code == 0
    assert "p_train" in record["figures"]
    assert cli("report", "--json", "-o", "all.json")[0] == 0
    assert json.loads((tmp_path / "all.json").read_text()) == [record]


DATA_VERBS = [
    "analyze",
    "audit",
    "ceilings",
    "check",
    "compare",
    "doctor",
    "follow",
    "gate",
    "import",
    "list",
    "report",
    "results",
    "run",
    "verify",
]


@pytest.mark.parametrize("verb", DATA_VERBS)
def test_every_verb_that_prints_data_prints_json(cli, verb):
    assert "--json" in cli(verb, "--help")[1]


def test_dry_run_prints_a_summary(cli, tmp_path):
    code, out, err = cli(
        *shlex.split(
            "run distilbert bs=8 gas=2 seed=3"
            " --nproc 2 --repeat 3 --dry-run --device cpu --out runs/demo"
        )
    )
    assert code == 0
    text = " ".join(out.split())  # without the folding of lines
    # ``bs`` is short for micro_batch_size, ``gas`` for grad_accum_steps.
    # What the command does not set is that of the case's recipe "tiny": fp32, 10 epochs, the target
    # and the time limit.
    assert "changed: bs=8,gas=2 (compared with tiny; closed rules)" in text
    assert "2 ranks, fp32" in text
    assert "32 samples a step (8 x 2 micro-batches x 2 ranks); at most 10 epochs of" in text
    assert "target: acc >= 0.91" in text
    assert "memory: at least " in text
    assert "time: unknown before a run; limit 30 min 0 s" in text
    assert "launches: 3, one after another" in text
    assert "folder: runs/demo" in text
    command = shlex.join(build_rank_command("python", f"{tmp_path}/runs/demo"))
    assert f"each rank: {command}" in text
    assert len(out.splitlines()) < 20  # it stays short
    assert "--json" in err  # a hint at the whole plan
    assert not (tmp_path / "runs").exists()


def test_dry_run_counts_samples_of_ranks_that_share_a_model_once(cli):
    words = "run gpt_megatron bs=4 gas=2 tensor_parallel=2 --nproc 2 --dry-run --device cpu"
    text = " ".join(cli(*words.split())[1].split())  # without the folding of lines
    # Two ranks share one model by tensor parallelism: both train the same 4 x 2 samples, as ``bs``
    # is short for micro_batch_size and ``gas`` for grad_accum_steps.
    assert "8 samples a step (4 x 2 micro-batches x 1 model of 2 ranks)" in text


def test_dry_run_shows_the_time_of_an_earlier_run_of_the_same_work(cli, tmp_path):
    args = ["run", "toy", "--dry-run", "--device", "cpu", "--out", "runs/b"]
    plan = Plan.model_validate(json.loads(cli(*args, "--json")[1])["plan"])
    golden_record = record.read_record(GOLDEN / "record_toy.json")
    # The record of a toy run, with the plan that the dry run prints and a duration of 46.1 s.
    e2e_time = golden_record.figures["e2e_time"].model_copy(update={"value": 46.1})
    changes = {
        "plan": plan,
        "run_id": "first",
        "figures": golden_record.figures | {"e2e_time": e2e_time},
    }
    (tmp_path / "runs" / "a").mkdir(parents=True)
    record.write_record(golden_record.model_copy(update=changes), tmp_path / "runs" / "a")
    # 30 min is the time limit of the case's recipe, which the command does not set.
    assert "time: 46.1 s in an earlier run (first); limit 30 min 0 s" in cli(*args)[1]
    # Another batch size than the recipe's, such as 17, is other work.
    assert "in an earlier run" not in cli(*args, "bs=17")[1]


def test_dry_run_of_an_engine_prints_a_script_or_json(cli):
    args = ("run", "toy", "--launcher", "slurm", "--nproc", "2", "--device", "cpu", "--dry-run")
    code, out, err = cli(*args)
    assert code == 0
    assert "sbatch" in out
    assert "case: toy" in err  # the summary goes to stderr, so that stdout is the script alone
    document = json.loads(cli(*args, "--json")[1])
    assert document["plan"]["launcher"] == "slurm"
    assert "sbatch" in document["script"]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_the_terminal_and_keeps_examples_uncut(cli, verb, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = cli(*filter(None, [verb]), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    examples = lay_out_examples(EXAMPLES_OF.get(verb, EXAMPLES), width=1000)  # not folded
    # Join folded commands: a line ends in a backslash, and the next begins with 6 blanks, of which
    # one is left between the words.
    joined = out.replace(" \\\n     ", "")
    for line in examples.splitlines():
        command = line.strip().partition("   ")[0]  # without its description
        assert command in " ".join(joined.split())


def test_example_in_a_narrow_terminal_fits_and_keeps_its_words_whole():
    # In 30 columns: every line ends within them, with its indent and its backslash, except that of
    # the word that is longer itself.
    assert lay_out_examples(
        "run toy --recipe standard --nproc 2 --out /srv/runs/of/the/whole/team", 30
    ) == (
        "  run toy --recipe standard \\\n"
        "      --nproc 2 --out \\\n"
        "      /srv/runs/of/the/whole/team\n"
    )
