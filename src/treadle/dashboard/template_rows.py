"""Templates as rows of a list, their policies in words, and the difference between two versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from treadle.dashboard import words
from treadle.dashboard.schema_fields import schema_fields
from treadle.insights.overview import Now
from treadle.model.durations import format_ms
from treadle.model.job import from_ms
from treadle.policy.saved_template import SavedTemplate
from treadle.store.views import FOREVER

SHOWN_FIELDS = 6


@dataclass(frozen=True, slots=True)
class TemplateRow:
    topic: str
    title: str
    version: int
    since: datetime | None
    done_by: str
    note: str
    warns: bool
    payload: str
    tries: str
    limits: str
    enabled: bool
    schedulable: bool


def template_row(saved: SavedTemplate, now: Now) -> TemplateRow:
    shown = saved.as_json()
    fields = [field.name for field in schema_fields(shown["payloadSchema"]) if field.depth == 0]
    more = f" and {len(fields) - SHOWN_FIELDS} more" if len(fields) > SHOWN_FIELDS else ""
    note, warns = _note(saved, now)
    payload = ", ".join(fields[:SHOWN_FIELDS]) + more
    return TemplateRow(
        saved.topic,
        "" if shown["name"] == saved.topic else shown["name"],
        saved.version,
        from_ms(next(one.created_ms for one in saved.versions if one.version == saved.version)),
        words.plural(len(shown["steps"]), "step") if shown["steps"] else "one function",
        note,
        warns,
        payload or ("anything" if shown["payloadSchema"] is None else "nothing"),
        tries(shown),
        limits(shown),
        saved.enabled,
        bool(shown["schedulable"]),
    )


def _note(saved: SavedTemplate, now: Now) -> tuple[str, bool]:
    """What an operator should know, and whether it is trouble."""
    if not saved.enabled:
        return "switched off" if saved.switched is False else "off in code", False
    if saved.rolled_back:
        return "rolled back by an operator", True
    until = now.paused_until(saved.topic)
    if until is not None:
        return "paused" if until >= FOREVER else f"paused until {from_ms(until):%H:%M} UTC", True
    if not now.serving(saved.topic):
        return "no worker serves it", False
    needs = saved.definition.get("capability")
    if needs and not now.serving(saved.topic, needs):
        return f"no worker has {needs}", True
    return "", False


def tries(shown: Mapping[str, Any]) -> str:
    """`3 tries, after 1m, 4m`."""
    retry = shown["retryPolicy"]
    count = retry["maxAttempts"]
    if count == 1:
        return "1 try"
    delays = [_length(one) for one in retry["backoffSeconds"][: min(count - 1, 3)]]
    more = ", …" if count - 1 > len(delays) else ""
    return f"{count:,} tries, after {', '.join(delays)}{more}" if delays else f"{count:,} tries"


def limits(shown: Mapping[str, Any]) -> str:
    told = [_length(shown["timeoutSeconds"])]
    if shown["concurrencyPolicy"] != "allow":
        told.append(limit_words(shown))
    if shown["rate"]:
        rate = shown["rate"]
        told.append(f"{rate['n']:,} per {_length(rate['perSeconds'])}")
    return ", ".join(told)


def limit_words(shown: Mapping[str, Any]) -> str:
    policy = shown["concurrencyPolicy"]
    if policy == "allow":
        return "none"
    what = {"queue_same_scope": "others wait", "reject_same_scope": "others are refused"}.get(policy, "replaces others")
    return f"{shown['concurrencyLimit']:,} at a time, {what}"


def _length(seconds: float) -> str:
    return format_ms(round(seconds * 1000))


def facts(shown: Mapping[str, Any]) -> list[tuple[str, str]]:
    cancel = shown["cancelPolicy"]
    grace = _length(cancel["graceSeconds"])
    way = "kills" if cancel["mode"] == "kill" else "asks"
    found = [
        ("Retry", tries(shown)),
        ("Timeout", _length(shown["timeoutSeconds"])),
        ("Limit", limit_words(shown)),
        ("Cancel", f"{way}, {grace} grace" if cancel["supported"] else "not while it runs"),
        ("Repeatable", "yes" if shown["repeatable"] else "no"),
        ("Schedules", "allowed" if shown["schedulable"] else "not allowed"),
    ]
    if shown["dedupeKeys"]:
        found.append(("One per", ", ".join(shown["dedupeKeys"])))
    if shown["capability"]:
        found.append(("Needs", shown["capability"]))
    return found


# -- the difference between two versions -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    sign: str
    word: str
    where: str
    before: str
    after: str


_SIGNS = {"added": "+", "removed": "−", "changed": "~"}
_APART = frozenset("version createdAt updatedAt current topic payloadSchema resultSchema steps".split())


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Between two versions of a template."""
    common = _step_ids(before) & _step_ids(after)
    return _different(_leaves(before, common), _leaves(after, common))


def value_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Between two JSON objects."""
    return _different(value_leaves(before), value_leaves(after))


def value_leaves(value: Any, path: str = "") -> dict[str, str]:
    """Every value of a JSON object by its path, as JSON text; a list is one value."""
    if isinstance(value, dict) and (value or not path):
        inner = ((f"{path}.{name}" if path else str(name), one) for name, one in value.items())
        return {where: text for name, one in inner for where, text in value_leaves(one, name).items()}
    return {path: words.as_json(value)}


def _different(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    found = []
    for where in [*new, *(one for one in old if one not in new)]:
        if old.get(where) != new.get(where):
            word = "added" if where not in old else "removed" if where not in new else "changed"
            found.append(Difference(_SIGNS[word], word, where, old.get(where, ""), new.get(where, "")))
    return found


def _step_ids(shown: Mapping[str, Any]) -> set[str]:
    return {str(step.get("id")) for step in shown["steps"]}


def _leaves(shown: Mapping[str, Any], common_steps: set[str]) -> dict[str, str]:
    """Every value by its path, schemas by their fields, steps that both versions have by their fields."""
    found: dict[str, str] = {}
    for name, value in shown.items():
        if name not in _APART:
            found.update(_flat(name, value))
    for name, schema in (("payload", shown["payloadSchema"]), ("result", shown["resultSchema"])):
        found.update(_schema_leaves(name, schema))
    for step in shown["steps"]:
        path = f"steps.{step.get('id')}"
        found.update(_flat(path, step) if step.get("id") in common_steps else {path: _step_words(step)})
    return found


def _step_words(step: Mapping[str, Any]) -> str:
    name = step.get("name")
    told = [name if name and name != step.get("id") else "", step.get("workerType") or "a person"]
    if step.get("timeoutSeconds"):
        told.append(f"within {_length(step['timeoutSeconds'])}")
    return ", ".join(one for one in told if one)


def _flat(path: str, value: Any) -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {where: text for name, one in value.items() for where, text in _flat(f"{path}.{name}", one).items()}
    return {path: value if isinstance(value, str) else words.as_json(value)}


def _schema_leaves(name: str, schema: Mapping[str, Any] | None) -> dict[str, str]:
    if schema is None:
        return {}
    fields = schema_fields(schema)
    if not fields:
        return {name: words.as_json(schema)}
    return {".".join((name, *one.path)): _field_words(one.type, one.rule, one.default, one.required) for one in fields}


def _field_words(type_: str, rule: str, default: str, required: bool) -> str:
    parts: Sequence[str] = (
        type_,
        rule,
        f"default {default}" if default else "",
        "required" if required else "optional",
    )
    return ", ".join(part for part in parts if part)
