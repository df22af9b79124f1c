"""ReCoRD's jsonl as choice sequences: lines, tokens, candidates, the kept tokens; no torch."""

import json
import random
import re
from dataclasses import replace

import pytest

from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated
from trainmark.cases.glm_superglue.data.cloze import DRAW_SEED
from trainmark.errors import DataError

RECIPE = replace(
    CASE.recipes["tiny"],
    data="real",
    init="random",
    vocab_size=40,
    seq_length=24,
    max_wrong_choices=2,
)
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "-", "@", "'", "the", "was", "in", "born",
    "poet", "and", "who", "anna", "berg", "rome", "oslo", "boris", "##ov", "cole", "li",
]  # fmt: skip
IDS = {word: number for number, word in enumerate(WORDS)}
START, END = len(WORDS), len(WORDS) + 1  # follow the last token of the file

TEXT = "Anna Berg was born in Rome.\n@highlight\nBorisov and Cole"


def make_span(text, name, after=0):
    """Return where ``name`` is in ``text``, from position ``after`` on; ``end`` is inclusive."""
    first = text.index(name, after)
    return {"start": first, "end": first + len(name) - 1}


def make_question(query="@placeholder was born", *answers):
    """Return a question of ReCoRD with its right answers, by default "Anna Berg" alone."""
    return {"query": query, "answers": [{"text": text} for text in answers or ("Anna Berg",)]}


def make_line(*questions, text=TEXT, names=("Anna Berg", "Rome", "Borisov", "Cole")):
    """Return a line of ReCoRD: a passage with the entities ``names``, and its questions.

    Args:
        questions: from ``make_question``; none: its default, "@placeholder was born", whose right
            answer is "Anna Berg".
        text: of the passage; by default it has the four names.
    """
    return {
        "source": "test",
        "passage": {"text": text, "entities": [make_span(text, name) for name in names]},
        "qas": list(questions) or [make_question()],
        "idx": 0,
    }


def write_folder(folder, train=None, val=None, words=WORDS):
    """Write train.jsonl and val.jsonl, by default of one line each, and the vocabulary ``words``.

    Samples are lines as objects, or as text with any fault.
    """
    default = [make_line()]
    samples_by_split = {
        "train": default if train is None else train,
        "val": default if val is None else val,
    }
    for name, samples in samples_by_split.items():
        lines = [sample if isinstance(sample, str) else json.dumps(sample) for sample in samples]
        text = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


def encode_words(text):
    """Return the ids of words of the vocabulary, which are separated by spaces."""
    return [IDS[word] for word in text.split()]


def read_fault(folder, recipe=RECIPE):
    """Return the error of the check as text, with DIR for the folder.

    ``RECIPE``, the default, has sequences of 24 tokens.
    """
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    return str(caught.value).replace(str(folder), "DIR")


def test_sequence_is_the_context_with_a_mask_and_then_the_candidate(tmp_path):
    """A sequence is the passage, the question with a gap, and behind them one candidate.

    The fixture folder has one passage, ``TEXT``, and one question, "@placeholder was born". ``IDS``
    has the id of each word, ``START`` and ``END`` are the tokens around a candidate. The first
    candidate is the right answer, "Anna Berg".
    """
    # A name is one or two tokens: "Borisov" is "boris ##ov". The line "@highlight" of the passage
    # becomes "-". GLM ends the context with [PAD], which is no padding here.
    sequence = data.load(write_folder(tmp_path), RECIPE).train.build_sequences(0)[0]
    context = encode_words(
        "[CLS] anna berg was born in rome . - boris ##ov and cole [MASK] was born [PAD]"
    )
    assert sequence.ids.tolist() == [*context, START, *encode_words("anna berg")]
    assert sequence.separator == len(context) == 17  # where the candidate begins
    # The answer block has the position of the mask; positions within it count from 1.
    mask = context.index(IDS["[MASK]"])
    assert sequence.positions.tolist() == [*range(17), mask, mask, mask]
    assert sequence.block_positions.tolist() == [0] * 17 + [1, 2, 3]
    assert sequence.target_rows.tolist() == [17, 18, 19]
    assert sequence.target_ids.tolist() == [*encode_words("anna berg"), END]
    assert sequence.correct


def test_byte_order_mark_and_crlf_change_no_sample(tmp_path):
    """The mark and the line ends, as some editors save them, are no part of texts or tokens.

    By default the folder has one question with its candidates in each split, and a vocabulary.
    """
    expected = data.load(write_folder(tmp_path), RECIPE).train.build_sequences(0)
    for name in ("train.jsonl", "val.jsonl", "model/vocab.txt"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    read_sequences = data.load(tmp_path, RECIPE).train.build_sequences(0)
    assert [item.ids.tolist() for item in read_sequences] == [
        item.ids.tolist() for item in expected
    ]


def test_passage_is_shortened_by_the_length_of_each_candidate(tmp_path):
    """A sequence is the passage, the question and a candidate; only the passage may be cut.

    The folder has one passage and one question; its candidates, four names, have one or two tokens.
    ``encode_words`` gives the id of each token. Together with the question and the candidate 14
    tokens must suffice (``seq_length``).
    """
    recipe = replace(RECIPE, seq_length=14)
    examples = data.load(write_folder(tmp_path), recipe).validation
    by_length = {len(item.target_ids): item for item in examples.build_sequences(0)}
    whole_passage = encode_words("[CLS] anna berg was born in rome .")
    # Targets are the candidate's tokens and the end. The question has four tokens: GLM ends the
    # context with [PAD], which is no padding here. 14 tokens leave so many of the passage.
    for targets, num_kept in ((2, 8), (3, 7)):
        item = by_length[targets]
        assert len(item.ids) == 14
        assert item.ids[: item.separator].tolist() == [
            *whole_passage[:num_kept],
            *encode_words("[MASK] was born [PAD]"),
        ]
    assert examples.num_shortened == 1  # the only question, with all its candidates
    # 24 tokens of ``RECIPE`` suffice.
    assert data.load(tmp_path, RECIPE).validation.num_shortened == 0


def test_question_longer_than_a_sequence_is_refused_with_the_length_it_needs(tmp_path):
    """A passage may be shortened, a question may not: it needs a sequence of some length.

    6 tokens are too few for the folder's only question. The error states the least length that is
    enough; the test reads this number from it, and checks that one token less is refused.
    """
    folder = write_folder(tmp_path)
    fault = read_fault(folder, replace(RECIPE, seq_length=6))
    assert "seq_length=6;" in fault
    needed = int(re.search(r"set seq_length to at least (\d+)", fault)[1])
    with pytest.raises(DataError):
        data.check(folder, replace(RECIPE, seq_length=needed - 1))
    data.check(folder, replace(RECIPE, seq_length=needed))


def test_training_sample_has_one_right_answer_and_drawn_wrong_entities(tmp_path):
    """The passage has five entities and two questions, whose right answers are listed.

    ``make_question()`` without answers has "Anna Berg" as its only one.
    """
    two_answers = make_question("@placeholder was born", "Anna Berg", "Rome")
    # The second entity "Rome" is no further candidate.
    passage = make_line(
        make_question(), two_answers, names=("Anna Berg", "Rome", "Borisov", "Cole", "Rome")
    )
    examples = data.load(write_folder(tmp_path, [passage]), RECIPE).train
    assert examples.num_choices.tolist() == [3, 3, 3]
    # A question with two right answers makes two samples. Wrong candidates are drawn only if
    # there are more than two (``max_wrong_choices``), as for the first question. The generator of
    # the draws starts from ``DRAW_SEED``; the test repeats its only draw.
    draw, expected = random.Random(DRAW_SEED), []
    wrong = ["boris ##ov", "cole", "rome"]
    draw.shuffle(wrong)
    expected.append(["anna berg", *wrong[:2]])
    expected += [["anna berg", "boris ##ov", "cole"], ["rome", "boris ##ov", "cole"]]
    # Without the end token, which is the last target.
    assert [
        [item.target_ids[:-1].tolist() for item in examples.build_sequences(row)]
        for row in range(3)
    ] == [[encode_words(name) for name in names] for names in expected]
    assert [[item.correct for item in examples.build_sequences(row)] for row in range(3)] == [
        [True, False, False]
    ] * 3


def test_evaluation_scores_all_entities_and_accepts_every_right_answer(tmp_path):
    """The passage has four entities and two questions; each entity is a candidate of both.

    ``num_choices`` has the number of candidates of each question; ``build_sequences`` returns a
    sequence for each of them, whose targets are the tokens of the name.
    """
    # The first question has two right answers, one of them listed twice; the second has Anna Berg
    # alone.
    two_answers = make_question("@placeholder was born", "Rome", "Anna Berg", "Rome")
    examples = data.load(
        write_folder(tmp_path, val=[make_line(two_answers, make_question())]), RECIPE
    ).validation
    assert examples.num_choices.tolist() == [4, 4]
    # Candidates are sorted by name. The last target is the end token.
    names = [item.target_ids[:-1].tolist() for item in examples.build_sequences(0)]
    assert names == [encode_words(name) for name in ("anna berg", "boris ##ov", "cole", "rome")]
    assert [item.correct for item in examples.build_sequences(0)] == [True, False, False, True]
    assert [item.correct for item in examples.build_sequences(1)] == [True, False, False, False]


def test_curly_quotes_become_plain_before_answers_are_compared(tmp_path):
    """Otherwise the answer "O'Li" would not be the entity "O’Li" of the passage."""
    text = "In Rome O’Li was born"
    # The passage and its entity have a curly quote, the answer a plain one.
    curly = make_line(make_question("@placeholder", "O'Li"), text=text, names=("O’Li", "Rome"))
    sequence = data.load(write_folder(tmp_path, [curly]), RECIPE).train.build_sequences(0)[0]
    # The vocabulary has no "o", hence [UNK]; ``END`` is the token behind each candidate.
    assert sequence.target_ids.tolist() == [*encode_words("[UNK] ' li"), END]
    assert sequence.correct


def test_text_of_a_special_token_adds_no_second_mask(tmp_path):
    """A passage that spells out "[MASK]" has these characters, and no gap."""
    forged = make_line(text=TEXT + " [MASK]")
    sequence = data.load(write_folder(tmp_path, [forged]), RECIPE).train.build_sequences(0)[0]
    assert sequence.ids.tolist().count(IDS["[MASK]"]) == 1  # that of the question's gap


def test_the_check_counts_samples_and_names_the_content(tmp_path):
    """The facts of a folder are the numbers of its samples and an id of its content.

    Each line holds a passage; ``make_line()`` has one question with one right answer.
    """
    two_answers = make_question("@placeholder was born", "Anna Berg", "Rome")
    write_folder(
        tmp_path, [make_line(two_answers), make_line()], [make_line(two_answers, make_question())]
    )
    facts = data.check(tmp_path, RECIPE)
    # Training has a sample for each right answer, evaluation for each question.
    assert (facts.train_samples, facts.eval_samples, facts.layout) == (3, 2, "jsonl")
    assert not facts.quality_comparable  # ``RECIPE`` starts from random weights
    assert facts == data.check(tmp_path, RECIPE)
    # The text of one question changes, and with it the id.
    write_folder(
        tmp_path,
        [make_line(two_answers), make_line()],
        [make_line(two_answers, make_question("the @placeholder"))],
    )
    assert data.check(tmp_path, RECIPE).content_id != facts.content_id


def edit_line(**changes):
    """Return the usual line, a passage with one question, with other values of some keys."""
    return {**make_line(), **changes}


BAD_LINES = {
    "no JSON": ("{", "it must be JSON"),
    "no passage": (
        edit_line(passage=1),
        "line 1: passage: 1 is not valid; it must be a table of keys and values",
    ),
    "entity outside": (
        edit_line(passage={"text": "Rome", "entities": [{"start": 1, "end": 4}]}),
        "line 1: an entity spans characters 1 to 4, but the text has only 4",
    ),
    "two gaps": (
        make_line(make_question("@placeholder or @placeholder")),
        "contains @placeholder 2 times",
    ),
    "no answers": (
        make_line({"query": "@placeholder"}),
        "line 1: qas.0.answers: missing; it is required",
    ),
    "answers elsewhere": (
        make_line(make_question("@placeholder was born", "Li", "Oslo")),
        "the candidates contain none of the answers",
    ),
}


@pytest.mark.parametrize(("bad", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_breaks_a_rule_is_named(tmp_path, bad, message):
    """``BAD_LINES`` holds, by name of the fault, a line and a part of its error."""
    error = read_fault(write_folder(tmp_path, [bad]))
    assert error.startswith("DIR/train.jsonl, line 1")
    assert message in error
    assert "\n  try: " in error


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            lambda folder_path: (folder_path / "val.jsonl").unlink(),
            "DIR, val.jsonl: no validation split",
        ),
        (
            lambda folder_path: (folder_path / "model/vocab.txt").unlink(),
            "no tokenizer.json and no vocab.txt",
        ),
        (lambda folder_path: (folder_path / "model/vocab.txt").write_text(""), "the file is empty"),
        (
            lambda folder_path: (folder_path / "model/vocab.txt").write_text("[PAD]\n"),
            "the vocabulary lacks [UNK], [CLS]",
        ),
        (
            lambda folder_path: (folder_path / "model/vocab.txt").write_text(
                "\n".join([*WORDS, *map(str, range(20))])
            ),
            f"{len(WORDS) + 22} tokens, including <|startofpiece|> and <|endofpiece|>; "
            "the vocabulary must fit into the recipe's vocab_size (40)",
        ),
    ],
)
def test_incomplete_folder_is_refused(tmp_path, prepare, message):
    """A valid folder is damaged by ``prepare``; ``message`` is a part of the error.

    DIR stands for the folder. Its vocabulary has the 24 ``WORDS``; two tokens are added to those
    of the file.
    """
    prepare(write_folder(tmp_path))
    assert message in read_fault(tmp_path)


def solve_cloze(text, query):
    """Return the name that fits the placeholder, by the sentences of the passage.

    The query "The winner is @placeholder." asks for the name in "Anna Berg is the winner."
    """
    role = re.fullmatch(r"The (\w+) is @placeholder\.", query)[1]
    names = re.findall(rf"(\w+ \w+) is the {role}\.", text)
    assert len(names) == 1
    return names[0]


def test_every_generated_answer_follows_from_its_passage(tmp_path, monkeypatch):
    """``PASSAGES`` is the number of passages to generate in each split, here fewer than usual.

    ``solve_cloze`` finds the answer from the text alone. Each answer also says where in the passage
    it is.
    """
    monkeypatch.setattr(generated, "PASSAGES", {"train": 500, "val": 100})
    data.generate(tmp_path, CASE.recipes["tiny"])
    for name, count in generated.PASSAGES.items():
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert len(lines) == count
        for item in lines:
            text = item["passage"]["text"]
            for question in item["qas"]:
                (answer,) = question["answers"]
                assert solve_cloze(text, question["query"]) == answer["text"]
                # ReCoRD's ends are inclusive.
                assert text[answer["start"] : answer["end"] + 1] == answer["text"]
