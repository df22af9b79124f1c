"""Memory used against memory there, and memory there against the named card."""

from trainmark.judge.audit.finding import Hits, Severity, Subjects, message

SEVERITY: Severity = "error"
_SAME = 0.1  # GiB and GB differ by 7%, and drivers keep some for themselves
_GIB = 2**30


def find(subjects: Subjects) -> Hits:
    """Yield more memory than there is, and cards with another memory than theirs."""
    for one in subjects:
        used, total = (one.figures.get(name, 0.0) / _GIB for name in ("mem", "mem_total"))
        note = one.record.figures["mem"].note if one.record else None
        # Pages that processes share count for each of them.
        summed = note is not None and note.code == "resident_memory_sum"
        if total and not summed and used > total * (1 + one.rounding("mem")):
            yield one, message("audit_memory", used=used, total=total)
        sizes = sorted(set(one.published("memory_gb"))) if one.row and total else []
        if sizes and all(abs(total / size - 1) > _SAME for size in sizes):
            known = ", ".join(f"{size:g}" for size in sizes)
            said = message("audit_memory_of_card", total=total, device=one.device, sizes=known)
            yield one, said, "warning"
