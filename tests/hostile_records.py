"""Records that a stranger might hand in: an attack in every string that the schema admits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fakes import GOLDEN
from trainmark.record.record import Record, schema

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ends a script, an attribute, a comment, a style, a template and a JSON string; overwrites a line
# and turns text around. What runs sets ``window.attacked``, which no page does.
RUNS = "window.attacked=1"
ATTACK = (
    f"</script><script>{RUNS}</script></style></title></textarea>'\"><img src=x onerror={RUNS}>"
    f"<svg onload={RUNS}>--><!--]]>{{{{7*7}}}}${{7*7}}{{% x %}}\\u003c&lt;|a\nb\r`c`**d**=1+1"
    f"[j](javascript:{RUNS})\x00\x1b[31m\x9b31m\u2028\u202ertl\u2066 ATTACKED"
)
LONG = "W" * 4_000  # without a place to break a line; a URL may still hold it
_PATTERNS = {"sha256": "0" * 64, "world": "1x8", "name": "plan.json"}
_KINDS: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip


def hostile(name: str = "record_sampled.json", *, text: str = ATTACK, **changes: Any) -> Record:
    """Return a record of the golden files with ``text`` wherever the schema admits any text.

    Keys that a record may lack are there, and a key of its own in each object that takes any.

    Args:
        changes: keys of the document after the attack, for example the run's id.
    """
    before = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    cause = {"kind": text, "message": {"code": "exception", "args": {"text": text}}}
    before |= {"status": "failed", "cause": cause}
    made = _Attack(text).value(schema(), before, "") | changes
    try:
        return Record.model_validate_json(json.dumps(made))
    except ValidationError as refused:  # the schema admits it, the model does not
        for error in refused.errors():
            _put_back(made, before, error["loc"], text)
    return Record.model_validate_json(json.dumps(made))


def _put_back(made: Any, before: Any, place: tuple[str | int, ...], text: str) -> None:
    """Let one value be as it was; where it was not there, the attack without its braces."""
    *above, last = place
    for key in above:
        made = made[key]
        try:
            before = before[key]
        except (KeyError, IndexError, TypeError):
            before = None
    if isinstance(before, dict) and last in before:
        made[last] = before[last]
    elif isinstance(made[last], dict):
        made[last] = {key: text.replace("{", "").replace("}", "") for key in made[last]}
    else:
        made[last] = None if above[-1] == "recipe" else "0"


class _Attack:
    """Fill in a document as its schema says."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.named: dict[str, Any] = schema()["$defs"]

    def value(self, rule: Any, old: Any, name: str) -> Any:
        """Return the value of a key; ``old`` is the one it had, None where it had none."""
        rule = self._chosen(rule, old)
        if "const" in rule or "enum" in rule or "pattern" in rule:
            allowed = rule.get("enum", [rule.get("const", _PATTERNS.get(name))])
            return allowed[0] if old is None else old
        if rule.get("type") == "object":
            return self._object(rule, old or {})
        if rule.get("type") == "array":
            return self._array(rule, old or [], name)
        if isinstance(old, bool | int | float):
            return old
        plain = {"integer": rule.get("minimum", 1), "number": 1.5, "boolean": False}
        return plain.get(rule.get("type"), self.text)

    def _array(self, rule: dict[str, Any], old: list[Any], name: str) -> list[Any]:
        if name == "columns":  # a page with others is refused
            return old
        rules = rule.get("prefixItems") or [rule["items"]] * (len(old) or 1)
        places = old or [None] * len(rules)
        return [self.value(*pair, name) for pair in zip(rules, places, strict=True)]

    def _object(self, rule: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        known = rule.get("properties", {})
        made = {key: self.value(item, old.get(key), key) for key, item in known.items()}
        others = rule.get("additionalProperties", False)
        if others is False:
            return made
        others = {} if others is True else others
        names = rule.get("propertyNames", {}).get("enum", [self.text])
        for key in dict.fromkeys([*old, *names]):
            if key not in known:
                made[key] = self.value(others, old.get(key), key)
        return made

    def _chosen(self, rule: Any, old: Any) -> dict[str, Any]:
        """Return the rule without names and choices: the one of ``old``, else the first."""
        while "$ref" in rule or "anyOf" in rule:
            if "$ref" in rule:
                rule = self.named[rule["$ref"].rpartition("/")[2]]
                continue
            choices = [item for item in rule["anyOf"] if item.get("type") != "null"]
            fit = [x for x in choices if old is not None and x.get("type") == _KINDS[type(old)]]
            rule = (fit or choices)[0]
        return rule
