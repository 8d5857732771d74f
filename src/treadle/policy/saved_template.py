"""A topic's template as it is saved: its numbered definitions, which one is current, and the operator's switch.

A definition that was seen before keeps its number and changes nothing, so two releases that run side by side during a
rolling deploy don't take turns. A new one gets the next number and becomes the current one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from treadle.model.durations import duration_ms
from treadle.model.job import from_ms, rfc3339
from treadle.model.status import Status
from treadle.model.template import Template
from treadle.policy.retention import NOTHING, Ages

# The kinds of the records that keep a topic's template and each of its definitions.
KIND = "template"
VERSION_KIND = "template_version"
Definition = Mapping[str, Any]


def version_id(topic: str, number: int) -> str:
    return f"{topic}/{number}"


def secret_fields(body: str, kind: str = KIND) -> Sequence[str]:
    """What the record of a template, or of a version of one, says is secret."""
    if '"secret":[' not in body:
        return ()
    found = from_json(body)
    names: Sequence[str] = (found["definition"] if kind == KIND else found).get("secret", ())
    return names


class TemplateVersion(NamedTuple):
    version: int
    created_ms: int


@dataclass(frozen=True)
class SavedTemplate:
    topic: str
    version: int
    """The current one."""
    definition: Definition
    """Of the current version, as in JSON."""
    versions: tuple[TemplateVersion, ...]
    """All of them, oldest first."""
    switched: bool | None = None
    """What an operator chose for `enabled`; None: as the definition says."""
    rolled_back: bool = False
    """An operator chose a version other than the newest."""
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def enabled(self) -> bool:
        return bool(self.definition["enabled"]) if self.switched is None else self.switched

    @cached_property
    def template(self) -> Template:
        return replace(Template.from_json(dict(self.definition), self.version), enabled=self.enabled)

    @property
    def rate(self) -> tuple[int, int] | None:
        """n and the window in ms."""
        rate = self.definition.get("rate")
        return (rate["n"], duration_ms(rate["perSeconds"])) if rate else None

    @property
    def ages(self) -> Ages:
        """How long its jobs are kept."""
        kept = self.template.retention
        if kept is None:
            return NOTHING
        return Ages(*(None if one is None else duration_ms(one) for one in (kept.stale_after, kept.delete_after)))

    def next_number(self) -> int:
        return max(one.version for one in self.versions) + 1

    def with_definition(self, number: int, definition: Definition, now_ms: int) -> SavedTemplate:
        """A definition that was never seen becomes the current one, also after a rollback."""
        others = [one for one in self.versions if one.version != number]
        return replace(
            self,
            version=number,
            definition=definition,
            versions=tuple(sorted([*others, TemplateVersion(number, now_ms)], key=lambda one: one.created_ms)),
            rolled_back=False,
            updated_ms=now_ms,
        )

    def using(self, number: int, definition: Definition, now_ms: int) -> SavedTemplate:
        """With this version as the current one."""
        newest = self.versions[-1].version
        return replace(self, version=number, definition=definition, rolled_back=number != newest, updated_ms=now_ms)

    def with_switch(self, enabled: bool, now_ms: int) -> SavedTemplate:
        """The switch stands until an operator moves it again, even if later releases say otherwise."""
        return replace(self, switched=enabled, updated_ms=now_ms)

    def as_json(self) -> dict[str, Any]:
        return {
            **document(self.definition, self.version, self.created_ms),
            "enabled": self.enabled,
            "updatedAt": rfc3339(from_ms(self.updated_ms)),
        }

    def version_as_json(self, one: TemplateVersion, definition: Definition) -> dict[str, Any]:
        return {
            **document(definition, one.version, one.created_ms),
            "updatedAt": rfc3339(from_ms(one.created_ms)),
            "current": one.version == self.version,
        }

    def body(self) -> str:
        """As the record keeps it."""
        state = {
            "version": self.version,
            "switched": self.switched,
            "rolled_back": self.rolled_back,
            "versions": [one._asdict() for one in self.versions],
            "definition": self.definition,
        }
        return to_json(state).decode()


def first_saved(topic: str, number: int, definition: Definition, now_ms: int) -> SavedTemplate:
    versions = (TemplateVersion(number, now_ms),)
    return SavedTemplate(topic, number, definition, versions, created_ms=now_ms, updated_ms=now_ms)


def from_body(topic: str, body: str, created_ms: int, updated_ms: int) -> SavedTemplate:
    found = from_json(body)
    return SavedTemplate(
        topic,
        found["version"],
        found["definition"],
        tuple(TemplateVersion(**one) for one in found["versions"]),
        found.get("switched"),
        found.get("rolled_back", False),
        created_ms,
        updated_ms,
    )


def number_of(definition: Definition, fixed: int | None, seen: Mapping[int, Definition]) -> int | None:
    """The newest version with this definition, or the author's own number; None: it is new."""
    same = [number for number, known in seen.items() if fixed in (None, number) and is_same(known, definition)]
    return max(same, default=None)


def is_same(one: Definition, other: Definition) -> bool:
    """A definition saved by an older release may lack fields that have been added since."""
    return one == other or Template.from_json(dict(one)).as_json() == other


FINAL_STATES = (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED)
_LEADING = ("topic", "version", "name", "description", "enabled")


def document(definition: Definition, number: int, created_ms: int) -> dict[str, Any]:
    """A definition as the HTTP API shows it, with every field of today."""
    extras: dict[str, Any] = {"secret": [], "stepResultLimit": None, "retention": None}
    shown = {**extras, **Template.from_json(dict(definition)).as_json(), "version": number}
    ordered = {name: shown[name] for name in _LEADING} | shown
    return {**ordered, "finalStates": list(FINAL_STATES), "createdAt": rfc3339(from_ms(created_ms))}


_NOT_DEFINED = frozenset("version finalStates createdAt updatedAt current".split())


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of the fields in which two versions, in JSON, differ."""
    return [name for name in after if name not in _NOT_DEFINED and before.get(name) != after[name]]
