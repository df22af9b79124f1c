"""The toy case on nodes of which some are behind a bad switch: what the tests of groups accept."""

from __future__ import annotations

from dataclasses import replace

from trainmark.cases.toy.case import CASE as TOY

CASE = replace(TOY, name="switched")
