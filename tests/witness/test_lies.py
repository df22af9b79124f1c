"""Lies planted in a training program are found; the honest program has none."""

from __future__ import annotations

import pytest

from support.witnessed_programs import list_grave_finding_codes, measure

WORK = """
name = "text"
precision = "fp32"
flops_per_token = 442_368  # six for each weight of the layers and the head
warmup_steps = 5
window_steps = 10
speed_line = 'tok/s (?P<tokens_per_second>[0-9.,]+)'
[step]
samples = 16
tokens = 512
"""
PRINTED = {"printed_differs"}
# What the record says of each lie; one of several is enough.
LIES = {
    "half_batch": {"witness_batch", "witness_tokens"},
    "short_sequences": {"witness_tokens"},
    "fewer_layers": {"flops_above_counted"},
    "detached": {"witness_gradients"},
    "zero_rate": {"few_updates"},
    "undone": {"witness_changed_outside"},
    "evaluation": {"witness_no_gradients"},
    "zero_loss": {"gradients_zero", "parameters_unchanged_in_window"},
    "nan_loss": {"witness_loss_not_finite"},
    "bf16": {"witness_precision"},
    "hidden_forward": {"witness_pauses"},
    "skipped": {"witness_batch"},
    "one_row": {"rows_repeated"},
    "after_the_end": {"parameters_changed_after_training"},
    "tokens_twice": PRINTED,
    "accumulation_twice": PRINTED,
    "accumulation_forgotten": PRINTED,
    "half_time": PRINTED,
    "fastest": PRINTED,
    "warmup_left_in": PRINTED,
    "waiting": PRINTED,
}


# Fast and certain on any machine; the others depend on how its steps vary.
FAST = ("half_batch", "undone", "evaluation", "bf16", "tokens_twice")


def list_suspicions(record):
    """Return the codes for which a reader is told not to believe the program or its figures.

    ``PRINTED`` is the code of a printed speed that differs from the measured one.
    """
    reasons = set()
    if record.trust.grade == "do_not_quote":
        reasons = {reason.code for reason in record.trust.reasons}
    return (
        reasons
        | list_grave_finding_codes(record)
        | ({finding.code for finding in record.findings} & PRINTED)
    )


def test_honest_program_is_not_flagged(tmp_path):
    # Without ``--lie``, the program does what it prints, and what ``WORK``, the file of
    # ``--witness``, states.
    record = measure(tmp_path, "liar.py", work=WORK)
    assert record.status == "passed"
    assert list_suspicions(record) == set()
    assert "printed_agrees" in {finding.code for finding in record.findings}


@pytest.mark.parametrize("lie", FAST)
def test_dishonest_program_is_detected(tmp_path, lie):
    record = measure(tmp_path, "liar.py", "--lie", lie, work=WORK)
    # ``LIES`` has the codes that may reveal each lie; one of them is enough. ``FAST`` are the lies
    # of it that are found on any machine, however its steps vary. ``WORK`` is the file of
    # ``--witness``.
    assert LIES[lie] & list_suspicions(record)


@pytest.mark.nightly
def test_all_but_two_dishonest_programs_are_detected(tmp_path):
    # ``LIES`` has, by the name of a lie that ``liar.py`` tells, the codes that may reveal it.
    # ``WORK``, the file of ``--witness``, states what an honest program would do.
    found_lies = []
    for lie, revealing_codes in LIES.items():
        folder = tmp_path / lie
        folder.mkdir()
        record = measure(folder, "liar.py", "--lie", lie, work=WORK)
        if revealing_codes & list_suspicions(record):  # one of them is enough
            found_lies.append(lie)
    assert len(LIES) >= 20  # so that a table that lost entries does not pass
    # Two of them may stay undetected: some depend on how the times of steps vary.
    assert len(found_lies) >= len(LIES) - 2, sorted(LIES.keys() - found_lies)
