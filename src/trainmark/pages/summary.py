"""What a reader sees first of one run or of several launches of the same work, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import to_one_line
from trainmark.pages import cells
from trainmark.pages.document import Callout, Doubt
from trainmark.pages.repeats import (
    describe_left_out,
    find_median_launch,
    select_counted,
    select_passed,
    summarize_figure,
)
from trainmark.pages.sections.comparisons import compare_with_bound, describe_comparison
from trainmark.pages.sections.limits import describe_dominant_limit
from trainmark.pages.sections.performance_table import format_precision
from trainmark.pages.texts import (
    TONES,
    Phrase,
    count_in_words,
    describe_devices,
    describe_quality,
    format_interval,
    get_unit,
    has_cards,
    join,
    name_speed_figure,
    phrase,
    term,
    translate,
    translate_message,
)
from trainmark.record.advice import advise
from trainmark.record.findings import INCONCLUSIVE_REPLAYS
from trainmark.record.messages import shorten
from trainmark.record.printed import DIFFERENCE_CODES
from trainmark.record.trust import (
    combine_verifications,
    find_worst_grade,
    get_severity_arg,
    get_trust,
    grade_reasons,
)
from trainmark.record.work import count_parameters, is_same_size
from trainmark.results.store.columns import get_device_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.texts import Tone
    from trainmark.record.record import Record
    from trainmark.record.work import Result


def build_title(record: Record) -> Phrase:
    """Return the work, the devices with their memory, the precision and the number of nodes.

    If the model has another size than the case's standard model, or the case states no standard
    size, the title has its size, because speeds of models of different sizes cannot be compared.
    The title also says if the run is of a user's own program, or has open rules: it changed
    settings of the case that may not be changed under the closed rules.
    """
    plan = record.plan
    title: Phrase = plan.about.title
    size = count_parameters(record)  # None: not known
    if size is not None and not is_same_size(size, plan.about.references.parameters):
        title = phrase("first.sized", title=title, size=cells.format_short_count(size))
    parts: list[Phrase] = [title, _describe_devices_and_memory(record), format_precision(record)]
    if plan.nnodes > 1:
        parts.append(count_in_words("nodes", plan.nnodes))
    if plan.witness is not None:  # a user's own program, measured in place of a case
        parts.append(phrase("division.witnessed"))
    elif plan.rules == "open":
        parts.append(phrase("division.open"))
    return join(parts, "dot")


def _describe_devices_and_memory(record: Record) -> Phrase:
    """Return devices and their count, with the memory of a card whose name does not state it.

    A card is a device that a rank has to itself.
    """
    name = describe_devices(record)
    # The memory of a CPU is the host's; "A100-SXM4-80GB" states its own.
    if not has_cards(record) or "GB" in get_device_name(record):
        return name
    devices = record.environment.get("devices")  # of each rank; None: it reported none
    if not devices or not devices[0]:
        return name
    # The device of rank 0 stands for all.
    memory_bytes = devices[0].get("memory_total_bytes")
    if not memory_bytes:
        return name
    return (name, f" {memory_bytes / cells.GIB:.0f} GiB")


def choose_badge(*works: Sequence[Record]) -> tuple[Phrase, Tone]:
    """Return the badge of one or several works and its tone, which is its colour.

    If all launches of a single work passed, the badge is their grade, such as ``noisy``, which says
    how far their figures can be trusted. If no launch passed, it says that they failed. Otherwise
    it says how many launches passed, and adds that the figures must not be quoted if that is the
    worst grade.

    Args:
        works: the records of the launches of each work. A work is a case with its settings and
            devices.
    """
    launches = [record for records in works for record in records]
    num_passed = sum(record.passed for record in launches)
    if num_passed == 0:
        return phrase("badge.failed"), "bad"
    grade = find_worst_grade(get_trust(records).grade for records in works)
    have_all_passed = num_passed == len(launches)
    tone = TONES[grade] if have_all_passed else "bad"
    if len(works) == 1 and have_all_passed:
        return phrase(f"badge.{grade}"), tone
    words: list[Phrase] = [phrase("repeats.counted", passed=num_passed, all=len(launches))]
    if grade == "do_not_quote":
        words.append(phrase("trust.do_not_quote"))
    return join(words), tone


def list_doubts(records: Sequence[Record]) -> tuple[Doubt, ...]:
    """Return why the figures are doubtful, in the order of ``get_trust``.

    The reasons not to quote the figures come first. The others only make the figures noisy.

    A run of which no launch passed has no figures to doubt.

    Args:
        records: of all launches of a run.
    """
    launches = select_passed(records)
    if not launches:
        return ()
    doubts = []
    for reason in get_trust(records).reasons:
        if reason.code == "trust_not_passed":  # the badge says so already
            continue
        # ``records[0]`` only gives the texts of its case, which all launches share.
        text = _add_affected_launches(translate_message(records[0], reason), reason.code, launches)
        is_grave = grade_reasons([reason]).grade == "do_not_quote"
        # The reason in its short wording, and in full.
        doubts.append(Doubt(shorten(reason), text, is_grave))
    return tuple(doubts)


def _add_affected_launches(text: Phrase, code: str, launches: Sequence[Record]) -> Phrase:
    """Return the text of a reason to doubt the figures, and how many launches have the reason.

    If no launch has it, it is a reason of the launches together, such as their small number. If all
    have it, the number says nothing. In both cases the text is returned unchanged.

    If several launches have a reason that differs in how bad it is, the text is that of the worst
    one, and says so: other launches may even differ in the direction, such as faster and slower.

    Args:
        text: the reason in words.
        code: identifies the reason among those of a launch.
        launches: the launches that passed.
    """
    num_affected = sum(
        any(reason.code == code for reason in launch.trust.reasons) for launch in launches
    )
    if num_affected > 1 and get_severity_arg(code):
        return phrase("doubt.worst_launch", text=text, n=num_affected, all=len(launches))
    if not 0 < num_affected < len(launches):
        return text
    return phrase("doubt.of_launches", text=text, n=num_affected, all=len(launches))


def list_reasons(records: Sequence[Record]) -> tuple[Phrase, ...]:
    """Return a line with the reasons not to quote figures, and one with the reasons for noise.

    Each reason is in its short wording. A line without reasons is left out. A run of which no
    launch passed has no figures to doubt.

    Args:
        records: of all launches of a run.
    """
    launches = select_passed(records)
    if not launches:
        return ()
    by_grade: dict[str, list[Phrase]] = {"do_not_quote": [], "noisy": []}
    for reason in get_trust(records).reasons:
        if reason.code == "trust_not_passed":  # the badge says so already
            continue
        # The grade that this reason alone would give. Any reason gives one of these two.
        grade = grade_reasons([reason]).grade
        by_grade[grade].append(_add_affected_launches(shorten(reason), reason.code, launches))
    return tuple(
        phrase(f"first.{grade}", reasons=join(texts, "semicolon"))
        for grade, texts in by_grade.items()
        if texts
    )


def describe_key_figures(records: Sequence[Record]) -> Phrase:
    """Return the main figures with their units in a line; for several launches, their means.

    These are the time, the speed of one device in tokens (token/p/s) if the case counts tokens, the
    speed of all devices in samples with evaluation (p_whole), without it (p_train), and also
    without waiting for data (p_core), MFU, the case's own figures that belong on the first screen,
    and the memory. Figures that no launch has are left out.

    Args:
        records: of all launches of a run; the means are over those that count.
    """
    launches = select_counted(records)
    names = ["e2e_time", "token/p/s", "p_whole", "p_train", "p_core", "MFU", "mem", "mem_total"]
    specs_of_case = [spec for spec in records[0].plan.about.page.figures if spec.first_screen]
    means: dict[str, float] = {}
    for name in (*names, *(spec.name for spec in specs_of_case)):
        launch_summary = summarize_figure(launches, name)
        if launch_summary is not None:
            means[name] = launch_summary.mean
    parts: list[Phrase] = []
    if "e2e_time" in means:
        parts.append(f"e2e_time {cells.format_duration(means['e2e_time'])}")
    # A case may report tokens without counting its work in them; then samples are its speed.
    if "token/p/s" in means and name_speed_figure(records[0]) == "token/p/s":
        parts.append(f"token/p/s {cells.format_rate(means['token/p/s'])} tokens/s")
    rates = [
        f"{name} {cells.format_rate(means[name])}"
        for name in ("p_whole", "p_train", "p_core")
        if name in means
    ]
    if rates:
        parts.append(f"{', '.join(rates)} samples/s")
    if "MFU" in means:
        parts.append(f"MFU {means['MFU']:.1f}%")
    for spec in specs_of_case:
        if spec.name in means:
            parts.append((spec.name, " ", cells.format_rate(means[spec.name]), " ", spec.unit))
    memory = describe_memory(means.get("mem"), means.get("mem_total"))
    if memory:
        parts.append(memory)
    row = join(parts, "dot")
    if parts and len(records) > 1:
        return join((phrase("head.mean"), row), "colon")
    return row


def describe_memory(used_bytes: float | None, total_bytes: float | None) -> Phrase:
    """Return the memory in use and, if it is known, the total; empty if the use is not known."""
    if used_bytes is None:
        return ""
    used = f"{used_bytes / cells.GIB:.1f}"
    if total_bytes is None:
        return phrase("first.memory_used", used=used)
    return phrase("first.memory", used=used, total=f"{total_bytes / cells.GIB:.1f}")


def build_first_sentence(records: Sequence[Record]) -> Phrase:
    """Return speed, quality and time in a sentence; for a failed run, what failed and where.

    Speed and time are means over the launches that count. The quality is that of the median
    launch by speed, which stands for all.

    Args:
        records: of all launches of a run.
    """
    record = find_median_launch(records)
    if record.status == "target_missed":  # it ran to its end: the quality says what failed
        return describe_quality(record)
    if record.cause is not None:
        return describe_failure(record)
    launches = select_counted(records)
    quality = record.quality
    speed = summarize_figure(launches, name_speed_figure(record))
    time_summary = summarize_figure(launches, "e2e_time")
    duration = cells.format_duration(time_summary.mean) if time_summary else ""
    parts: list[Phrase] = []
    if speed is not None:
        parts.append((cells.format_rounded(speed.mean), " ", get_unit(name_speed_figure(record))))
    if quality.value is not None:
        if quality.reached:
            result = "reached"
        elif quality.target is None:
            result = "no_target"
        else:  # the recipe does not require its target
            result = "missed"
        parts.append(
            phrase(
                f"first.{result}",
                metric=quality.metric,
                value=cells.format_quality(quality.value, target=quality.target),
                time=duration,
                target="" if quality.target is None else f"{quality.target:g}",
            )
        )
    elif duration:
        parts.append(phrase("first.took", time=duration))
    return join(parts, "semicolon")


def describe_failure(record: Record) -> Phrase:
    """Return how and where a run failed, and why, in a sentence.

    Args:
        record: of a launch that did not pass, so that it has a cause.
    """
    cause = record.cause
    assert cause is not None
    what: Phrase = phrase(f"status.{record.status}")
    if cause.place:  # what the rank was doing, such as ``evaluate``
        what = phrase("first.failed", what=what, place=term("place", cause.place))
    # A single rank needs no name. The sentences of some causes name the rank themselves.
    names_rank = "rank" in cause.message.args
    if cause.rank is not None and record.plan.world_size > 1 and not names_rank:
        what = join((what, f"rank {cause.rank}"))
    return join((what, translate_message(record, cause.message)), "colon")


def suggest_fix(record: Record) -> Callout:
    """Return what to do about a run that failed."""
    steps = (translate_message(record, message) for message in advise(record))
    return Callout(phrase("cause.fix"), join(steps, "semicolon"))


def list_first_lines(
    records: Sequence[Record], comparisons: Sequence[Result] = (), lang: str = "en"
) -> list[str]:
    """Return what a reader should know first of the launches of a run, each text as a line.

    These are the title, the badge, the first sentence, the key figures and, for several launches,
    how many passed. If a launch failed, its failure and what to do about it follow. If none failed,
    these follow: reasons not to trust the figures, checks that proved nothing, a speed that a
    user's own program reports and that differs from the measured one, how much faster the training
    would be if its experts had equal loads, the comparison with other results, and the dominant
    limit. Empty texts are left out.

    Args:
        records: of all launches of the run.
        comparisons: results of other runs, and published ones, for the comparison.
    """
    record = find_median_launch(records)
    badge, _ = choose_badge(records)
    status = join((badge, phrase(f"trust.{combine_verifications(records)}")))
    lines: list[Phrase] = [
        build_title(record),
        status,
        build_first_sentence(records),
        describe_key_figures(records),
    ]
    if len(records) > 1:
        lines.append(_describe_launches(records))
    failed = [launch for launch in records if launch.cause is not None]
    if failed:
        if failed[0] is not record:  # else the first sentence describes the failure already
            lines.append(describe_failure(failed[0]))
        advice = suggest_fix(failed[0])
        lines.append(join((advice.heading, advice.text), "colon"))
    else:
        lines += list_reasons(records)
        lines += _list_inconclusive_checks(records)
        lines += _list_printed_differences(records)
        # A bound is the same training with equal loads forced on all experts.
        bound_ratio = compare_with_bound(records, comparisons)
        if bound_ratio is not None:
            lines.append(join((bound_ratio.heading, bound_ratio.text), "colon"))
        lines += [describe_comparison(records, comparisons), describe_dominant_limit(record)]
    texts = [to_one_line(translate(line, lang)) for line in lines]
    return [text for text in texts if text]


def _list_inconclusive_checks(records: Sequence[Record]) -> list[Phrase]:
    """Return the texts of findings that a check by repeated steps proved nothing.

    If the recipe asks for it, a run computes some groups of steps twice from the same state and
    compares the results. The check proves nothing if none was repeated, or if the results differ in
    every repeat.

    Args:
        records: of all launches of a run.
    """
    # Several launches may have the same finding, so each code has one text, of the first launch.
    text_by_code: dict[str, Phrase] = {}
    for record in records:
        for finding in record.findings:
            if finding.code in INCONCLUSIVE_REPLAYS and finding.code not in text_by_code:
                text_by_code[finding.code] = translate_message(record, finding)
    return list(text_by_code.values())


def _list_printed_differences(records: Sequence[Record]) -> list[Phrase]:
    """Return a line on the speed that a user's own program reports, if the measured one differs.

    The line has both speeds and, if it is known, the reason for the difference. It is of the first
    launch that has a difference; the list is empty if none has.

    Args:
        records: of all launches of a run.
    """
    for record in records:
        texts = [
            translate_message(record, finding)
            for finding in record.findings
            if finding.code in DIFFERENCE_CODES
        ]
        if texts:
            return [join(texts, "semicolon")]
    return []


def _describe_launches(records: Sequence[Record]) -> Phrase:
    """Return how many launches passed, the interval of their mean speed, and which do not count."""
    launches = select_passed(records)
    speed_name = name_speed_figure(find_median_launch(records))
    parts: list[Phrase] = [phrase("repeats.counted", passed=len(launches), all=len(records))]
    speed = summarize_figure(select_counted(records), speed_name)
    if speed is not None:
        parts.append((speed_name, " ", format_interval(speed, cells.format_rate)))
    left_out = describe_left_out(records)
    if left_out:
        parts.append(left_out)
    return join(parts, "semicolon")
