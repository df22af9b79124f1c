"""Score MMLU with a causal language model; a common prefix of prompts is computed once.

The prefix of a group goes through the model once and stays in the key-value cache. The questions
are concatenated after it in one row: each attends to the prefix and to itself, and its positions
continue from the prefix. So nothing is padded, the prefix is not copied for each question, and the
results equal those of separate prompts. Only the legacy mode, which repeats what the published page
did, scores each prompt separately.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainmark.errors import ContradictionError
from trainmark.train.evaluation import EvaluationSum, ScoredRows
from trainmark.train.stepper import add_over_ranks

from .questions import CATEGORIES, SUBJECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from . import PromptGroup, ScoringPlan
    from .questions import Mmlu

NO_ANSWER = -1  # the prediction of legacy scoring if the likeliest token is not a letter


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """A question with the model's answer.

    Args:
        subject: its name.
        row: in the subject's file, from 0.
        shots: number of solved examples before it.
        log_probabilities: of the four answers, among all tokens.
        predicted: index of the model's answer, or ``NO_ANSWER``.
        answer: index of the right answer.
    """

    subject: str
    row: int
    shots: int
    log_probabilities: tuple[float, ...]
    predicted: int
    answer: int


@dataclass(frozen=True, slots=True)
class MmluResult:
    """Scores over all ranks, as shares of questions with a right answer.

    Args:
        micro: over all questions.
        macro: mean of the subjects' scores.
        per_subject, per_category: over their questions.
        shots_used: number of questions by the number of solved examples before them.
        num_truncated: number of questions whose prompt did not fit even without examples.
        asked: number of questions of all ranks.
        items: the questions that this rank scored.
    """

    micro: float
    macro: float
    per_subject: Mapping[str, float]
    per_category: Mapping[str, float]
    shots_used: Mapping[int, int]
    num_truncated: int
    asked: int
    items: Sequence[ScoredItem] = field(repr=False)

    @property
    def mean_shots(self) -> float:
        """The mean number of solved examples before a question."""
        sum_of_shots = sum(shots * questions for shots, questions in self.shots_used.items())
        return sum_of_shots / self.asked


@torch.no_grad()
def score_mmlu(
    model: nn.Module,
    mmlu: Mmlu,
    plan: ScoringPlan,
    *,
    batch_tokens: int,
    legacy: bool = False,
    rank: int = 0,
    world_size: int = 1,
    equal_passes: bool = False,
) -> MmluResult:
    """Score this rank's prompts, and sum the results over ranks.

    Args:
        model: a causal language model of `transformers` with SDPA attention; it is in eval mode
            afterwards. The caller sets autocast.
        plan: this rank's prompts.
        batch_tokens: maximum number of ids of questions in one forward pass.
        legacy: score as the program of the case's published results: each prompt separately, with
            dropout, and an answer is right only if no token of the vocabulary is more likely.
        rank: of this process, of ``world_size``.
        equal_passes: make the same number of forward passes on all ranks. A model that is sharded
            over ranks requires it, because the ranks exchange weights in each pass.
    """
    items: list[ScoredItem] = []
    num_passes = 0
    model.train(legacy)  # in train mode, dropout is active, as legacy scoring needs
    for group in plan.groups:
        if legacy:
            batches = _score_prompts_alone(model, group)
        else:
            batches = _score_with_prefix(model, group, batch_tokens)
        for numbers, logits in batches:  # numbers of the batch's prompts in the group
            items += _build_items(group, numbers, logits, plan, mmlu, must_be_likeliest=legacy)
            num_passes += 1
        if not legacy and len(group.prefix) > 0:
            num_passes += 1  # that of the prefix
    if equal_passes:
        any_token = plan.answer_ids[0]
        _make_idle_passes(model, num_passes, any_token, rank=rank, world_size=world_size)
    model.eval()
    num_truncated = sum(len(group.rows) for group in plan.groups if group.is_truncated)
    return _average_over_ranks(
        items, num_truncated, plan, world_size=world_size, device=_get_device(model)
    )


def sum_right_answers(items: Sequence[ScoredItem]) -> EvaluationSum:
    """Return the sum of an evaluation that scores a right answer with 1 and a wrong one with 0.

    It also has a key of each question, by which the harness detects questions scored twice.
    """
    evaluation_sum = EvaluationSum()
    # Subject and row identify a question; ``ScoredRows.of`` makes one key of both.
    identities = [(SUBJECTS.index(item.subject), item.row) for item in items]
    # (questions, 2), also (0, 2) for a rank without questions.
    identity_rows = torch.tensor(identities, dtype=torch.int64).reshape(-1, 2)
    num_right = sum(item.predicted == item.answer for item in items)
    evaluation_sum.add(ScoredRows.of(identity_rows, len(items)), total=float(num_right))
    return evaluation_sum


def _get_device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _score_prompts_alone(
    model: nn.Module, group: PromptGroup
) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield the number of each prompt in ``group``, in a list, and the logits (1, V) after it."""
    device = _get_device(model)
    prefix = torch.from_numpy(group.prefix)
    for number, suffix in enumerate(group.suffixes):
        ids = torch.cat([prefix, torch.from_numpy(suffix)])[None].to(device)
        yield [number], model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, 0]


def _score_with_prefix(
    model: nn.Module, group: PromptGroup, batch_tokens: int
) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield the numbers of each batch's prompts in ``group``, and the logits (B, V) after them.

    The common prefix goes through the model once and stays in the cache. The questions of a batch
    are concatenated to one row; the mask lets none attend to another.

    Args:
        batch_tokens: maximum number of ids of questions in a batch.
    """
    device = _get_device(model)
    prefix_length = len(group.prefix)
    config: Any = model.config
    assert config._attn_implementation == "sdpa", "the mask below is in the form of SDPA"
    cache = None  # stays None if the prompts have nothing in common
    if prefix_length:
        ids = torch.from_numpy(group.prefix)[None].to(device)
        cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    for numbers in group.split_batches(batch_tokens):
        suffixes = [torch.from_numpy(group.suffixes[number]) for number in numbers]
        lengths = torch.tensor([len(suffix) for suffix in suffixes])
        ends = lengths.cumsum(0)
        starts = ends - lengths
        # The positions of each question continue from the prefix.
        positions = torch.arange(int(ends[-1])) - starts.repeat_interleave(lengths)
        positions += prefix_length
        logits = model(
            input_ids=torch.cat(suffixes)[None].to(device),
            position_ids=positions[None].to(device),
            attention_mask=_build_mask(lengths, prefix_length).to(device),
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=(ends - 1).to(device),  # those after the last id of each question
        ).logits[0]
        if cache is not None:
            cache.crop(-int(ends[-1]))  # remove the questions
        yield numbers, logits


def _build_mask(lengths: Tensor, prefix_length: int) -> Tensor:
    """Return the attention mask, bool (1, 1, N, prefix_length + N), for N ids of all questions.

    It is true if the token of a row attends to the token of a column. A token attends to the
    prefix, and to its own question up to itself.

    Args:
        lengths: number of ids of each question.
        prefix_length: number of ids of the prefix.
    """
    question_of_token = torch.arange(len(lengths)).repeat_interleave(lengths)
    question_mask = (question_of_token[:, None] == question_of_token[None, :]).tril_()
    prefix_mask = torch.ones(len(question_of_token), prefix_length, dtype=torch.bool)
    return torch.cat([prefix_mask, question_mask], 1)[None, None]


def _build_items(
    group: PromptGroup,
    numbers: Sequence[int],
    logits: Tensor,
    plan: ScoringPlan,
    mmlu: Mmlu,
    *,
    must_be_likeliest: bool,
) -> Iterator[ScoredItem]:
    """Yield the scored questions ``numbers`` of ``group``.

    Args:
        numbers: positions in ``group.rows``, in the order of ``logits``.
        logits: of the token after each prompt (B, V).
        must_be_likeliest: what the model's answer is. False: the likeliest of the four letters.
            True, as in the case's published results: this letter, but ``NO_ANSWER`` if another
            token of the vocabulary is likelier.
    """
    subject = mmlu[group.subject]
    log_probabilities = logits.float().log_softmax(-1)
    letter_scores = log_probabilities[:, list(plan.answer_ids)]
    best_letters = letter_scores.argmax(-1).tolist()
    likeliest_tokens = log_probabilities.argmax(-1).tolist()
    check_choices(best_letters, len(plan.answer_ids))  # raises if the device computed nonsense
    for index, number in enumerate(numbers):
        row = group.rows[number]
        predicted = best_letters[index]
        if must_be_likeliest and likeliest_tokens[index] != plan.answer_ids[predicted]:
            predicted = NO_ANSWER
        yield ScoredItem(
            subject.name,
            row,
            group.shots,
            log_probabilities=tuple(letter_scores[index].tolist()),
            predicted=predicted,
            answer=subject.items[row].answer,
        )


def check_choices(positions: Iterable[int], num_choices: int) -> None:
    """Check that the argmax ``positions`` that a device computed are those of a choice.

    A device that computes wrongly, or not at all, may return any number.

    Raises:
        ContradictionError: a position is negative, or not below ``num_choices``.
    """
    for position in positions:
        if not 0 <= position < num_choices:
            raise ContradictionError(
                "llama2_7b_lora.no_such_choice", position=position, choices=num_choices
            )


def _make_idle_passes(
    model: nn.Module, num_passes: int, token: int, *, rank: int, world_size: int
) -> None:
    """Make idle forward passes until this rank has made as many as the rank with the most.

    In each pass of a model that is sharded over ranks, the ranks exchange weights. A rank without
    further prompts must therefore take part in the passes of the other ranks.

    Args:
        num_passes: forward passes that this rank has made.
        token: any id, the input of the idle passes.
    """
    device = _get_device(model)
    # Each rank adds its own number in its place: the sum has the numbers of all ranks.
    own_passes = [num_passes if number == rank else 0 for number in range(world_size)]
    passes_by_rank = add_over_ranks(*own_passes, world_size=world_size, device=device)
    ids = torch.tensor([[token]], device=device)
    for _ in range(max(passes_by_rank) - num_passes):
        model(input_ids=ids, use_cache=False, logits_to_keep=1)


def _average_over_ranks(
    items: Sequence[ScoredItem],
    num_truncated: int,
    plan: ScoringPlan,
    *,
    world_size: int,
    device: torch.device,
) -> MmluResult:
    """Return the averages over the items of all ranks.

    Args:
        items: the questions that this rank scored.
        num_truncated: how many of them were truncated, because they were too long.
    """
    asked = Counter(item.subject for item in items)
    right = Counter(item.subject for item in items if item.predicted == item.answer)
    shots = Counter(item.shots for item in items)
    # One sum over ranks for all counts: two for each subject, one for each number of shots.
    counts = [asked[name] for name in SUBJECTS]
    counts += [right[name] for name in SUBJECTS]
    # ``plan.max_shots`` is the maximum number, the same on all ranks.
    counts += [shots[number] for number in range(plan.max_shots + 1)]
    *totals, all_truncated = add_over_ranks(
        *counts, num_truncated, world_size=world_size, device=device
    )
    num_subjects = len(SUBJECTS)
    all_asked = totals[:num_subjects]  # in the order of SUBJECTS
    all_right = totals[num_subjects : 2 * num_subjects]
    all_shots = totals[2 * num_subjects :]
    shots_used = {number: total for number, total in enumerate(all_shots) if total}
    assert sum(all_asked) == plan.num_questions, (
        f"{sum(all_asked)} of {plan.num_questions} items were scored"
    )
    # Here each subject is a kind of its own.
    per_subject = _compute_shares({name: name for name in SUBJECTS}, all_asked, all_right)
    return MmluResult(
        micro=sum(all_right) / plan.num_questions,
        macro=sum(per_subject.values()) / len(per_subject),
        per_subject=per_subject,
        per_category=_compute_shares(CATEGORIES, all_asked, all_right),
        shots_used=shots_used,
        num_truncated=all_truncated,
        asked=plan.num_questions,
        items=items,  # of this rank only
    )


def _compute_shares(
    kinds: Mapping[str, str], asked: Sequence[int], right: Sequence[int]
) -> dict[str, float]:
    """Return the share of right answers by kind of subject; kinds without questions are left out.

    Args:
        kinds: the kind of each subject: its category, or its own name.
        asked, right: number of questions, and of right answers, of each subject in the order of
            ``SUBJECTS``.
    """
    asked_by_kind: Counter[str] = Counter()
    right_by_kind: Counter[str] = Counter()
    for subject, kind in kinds.items():
        number = SUBJECTS.index(subject)
        asked_by_kind[kind] += asked[number]
        right_by_kind[kind] += right[number]
    return {kind: right_by_kind[kind] / count for kind, count in asked_by_kind.items() if count}
