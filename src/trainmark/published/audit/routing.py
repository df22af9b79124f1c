"""The audit rule on mixtures of experts: their routing must be that of training, and be stated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.published.audit.subject import RATES, TOKEN_RATES
from trainmark.published.audit.workloads import is_mixture
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trainmark.published.audit.subject import AuditSubjects, Hits

_SPEED_FIGURES = {*RATES, *TOKEN_RATES, "MFU", "model_flops_per_device"}
# How settings and headings of training programs name what a router of experts does.
_OFF_VALUES = {"", "/", "-", "0", "0.0", "false", "no", "none", "null", "off"}
_FORCED_KEYS = ("force_load_balanc", "forced_balanc", "force_balanc", "balanced_router")
_FORCED_PHRASES = (
    "force_load_balancing",
    "forced balance",
    "force balance",
    "balanced routing",
    "routing=balanced",
    "uniform routing",
)
_FORCED_VALUES = {"balanced", "forced", "uniform", "random"}
_DROP_KEYS = ("token_drop", "capacity_factor", "drop_rate", "dropped")
_DROP_PHRASES = ("tokens dropped", "token dropping", "drops tokens", "capacity factor")
_ROUTING_KEYS = ("rout", "load_balanc", "aux_loss", "dropless")
_ROUTING_PHRASES = (
    "routing",
    "router",
    "dropless",
    "no token drop",
    "aux loss",
    "aux-loss",
    "load balanc",
)


def check_routing(subjects: AuditSubjects) -> Hits:
    """Yield speeds of mixtures of experts that do not route as in training, or do not say how.

    Their router was forced to balance the load, or it may have dropped tokens.
    A forced or dropping router is faster than one that trains, and its MFU counts tokens that no
    expert computed.
    """
    for subject in subjects:
        row = subject.row
        if row is None:  # a launch, not a printed row
            continue
        model = row.model or subject.name  # ``name`` is that of the case, else of the model
        if not is_mixture(model) or row.figures.keys().isdisjoint(_SPEED_FIGURES):
            continue
        settings = {}  # by name, of which only lower-case letters and `_` between them are kept
        # ``changes`` are the settings of the row by name, ``cells`` all its columns as printed.
        for name, value in {**row.changes, **row.cells}.items():
            settings[re.sub(r"[^a-z]+", "_", name.lower())] = value
        # The headings above the table, the label of the row, and all its text as printed.
        text = f"{row.section} {row.configuration} {row.raw}".lower()
        has_routing_setting = any(key in name for name in settings for key in _ROUTING_KEYS)
        forced_balance = (
            _find_setting(settings, _FORCED_KEYS)
            # `routing=balanced` forces the router, `routing=top2` does not.
            or _find_setting(settings, ("rout",), accepted_values=_FORCED_VALUES)
            or _find_phrase(text, _FORCED_PHRASES)
        )
        token_drop = _find_setting(settings, _DROP_KEYS) or _find_phrase(text, _DROP_PHRASES)
        if forced_balance:
            yield subject, message("audit_routing_forced", setting=forced_balance)
        elif token_drop:
            yield subject, message("audit_routing_drops", setting=token_drop)
        elif not has_routing_setting and not _find_phrase(text, _ROUTING_PHRASES):
            yield subject, message("audit_routing_unnamed", model=model)


def _find_setting(
    settings: Mapping[str, str], keys: Sequence[str], *, accepted_values: Collection[str] = ()
) -> str | None:
    """Return the first setting whose name has one of ``keys`` and that is switched on.

    Args:
        settings: values by name. Names have only lower-case letters and ``_``.
        keys: parts of names.
        accepted_values: values that count as on; empty: all values but those that mean off.

    Returns:
        ``name=value``; None: there is no such setting.
    """
    for name, value in settings.items():
        lowered = value.strip().lower()
        is_on = lowered in accepted_values if accepted_values else lowered not in _OFF_VALUES
        if is_on and any(key in name for key in keys):
            return f"{name}={value}"
    return None


def _find_phrase(text: str, phrases: Sequence[str]) -> str | None:
    """Return the first of ``phrases`` that is a part of a text, even of a word; None: none is."""
    for phrase in phrases:
        if phrase in text:
            return phrase
    return None
