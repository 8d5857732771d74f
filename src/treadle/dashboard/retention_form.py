"""The form for retention: the ages of all jobs, and exceptions for statuses and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.dashboard import words
from treadle.dashboard.page import Page
from treadle.dashboard.settings_forms import SeenSettings, seen_by, seen_now
from treadle.model.durations import duration_ms, format_ms
from treadle.model.errors import InvalidInput
from treadle.model.job import checked_topic
from treadle.model.status import ENDED, Status
from treadle.policy.retention import Ages
from treadle.queue.runtime_settings import MOST_EXCEPTIONS, StoredSettings

AGES = ("stale_after", "delete_after")
NAMES = (*AGES, "output_after")
# Empty rows for new exceptions.
SPARE = 1
KINDS = {"status": "by_status", "topic": "by_topic"}


@dataclass(frozen=True, slots=True)
class ExceptionRow:
    name: str
    """`topic:mail_digest` or `status:failed`; empty: a spare row."""
    stale_after: str
    delete_after: str


@dataclass(slots=True)
class RetentionForm:
    stale_after: str
    delete_after: str
    output_after: str
    exceptions: Sequence[ExceptionRow]
    seen: SeenSettings
    whole: bool = True
    """It was sent with its exceptions; otherwise they stay as they are."""
    problem: str = ""
    effect: str = ""

    def changes(self, saved: StoredSettings) -> dict[str, Any]:
        """By the names of the stored settings; an exception that is not in the form any more is removed."""
        found: dict[str, Any] = {}
        for name in NAMES:
            text = getattr(self, name)
            found[f"{name}_ms"] = duration_ms(text, name) if text else None
        if not self.whole:
            return found
        for field, known in (("by_status", saved.by_status), ("by_topic", saved.by_topic)):
            found[field] = dict.fromkeys(known)
        for row in self.exceptions:
            if row.name:
                field, name = _named(row.name)
                found[field][name] = _ages(row)
        return found

    def told(self) -> str:
        """What the audit log says."""
        plain = [f"{name.replace('_', ' ')} {getattr(self, name) or 'default'}" for name in NAMES]
        rows = [
            f"{row.name} {row.stale_after or 'as others'}, then {row.delete_after or 'as others'}"
            for row in self.exceptions
            if row.name
        ]
        return ", ".join([*plain, *rows])


def _named(text: str) -> tuple[str, str]:
    kind, _, name = text.partition(":")
    if kind == "status" and name in ENDED:
        return KINDS[kind], name
    if kind == "status":
        known = ", ".join(one.value for one in Status if one in ENDED)
        raise InvalidInput(f"{text[:60]}: an exception is for one of {known}", field="exceptions")
    if kind != "topic" or not name:
        message = f"{text[:60]!r} is not an exception; write topic:mail_digest or status:failed"
        raise InvalidInput(message, field="exceptions")
    return KINDS[kind], checked_topic(name)


def _ages(row: ExceptionRow) -> dict[str, int | None] | None:
    if not row.stale_after and not row.delete_after:
        return None
    return {f"{name}_ms": duration_ms(text, row.name) if (text := getattr(row, name)) else None for name in AGES}


def saved_retention(settings: StoredSettings) -> RetentionForm:
    return RetentionForm(
        format_ms(settings.stale_after_ms),
        format_ms(settings.delete_after_ms),
        format_ms(settings.output_after_ms),
        [*_rows("status", settings.by_status), *_rows("topic", settings.by_topic), *_spare()],
        seen_now(settings),
    )


def _rows(kind: str, exceptions: Mapping[str, Ages]) -> list[ExceptionRow]:
    return [
        ExceptionRow(f"{kind}:{name}", *("" if ms is None else format_ms(ms) for ms in ages))
        for name, ages in sorted(exceptions.items())
    ]


def _spare() -> list[ExceptionRow]:
    return [ExceptionRow("", "", "")] * SPARE


async def sent_retention(page: Page) -> RetentionForm:
    """The form as it was sent."""
    rows = []
    for number in range(MOST_EXCEPTIONS + SPARE):
        name = await page.field(f"jobs_{number}")
        ages = [await page.field(f"{age}_{number}") for age in AGES]
        if name or any(ages):
            rows.append(ExceptionRow(name, *ages))
    named = [row for row in rows if row.name]
    stale, deleted, output = [await page.field(name) for name in NAMES]
    whole = bool(await page.field("exceptions"))
    return RetentionForm(stale, deleted, output, [*named, *_spare()], await seen_by(page), whole)


async def effect_words(page: Page, changes: Mapping[str, Any]) -> str:
    """What these ages would do to the jobs that have ended so far."""
    draft = await page.state.server.site.draft(dict(changes))
    effect = await page.state.insights.effect_of(draft.retention)
    return (
        f"As it stands, {words.capped(effect.stale)} jobs would be stale and {words.capped(effect.deleted)} deleted. "
        "Nothing was saved."
    )
