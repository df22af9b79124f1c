"""The results of one device: which of them still hold, and the two files they are kept in."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar
from trainmark.documents import write_atomically
from trainmark.errors import RecordError, escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.card.running import Ended
    from trainmark.results.redaction import Redactor

ROOT = Path(__file__).parents[2]
# What a section's figures depend on in this tree; not the folder of results itself.
_MEASURED = ("src/trainmark/**/*", "benchmarks/**/*.py", "tests/device/**/*.py")
# The bar of every section on a device that computes wrong values.
_COMPUTES_NOTHING = {
    "what": "products on the device are right",
    "measured": "nothing was computed: a product of ones has other values",
    "bar": "right",
    "met": False,
}


def digest_sources() -> str:
    """Return the sha256 of the files that a result depends on, with or without a checkout."""
    digest = hashlib.sha256()
    paths = {path for pattern in _MEASURED for path in ROOT.glob(pattern)}
    for path in sorted(paths):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def make_file_name(product: str) -> str:
    """Return a product's name as a file name."""
    plain = re.sub(r"\((r|tm)\)", "", product.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unnamed"


class Results:
    """What the sections found on one device, kept after each of them.

    Args:
        folder: where ``<product>.md`` and ``<product>.json`` lie.
        facts: ``facts.Facts`` as JSON.
        names: every section there is, in order.
        is_brief: the sections share a budget. Their results have files of their own: a section
            that was cut short would otherwise pass for one that had all its time.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        *,
        device: str,
        size: str,
        names: Sequence[str],
        redactor: Redactor,
        is_brief: bool = False,
    ) -> None:
        stem = make_file_name(facts["device"]["name"]) + ("" if size == "full" else f"-{size}")
        if is_brief:
            stem += "-brief"
        self.json, self.page = folder / f"{stem}.json", folder / f"{stem}.md"
        self.names, self._redactor = names, redactor
        environment = facts["environment"]
        self.document: dict[str, Any] = redactor.redact_document(
            {
                "date": _format_now(),
                "device": device,
                "size": size,
                "is_brief": is_brief,
                "measured": {  # sections hold together only where all of this is the same
                    "product": facts["device"]["name"],
                    "driver": environment["driver"],
                    "python": environment["python"],
                    "packages": environment["packages"],
                    "source_sha256": digest_sources(),
                },
                **facts,
            }
        )
        self.document["sections"] = {}

    def resume(self) -> list[str]:
        """Take over the sections of an earlier call that still hold; return what is left to say.

        Raises:
            RecordError: the file of that name is not one of ours.
        """
        try:
            with self.json.open("rb") as file:
                earlier = json.load(file)
            theirs, sections = {**earlier["measured"]}, earlier["sections"]
            measured_at = datetime.fromisoformat(earlier["date"])
            for name, section in sections.items():
                list(_format_section(name, section))  # every part that a page shows must be there
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(
                f"not results of make gpu: {error!r}",
                where=str(self.json),
                fix="move the file away",
            ) from error
        mine = self.document["measured"]
        differ = sorted(key for key in mine if mine[key] != theirs.get(key))
        if not differ:
            self.document["sections"] = sections
            return []
        aside = f".{measured_at:%Y%m%dT%H%M%S}"
        for path in (self.json, self.page):
            path.replace(path.with_name(f"{path.stem}{aside}{path.suffix}"))
        return [
            f"measured before with another {', '.join(differ)}: moved to {self.json.stem}{aside}"
        ]

    def finished(self, name: str) -> bool:
        """Tell whether a section ran to its end; whether its bars are met is another question."""
        return bool(self.document["sections"].get(name, {}).get("state") == "finished")

    def keep(self, name: str, ended: Ended) -> None:
        """Put a section's findings in the place of earlier ones, and write both files."""
        document = ended.document or {"title": name, "found": {}}
        section = {
            "title": document["title"],
            "state": ended.state,
            "date": _format_now(),
            "seconds": round(ended.seconds, 1),
            "bars": [],
            "figures": {},
            "text": "",
            **document["found"],
            "output": ended.output,
        }
        if not self.document["computes"]:
            section["bars"] = [_COMPUTES_NOTHING, *section["bars"]]
        self.document["sections"][name] = self._redactor.redact_document(section)
        self.write()

    def write(self) -> None:
        """Write both files, each whole or not at all."""
        self.json.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(self.json) as file:
            file.write((json.dumps(self.document, indent=1, allow_nan=False) + "\n").encode())
        with write_atomically(self.page) as file:
            file.write((escape_controls("\n".join(self._lines())) + "\n").encode())

    def failures(self, asked: Iterable[str]) -> list[str]:
        """Return which of the sections asked for did not end, and the bars they missed.

        A bar counts at size full only: at size tiny no figure means anything. A device that
        computes nothing fails every section.
        """
        failures = []
        for name in asked:
            section = self.document["sections"].get(name, {"state": "not run", "bars": []})
            if section["state"] != "finished":
                failures.append(f"{name}: {section['state']}")
            elif not self.document["computes"]:
                failures.append(f"{name}: nothing was computed")
            elif self.document["size"] == "full":
                missed = [bar["what"] for bar in section["bars"] if bar["met"] is False]
                failures += [f"{name}: {what}: missed" for what in missed]
        return failures

    def unjudged(self, asked: Iterable[str]) -> list[str]:
        """Return the bars of the sections asked for that nothing could be held against."""
        sections = self.document["sections"]
        return [
            f"{name}: {bar['what']}: not judged, {bar['measured']}"
            for name in asked
            for bar in sections.get(name, {"bars": []})["bars"]
            if bar["met"] is None
        ]

    def _lines(self) -> Iterable[str]:
        document = self.document
        yield f"# {document['measured']['product']}\n"
        command = "make gpu" + ("" if document["size"] == "full" else f" SIZE={document['size']}")
        if document["is_brief"]:
            command += " BUDGET=…"
        yield f"Written by `{command}`."
        if document["is_brief"]:
            yield "The sections shared a budget of time: they measured fewer variants and rounds."
        if document["size"] != "full":
            yield "It shows that the sections work; its figures mean nothing."
        yield from ("", "| | |", "|---|---|")
        yield from (f"| {what} | {_format_cell(value)} |" for what, value in self._machine())
        yield ""
        if not document["computes"]:
            yield "**Nothing was computed:** a product on this device has wrong values. "
            yield "No figure on this page means anything.\n"
        missing = [name for name in self.names if not self.finished(name)]
        if missing:
            states = {name: document["sections"].get(name, {}).get("state") for name in missing}
            states_text = ", ".join(
                f"{name} ({state or 'not run'})" for name, state in states.items()
            )
            yield f"**Missing:** {states_text}.\n"
        for name in self.names:
            if name in document["sections"]:
                yield from _format_section(name, document["sections"][name])

    def _machine(self) -> Iterable[tuple[str, Any]]:
        document, host = self.document, self.document["environment"]
        yield from ((key, value) for key, value in document["device"].items() if key != "name")
        yield "driver", host["driver"]
        yield from document["clocks"].items()
        yield "host", f"{host['cpu']}, {host['cpu_cores']} cores, {host['os']}, {host['kernel']}"
        yield "python", host["python"]
        yield "packages", ", ".join(f"{name} {at}" for name, at in host["packages"].items())
        yield "variables", ", ".join(f"{k}={v}" for k, v in host["variables"].items()) or "none"
        yield "commit", host["commit"]
        yield "started", document["date"]


def _format_section(name: str, section: Mapping[str, Any]) -> Iterable[str]:
    yield f"## {section['title']}\n"
    yield f"`{name}`: {section['state']}, {section['seconds']:g} s, {section['date']}.\n"
    if section["bars"]:
        yield from ("| what | measured | bar | |", "|---|---|---|---|")
        yield from (Bar(**bar).row() for bar in section["bars"])
        yield ""
    if section["text"]:
        yield f"{section['text'].strip()}\n"
    if section["figures"]:
        yield from ("| figure | |", "|---|---|")
        yield from (
            f"| {key} | {_format_cell(value)} |" for key, value in section["figures"].items()
        )
        yield ""
    if section["output"]:
        yield f"```\n{section['output'].replace('```', '` ` `')}\n```\n"


def _format_cell(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _format_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
