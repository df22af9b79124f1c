"""Records are checked against their evidence: changes are found, reported and fail the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.comparison_records import replace_plan_fields
from support.fakes import GOLDEN, S, launch_event, make_event, rank_events, write_run
from trainmark import __version__, cases
from trainmark.record import record, reduce, verify
from trainmark.record.compared import cut_around_difference
from trainmark.record.index_record import list_index_records
from trainmark.record.messages import render
from trainmark.record.trust import add_reasons, is_refuted
from trainmark.spec import Mission, message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Evidence


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run that passed, with its record."""
    # The only rank's events, of 16 steps, end at 12 s; ``S`` is a second in nanoseconds. The plan
    # is a stored one of the toy case.
    folder = tmp_path / "run"
    ranks_ended = make_event("ranks_ended", 13 * S, failures=[])
    write_run(folder, [launch_event(), ranks_ended], rank_events())
    (folder / "plan.json").write_bytes((GOLDEN / "plan_toy.json").read_bytes())
    record.write_record(reduce.reduce(folder), folder)
    return folder


def edit_json(path: Path, *keys: str, value: Any) -> None:
    """Set the value at the path ``keys`` of a JSON file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(document), encoding="utf-8")


def list_disagreements(run_dir: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return codes and arguments of the contradictions between a run's record and evidence."""
    return [
        (item.code, item.args)
        for item in verify.verify_evidence(record.read_record(run_dir), run_dir)
    ]


def test_record_is_verified_without_its_case(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``run_dir`` is a run of the toy case that passed, with its record and evidence. ``cases.load``
    # imports the code of a case; comparing the record with its evidence must not need it.
    def refuse_to_load(name: str) -> None:
        raise AssertionError(f"case {name} was loaded")

    monkeypatch.setattr(cases, "load", refuse_to_load)
    assert list_disagreements(run_dir) == []


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("figures", "p_train", "value"), 2560.0, "figures.p_train.value"),
        (("status",), "passed", None),  # as it was
        (("steps", "time_ns"), [1] * 16, "steps.time_ns[0]"),
        (("labels",), ["self-reported"], "labels"),
        (("environment", "cpu"), "Faster CPU", "environment.cpu"),
        (("plan", "recipe", "micro_batch_size"), 640, "plan.recipe.micro_batch_size"),
        (("plan", "about", "dataset"), "another", "plan.about.dataset"),
    ],
)
def test_any_changed_value_is_named(
    run_dir: Path, keys: tuple[str, ...], value: Any, field: str | None
) -> None:
    """Edit one value of a record; ``field``: the one that then differs from the evidence.

    The evidence, a run's plan and events, gives other values than the edited ones: a training
    throughput ``p_train`` of 256 samples/s, 16 steps that take longer than 1 ns, the labels
    ``self-reported`` and ``generated-data``, the processor ``Fake CPU``, and micro-batches of 64.
    """
    edit_json(run_dir / "record.json", *keys, value=value)
    findings = list_disagreements(run_dir)
    assert [args["field"] for _, args in findings] == ([field] if field else [])
    assert all(code == "evidence_disagrees" for code, _ in findings)


def test_tenfold_throughput_is_reported_first_and_fails(run_dir: Path, cli: Any) -> None:
    # ``cli`` runs the program with these words; it returns the exit code and what was printed to
    # standard output and standard error. The evidence gives a throughput ``p_train`` of 256.
    code, out, _ = cli("report", run_dir)
    assert code == 0
    assert "evidence" not in out
    edit_json(run_dir / "record.json", "figures", "p_train", "value", value=2560.0)
    code, out, err = cli("report", run_dir)
    first_difference = "figures.p_train.value is 2560 in the record, but 256 when recomputed"
    assert code == 1
    assert first_difference in " ".join(out.split())
    assert "does not match its raw events" in err
    # Every form says so, and every command fails.
    forms = [("report", "--format", form) for form in ("md", "html")]
    for verb, option, form in (*forms, ("export", "--to", "json"), ("export", "--to", "csv")):
        code, out, _ = cli(verb, run_dir, option, form)
        assert code == 1
        assert "evidence_disagrees" in out or "256 when recomputed" in out


def test_changed_event_file_is_named(run_dir: Path) -> None:
    # The rank's only evaluation had the value 0.9375, which is also the first in the record's
    # history of the quality. The record, which has a hash of each evidence file, stays as it is.
    path = run_dir / "events.rank0.jsonl"
    path.write_text(path.read_text().replace('"value":0.9375', '"value":0.9376'))
    (altered, disagrees) = list_disagreements(run_dir)
    assert altered == ("evidence_altered", {"file": "events.rank0.jsonl"})
    assert (disagrees[0], disagrees[1]["field"]) == (
        "evidence_disagrees",
        "quality.history[0].value",
    )
    path.unlink()
    assert list_disagreements(run_dir)[0] == ("evidence_missing", {"file": "events.rank0.jsonl"})
    (run_dir / "events.rank9.jsonl").write_text("")  # a file that was not there
    assert ("evidence_altered", {"file": "events.rank9.jsonl"}) in list_disagreements(run_dir)


def test_missing_plan_is_named_without_the_type_of_an_error(run_dir: Path) -> None:
    # ``list_disagreements`` computes the record again from its evidence, the plan and the events.
    # That fails without the plan, which is the second finding. Its text begins with the path of the
    # plan, not with the name of an exception.
    (run_dir / "plan.json").unlink()
    (missing, unreadable) = list_disagreements(run_dir)
    assert missing == ("evidence_missing", {"file": "plan.json"})
    assert unreadable[0] == "evidence_unreadable"
    assert unreadable[1]["error"].startswith(str(run_dir / "plan.json"))


def test_differing_value_is_shown_before_a_differing_note(run_dir: Path) -> None:
    # ``e2e_time`` comes before ``p_train``. Its note is a message, a dict of code and arguments.
    # The evidence gives no note, and 256 for ``p_train``.
    edit_json(
        run_dir / "record.json", "figures", "e2e_time", "note", value={"code": "x", "args": {}}
    )
    (_, args), *_ = list_disagreements(run_dir)
    assert args["field"].startswith("figures.e2e_time.note")
    edit_json(run_dir / "record.json", "figures", "p_train", "value", value=2560.0)
    (_, args), *_ = list_disagreements(run_dir)
    assert args["field"] == "figures.p_train.value"


def test_evidence_of_another_size_is_altered_and_not_hashed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``describe_evidence`` reads a whole file for its hash; here it also notes the file's name.
    hashed = []
    hash_file = reduce.describe_evidence

    def note_and_hash(path: Path) -> Evidence:
        hashed.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(reduce, "describe_evidence", note_and_hash)
    file = run_dir / "events.rank0.jsonl"
    with file.open("ab") as events:
        events.truncate(file.stat().st_size + 1)  # one byte longer
    assert ("evidence_altered", {"file": file.name}) in list_disagreements(run_dir)
    assert file.name not in hashed
    assert "events.launcher.jsonl" in hashed


def test_a_record_alone_is_not_to_be_quoted_but_no_failure(
    run_dir: Path, tmp_path: Path, cli: Any
) -> None:
    # Only the record was copied, without the plan and the events that it was computed from. ``cli``
    # runs the program with these words; it returns exit code, stdout and stderr.
    mailed = tmp_path / "mail" / "record.json"
    mailed.parent.mkdir()
    mailed.write_bytes((run_dir / "record.json").read_bytes())
    assert list_disagreements(mailed.parent) == [("evidence_absent", {})]
    code, out, _ = cli("report", mailed)
    reason = "Do not quote: there are no evidence files next to the record"
    assert code == 0
    assert reason in out


def test_difference_from_another_version_is_no_contradiction(run_dir: Path) -> None:
    # The evidence of the run gives a throughput ``p_train`` of 256. ``list_disagreements`` compares
    # the record with it. 9.9.0 is any version but the installed one.
    edit_json(run_dir / "record.json", "suite", "version", value="9.9.0")
    assert list_disagreements(run_dir) == []
    edit_json(run_dir / "record.json", "figures", "p_train", "value", value=257.0)
    # Only the record names another version; its plan was written by this one.
    assert [code for code, _ in list_disagreements(run_dir)] == ["evidence_disagrees"]
    # Another version made both plan and record, and may compute a figure in another way.
    (run_dir / "record.json").unlink()
    edit_json(run_dir / "plan.json", "suite_version", value="9.9.0")
    record.write_record(reduce.reduce(run_dir), run_dir)
    edit_json(run_dir / "record.json", "suite", "version", value="9.9.0")
    edit_json(run_dir / "record.json", "figures", "p_train", "value", value=257.0)
    assert list_disagreements(run_dir) == [("evidence_other_version", {"version": "9.9.0"})]
    # A release of the same version computes the same.
    edit_json(run_dir / "record.json", "suite", "version", value=__version__ + ".post1")
    assert [code for code, _ in list_disagreements(run_dir)] == ["evidence_disagrees"]


def test_figures_of_a_missing_case_are_not_verified(run_dir: Path) -> None:
    # A run of a case that is not installed here and declares a figure of its own.
    words = {"en": "energy", "zh": "能耗"}
    declared = {"name": "energy", "unit": "J", "label": words, "definition": words}
    (run_dir / "record.json").unlink()
    edit_json(run_dir / "plan.json", "case", value="from_elsewhere")
    edit_json(run_dir / "plan.json", "about", "page", "figures", value=[declared])
    record.write_record(reduce.reduce(run_dir), run_dir)
    assert list_disagreements(run_dir) == []
    # Only the case itself could compute this figure and a finding of its own about it.
    edit_json(run_dir / "record.json", "figures", "energy", value={"value": 1.0, "unit": "J"})
    edit_json(run_dir / "record.json", "findings", value=[{"code": "energy_odd", "args": {}}])
    assert list_disagreements(run_dir) == [("evidence_case_absent", {"case": "from_elsewhere"})]


def test_rounding_difference_is_no_contradiction(run_dir: Path) -> None:
    # Values of the record and of its evidence are the same if they differ by less than a billionth
    # (1e-9), here by 1e-12. ``list_disagreements`` returns the others.
    value = record.read_record(run_dir).figures["p_core"].value
    assert value is not None
    edit_json(run_dir / "record.json", "figures", "p_core", "value", value=value * (1 + 1e-12))
    assert list_disagreements(run_dir) == []


def describe_edited_value(run_dir: Path, *keys: str, value: Any) -> tuple[str, str, str]:
    """Return how the first difference is described after a value of the record was edited.

    The result is the field, and its recorded and its recomputed value.

    Args:
        keys: those of nested dictionaries that lead to the value.
        value: the one that replaces it.
    """
    edit_json(run_dir / "record.json", *keys, value=value)
    ((_, args),) = list_disagreements(run_dir)
    return args["field"], args["recorded"], args["recomputed"]


def test_missing_value_is_null_as_in_the_file(run_dir: Path) -> None:
    # The utilization ``MFU`` of this run is not known, for a reason, which is removed. The evidence
    # gives the reason again, as JSON.
    field, recorded, recomputed = describe_edited_value(
        run_dir, "figures", "MFU", "reason", value=None
    )
    assert (field, recorded) == ("figures.MFU.reason", "null")
    assert recomputed.startswith('{"code": "')


def test_lists_of_different_length_show_their_lengths_unless_they_are_short(run_dir: Path) -> None:
    # The run has one rank, whose entry is given twice here. The text of an entry is longer than the
    # 80 characters up to which a list is shown whole.
    loaded = record.read_record(run_dir)
    entry = loaded.model_dump(mode="json")["ranks"][0]
    described = describe_edited_value(run_dir, "ranks", value=[entry, entry])
    assert described == ("ranks.length", "2", "1")
    (run_dir / "record.json").unlink()
    record.write_record(loaded, run_dir)
    # A short list is shown whole, as JSON.
    described = describe_edited_value(run_dir, "labels", value=["x"])
    assert described == ("labels", '["x"]', json.dumps(loaded.labels))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("x" * 200 + "a", "x" * 200 + "b"),
        ("x" * 200, "x" * 200 + "b"),
        ("x" * 90 + "a" + "y" * 90, "x" * 90 + "b" + "y" * 90),
        ("a" + "x" * 200, "b" + "x" * 200),
        ("", "x" * 200),
    ],
)
def test_cut_texts_show_their_difference(text: str, other: str) -> None:
    # Both texts are cut to 80 characters, and get an ellipsis at each end that was cut off.
    cut, cut_other = cut_around_difference(text, other, 80)
    assert cut != cut_other
    assert max(len(cut), len(cut_other)) <= 80 + len("……")


def test_numbers_that_differ_in_the_last_digits_are_shown_in_full(run_dir: Path) -> None:
    # Numbers are shown with six digits. A change of 1e-8 is more than rounding (1e-9), but is not
    # seen in six digits, so all digits must be shown.
    value = record.read_record(run_dir).figures["p_core"].value
    assert value is not None
    _, recorded, recomputed = describe_edited_value(
        run_dir, "figures", "p_core", "value", value=value * (1 + 1e-8)
    )
    assert float(recorded) != float(recomputed)


def test_a_refuted_record_has_no_result_for_collections(run_dir: Path) -> None:
    sound = record.read_record(run_dir)
    # Only a case with a mission has entries in collections. The mission names the case there: its
    # field of research, model, Chinese title and the number of its field. All are any.
    about = sound.plan.about.model_copy(update={"mission": Mission("nlp", "toy", "语言模型", 1)})
    sound = replace_plan_fields(sound, about=about)
    # The two entries are those of speed and of memory; a flag of 1 says that the run failed.
    assert [item.JOB_FAIL_FLAG for item in list_index_records(sound)] == [0, 0]
    # Another value than the events give.
    edit_json(run_dir / "record.json", "figures", "p_train", "value", value=2560.0)
    # The findings of verifying the edited file refute the record.
    refuted = add_reasons(sound, verify.verify_evidence(record.read_record(run_dir), run_dir))
    assert is_refuted(refuted.trust)
    assert [(x.FINAL_RESULT, x.JOB_FAIL_FLAG) for x in list_index_records(refuted)] == [
        (0.0, 1)
    ] * 2


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("ranks", 0, "phases", "train", "samples"), 833, "figures.p_whole"),
        (("ranks", 0, "phases", "train", "wait_ns"), 10**9, "figures.p_core"),
        (("trust", "grade"), "usable", "trust.grade"),
        (("trust", "reasons"), [], "trust.reasons"),
        (("plan", "data", "train_samples"), 100, "counts.samples"),  # more were trained in an epoch
    ],
)
def test_a_record_that_contradicts_itself_is_refuted_without_its_events(
    run_dir: Path, tmp_path: Path, keys: tuple[str, ...], value: Any, field: str
) -> None:
    # Each changed value contradicts another one of the record, of which ``field`` is named. The
    # rank trained 13 measured steps of 64 samples, so 832, and waited 0.13 ms for data.
    # Its 16 steps make 1024 samples of a data set that has 4096.
    lone_record_path = tmp_path / "alone" / "record.json"
    lone_record_path.parent.mkdir()
    lone_record_path.write_bytes((run_dir / "record.json").read_bytes())
    sound = verify.check_record(record.read_record(lone_record_path), lone_record_path.parent)
    assert (sound.verification, is_refuted(sound.trust)) == ("unverified", False)
    edit_json(lone_record_path, *keys, value=value)
    verified = verify.check_record(record.read_record(lone_record_path), lone_record_path.parent)
    assert (verified.verification, is_refuted(verified.trust)) == ("contradicted", True)
    args = verified.trust.reasons[0].args
    assert args["field"] == field
    if field == "trust.reasons":  # named by their codes; it is a single launch on generated data
        assert args["recorded"] == "none"
        assert args["recomputed"] == "trust_few_launches, trust_generated_data"
    assert "evidence" not in render(verified.trust.reasons[0], "en")  # there is no evidence


def test_first_of_several_contradictions_is_named_in_the_order_of_the_record(
    run_dir: Path,
) -> None:
    """Each check of a record names the same one, whatever the order of its sets in memory."""
    sound = record.read_record(run_dir)
    # The values of the record lead to none of these findings.
    invented_findings = [message(f"invented_{number}") for number in range(20)]
    edited = sound.model_copy(update={"findings": [*invented_findings, *sound.findings]})
    (contradiction,) = verify.check_itself(edited)
    assert contradiction.args["field"] == "findings.invented_0"
    # All flags differ from those of the precision of the recipe; the check of flags begins with
    # ``tf32``, in whatever order the record has them.
    wrong_flags = {"autocast": "x", "float32_matmul": "x", "cudnn_tf32": True, "tf32": True}
    environment = sound.environment | {"precision_flags": wrong_flags}
    (contradiction,) = verify.check_itself(sound.model_copy(update={"environment": environment}))
    assert contradiction.args["field"] == "environment.precision_flags.tf32"


def test_record_with_its_events_is_verified(run_dir: Path) -> None:
    # ``run_dir`` has a record and the files that it was computed from, its evidence. A record that
    # was only read has not been compared with them yet; ``check_record`` does it.
    assert record.read_record(run_dir).verification == "unverified"
    assert verify.check_record(record.read_record(run_dir), run_dir).verification == "verified"
    # Evidence larger than the limit, here 10 bytes, is not read, which refutes nothing.
    limited = verify.check_record(record.read_record(run_dir), run_dir, max_bytes=10)
    assert (limited.verification, is_refuted(limited.trust)) == ("unverified", False)
