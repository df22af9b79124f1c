"""Measure and check a card, section by section: ``make gpu``.

Exit codes: 0 every section ended and met its bars; 1 one did not; 2 nothing could be measured.
After a signal 128 and its number.
"""

from __future__ import annotations

import argparse
import math
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from benchmarks.card import BRIEF_SHARES, SECTIONS
from benchmarks.card import results as kept
from benchmarks.card.running import ROOT, run
from benchmarks.card.section import Card
from benchmarks.harness import RESULTS, Bar
from trainmark import devices
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE, EnvironmentFault, TrainmarkError
from trainmark.launch.processes import note_stop_signals
from trainmark.results.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.launch.processes import StopRequest

LIMIT_S = 480.0
MIN_SECTION_S = 5.0  # a section with less does not start
FACTS = "benchmarks.card.facts"
BUILT = ROOT / "build" / "card"


def _parse_arguments(arguments: Sequence[str], names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.card")
    parser.add_argument(
        "--device", help="as `trainmark list devices` names it; default: the first accelerator"
    )
    parser.add_argument(
        "--size",
        choices=("full", "tiny"),
        default="full",
        help="tiny: show that the sections work; their figures mean nothing",
    )
    parser.add_argument(
        "--sections", default="", metavar='"A B"', help=f"default: all of {', '.join(names)}"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder of the results; default: benchmarks/results, and build/card at size tiny",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        default=BUILT / "scratch",
        help="folder of generated data and of the sections' output",
    )
    parser.add_argument(
        "--restart", action="store_true", help="run sections again that are finished"
    )
    parser.add_argument(
        "--budget",
        type=_parse_seconds,
        metavar="8m",
        help="minutes (8m) or seconds (90s) for all: the most important sections, each within "
        f"its share of what is left; default of --sections: {', '.join(BRIEF_SHARES)}",
    )
    given = parser.parse_args(arguments)
    given.sections = given.sections.split() or _choose_default_sections(names, given.budget)
    unknown = sorted(set(given.sections) - set(names))
    if unknown:
        parser.error(
            f"unknown sections: {' '.join(unknown)}; known, separated by spaces: {' '.join(names)}"
        )
    return given


def _parse_seconds(text: str) -> float:
    """Return the seconds of a budget: ``8m``, ``90s``."""
    match = re.fullmatch(r"(\d+)([ms])", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no budget; write minutes or seconds, for instance 8m or 90s"
        )
    return float(match[1]) * (60 if match[2] == "m" else 1)


def _choose_default_sections(names: Sequence[str], budget_s: float | None) -> list[str]:
    if budget_s is None:
        return list(names)
    return [name for name in BRIEF_SHARES if name in names]


@dataclass(frozen=True, slots=True)
class Budget:
    """The time for all sections of a call.

    Args:
        seconds: from ``start_s`` on; infinite if each section may take its limit.
        limit_s: the most that a section may take.
        start_s: when the command started, by ``clock``.
    """

    seconds: float
    limit_s: float
    start_s: float
    clock: Callable[[], float]

    @property
    def is_brief(self) -> bool:
        """Whether sections share a budget."""
        return self.seconds < math.inf

    def left_s(self) -> float:
        """Return what is left of the budget."""
        return self.start_s + self.seconds - self.clock()

    def section_s(self, name: str, following: Sequence[str]) -> float:
        """Return how long the section ``name`` may take; below ``MIN_SECTION_S``: it cannot start.

        Args:
            following: the sections that have to be run after it.
        """
        if not self.is_brief:
            return self.limit_s
        shares = [BRIEF_SHARES.get(each, 1.0) for each in (name, *following)]
        return min(self.limit_s, self.left_s() * shares[0] / sum(shares))


def _choose_device(name: str | None) -> str:
    """Return the vendor called ``name``, or the first accelerator that has a device here.

    Raises:
        TrainmarkError: there is none.
    """
    if name is not None:
        return devices.choose_vendor(name).name
    vendor = devices.find_first_vendor(accelerator=True)
    if vendor is not None:
        return vendor.name
    for fault in devices.list_device_faults():
        raise fault
    raise EnvironmentFault(
        "no accelerator that this installation can use",
        where="--device",
        rule="an accelerator needs its driver and a torch built for it",
        fix="see `trainmark list devices`; make gpu DEVICE=cpu SIZE=tiny tries the sections",
    )


def measure(
    given: argparse.Namespace, modules: Mapping[str, str], *, budget: Budget, stop: StopRequest
) -> int:
    """Run the sections asked for that are not finished; return the exit code over all."""
    card = Card(_choose_device(given.device), given.size, given.scratch.resolve())
    for occupant in devices.list_occupants(card.device, 1):
        if occupant.computes:
            print(
                f"{occupant.description()}: the figures are not the device's alone", file=sys.stderr
            )
    opened = run(FACTS, card, limit_s=min(budget.limit_s, budget.left_s()), stop=stop)
    if opened.state == "interrupted":
        return EXIT_FAILED
    if opened.document is None:
        raise EnvironmentFault(
            f"the device could not be opened:\n{opened.output}",
            where=f"--device {card.device}",
            fix="`trainmark list devices` says what is here; docs/machine.md explains failures",
        )
    shown = given.sections if budget.is_brief else list(modules)
    results = kept.Results(
        given.results or (RESULTS if card.size == "full" else BUILT),
        opened.document["found"],
        device=card.device,
        size=card.size,
        names=shown,
        is_brief=budget.is_brief,
        redactor=Redactor((card.scratch, "<scratch>"), (ROOT, "<suite>")),
    )
    for line in results.resume():
        print(line)
    kept_names = [name for name in given.sections if results.finished(name) and not given.restart]
    for name in kept_names:
        print(f"{name}: kept", flush=True)
    waiting = [name for name in given.sections if name not in kept_names]
    for number, name in enumerate(waiting):
        limit_s = budget.section_s(name, waiting[number + 1 :])
        if limit_s < MIN_SECTION_S:
            print(f"{name}: not run: {budget.left_s():.0f} s of the budget are left", flush=True)
            continue
        print(f"{name}: running, at most {limit_s:.0f} s; {card.scratch / name}.log", flush=True)
        ended = run(modules[name], card, limit_s=limit_s, stop=stop, is_brief=budget.is_brief)
        if ended.state == "interrupted":
            break
        results.keep(name, ended)
        section = results.document["sections"][name]
        print(f"{name}: {ended.state}, {ended.seconds:.0f} s")
        rows = [*(Bar(**bar).row() for bar in section["bars"]), section["output"]]
        print("\n".join(filter(None, rows)), flush=True)
    failures = results.failures(given.sections)
    unjudged = results.unjudged(given.sections)
    fine = "missed no bar" if card.size == "full" else "bars do not count at this size"
    print("\n".join([*(failures or [f"every section finished; {fine}"]), *unjudged]))
    print(f"{results.page}\n{results.json}", flush=True)
    return EXIT_FAILED if failures else EXIT_PASSED


def main(
    arguments: Sequence[str],
    modules: Mapping[str, str] | None = None,
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measure what the command line asks for.

    Args:
        modules: the module of each section by its name, in order.
        limit_s: after how many seconds a section is ended.
        clock: of the budget.
    """
    start_s = clock()
    modules = modules or {name: f"benchmarks.card.{name}" for name in SECTIONS}
    given = _parse_arguments(arguments, list(modules))
    budget = Budget(math.inf if given.budget is None else given.budget, limit_s, start_s, clock)
    try:
        given.scratch.mkdir(parents=True, exist_ok=True)
        with (
            note_stop_signals() as stop,
            FileLock(given.scratch / "lock", timeout=0),
        ):
            code = measure(given, modules, budget=budget, stop=stop)
    except Timeout:
        print(f"another call measures with --scratch {given.scratch}", file=sys.stderr)
        return EXIT_USAGE
    except TrainmarkError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    if stop.signal_name is not None:
        print(f"ended by {stop.signal_name}; the same command goes on from here", file=sys.stderr)
        return 128 + signal.Signals[stop.signal_name]
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
