"""Model FLOP/s over the dense peak of the declared precision."""

from trainmark.judge.audit.finding import Hits, Severity, Subjects, message

SEVERITY: Severity = "error"
_ABOVE = 1.1  # clocks may be above those of the published peak, and FLOPs of a sample are counted


def find(subjects: Subjects) -> Hits:
    """Yield what computed faster than its device can in the precision that it declares."""
    for one in subjects:
        rate, peak = one.flops_per_device(), max(one.dense_peaks(), default=0.0)
        if not peak or rate <= _ABOVE * peak:
            continue
        args = {"tflops": rate / 1e12, "peak": peak / 1e12, "share": rate / peak}
        tf32 = max(one.published("tf32_tflops"), default=0.0)
        if one.precision == "fp32" and rate <= tf32 * 1e12:
            yield one, message("audit_tf32", tf32=tf32, device=one.device, **args), "warning"
        else:
            said = {"precision": one.precision, "device": one.device}
            yield one, message("audit_peak", **said, **args)
