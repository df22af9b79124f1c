"""Samples counted once for each rank, or several times, instead of once for all ranks."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message

SEVERITY: Severity = "error"
_MORE = 1.1  # than the data, with the time that starting may have taken left out
_NEAR, _MOST = 0.03, 64  # of a whole multiple of the ranks


def find(subjects: Subjects) -> Hits:
    """Yield rows whose samples are a multiple of ranks times data, and records that miscount."""
    once: dict[object, list[tuple[int, float, Subject]]] = {}
    for one in subjects:
        if one.record is not None:
            counted, of_ranks = one.record.counts.samples, [x.samples for x in one.record.ranks]
            if counted != sum(of_ranks):
                yield one, message("audit_ranks_sum", samples=counted, of_ranks=sum(of_ranks))
            continue
        bounds, world = one.samples_bounds(), one.world_size
        rows, epochs = one.workload.samples_per_pass or 0, one.workload.epochs or 0
        if not world or bounds[0] <= _MORE * rows * epochs or not rows * epochs:
            continue
        times = bounds[1] / (rows * epochs)
        each, rate = round(times / world), rows * epochs / one.figures["e2e_time"]
        if 0 < each <= _MOST and abs(times / world / each - 1) <= _NEAR:
            once.setdefault(one.table, []).append((world, rate, one))
            args = {"times": each * world, "each": each, "world_size": world, "rows": rows}
            shown = {name: one.figures[name] for name in ("e2e_time", "p_whole")}
            yield one, message("audit_per_rank", epochs=epochs, once=rate, **args, **shown)
    for found in once.values():
        least, fastest, _ = min(found, key=lambda row: row[0])
        for world, rate, one in found:
            if world > least and rate < fastest:
                rates = {"once": rate, "least_once": fastest}
                said = message("audit_more_were_slower", world_size=world, least=least, **rates)
                yield one, said, "warning"
