"""Commands suggested after a trial run."""

from __future__ import annotations

from pathlib import Path

from support.comparison_records import read_golden_record
from trainmark.pages.document import Code, Paragraph
from trainmark.pages.next_steps import suggest_next_steps
from trainmark.pages.texts import translate
from trainmark.record.record import Record

GOLDEN = Path(__file__).parents[1] / "golden"


def make_trial(**changes):
    """Return the golden run of DistilBERT, which passed, as a trial: a run on generated data.

    ``changes``: other values of fields of its plan.
    """
    data = read_golden_record().plan.data.model_copy(update={"origin": "generated"})
    return read_golden_record(
        plan=read_golden_record().plan.model_copy(update={"data": data} | changes)
    )


def list_commands(blocks):
    """Return the texts of the code blocks of a page's part: commands that it suggests."""
    return [translate(block.text, "en").strip() for block in blocks if isinstance(block, Code)]


def test_trial_run_suggests_preparing_and_measuring_real_data():
    # A trial is a run on generated data, here on one node with eight devices.
    blocks = suggest_next_steps([make_trial(nnodes=1, nproc=8)])
    # The commands of the code blocks: to prepare real data, then to measure five launches with the
    # recipe that was written for this number of devices, 1x8.
    assert list_commands(blocks) == [
        "trainmark prepare distilbert_sst2 --from DOWNLOADS --data data/distilbert_sst2",
        "trainmark run distilbert_sst2 --data data/distilbert_sst2 --recipe standard-1x8 "
        "--repeat 5",
    ]
    assert isinstance(blocks[0], Paragraph)
    assert translate(blocks[0].text, "zh").startswith("这是一次试运行")


def test_number_of_ranks_without_a_recipe_gets_the_first_real_data_recipe():
    (*_, run) = list_commands(suggest_next_steps([make_trial(nnodes=1, nproc=3)]))
    assert "--recipe standard-1x1 " in run


def test_required_options_of_prepare_are_named():
    (prepare, _) = list_commands(suggest_next_steps([make_trial(case="gpt_megatron")]))
    assert prepare.startswith("trainmark prepare gpt_megatron tokenizer=TOKENIZER --from")


def test_case_without_real_data_has_no_command():
    # The toy case can only generate its data, so there is nothing to prepare.
    toy = Record.model_validate_json((GOLDEN / "record_toy.json").read_bytes())
    assert toy.plan.data.origin == "generated"
    blocks = suggest_next_steps([toy])
    assert (len(blocks), list_commands(blocks)) == (1, [])  # one sentence only


def test_run_that_is_real_or_failed_or_of_an_unknown_case_has_no_next_steps():
    # ``make_trial`` is a run on generated data, to which next steps are suggested if it passed.
    assert read_golden_record().plan.data.origin == "real"  # so it is no trial
    failed = make_trial().model_copy(update={"status": "failed"})
    for record in (read_golden_record(), failed, make_trial(case="not_installed_here")):
        assert suggest_next_steps([record]) == []
