"""Throughput of a device that grows with the number of devices."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message

SEVERITY: Severity = "warning"
_ABOVE = 1.05  # noise of one launch, and caches that hold more of a smaller share
_BATCH = ("bs", "batch_size")


def find(subjects: Subjects) -> Hits:
    """Yield more devices that are each faster than fewer of them at the same work."""
    groups: dict[str, list[tuple[int, float, Subject]]] = {}
    for one in subjects:
        name, rate = one.rate_per_device()
        for key in _works(one) if rate and one.world_size else ():
            groups.setdefault(f"{name} {key}", []).append((one.world_size or 1, rate, one))
    found = {}  # once, also where both batches agree
    for group in groups.values():
        fewer, least, _ = min(group, key=lambda item: item[0])
        for world, rate, one in group:
            if world > fewer and rate > _ABOVE * least:
                args = {"rate": rate, "fewer_rate": least, "share": rate / least}
                worlds, name = {"world_size": world, "fewer": fewer}, one.rate_per_device()[0]
                found[id(one)] = one, message("audit_scaling", figure=name, **worlds, **args)
    yield from found.values()


def _works(one: Subject) -> list[str]:
    """Return what worlds must have in common: the batch of all devices, or that of each."""
    if one.row is None:
        return [one.work]
    changes = {name.lower(): text for name, text in one.row.changes.items()}
    batch = next((changes.pop(name) for name in _BATCH if name in changes), "")
    changes.pop("lr", None)
    sizes = [batch]
    if batch.isdecimal() and len(batch) < 16:
        sizes.append(f"{int(batch) / (one.world_size or 1)} each")
    parts = (one.table, one.device, one.row.precision, sorted(changes.items()))
    return [str((*parts, size)) for size in sizes]
