"""MMLU: table, csv tree, prompts, plans; scores equal those of each prompt alone and lm-eval's."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from support.mmlu_peer import (
    GOLDEN,
    NAMES,
    make_subjects,
    open_model,
    score_with_lm_eval,
    write_model,
)
from trainmark.cases.llama2_7b_lora.mmlu import plan_scoring, scoring
from trainmark.cases.llama2_7b_lora.mmlu.questions import (
    CATEGORIES,
    SUBJECTS,
    Question,
    format_prompt,
    read_questions,
)
from trainmark.cases.llama2_7b_lora.mmlu.scoring import score_mmlu
from trainmark.cases.llama2_7b_lora.model_files import open_tokenizer
from trainmark.errors import ContradictionError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of the tiny model that both we and lm-eval score."""
    place = tmp_path_factory.mktemp("peer")
    write_model(place / "model")
    return place


@pytest.fixture(scope="module")
def model(folder):
    return open_model(folder / "model")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return open_tokenizer(folder / "model", vocab_size=256)


@pytest.fixture(scope="module")
def mmlu():
    """Return four subjects of nine questions, with five examples each."""
    return make_subjects()


def index_items(result):
    return {(item.subject, item.row): item for item in result.items}


def test_mmlu_has_57_subjects_in_4_groups():
    assert len(SUBJECTS) == 57
    assert Counter(CATEGORIES.values()) == {
        "STEM": 18,
        "humanities": 13,
        "social sciences": 12,
        "other": 14,
    }
    assert CATEGORIES["professional_law"] == "humanities"


def test_a_prompt_is_the_published_one():
    # Text, choices, and the index of the right one. The prompt trims the question's text.
    shot = Question("One?", ("a", "b", "c", "d"), 2)
    question = Question(" Two?\n", ("e", "f", "g", "h"), 0)
    head = "The following are multiple choice questions (with answers) about world religions.\n\n"
    example_text = "One?\nA. a\nB. b\nC. c\nD. d\nAnswer: C\n\n"
    assert format_prompt("world_religions", [shot], question) == (
        head + example_text + "Two?\nA. e\nB. f\nC. g\nD. h\nAnswer:"
    )


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (b"q,1,2,3,4,A\nq,1,2,3,B\n", "row 2 (line 2)", "the row has 5 column(s)"),
        (b'q,1,2,3,4,A\n"q\nr",1,2,3,4,E\n', "row 2 (line 3)", "the answer is 'E'"),
        (b'q,1,2,3,4,A\n"q,1,2,3,4,B\n', "", "not readable as CSV: line 2: unexpected end of data"),
        (b"", "", "the file has no rows"),
    ],
)
def test_a_wrong_csv_row_is_named(tmp_path, text, where, what):
    # A row has the question, four choices, and the letter of the right one (A to D); there is no
    # header. ``where`` is the place in the file and ``what`` the error. The row of the second file
    # begins in line 2 and ends in line 3, as its question has a line break in quotes.
    file = tmp_path / "x_test.csv"
    file.write_bytes(text)
    with pytest.raises(DataError) as caught:
        read_questions(file)
    assert caught.value.what == what
    assert caught.value.where == (f"{file}, {where}" if where else str(file))
    assert caught.value.fix


def test_csv_with_byte_order_mark_crlf_and_separators_keeps_its_rows(tmp_path):
    # At \u2028, \x85 and \x0c ``str.splitlines`` would end a line, but they are part of the
    # text. In the second row a quoted question has a line break. The first bytes of the file are a
    # byte order mark. A ``Question`` has its text, the choices, and the index of the right one: A
    # is 0, D is 3.
    text = 'q\u2028r\x85s\x0ct,1,2,3,4,A\r\n"u\nv",5,6,7,8,D\r\n'
    (tmp_path / "x_test.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_questions(tmp_path / "x_test.csv") == (
        Question("q\u2028r\x85s\x0ct", ("1", "2", "3", "4"), 0),
        Question("u\nv", ("5", "6", "7", "8"), 3),
    )


def test_scores_with_a_reused_prefix_equal_scores_of_single_prompts(model, tokenizer, mmlu):
    # ``mmlu``: four subjects of nine questions, so 36 prompts; each has the subject's five examples
    # before its question. The plan puts prompts with the same beginning, their prefix, into a
    # group. ``batch_tokens``: at most so many tokens of questions in a forward pass.
    plan = plan_scoring(tokenizer, mmlu, max_length=2048)
    # The expected scores do not reuse the common prefix: each prompt goes through the model alone.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            scoring,
            "_score_with_prefix",
            lambda model, group, batch_tokens: scoring._score_prompts_alone(model, group),
        )
        single_prompts = index_items(score_mmlu(model, mmlu, plan, batch_tokens=1))
    assert len(single_prompts) == 36
    for batch_tokens in (1, 100, 10_000):
        reused = score_mmlu(model, mmlu, plan, batch_tokens=batch_tokens)
        assert reused.shots_used == {5: 36}  # 5 examples in each of 36 prompts
        for key, item in index_items(reused).items():
            expected = single_prompts[key]
            assert item.log_probabilities == pytest.approx(expected.log_probabilities, abs=2e-5)
            assert (item.predicted, item.answer) == (expected.predicted, expected.answer)


def assert_scores_equal(peer, model, tokenizer, mmlu):
    """Compare our scores of each item and the averages with those of lm-eval.

    The scores of an item are its log-probabilities, the predicted answer and whether it is right.

    Args:
        peer: results of lm-eval: a list of rows at each subject's name, and at ``acc`` the
            accuracy of each subject.
    """
    plan = plan_scoring(tokenizer, mmlu, max_length=2048)
    result = score_mmlu(model, mmlu, plan, batch_tokens=300)
    compared = 0
    for (name, row), item in index_items(result).items():
        expected = peer[name][row]
        assert item.log_probabilities == pytest.approx(expected["log_probabilities"], abs=1e-4)
        assert item.predicted == int(np.argmax(expected["log_probabilities"]))
        assert float(item.predicted == item.answer) == expected["acc"]
        compared += 1
    # 36: four subjects of nine items.
    assert compared == sum(len(peer[name]) for name in NAMES) == 36
    assert {name: result.per_subject[name] for name in NAMES} == pytest.approx(peer["acc"])
    assert result.macro == pytest.approx(sum(peer["acc"].values()) / len(NAMES))


def test_missing_choice_is_an_error(model, tokenizer, mmlu, monkeypatch):
    """A device that computes nothing may return any number as the place of the best choice."""
    # ``argmax`` finds the best of the four choices of each question; here it returns place 7.
    monkeypatch.setattr(torch.Tensor, "argmax", lambda scores, _: torch.full((len(scores),), 7))
    # Both limits in tokens, of a prompt and of a forward pass, are large enough not to matter.
    plan = plan_scoring(tokenizer, mmlu, max_length=2048)
    with pytest.raises(ContradictionError) as raised:
        score_mmlu(model, mmlu, plan, batch_tokens=512)
    assert raised.value.code == "llama2_7b_lora.no_such_choice"
    assert raised.value.details == {"position": 7, "choices": 4}


def test_scores_equal_recorded_scores_of_lm_eval(model, tokenizer, mmlu):
    assert_scores_equal(json.loads(GOLDEN.read_text(encoding="utf-8")), model, tokenizer, mmlu)


def test_scores_equal_scores_of_the_installed_lm_eval(folder, model, tokenizer, mmlu):
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")
    assert_scores_equal(score_with_lm_eval(folder), model, tokenizer, mmlu)


def score_on_rank(rank, model, tokenizer, mmlu):
    """Return the scores of one of two ranks, which run equally many forward passes.

    A pass takes at most 60 tokens of questions, so few that each rank needs several passes. The
    plan of a rank has only the rank's part of the questions.

    Args:
        mmlu: the subjects with their questions, which ``model`` answers.
    """
    plan = plan_scoring(tokenizer, mmlu, max_length=2048, rank=rank, world_size=2)
    return score_mmlu(
        model, mmlu, plan, batch_tokens=60, equal_passes=True, rank=rank, world_size=2
    )


def test_ranks_sum_their_scores_and_run_equally_many_forward_passes(
    model, tokenizer, mmlu, monkeypatch
):
    """Run two ranks one after the other, with a fake sum over ranks.

    ``score_mmlu`` sums twice: first the numbers of forward passes, then the counts of items. In a
    first round, each rank's own values are noted; its evaluation then fails, as items are missing.
    In a second round, each rank gets the sums.
    """
    single = score_mmlu(
        model, mmlu, plan_scoring(tokenizer, mmlu, max_length=2048), batch_tokens=60
    )
    # First round. For each rank: the values that it adds to the two sums; its forward passes.
    addends, planned_passes = [], []

    def note_addends(*values, world_size, device):
        addends[-1].append(values)
        return list(values)

    monkeypatch.setattr(scoring, "add_over_ranks", note_addends)
    for rank in range(2):
        addends.append([])
        with pytest.raises(AssertionError, match="of 36 items"):
            score_on_rank(rank, model, tokenizer, mmlu)
        # The first sum has a value for each rank, and a rank adds its number at its own place.
        planned_passes.append(addends[rank][0][rank])
    summed_counts = [a + b for a, b in zip(addends[0][1], addends[1][1], strict=True)]

    # Second round.
    num_passes = []  # that each rank really ran
    for rank in range(2):
        sums = iter([planned_passes, summed_counts])

        def return_next_sums(*values, world_size, device, sums=sums):
            return next(sums)

        monkeypatch.setattr(scoring, "add_over_ranks", return_next_sums)
        calls = []
        hook = model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        result = score_on_rank(rank, model, tokenizer, mmlu)
        hook.remove()
        num_passes.append(len(calls))
        # The accuracies, the prompts by their number of examples, and the number of questions.
        assert (result.micro, result.macro, result.shots_used, result.asked) == (
            single.micro,
            single.macro,
            {5: 36},
            36,
        )
    # Both ran as many as the rank with more: the other one repeated some.
    assert num_passes == [max(planned_passes)] * 2


def test_shots_are_dropped_until_the_prompt_fits_and_counted(model, tokenizer, mmlu):
    # ``mmlu``: four subjects of nine items, each subject with five examples ("shots") that precede
    # an item's question in its prompt. A prompt may have 120 tokens, too few for some examples.
    plan = plan_scoring(tokenizer, mmlu, max_length=120)
    result = score_mmlu(model, mmlu, plan, batch_tokens=500)
    # Items by the largest number of examples that fits. ``num_truncated``: number of those that do
    # not fit even with none.
    by_hand = Counter()
    num_truncated = 0
    for subject in mmlu:
        for item in subject.items:
            fitting = [
                count
                for count in range(6)  # none to all five examples
                if len(
                    tokenizer.encode_prompts(
                        [format_prompt(subject.name, subject.shots[:count], item)]
                    )[0]
                )
                <= 120
            ]
            num_truncated += not fitting
            by_hand[max(fitting, default=0)] += 1
    assert result.shots_used == dict(sorted(by_hand.items()))
    assert len(result.shots_used) > 1
    # One very long item of each of the four subjects.
    assert result.num_truncated == num_truncated == 4
    assert (
        result.mean_shots
        == sum(num_shots * num_items for num_shots, num_items in by_hand.items())
        / 36  # items: nine of each subject
    )
    for group in plan.groups:
        assert all(len(group.prefix) + len(suffix) <= 120 for suffix in group.suffixes)
        if group.is_truncated:
            subject = mmlu[group.subject]
            # A cut prompt keeps its end.
            (end,) = tokenizer.encode_prompts(
                [format_prompt(subject.name, [], subject.items[group.rows[0]])]
            )
            assert [*group.prefix, *group.suffixes[0]] == end[-120:]


def test_legacy_mode_keeps_dropout_and_ranks_the_whole_vocabulary(tokenizer, mmlu):
    # ``mmlu``: four subjects of nine questions, so 36 prompts. "Legacy" is the published scoring.
    # The prompts are cut to 100 tokens, which does not matter here, as the model ignores them.
    plan = plan_scoring(tokenizer, mmlu, legacy=True, max_length=100)

    class Fixed(torch.nn.Module):
        """Predicts a token that is not a letter for odd prompts, else C."""

        def __init__(self):
            super().__init__()
            # ``score_mmlu`` asks the parameters for the device.
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.modes, self.calls = [], 0  # of each call: whether it was in training mode

        def forward(self, input_ids, use_cache, logits_to_keep):
            # One prompt in each call, and only its last logits.
            assert (len(input_ids), use_cache, logits_to_keep) == (1, False, 1)
            self.modes.append(self.training)
            logits = torch.zeros(1, 1, 256)
            logits[..., plan.answer_ids[2]] = 5.0
            logits[..., 7] = 9.0 * (self.calls % 2)  # token 7 is no letter
            self.calls += 1
            return type("Output", (), {"logits": logits})

    model = Fixed().eval()
    result = score_mmlu(model, mmlu, plan, batch_tokens=1, legacy=True)
    assert model.modes == [True] * 36  # in training mode, as the published program
    assert not model.training  # restored
    # 2 is the place of C; -1 stands for no letter.
    assert [item.predicted for item in result.items] == [2, -1] * 18
    # Only every other prompt was answered at all, with C. ``micro``: the share of right answers.
    right = sum(item.answer == 2 for item in result.items[::2])
    assert result.micro == right / 36
