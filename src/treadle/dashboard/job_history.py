"""The history of one job: its attempts and its timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from treadle.dashboard import words
from treadle.dashboard.step_rows import ENDS_ATTEMPT
from treadle.insights.error_text import read_error
from treadle.model.events import STEP_COMPLETED, Event
from treadle.model.job import Job, from_ms

# More completions of steps in a row are one line.
MOST_COMPLETIONS = 5
ICONS = {
    "job:enqueued": ("plus", "muted"),
    "job:started": ("st_processing", "is-processing"),
    "job:completed": ("st_completed", "is-completed"),
    "job:failed": ("st_failed", "is-failed"),
    "job:retrying": ("requeue", "warn"),
    "job:snoozed": ("clock", "muted"),
    "job:released": ("drain", "muted"),
    "job:reclaimed": ("requeue", "warn"),
    "job:waiting": ("st_waiting", "is-waiting"),
    "job:cancelling": ("st_cancelling", "is-cancelling"),
    "job:cancelled": ("st_cancelled", "is-cancelled"),
    "job:expired": ("st_expired", "is-expired"),
    "job:requeued": ("requeue", "muted"),
    STEP_COMPLETED: ("st_completed", "is-completed"),
}

THEN = {
    "failed": "gave up",
    "retrying": "tried again",
    "reclaimed": "worker lost",
    "snoozed": "snoozed",
    "waiting": "waits",
}


@dataclass(frozen=True, slots=True)
class TimelineItem:
    icon: str
    css: str
    text: str
    took: str
    at: datetime
    note: str


@dataclass(frozen=True, slots=True)
class AttemptRow:
    number: int
    started: datetime | None
    worker: str
    ran: str
    status: str
    outcome: str
    message: str
    then: str


def attempt_rows(job: Job, events: Sequence[Event]) -> Any:
    number, started, worker = 0, None, ""
    for event in events:
        if event.type == "job:requeued":
            number = 0
        if event.type == "job:started":
            number += 1
            started = from_ms(event.created_at)
            worker = str(event.metadata.get("worker") or "")
        elif event.type in ENDS_ATTEMPT and started is not None:
            yield _attempt(number, started, str(event.metadata.get("worker") or worker), event)
            started = None
    if started is not None:
        ran = words.span(started, datetime.now(UTC))
        yield AttemptRow(number, started, job.locked_by or worker, ran, job.status.value, "running", "", "")


def _attempt(number: int, started: datetime, worker: str, event: Event) -> AttemptRow:
    name = event.type.removeprefix("job:")
    status = {"retrying": "failed", "reclaimed": "expired", "snoozed": "pending", "released": "pending"}.get(name, name)
    kind = event.metadata.get("errorType") or event.metadata.get("error_type")
    error = read_error(event.metadata.get("error") or event.message or None, kind)
    outcome = (error.type or error.message if error else "") or name
    then = THEN.get(name, "")
    text = outcome if name in ("failed", "retrying") else name
    return AttemptRow(
        number, started, worker, words.span(started, from_ms(event.created_at)), status, text, event.message, then
    )


def timeline_items(events: Sequence[Event]) -> Iterator[TimelineItem]:
    before: datetime | None = None
    started: datetime | None = None
    number = 0
    for group in _gathered(events):
        event = group[-1]
        at = from_ms(event.created_at)
        assert at is not None
        if event.type == "job:requeued":
            number = 0
        if event.type == "job:started":
            number += 1
        icon, css = ICONS.get(event.type, ("info", "muted"))
        since = started if event.type in ENDS_ATTEMPT else before
        text, took = _event_text(group, number), _event_took(event, since or before, at)
        if len(group) > 1:
            took = words.span(from_ms(group[0].created_at), at)
        yield TimelineItem(icon, css, text, took, at, "" if len(group) > 1 else _note(event))
        before = at
        if event.type in ENDS_ATTEMPT or event.type == "job:started":
            started = at if event.type == "job:started" else None


def _gathered(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Each event by itself, but many completions of steps in a row together: a loop has hundreds."""
    for steps, some in groupby(events, lambda event: event.type == STEP_COMPLETED):
        group = list(some)
        if steps and len(group) > MOST_COMPLETIONS:
            yield group
        else:
            yield from ([event] for event in group)


def _step(event: Event) -> str:
    return str(event.metadata.get("step") or event.message)


def _event_text(group: Sequence[Event], number: int) -> str:
    event = group[-1]
    if event.type == STEP_COMPLETED:
        names = list(dict.fromkeys(_step(one) for one in group))
        told = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
        return f"{told} completed" + (f" {len(group):,} times" if len(group) > len(names) else "")
    if event.type == "job:waiting":
        return event.message[:1].upper() + event.message[1:] or "Waits"
    if event.type == "job:started":
        return f"Attempt {number}" + (f" on {event.metadata['worker']}" if event.metadata.get("worker") else "")
    return event.type.removeprefix("job:").capitalize()


def _event_took(event: Event, before: datetime | None, at: datetime) -> str:
    if event.type == STEP_COMPLETED:
        took = event.metadata.get("durationMs")
        return words.duration(took) if isinstance(took, int) else ""
    if before is None:
        return ""
    word = "waited" if event.type == "job:started" else "ran" if event.type in ENDS_ATTEMPT else ""
    return f"{word} {words.span(before, at)}" if word else ""


def _note(event: Event) -> str:
    """The event's message in short; for an error only its type, because the error is shown separately."""
    if event.type == STEP_COMPLETED:
        who = event.metadata.get("answeredBy")
        return f"answered by {who}" if who else ""
    if event.type == "job:waiting":
        return ""
    if event.type in ("job:failed", "job:retrying"):
        error = read_error(event.message, event.metadata.get("errorType"))
        return (error.type or error.message)[:80] if error else ""
    return event.message.splitlines()[0][:120] if event.message else ""
