"""The toy case, which crashes on one machine and has little of the processor on another."""

from __future__ import annotations

from dataclasses import replace

from trainmark.cases.toy.case import CASE as TOY

CASE = replace(TOY, name="handicapped")
