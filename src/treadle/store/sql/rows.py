"""Rows of the relational stores: the trait bits of a job, and how a row becomes a `Job`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from pydantic_core import from_json

from treadle.model.fields import KEPT_FIELDS
from treadle.model.job import Job, from_ms, reads, rfc3339
from treadle.model.status import LIVE, Status
from treadle.model.steps import DONE, StepState
from treadle.policy.consequences import Extent, Traits, extent
from treadle.policy.lifecycle import retries
from treadle.policy.retention import Rules
from treadle.store.values import HAS_STEPS, ClaimedStep, ClaimedSteps, EarlyAnswer, NewJob

# A job's extras. Only jobs with a flag pay for the statements it needs when they move.
DEDUPE = 1
"""A row in `keys` that must go when the job ends."""


LIMITED = 2
"""Counts against a concurrency limit while it is running."""


EXPIRES = 4
"""Has a row in `deadlines`."""


ONCE = 8
"""Not repeatable: its dedupe key stays after it completed."""


UNCANCELABLE = 16
"""Under a concurrency limit: a job that would replace it while it runs is refused."""


STEPS = HAS_STEPS
"""Has rows in `steps` or `answers`, which come along when it is claimed."""


WEBHOOK = 64
"""Names a URL that is told of its events."""


HOOKED = 128
"""Some endpoint may want its events. Not stored: the statements that read a job's facts add it."""


PARENT = 256
"""A step of its parent waits for it."""


NOBODY = 0
"""The number of no job: a line of `events` that is about many has it."""


def traits_of(job: NewJob) -> int:
    return (
        (DEDUPE if job.dedupe_key is not None else 0)
        | (LIMITED if job.limit else 0)
        | (UNCANCELABLE if job.limit and not job.cancelable else 0)
        | (EXPIRES if job.expires_at is not None or job.expires_in_ms is not None else 0)
        | (0 if job.repeatable else ONCE)
        | (STEPS if job.steps else 0)
        | (WEBHOOK if job.given.webhook_url is not None else 0)
        | (PARENT if job.given.parent_step is not None else 0)
    )


def storable(*texts: str) -> bool:
    """No other name can exist, and each database would fail on it differently."""
    try:
        return b"\x00" not in "".join(texts).encode()
    except UnicodeEncodeError:
        return False


class ViewRow(NamedTuple):
    """The columns of the `view` query, in order."""

    now: int
    n: int
    id: str
    topic: str
    priority: int
    capability: str
    payload: str | None
    """None: left out, with the result, because the page has too many bytes."""
    run_at: int
    created_at: int
    expires_at: int | None
    max_attempts: int
    flags: int
    place: str
    attempt: int
    token: int | None
    status: str | None
    """Of an ended job."""
    claimed_at: int | None
    started_at: int | None
    ended_at: int | None
    cancel_at: int | None
    cancel_reason: str | None
    progress: int | None
    message: str | None
    result: str | None
    error: str | None
    error_type: str | None
    error_group: str | None
    last_worker: str | None
    worker: str | None
    locked_until: int | None
    renewed_at: int | None
    events_count: int
    """The stored ones, and the starts and completions that they tell of."""
    last_event_at: int | None
    changed_at: int | None
    step: str | None
    steps: str | None
    """A JSON document."""
    waits_until: int | None
    track_hash: str | None
    kept: Sequence[Any]
    """By `KEPT_FIELDS`."""

    @property
    def job_status(self) -> Status:
        if self.status is not None:
            return Status(self.status)
        if self.place == "running":
            return Status.PROCESSING if self.cancel_at is None else Status.CANCELLING
        return Status.WAITING if self.place == "parked" else Status.PENDING


def view_row(row: Sequence[Any]) -> ViewRow:
    return ViewRow._make((*row[:_KEPT_AT], row[_KEPT_AT:]))


_KEPT_AT = ViewRow._fields.index("kept")
_kept = reads(KEPT_FIELDS)


def job_from_row(row: ViewRow, retention: Rules, loads: Callable[[str], Any]) -> Job:
    status = row.job_status
    ended = row.ended_at
    stale_at = None if ended is None else retention.stale_at(row.topic, status, ended, row.now)
    # Enqueued always; started and completed come from the job's timestamps, unless its end is a stored event.
    completed = status is Status.COMPLETED
    plain_events = 1 + (row.started_at is not None and (completed or status in LIVE)) + completed
    plain_events += stale_at is not None
    updated = max(
        row.created_at,
        *(x for x in (row.claimed_at, row.started_at, ended, row.cancel_at, row.last_event_at, row.changed_at) if x),
        0,
    )
    return Job(
        id=row.id,
        topic=row.topic,
        status=status,
        payload={} if row.payload is None else loads(row.payload),
        truncated=row.payload is None,
        run_at=_time(row.run_at),
        created_at=_time(row.created_at),
        updated_at=_time(updated),
        stale_at=from_ms(stale_at),
        priority=row.priority,
        result_value=None if row.result is None else loads(row.result),
        last_error=row.error,
        error_type=row.error_type,
        progress=100 if status is Status.COMPLETED else row.progress or 0,
        progress_message=row.message,
        step=row.step,
        steps=[] if row.steps is None else loads(row.steps),
        waits_until=from_ms(row.waits_until),
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        retries=retries(status, row.attempt),
        expires_at=from_ms(row.expires_at),
        claimed_at=from_ms(row.claimed_at),
        started_at=from_ms(row.started_at),
        ended_at=from_ms(ended),
        completed_at=from_ms(ended) if status is Status.COMPLETED else None,
        failed_at=from_ms(ended) if status is Status.FAILED else None,
        cancelled_at=from_ms(ended) if status is Status.CANCELLED else None,
        last_heartbeat_at=_latest(row.renewed_at, row.claimed_at) if status in LIVE else None,
        last_worker=row.last_worker,
        locked_by=row.worker,
        locked_until=from_ms(row.locked_until),
        events_count=row.events_count + plain_events,
        cancel_requested_at=from_ms(row.cancel_at),
        cancel_reason=row.cancel_reason,
        error_group=row.error_group,
        capability=row.capability or None,
        token=row.token,
        track_hash=row.track_hash,
        **_kept(row.kept),
    )


def _latest(*times: int | None) -> datetime | None:
    """A worker's lease may have been renewed long before it claimed this job."""
    known = [one for one in times if one is not None]
    return from_ms(max(known)) if known and times[0] is not None else None


def _time(ms: int) -> Any:
    return from_ms(ms)


# -- steps -----------------------------------------------------------------------------------------

ANSWERED = "answered"
"""In the place of a state: the row is an answer that came early."""


_STATES = {state.value: state for state in StepState}


def claimed_steps(rows: Iterable[Any]) -> dict[int, ClaimedSteps]:
    steps: dict[int, list[ClaimedStep]] = {}
    answers: dict[int, list[EarlyAnswer]] = {}
    versions: dict[int, int | None] = {}
    for n, name, key, place, state, *rest, declared, child, made, left, failed, items, version in rows:
        if state == ANSWERED:
            answers.setdefault(n, []).append(EarlyAnswer(name, key, rest[3], rest[6]))
            continue
        versions[n] = version
        one = ClaimedStep._make(
            (name, key, place, _STATES[state], *rest, bool(declared), None, items, child, made, left, failed)
        )
        steps.setdefault(n, []).append(one)
    return {
        n: ClaimedSteps(tuple(steps.get(n, ())), tuple(answers.get(n, ())), versions.get(n))
        for n in steps.keys() | answers.keys()
    }


def step_from_row(row: Any) -> dict[str, Any]:
    """One run of a step, as people see it."""
    name, key, title, state, attempt, progress, message, started, ended, error, size, result, schema, until, child = row
    done = state in DONE
    return {
        "id": name,
        "name": title or name,
        "status": state,
        "progress": 100 if done else progress or 0,
        "message": message,
        "attempt": attempt,
        "startedAt": rfc3339(from_ms(started)),
        "completedAt": rfc3339(from_ms(ended)) if done else None,
        "error": None if state == StepState.COMPLETED else error,
        "result": None if result is None else from_json(result),
        "resultSize": size,
        "key": key or None,
        "items": None,
        "answerSchema": None if schema is None else from_json(schema),
        "waitsUntil": rfc3339(from_ms(until)) if state == StepState.WAITING else None,
        "childId": child,
    }


# -- traits ----------------------------------------------------------------------------------------


@cache
def traits_in(flags: int) -> Traits:
    return Traits(
        deduped=bool(flags & DEDUPE),
        repeatable=not flags & ONCE,
        limited=bool(flags & LIMITED),
        expires=bool(flags & EXPIRES),
        steps=bool(flags & STEPS),
        hooked=bool(flags & (WEBHOOK | HOOKED)),
        parent=bool(flags & PARENT),
    )


@cache
def extent_of(to: Status, event: str | None, flags: int) -> Extent:
    """Asked for every settlement, and there are few different ones."""
    return extent(to, event, traits_in(flags))
