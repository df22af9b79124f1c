"""MFU recomputed from throughput, FLOPs and peak."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message

SEVERITY: Severity = "warning"
_SUMS = 1e-6
_AGREES = 0.01  # beside what was rounded
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_ATTENTION = 0.3


def find(subjects: Subjects) -> Hits:
    """Yield records and rows whose MFU does not follow from their own figures."""
    tables: dict[object, list[Subject]] = {}
    for one in subjects:
        yield from (unexplained := list(_of_record(one) if one.record else _against_peak(one)))
        if one.row and one.device and _implied(one) and not unexplained:
            tables.setdefault((one.table, one.device, one.row.precision), []).append(one)
    for rows in tables.values():
        yield from _beside_each_other(rows)


def _of_record(one: Subject) -> Hits:
    note = one.record and one.record.figures["MFU"].note
    share, rate = (one.figures.get(name, 0.0) for name in ("MFU", "model_flops_per_device"))
    published = max(one.dense_peaks(), default=0.0) / 1e12 if share else 0.0
    tflops = note.args.get("tflops") if note else published
    again = 100 * rate / (tflops * 1e12) if tflops and isinstance(tflops, float | int) else share
    if abs(again - share) > _SUMS * again:
        said = message("audit_mfu", mfu=share, again=again, flops=rate, tflops=tflops)
        yield one, said, "error"


def _implied(one: Subject) -> list[float]:
    """Return the peaks in FLOP/s that MFU and token throughput imply, one for each FLOP count."""
    share, rate = (one.figures.get(name, 0.0) for name in ("MFU", "token/p/s"))
    sizes, factors = one.workload.parameters if share else (), one.workload.flops_per_parameter
    return [1e11 * rate * size * each / share for each in factors for size in sizes if rate]


def _slack(one: Subject) -> float:
    return _AGREES + one.rounding("MFU", "token/p/s")


def _against_peak(one: Subject) -> Hits:
    """Yield a finding if no published peak of the device explains the MFU."""
    published, slack = one.dense_peaks(), 1 + _slack(one)
    if one.precision == "fp32":  # pages call TF32 so; the rule on peaks says it
        published += [tflops * 1e12 for tflops in one.published("tf32_tflops")]
    ranges = [(own / slack, own * (slack + _ATTENTION)) for own in _implied(one)]
    fits = (low <= peak <= high for low, high in ranges for peak in published)
    if ranges and published and not any(fits):
        size, factor = one.workload.parameters[0], one.workload.flops_per_parameter[0]
        again = _implied(one)[0] / published[0] * one.figures["MFU"]
        args = {"tokens": one.figures["token/p/s"], "factor": factor, "parameters": size}
        shown = {"mfu": one.figures["MFU"], "tflops": published[0] / 1e12}
        yield one, message("audit_mfu_row", again=again, **shown, **args)


def _beside_each_other(rows: Subjects) -> Hits:
    """Yield the rows that imply another peak than most rows of the same device and precision."""

    def apart(one: Subject, other: Subject) -> float:
        share = min(abs(x / y - 1) for x in _implied(one) for y in _implied(other))
        return share if share > _slack(one) + _slack(other) - _AGREES else 0.0

    usual = min(rows, key=lambda other: sum(apart(one, other) > 0 for one in rows))
    for one in (one for one in rows if apart(one, usual)):
        args = {"mfu": one.figures["MFU"], "tokens": one.figures["token/p/s"]}
        yield one, message("audit_mfu_beside", apart=apart(one, usual), line=usual.line, **args)
