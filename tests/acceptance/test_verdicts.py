"""From the evidence of an acceptance to its verdicts, lists and page."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import combinations
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from support.acceptance_evidence import DEVICES, NODE, DeviceEvidence, make_acceptance, make_digests
from trainmark.acceptance import evidence as evidence_module
from trainmark.acceptance import verdicts
from trainmark.acceptance.assessment import Assessment
from trainmark.acceptance.conclusion import conclude_devices
from trainmark.acceptance.evidence import EVIDENCE_DIR, Evidence
from trainmark.acceptance.model import ERROR_RATE, judge_measurements
from trainmark.acceptance.result import Member, describe_schema, read_result
from trainmark.acceptance.tasks import STEP
from trainmark.acceptance.times import AloneTime, Times
from trainmark.errors import RecordError
from trainmark.pages.acceptance import build_acceptance_document, list_acceptance_lines
from trainmark.pages.acceptance_phrases import explain_verdict
from trainmark.pages.rendering import to_html, to_markdown
from trainmark.pages.texts import LANGUAGES, phrase, translate

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.acceptance.judgement import Judgement
    from trainmark.acceptance.result import AcceptanceResult


def judge_folder(folder: Path, interrupted: str | None = None) -> AcceptanceResult:
    """Judge the evidence in a folder; ``interrupted``: the signal that ended the acceptance."""
    return conclude_devices(make_acceptance(folder), interrupted=interrupted).result


def list_decisions(result: AcceptanceResult) -> list[str]:
    """Return the decision about each device, such as ``pass``, in their order."""
    return [member.decision for member in result.members]


def list_finding_codes(result: AcceptanceResult, name: str) -> list[str]:
    """Return the codes of what was found against the device of this name, such as ``slow``."""
    findings = next(member for member in result.members if member.name == name).findings
    return [finding.code for finding in findings]


def test_equal_devices_pass(tmp_path: Path) -> None:
    """Four ``DEVICES`` are equally fast, and their trainings have equal digests.

    That is the evidence which ``DeviceEvidence`` writes of devices that are not named to it.
    ``judge_folder`` judges it; the exit code is 0 if all pass.
    """
    DeviceEvidence(tmp_path).write_all_phases()

    result = judge_folder(tmp_path)

    assert list_decisions(result) == ["pass"] * 4
    assert result.exit_code == 0
    # ``bits``: the comparison of the devices' trainings bit by bit.
    assert [comparison.control for comparison in result.bits] == ["deterministic"]


def test_slow_device_fails_with_its_share(tmp_path: Path) -> None:
    """Of four ``DEVICES`` the third takes 0.12 s for a step, and the others 0.1 s.

    A finding says why a device fails; ``interval.slower`` is the share of additional time. The exit
    code 1 means that some device fails.
    """
    DeviceEvidence(tmp_path, step_s={DEVICES[2]: 0.12}).write_all_phases()  # usual: 0.1 s

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == [DEVICES[2]]
    assert list_finding_codes(result, DEVICES[2]) == ["slow"]
    assert result.members[2].findings[0].interval.slower == pytest.approx(0.12 / 0.1 - 1, abs=0.01)
    assert result.exit_code == 1


def test_slow_matmul_fails_a_device_whose_step_is_not_slow(tmp_path: Path) -> None:
    """The steps of all four ``DEVICES`` take 0.1 s, but a matmul of the second takes 0.02 s.

    That is twice the 0.01 s of the others; by default a matmul may take 10% more.
    """
    DeviceEvidence(tmp_path, matmul_s={DEVICES[1]: 0.02}).write_all_phases()  # usual: 0.01 s

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == [DEVICES[1]]
    assert [finding.quantity for finding in result.members[1].findings] == ["matmul"]


def test_bad_link_excludes_one_of_its_devices(tmp_path: Path) -> None:
    """Alone four devices are equally fast; the first and the last are slow as a pair.

    Each pair has three rounds. ``links`` has the verdict of each pair.
    """
    link = (DEVICES[0], DEVICES[3])
    DeviceEvidence(tmp_path, link_s={link: 0.3}).write_all_phases(pair_rounds=3)  # usual: 0.2 s

    result = judge_folder(tmp_path)

    # Without one of its devices no work uses the link; the other device can stay. Both have one
    # bad link, so the first one is excluded.
    assert result.list_names("fail") == [DEVICES[0]]
    assert list_finding_codes(result, DEVICES[0]) == ["slow_link"]
    assert [slow.members for slow in result.links if slow.decision == "fail"] == [link]


def test_link_that_was_slow_once_is_measured_again(tmp_path: Path) -> None:
    """Of four devices the first and the last are slow as a pair, in the only round of each pair.

    Alone all are equally fast. ``pairs_again`` are the pairs that are to be measured again.
    """
    link = (DEVICES[0], DEVICES[3])
    DeviceEvidence(tmp_path, link_s={link: 0.3}).write_all_phases(pair_rounds=1)  # usual: 0.2 s

    conclusion = conclude_devices(make_acceptance(tmp_path), interrupted=None)

    # One slow round may be a disturbance. Two more are asked for, as many as confirm a slow link.
    assert conclusion.pairs_again == [link] * 2
    assert conclusion.result.list_names("fail") == []


def test_device_that_computes_differently_fails(tmp_path: Path) -> None:
    """Each of four devices has trained twice; trainings are compared by checksums of their steps.

    ``make_digests`` returns those that all others have; ``change=1`` changes a weight's.
    """
    # Both of its trainings end with other weights than those of the other devices.
    different = [make_digests(change=1)] * 2
    DeviceEvidence(tmp_path, trainings={DEVICES[3]: different}).write_all_phases()

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == [DEVICES[3]]
    assert list_finding_codes(result, DEVICES[3]) == ["computes_differently"]
    # The place of the first difference: the evidence has trainings of one step and one layer.
    assert "weight of layer in step 1" in result.members[3].findings[0].text


def test_page_does_not_say_that_all_devices_repeat_their_results_if_one_does_not(
    tmp_path: Path,
) -> None:
    """``make_digests`` returns the checksums of a training, the same for each of the other devices.

    The finding against the device names what it was compared with: itself.
    """
    # The second training of one of four devices ends with other weights than its first.
    unreliable = [make_digests(), make_digests(change=1)]
    DeviceEvidence(tmp_path, trainings={DEVICES[3]: unreliable}).write_all_phases()

    result = judge_folder(tmp_path)

    assert list_finding_codes(result, DEVICES[3]) == ["computes_differently"]
    assert result.members[3].findings[0].members == ("itself",)
    text = to_markdown([build_acceptance_document(result)], "en")
    assert "each device produced the same result" not in text
    assert "4 devices trained twice with the same seed; training is deterministic" in text


def test_device_without_peers_of_its_product_is_undecided(tmp_path: Path) -> None:
    """The first of four ``DEVICES`` is of the product ``other``, the rest are of ``gpu``.

    Only devices of the same product are compared. A doubt is the reason why a device is undecided.
    """
    DeviceEvidence(tmp_path, products={DEVICES[0]: "other"}).write_all_phases()

    result = judge_folder(tmp_path)

    assert list_decisions(result) == ["undecided", "pass", "pass", "pass"]
    assert result.members[0].doubt == "no_peers"
    assert result.exit_code == 3  # no device fails, but one is undecided


def test_device_that_was_not_measured_is_undecided(tmp_path: Path) -> None:
    """Only the first three of four ``DEVICES`` were measured, before a signal ended it."""
    DeviceEvidence(tmp_path).write_device_phase(DEVICES[:3])

    result = judge_folder(tmp_path, interrupted="SIGINT")  # before the fourth device's first round

    assert list_decisions(result) == ["pass", "pass", "pass", "undecided"]
    assert result.members[3].doubt == "not_measured"


def test_interrupted_acceptance_never_passes_as_a_whole(tmp_path: Path) -> None:
    """All four devices were measured and pass, but a signal ended the acceptance before its end."""
    DeviceEvidence(tmp_path).write_all_phases()  # all devices pass

    assert judge_folder(tmp_path, interrupted="SIGTERM").exit_code == 3  # 3: undecided


def test_device_that_fails_alone_is_blamed(tmp_path: Path) -> None:
    """Three devices were measured; the round of the fourth was not over at its deadline.

    ``no_answer`` is the finding of such a device. ``not_measured`` lists the rounds that failed.
    """
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES[:3])
    measured.write_failed_round("devices", (DEVICES[3],), "deadline")  # it trained alone

    result = judge_folder(tmp_path)

    assert list_finding_codes(result, DEVICES[3]) == ["no_answer"]
    assert len(result.not_measured) == 1


def test_round_stopped_by_a_signal_blames_no_device(tmp_path: Path) -> None:
    """All four devices are good alone; the only round of a pair was stopped by a signal.

    The last argument of ``write_failed_round`` is the reason: ``stopped`` by a signal, not failed.
    """
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES)
    measured.write_failed_round("pairs", (DEVICES[0], DEVICES[1]), "stopped")

    assert judge_folder(tmp_path).list_names("fail") == []


def test_device_whose_pairs_all_fail_is_blamed_and_its_partners_are_not(tmp_path: Path) -> None:
    """All four devices are good alone; of their six pairs those with the second device fail."""
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES)
    for first, second in combinations(DEVICES, 2):
        if DEVICES[1] in (first, second):
            measured.write_failed_round("pairs", (first, second), "failed")
        else:
            measured.write_pair_round(first, second)

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == [DEVICES[1]]
    assert list_finding_codes(result, DEVICES[1]) == ["failed"]


def test_pair_that_fails_by_itself_is_a_failed_link(tmp_path: Path) -> None:
    """Only the pair of the devices 0 and 2 fails: its round is not over at its deadline.

    Both devices are good alone and in their other pairs.
    """
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES)
    for first, second in combinations(DEVICES, 2):
        if (first, second) == (DEVICES[0], DEVICES[2]):
            measured.write_failed_round("pairs", (first, second), "deadline")
        else:
            measured.write_pair_round(first, second)

    result = judge_folder(tmp_path)

    # One of the link's two devices is excluded: the link is then not used any more. Both have one
    # bad pair of three, so it is the first one.
    assert result.list_names("fail") == [DEVICES[0]]
    assert list_finding_codes(result, DEVICES[0]) == ["link_failed"]


def test_pairs_stopped_by_a_signal_do_not_count_as_good_ones(tmp_path: Path) -> None:
    """All four devices are good alone. A reason ``stopped`` means by a signal, not by a fault."""
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES)
    # The rounds of all six pairs of four devices. The second device (number 1) is in three pairs:
    # that with device 3 was stopped twice, before it could show anything; the other two failed.
    # Every pair of it that ended has failed, so the device is to blame, not its partners.
    for first, second in combinations(DEVICES, 2):
        if (first, second) == (DEVICES[1], DEVICES[3]):
            for number in range(2):
                measured.write_failed_round("pairs", (first, second), "stopped", number)
        elif DEVICES[1] in (first, second):
            measured.write_failed_round("pairs", (first, second), "failed")
        else:
            measured.write_pair_round(first, second)

    result = judge_folder(tmp_path)

    assert list_finding_codes(result, DEVICES[1]) == ["failed"]


def test_all_peer_groups_and_quantities_share_the_probability_of_a_wrong_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ERROR_RATE``, 1%, is the chance that any verdict of an acceptance is wrong.

    Many judgements are made, each of which may be wrong, so each gets only a part of it.
    """
    error_rates = []  # that of each judgement

    def judge_and_note(*args: Any, error_rate: float, **options: Any) -> Judgement:
        """Judge as usual, and keep the rate."""
        error_rates.append(error_rate)
        return judge_measurements(*args, error_rate=error_rate, **options)

    monkeypatch.setattr(verdicts, "judge_measurements", judge_and_note)
    # Two of the four devices are of another product, so that there are two groups of peers.
    products = dict.fromkeys(DEVICES[:2], "other")
    DeviceEvidence(tmp_path, products=products).write_all_phases()

    judge_folder(tmp_path)

    assert len(error_rates) == 4  # two products, each with the times of steps and of matmuls
    assert sum(error_rates) == pytest.approx(ERROR_RATE)


def test_link_that_fails_in_several_rounds_fails_only_one_of_its_devices(tmp_path: Path) -> None:
    """The pair of the devices 0 and 2 fails in four rounds; every other pair is good in one.

    So most rounds of both devices are bad, but only the pair with one of their three partners.
    """
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES)
    for first, second in combinations(DEVICES, 2):
        if (first, second) == (DEVICES[0], DEVICES[2]):
            for number in range(4):
                measured.write_failed_round("pairs", (first, second), "deadline", number)
        else:
            measured.write_pair_round(first, second)

    result = judge_folder(tmp_path)

    assert result.list_names("fail") == [DEVICES[0]]
    assert list_finding_codes(result, DEVICES[0]) == ["link_failed"]


def test_wrong_result_of_a_pair_counts_once_though_both_ranks_find_it(tmp_path: Path) -> None:
    """Of six pairs of four devices only 0 and 2 compute a wrong sum in their all-reduce.

    ``fault`` is what a rank says of a wrong result; ``write_pair_round`` lets both ranks of the
    pair say it.
    """
    measured = DeviceEvidence(tmp_path)
    measured.write_device_phase(DEVICES)
    for first, second in combinations(DEVICES, 2):
        is_bad = (first, second) == (DEVICES[0], DEVICES[2])
        measured.write_pair_round(first, second, fault="3 of 8 numbers" if is_bad else None)

    result = judge_folder(tmp_path)

    # Only one of the three pairs of each device is bad, so the link is at fault, not a device. One
    # of its two devices is excluded: the first, because both have the same number of bad pairs.
    assert result.list_names("fail") == [DEVICES[0]]
    assert list_finding_codes(result, DEVICES[0]) == ["link_failed"]
    assert result.members[0].findings[0].quantity == "all_reduce"


@pytest.mark.parametrize("code", ["wrong_result", "failed"])
def test_bad_round_of_the_whole_machine_fails_all_devices_if_none_is_to_blame(
    tmp_path: Path, code: str
) -> None:
    """In a round of the phase ``nodes`` all four devices of the machine train together.

    ``code`` is what goes wrong in it, and the code of the finding: a wrong result of an all-reduce,
    or the round fails. Three folders differ in what else was measured. "3 of 8 numbers" is any text
    of a rank about a wrong result.
    """

    def write_bad_round(measured: DeviceEvidence) -> None:
        if code == "failed":
            measured.write_failed_round("nodes", (NODE,), "failed")
        else:
            measured.write_machine_round(fault="3 of 8 numbers")

    folders = [tmp_path / name for name in ("unexplained", "explained", "no_bad_round")]
    for folder in folders:
        folder.mkdir()
    unexplained, explained, no_bad_round = folders
    # All devices pass alone and in pairs, so each of them may be to blame for the bad round.
    measured = DeviceEvidence(unexplained)
    measured.write_all_phases()
    write_bad_round(measured)
    result = judge_folder(unexplained)
    assert (list_decisions(result), result.exit_code) == (["fail"] * 4, 1)
    found_codes = {x for name in DEVICES for x in list_finding_codes(result, name)}
    assert found_codes == {code}
    # A device that fails alone explains the round.
    measured = DeviceEvidence(explained)
    measured.write_device_phase(DEVICES[:3])
    measured.write_failed_round("devices", (DEVICES[3],), "failed")
    write_bad_round(measured)
    assert judge_folder(explained).list_names("fail") == [DEVICES[3]]
    # With a good round of the whole machine all devices pass.
    measured = DeviceEvidence(no_bad_round)
    measured.write_all_phases()
    measured.write_machine_round()
    assert judge_folder(no_bad_round).exit_code == 0


def test_later_session_replaces_a_failure(tmp_path: Path) -> None:
    """In the first session the round of the last device, alone, was not over at its deadline.

    In the second one all four devices are good. ``not_measured`` lists the rounds that failed.
    """
    first_session = DeviceEvidence(tmp_path)
    first_session.write_failed_round("devices", (DEVICES[3],), "deadline")
    later_session = DeviceEvidence(tmp_path)  # each object begins the next session of the folder
    later_session.write_all_phases()

    result = judge_folder(tmp_path)

    assert list_decisions(result) == ["pass"] * 4
    assert result.not_measured == ()


def test_incomplete_last_line_of_a_killed_node_is_counted_and_skipped(tmp_path: Path) -> None:
    """Each node writes its evidence to a file of its own, one event a line.

    The last line is cut, as if the node had been killed while it wrote; the lines before it are
    read.
    """
    DeviceEvidence(tmp_path).write_all_phases()
    (path,) = (tmp_path / EVIDENCE_DIR).glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])  # the last line is longer than these 20 bytes

    evidence = Evidence.read(tmp_path)

    assert evidence.malformed_lines == 1
    assert evidence.nodes[NODE].devices == list(DEVICES)


def test_result_follows_its_schema_and_is_read_back(tmp_path: Path) -> None:
    """The third of four ``DEVICES`` is slow: 0.12 s a step, and the others 0.1 s.

    ``acceptance.json`` has the whole result; the three text files have the names of the devices by
    their decision, one a line.
    """
    DeviceEvidence(tmp_path, step_s={DEVICES[2]: 0.12}).write_all_phases()
    result = judge_folder(tmp_path)
    result.write(tmp_path)

    jsonschema.validate(
        json.loads((tmp_path / "acceptance.json").read_text()), json.loads(describe_schema())
    )
    assert read_result(tmp_path) == result
    assert (tmp_path / "failing.txt").read_text() == f"{DEVICES[2]}\n"
    assert (tmp_path / "passing.txt").read_text().splitlines() == [
        DEVICES[0],
        DEVICES[1],
        DEVICES[3],
    ]
    assert (tmp_path / "undecided.txt").read_text() == ""


def test_result_tells_what_was_measured_when_and_with_which_software(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions measure: one from 1,000 s on for 60 s, and one from 5,000 s on for 30 s.

    A third one, later, measures nothing, and does not count. ``make_acceptance`` has the case toy,
    the recipe tiny and its override seed 3. The page has the same facts, for whoever files it as
    evidence.
    """
    now_s = 0.0
    monkeypatch.setattr(evidence_module.time, "time", lambda: now_s)
    now_s = 1_000.0
    first = DeviceEvidence(tmp_path)
    now_s = 1_060.0
    first.write_device_phase(DEVICES)
    now_s = 5_000.0
    second = DeviceEvidence(tmp_path)
    now_s = 5_030.0
    second.write_pair_round(DEVICES[0], DEVICES[1])
    second.write_failed_round("nodes", (NODE,), "failed")
    now_s = 9_000.0
    DeviceEvidence(tmp_path)

    result = judge_folder(tmp_path)

    facts = result.measurement
    assert facts is not None
    assert (facts.started, facts.ended) == (
        "1970-01-01T00:16:40+00:00",
        "1970-01-01T01:23:50+00:00",
    )
    assert (facts.duration_s, facts.sessions) == (90.0, 2)
    assert facts.rounds == {"devices": 5, "pairs": 1}  # the round of the node failed
    assert (facts.devices, facts.software) == (4, {"torch": "2.13.0"})
    assert result.overrides == {"seed": "3"}
    for lang in LANGUAGES:
        page = to_markdown([build_acceptance_document(result)], lang)
        for text in (
            "toy",
            "tiny",
            "seed 3",
            facts.started,
            "4 × gpu",
            "devices 5",
            "torch 2.13.0",
        ):
            assert text in page
        assert result.suite_version in page


@pytest.mark.parametrize(
    ("share", "is_busy"),
    [(None, False), (0.1, False), (0.55, True)],  # up to 10% counts as idle
)
def test_busy_machine_is_named_in_the_result_on_the_page_and_in_the_terminal(
    tmp_path: Path, share: float | None, is_busy: bool
) -> None:
    """Four equally fast devices; other programs used ``share`` of the cores meanwhile.

    None: the share is not known. The warning is compared up to the names of the machines, which
    follow it.
    """
    DeviceEvidence(tmp_path, others_cpu_share=share).write_all_phases()

    result = judge_folder(tmp_path)

    assert result.measurement is not None
    expected_shares = {} if share is None else {NODE: pytest.approx(share)}
    assert result.measurement.others_cpu_share == expected_shares
    assert list_decisions(result) == ["pass"] * 4  # the verdicts do not depend on it
    for lang in LANGUAGES:
        warning, _names, _advice = translate(phrase("accept.busy", names="|"), lang).partition("|")
        terminal = "\n".join(list_acceptance_lines(result, lang, folder="out"))
        page = to_markdown([build_acceptance_document(result)], lang)
        for text in (terminal, page):
            assert (warning in text) is is_busy
            assert ("55%" in text) is is_busy


@pytest.mark.parametrize("lang", LANGUAGES)
def test_page_of_a_machine_without_pairs_does_not_mention_their_noise(
    tmp_path: Path, lang: str
) -> None:
    """Four devices are measured alone, and then each pair of them in one round as well."""
    evidence = DeviceEvidence(tmp_path)
    evidence.write_device_phase(DEVICES)
    alone = judge_folder(tmp_path)
    # The words that introduce the noise of pairs, without the number after them.
    noise_of_pairs = translate(phrase("accept_noise.pair", share=""), lang).strip()

    # Of steps and of matmuls.
    assert [quantity.noise_of_pairs for quantity in alone.quantities] == [None, None]
    assert noise_of_pairs not in to_markdown([build_acceptance_document(alone)], lang)
    for first, second in combinations(DEVICES, 2):
        evidence.write_pair_round(first, second)
    assert noise_of_pairs in to_markdown([build_acceptance_document(judge_folder(tmp_path))], lang)


def test_two_rounds_that_show_a_noise_are_not_called_too_few_to_estimate_it() -> None:
    """Two devices take 1.0 s and 1.2 s for a step in one round, and in the other the reverse.

    The noise can be estimated, but not well enough to tell how many more rounds would decide. The
    limits are the usual ones: 3% for steps, 10% for rates. A doubt is why a device is undecided.
    """
    assessment = Assessment(product_of_member={"a": "gpu", "b": "gpu"})
    alone = [
        AloneTime(0, "a", 1.0),
        AloneTime(0, "b", 1.2),
        AloneTime(1, "a", 1.2),
        AloneTime(1, "b", 1.0),
    ]

    times = {STEP: Times(alone=alone, pairs=[])}
    judgements = verdicts.judge_times(
        assessment.product_of_member,
        times,
        [("a", "b")],  # the groups of devices that are compared: here one
        worse_by=0.03,
        rates_worse_by=0.1,
    )
    verdicts.note_times(assessment, times, judgements)

    (quantity,) = assessment.quantities
    assert quantity.noise is not None
    for member in assessment.list_members():
        assert member.decision == "undecided"
        assert member.step is not None  # its interval is known
        assert member.doubt == "interval_after_few_rounds"
        text = translate(explain_verdict(member), "en")
        assert "too few rounds to estimate the noise" not in text
        assert "the confidence interval contains the tolerance limit" in text
        assert "not known well enough to tell how many more rounds are needed" in text


def test_more_rounds_than_can_be_measured_are_no_remedy() -> None:
    """A device is undecided, because the interval of its slowdown is too wide.

    ``more_rounds`` is how many further rounds would decide; None: no number would, or it is not
    known.
    ``explain_verdict`` advises to measure them, but not more than a command can measure.
    """
    # --repeats takes at most 1,000 rounds.
    none, too_many, possible = (
        translate(
            explain_verdict(
                Member(
                    name="a",
                    product="gpu",
                    decision="undecided",
                    doubt="interval",
                    more_rounds=more_rounds,
                )
            ),
            "en",
        )
        for more_rounds in (None, 1_001, 1_000)
    )
    assert too_many == none
    assert "1,000" in possible


def test_result_without_a_round_has_no_date(tmp_path: Path) -> None:
    DeviceEvidence(tmp_path)  # it joined, and measured nothing

    facts = judge_folder(tmp_path).measurement

    assert facts is not None
    assert (facts.started, facts.ended, facts.duration_s, facts.rounds) == (None, None, 0.0, {})


def test_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    """The folder is empty; a result would be in ``acceptance.json``, which the error names."""
    with pytest.raises(RecordError) as refused:
        read_result(tmp_path)
    assert "acceptance.json" in str(refused.value)


TOLERANCES = {
    "en": "Tolerance: steps may be up to 3% slower; "
    "matmuls, copies and collectives may be up to 10% slower",
    "zh": "容差：训练步最多可以比预期慢 3%；矩阵乘、拷贝和集合通信最多可以比预期慢 10%",
}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_page_names_devices_to_exclude_first(tmp_path: Path, lang: str) -> None:
    # A slow device, and a slow link between two others, for which one of them fails. Usual are 0.1
    # seconds for a step of a device alone, and 0.2 seconds for one of a pair.
    DeviceEvidence(
        tmp_path, step_s={DEVICES[2]: 0.12}, link_s={(DEVICES[0], DEVICES[3]): 0.3}
    ).write_all_phases(pair_rounds=3)
    result = judge_folder(tmp_path)
    page = build_acceptance_document(result)

    markdown = to_markdown([page], lang)

    _title, _blank, summary_line, *_ = markdown.splitlines()
    assert DEVICES[2] in summary_line
    for name in DEVICES:  # the passing devices are named too, in the tables below
        assert markdown.count(name) > 1
    # The summary, the tolerances, and a line for each of the two devices that fail.
    lines = list_acceptance_lines(result, lang, folder="out")
    assert len(lines) == 4
    # ``TOLERANCES`` has by language the sentence that states the allowed slowdowns.
    assert lines[1] == TOLERANCES[lang]
    assert to_html([page]).count('class="heat-map"') == 2  # one per language


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_interrupted_acceptance_names_the_folder_in_which_it_resumes(
    tmp_path: Path, lang: str
) -> None:
    # Without --out each call has a new folder, so that the same command would begin a new test.
    DeviceEvidence(tmp_path).write_all_phases()
    result = judge_folder(tmp_path, interrupted="SIGINT")

    summary, *_, last_line = list_acceptance_lines(result, lang, folder="acceptances/x")

    assert "SIGINT" in summary
    assert "--out acceptances/x" in last_line
    # The page may be copied, so it names the option, but no path.
    assert "--out" in to_markdown([build_acceptance_document(result)], lang)
    complete = judge_folder(tmp_path)
    assert "--out" not in " ".join(list_acceptance_lines(complete, lang, folder="acceptances/x"))
    assert "--out" not in to_markdown([build_acceptance_document(complete)], lang)


def test_shipped_schema_matches_the_result() -> None:
    """The package has a file with the JSON schema of results, which the code can also derive."""
    shipped = files("trainmark.acceptance").joinpath("acceptance.schema.json")
    assert shipped.read_text() == describe_schema()
