"""The toy case, whose ranks crash on some machines."""

from __future__ import annotations

from dataclasses import replace

from trainmark.cases.toy.case import CASE as TOY

CASE = replace(TOY, name="crashing")
