"""The audit rule on MFU: it must follow from throughput, model size and a published peak.

``p_train_tokens`` is tokens a second of all devices, ``token/p/s`` of one device.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from trainmark.published.audit.groups import group_subjects
from trainmark.published.audit.subject import TOKEN_RATES
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.spec import Message

_MFU_TOLERANCE = 0.01  # in addition to the rounding
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_MAX_ATTENTION = 0.3
# Without layers and width: N is 12 L H H, so that the share is T over 6 H, and the narrowest model
# has 32 times as much width as layers.
_WIDTH_PER_LAYER = 32
_SIZE_TOLERANCE = 0.25  # of a size in a name: models called 7b have 6.7e9 to 8.5e9 parameters
_MIN_SIBLINGS = 2  # similar rows that must agree before another one is wrong
_SIBLING_TOLERANCE = 0.03  # of MFU over throughput in similar rows, besides the rounding


def check_mfu(subjects: AuditSubjects) -> Hits:
    """Yield rows whose MFU does not follow from their throughput by any published peak.

    A mixture of experts may drop assignments of tokens to experts, which then compute nothing. A
    row whose MFU follows only if these FLOPs are counted is yielded too, with another message.

    Rows of one table that differ only in their throughput are also compared with each other.
    """
    for subject in subjects:
        published_peaks = subject.list_dense_peaks()
        # The factor by which rounding of MFU and throughput may change a peak that they imply.
        slack = 1 + _MFU_TOLERANCE + subject.compute_rounding("MFU", *TOKEN_RATES)
        if subject.precision == "fp32":  # pages may mean TF32, which the rule on peaks reports
            published_peaks += [
                tflops * 1e12 for tflops in subject.list_product_figures("tf32_tflops")
            ]
        ranges = _compute_implied_peaks(subject, slack)
        if not ranges or not published_peaks:  # nothing to compare
            continue
        computed_share = _get_computed_share(subject)
        if _has_peak_in(ranges, published_peaks, factor=computed_share):
            continue
        if _has_peak_in(ranges, published_peaks):  # only with the FLOPs of dropped tokens
            conflict = message(
                "audit_mfu_dropped",
                mfu=subject.figures["MFU"],
                dropped=subject.dropped_share,
                computed=subject.figures["MFU"] * computed_share,
            )
            yield subject, conflict
        else:
            # The message calculates with one peak: the highest of the precisions that the row
            # names. TF32, which is last, is taken only if they have none.
            yield subject, _describe_mfu_conflict(subject, published_peaks[0])
    for rows in group_subjects(subjects, _get_mfu_key):
        yield from _check_mfu_of_siblings(rows)


def _get_computed_share(subject: AuditSubject) -> float:
    """Return the share of the FLOPs of a row's tokens that were computed.

    A mixture of experts may drop assignments of tokens to experts, which then compute nothing. The
    share is 1 if the row states no drops, or if the size of the experts is not known.
    """
    workload = subject.workload  # what is known of the model
    if workload.expert_billions is None:
        return 1.0
    # FLOPs are in proportion to the parameters that a token uses: billions of those in experts,
    # divided by billions of all. The first of the latter numbers is that in the model's name.
    dropped_billions = subject.dropped_share * workload.expert_billions
    return 1 - dropped_billions / workload.parameter_billions[0]


def _has_peak_in(
    ranges: Sequence[tuple[float, float]], published_peaks: Sequence[float], *, factor: float = 1.0
) -> bool:
    """Tell whether any of the ranges, times ``factor``, holds a published peak.

    Args:
        ranges: those in which a row's MFU and throughput put the peak of its device: lower and
            upper end of each, in FLOP/s.
        published_peaks: of the device, in FLOP/s.
        factor: the share of the FLOPs that was computed.
    """
    for low, high in ranges:
        if any(low * factor <= peak <= high * factor for peak in published_peaks):
            return True
    return False


def _get_device_token_rate(subject: AuditSubject) -> float:
    """Return the tokens a second of one device; 0: not known."""
    if "token/p/s" in subject.figures:  # printed for one device
        return subject.figures["token/p/s"]
    if not subject.world_size:  # the number of devices is not known
        return 0.0
    # `p_train_tokens` is the rate of all devices.
    return subject.figures.get("p_train_tokens", 0.0) / subject.world_size


def _compute_implied_peaks(subject: AuditSubject, slack: float) -> list[tuple[float, float]]:
    """Return ranges of the peak in FLOP/s that MFU and token throughput imply.

    There is a range for each possible number of parameters, number of FLOPs per parameter, and way
    to count attention.

    Args:
        slack: factor by which rounding may move a peak up or down.

    Returns:
        lower and upper end of each range; empty: the row lacks MFU or throughput.
    """
    mfu = subject.figures.get("MFU", 0.0)
    token_rate = _get_device_token_rate(subject)
    if not mfu or not token_rate:
        return []
    workload = subject.workload
    # A size is exact if `workloads.toml` lists the model, which then has names, or if a column of
    # the row has all its digits. Otherwise it is one such as `7b`, mostly from the model's name.
    is_size_rounded = not workload.names and subject.read_setting("parameters") is None
    size_slack = 1 + _SIZE_TOLERANCE if is_size_rounded else 1.0
    ranges = []
    for billions in workload.parameter_billions:
        for flops_per_parameter in workload.flops_per_parameter:
            flops_per_token = billions * 1e9 * flops_per_parameter
            # MFU is in per cent of the peak. Attention is not counted yet.
            implied_peak = 100 * token_rate * flops_per_token / mfu
            for low, high in _compute_attention_factors(subject, billions * 1e9):
                min_peak = implied_peak * low / slack / size_slack
                max_peak = implied_peak * high * slack * size_slack
                ranges.append((min_peak, max_peak))
    return ranges


def _compute_attention_factors(
    subject: AuditSubject, parameters: float
) -> list[tuple[float, float]]:
    """Return ranges of the factor by which attention may raise the FLOPs of a token.

    If layers and width are known, there are three exact factors: pages count none of the attention,
    half of it because it is causal, or all of it. Else the factor is somewhere between 1 and the
    most that is possible.

    Args:
        parameters: number of parameters of the model.

    Returns:
        lower and upper end of each range.
    """
    workload = subject.workload  # what is known of the model
    length = subject.read_setting("seq_length")  # tokens of a sequence
    if length is None:
        return [(1.0, 1.0 + _MAX_ATTENTION)]
    if workload.layers is None or workload.width is None:
        # A transformer has about 12 x layers x width^2 parameters. Its width is assumed to be at
        # least 32 x layers, so that width^3 is at least 32 x parameters / 12.
        min_width = (_WIDTH_PER_LAYER * parameters / 12) ** (1 / 3)
        # A token needs 12 x layers x width x length FLOPs for attention, and 6 for each parameter,
        # which is 72 x layers x width^2: the quotient is length / (6 x width).
        return [(1.0, 1.0 + length / (6 * min_width))]
    # The FLOPs of attention for a token, relative to the 6 for each parameter.
    attention = 12 * workload.layers * workload.width * length / (6 * parameters)
    return [(factor, factor) for factor in (1.0, 1 + attention / 2, 1 + attention)]


def _describe_mfu_conflict(subject: AuditSubject, peak: float) -> Message:
    """Return the message that a printed MFU is not the one that throughput and peak give.

    Args:
        peak: in FLOP/s.
    """
    # The workload lists possible numbers of parameters, and of FLOPs per parameter. The message
    # calculates with the first of each. The first number of parameters is that in the model's name.
    billions = subject.workload.parameter_billions[0]
    flops_per_parameter = subject.workload.flops_per_parameter[0]
    token_rate = _get_device_token_rate(subject)
    return message(
        "audit_mfu_row",
        # The MFU in per cent, computed again from what the row prints.
        again=100 * token_rate * flops_per_parameter * billions * 1e9 / peak,
        tokens=token_rate,
        factor=flops_per_parameter,
        parameters=billions,
        mfu=subject.figures["MFU"],
        tflops=peak / 1e12,
    )


def _get_mfu_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows share if the same throughput gives them the same MFU.

    Such rows are of one table, model, device, precision, sequence length and number of parameters.
    None: it is not a row of a table, or lacks the MFU or the throughput.
    """
    has_both = "MFU" in subject.figures and _get_device_token_rate(subject) > 0
    if not subject.table or not has_both:
        return None
    sequence_length = subject.settings.get("seq_length")
    parameters = subject.settings.get("parameters")
    return subject.table, subject.device, subject.precision, sequence_length, parameters


def _check_mfu_of_siblings(rows: Sequence[AuditSubject]) -> Hits:
    """Yield the row whose ratio of MFU to throughput differs from that of all other rows.

    It is yielded only if the other rows, its siblings, agree with each other.

    Args:
        rows: of one table, model, device, precision and sequence length, so that the ratio should
            be the same in all.
    """
    if len(rows) < _MIN_SIBLINGS + 1:  # too few others to tell which ratio is usual
        return
    for subject in rows:
        siblings = [other for other in rows if other is not subject]
        ratios = [_divide_mfu_by_token_rate(other) for other in siblings]
        usual_ratio = median(ratios)
        # Relative difference that may come from rounding of the printed MFU and throughputs.
        slack = _SIBLING_TOLERANCE + subject.compute_rounding("MFU", *TOKEN_RATES)
        slack += max(other.compute_rounding("MFU", *TOKEN_RATES) for other in siblings)
        siblings_agree = max(ratios) <= min(ratios) * (1 + slack)
        deviation = abs(_divide_mfu_by_token_rate(subject) / usual_ratio - 1)
        if siblings_agree and deviation > slack:
            conflict = message(
                "audit_mfu_sibling",
                rows=len(siblings),
                line=siblings[0].line,
                mfu=subject.figures["MFU"],
                # The MFU that this row would have by the usual ratio.
                usual=usual_ratio * _get_device_token_rate(subject),
            )
            yield subject, conflict


def _divide_mfu_by_token_rate(subject: AuditSubject) -> float:
    """Return MFU per token a second, which is the same in all rows of one model and device."""
    return subject.figures["MFU"] / _get_device_token_rate(subject)
