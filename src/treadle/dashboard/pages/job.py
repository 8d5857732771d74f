"""One job: its fields, its history and its actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.asking import Choice, DryLine, DryRun, Field, Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.forms import count_of, priority_of, problem_of, time_of
from treadle.dashboard.page import Page
from treadle.dashboard.rows import actions
from treadle.dashboard.snippets import snippets
from treadle.insights.error_text import ErrorText, read_error
from treadle.insights.failures import FailureGroup
from treadle.model.durations import PRIORITIES
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.events import Event
from treadle.model.job import Job, from_ms
from treadle.model.status import Status

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
}
ENDS_ATTEMPT = frozenset(
    "job:completed job:failed job:retrying job:snoozed job:released job:reclaimed job:cancelled job:expired".split()
)


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


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    mono: bool = False
    muted: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    job: Job
    actions: Sequence[str]
    why: Sequence[str]
    error: ErrorText | None
    error_note: str
    like_this: str
    running: bool
    left: str
    attempts: Sequence[AttemptRow]
    attempts_note: str
    payload_size: str
    has_result: bool
    timeline: Sequence[TimelineItem]
    total: str
    facts: Sequence[Fact]
    snippets: Sequence[tuple[str, str]]


async def job(page: Page) -> Response:
    view = await job_view(page, page.request.path_params["id"])
    live_url = page.url("/live", view="job", id=view.job.id)
    return await page.render("job", section="Jobs", title=view.job.topic, view=view, live_url=live_url)


async def job_view(page: Page, id: str) -> JobView:
    queue = page.state.queue
    found = await queue.get(id)
    events = await queue.events(id)
    why = await queue.why(id) if found.status is Status.PENDING else []
    error = read_error(found.last_error, found.error_type) if found.status is not Status.COMPLETED else None
    attempts = list(_attempts(found, events))
    return JobView(
        found,
        actions(found),
        [line[:1].upper() + line[1:] + "." for line in why],
        error,
        _error_note(found, page.now),
        await _like_this(page, found) if found.status is Status.FAILED else "",
        found.status in (Status.PROCESSING, Status.CANCELLING),
        _left(found, page.now),
        attempts[::-1],
        f"{found.attempt} of {found.max_attempts} used",
        f"{len(words.as_json(found.payload).encode()):,} bytes",
        found.result_value is not None,
        list(_timeline(events)),
        words.span(found.created_at, found.ended_at) + " in all" if found.ended else "",
        list(_facts(found, (await page.state.server.site.settings()).delete_after_ms, queue.settings.stale_after_ms)),
        snippets(found, str(page.request.base_url)),
    )


# -- its parts -------------------------------------------------------------------------------------


def _error_note(job: Job, now: datetime) -> str:
    at = job.ended_at
    if job.status is Status.FAILED:
        return f"Failed {words.ago(at, now)} after {job.attempt} of {job.max_attempts} attempts."
    if job.ended:
        return f"Ended {words.ago(at, now)}: {job.status}."
    return f"The last of {words.plural(job.retries, 'attempt')} so far failed with this."


async def _like_this(page: Page, job: Job) -> str:
    group = await _failure_group(page, job)
    count = group.since(page.now - timedelta(hours=1)) if group else 0
    return f"{count:,} jobs failed like this in the last hour" if count > 1 else ""


async def _failure_group(page: Page, job: Job) -> FailureGroup | None:
    return next((one for one in await page.state.failures.get() if one.key == job.error_group), None)


def _left(job: Job, now: datetime) -> str:
    """The remaining time at the current pace; nothing if it is too early to tell."""
    if job.status is not Status.PROCESSING or not job.started_at or not 5 <= job.progress < 100:
        return ""
    ran = (now - job.started_at) / timedelta(milliseconds=1)
    return words.duration(ran * (100 - job.progress) / job.progress)


def _attempts(job: Job, events: Sequence[Event]) -> Any:
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
    then = {"failed": "gave up", "retrying": "tried again", "reclaimed": "worker lost", "snoozed": "snoozed"}.get(
        name, ""
    )
    text = outcome if name in ("failed", "retrying") else name
    return AttemptRow(
        number, started, worker, words.span(started, from_ms(event.created_at)), status, text, event.message, then
    )


def _timeline(events: Sequence[Event]) -> Any:
    before: datetime | None = None
    number = 0
    for event in events:
        at = from_ms(event.created_at)
        assert at is not None
        name = event.type.removeprefix("job:")
        if event.type == "job:requeued":
            number = 0
        if event.type == "job:started":
            number += 1
        took = ""
        if before is not None:
            word = "waited" if event.type == "job:started" else "ran" if event.type in ENDS_ATTEMPT else ""
            took = f"{word} {words.span(before, at)}".strip() if word else ""
        text = f"Attempt {number}" if event.type == "job:started" else name.capitalize()
        if event.type == "job:started" and event.metadata.get("worker"):
            text += f" on {event.metadata['worker']}"
        icon, css = ICONS.get(event.type, ("info", "muted"))
        yield TimelineItem(icon, css, text, took, at, _note(event))
        before = at


def _note(event: Event) -> str:
    """The event's message in short; for an error only its type, because the error is shown separately."""
    if event.type in ("job:failed", "job:retrying"):
        error = read_error(event.message, event.metadata.get("errorType"))
        return (error.type or error.message)[:80] if error else ""
    return event.message.splitlines()[0][:120] if event.message else ""


def _facts(job: Job, delete_after_ms: int, stale_after_ms: int) -> Any:
    names = {value: name for name, value in PRIORITIES.items()}
    yield Fact("Topic", job.topic, url=f"/jobs?topic={job.topic}")
    yield Fact("Status", job.status.value)
    yield Fact("Created", words.date_time(job.created_at))
    yield Fact("Run at", words.date_time(job.run_at))
    yield Fact("Retries", f"{job.retries} / {job.max_attempts}")
    if job.locked_until:
        yield Fact("Locked until", f"{words.date_time(job.locked_until)} by {job.locked_by}")
    else:
        yield Fact("Locked until", "not locked", muted=True)
    yield Fact("Priority", f"{names[job.priority]} ({job.priority})" if job.priority in names else str(job.priority))
    optional = (
        ("Capability", job.capability, True),
        ("Expires", words.date_time(job.expires_at) if job.expires_at else None, False),
        ("Template", f"version {job.template_version}" if job.template_version else None, False),
        ("Key", job.idempotency_key, True),
        ("Scope", " ".join(filter(None, (job.scope, job.scope_id))) or None, True),
        ("Created by", job.created_by, True),
        ("Cancel asked", words.date_time(job.cancel_requested_at) if job.cancel_requested_at else None, False),
        ("Reason", job.cancel_reason, False),
        ("Last worker", None if job.locked_by else job.last_worker, False),
        ("Heartbeat", words.date_time(job.last_heartbeat_at) if job.last_heartbeat_at else None, False),
    )
    for name, value, mono in optional:
        if value:
            yield Fact(name, value, mono=mono)
    if job.parent_id:
        yield Fact("Parent", job.parent_id, mono=True, url=f"/jobs/{job.parent_id}")
    if job.stale_at:
        yield Fact("Stale since", words.date_time(job.stale_at))
    end = job.ended_at
    if end:
        gone = end + timedelta(milliseconds=stale_after_ms + delete_after_ms)
        yield Fact("Deleted", f"{gone:%Y-%m-%d}, unless requeued")


# -- its actions -----------------------------------------------------------------------------------

LABELS = {
    "requeue": ("Requeue this job?", "Requeue"),
    "cancel": ("Cancel this job?", "Cancel the job"),
    "delete": ("Delete this job?", "Delete"),
    "release": ("Release this job?", "Release"),
    "edit": ("Edit this job", "Save"),
}
DONE = {"requeue": "requeued", "cancel": "cancelled", "delete": "deleted", "release": "released", "edit": "changed"}


async def ask(page: Page) -> Response:
    action = page.request.path_params["action"]
    if action not in LABELS:
        raise HTTPException(404)
    found = await page.state.queue.get(page.request.path_params["id"])
    return await ask_page(page, await _question(page, found, action))


async def _question(
    page: Page, job: Job, action: str, problem: str = "", problems: dict[str, str] | None = None
) -> Question:
    heading, go = LABELS[action]
    own = page.url(f"/jobs/{job.id}")
    referrer = page.request.headers.get("referer", "")
    back = page.local("/" + referrer.partition("://")[2].partition("/")[2], own) if referrer else own
    if action not in actions(job):
        line = f"It is {job.status} now, so this is not possible."
        return Question(heading, "", "", back, "Close", lines=[line])
    return Question(
        heading,
        page.url(f"/jobs/{job.id}/{action}"),
        go,
        back,
        "Keep it" if action == "delete" else "Keep as it is",
        danger=action == "delete",
        lines=[f"{job.topic} …{job.id[-8:]}, {job.status}"],
        hidden=[("back", back if back.partition("?")[0] != page.url(f"/jobs/{job.id}/{action}") else own)],
        choices=await _same_way(page, job) if action == "requeue" else (),
        dry=DryRun(page.now, _effects(job, action)) if action != "edit" else None,
        fields=_fields(job, action),
        problem=problem,
        problems=problems or {},
    )


async def _same_way(page: Page, job: Job) -> Sequence[Choice]:
    """Lets the user include other jobs that failed in the same way; empty if there are none."""
    if job.status is not Status.FAILED:
        return ()
    group = await _failure_group(page, job)
    if group is None or len(group.times) < 2:
        return ()
    return (
        Choice("which", "one", "Only this job", checked=True),
        Choice(
            "which", "group", f"All {len(group.times):,} that failed the same way", f"topic:{group.topic} {group.type}"
        ),
    )


def _effects(job: Job, action: str) -> Sequence[DryLine]:
    match action:
        case "requeue":
            text = f"requeued: pending now, attempts back to 0 of {job.max_attempts}"
            return [DryLine(1, text + (", although it completed" if job.status is Status.COMPLETED else ""))]
        case "cancel":
            later = (
                "cancelled before it starts" if job.status is Status.PENDING else "asked to stop at its next checkpoint"
            )
            return [DryLine(1, later)]
        case "release":
            return [DryLine(1, "taken from its worker and put back, the attempt unspent")]
        case _:
            return [DryLine(1, "deleted with its history and result")]


def _fields(job: Job, action: str) -> Sequence[Field]:
    if action == "cancel":
        return [Field("reason", "Reason", optional=True)]
    if action != "edit":
        return []
    return [
        Field("runAt", "Run at", words.iso(job.run_at), "A time such as 2026-01-08T10:00:00Z, or a delay such as 15m"),
        Field("priority", "Priority", str(job.priority), "critical, high, normal, low, background or a number"),
        Field("maxAttempts", "Attempts", str(job.max_attempts)),
    ]


async def act(page: Page) -> Response:
    action, id = page.request.path_params["action"], page.request.path_params["id"]
    if action not in LABELS:
        raise HTTPException(404)
    found = await page.state.queue.get(id)
    if action == "requeue" and await page.field("which") == "group":
        return await _requeue_group(page, found)
    reason = await page.field("reason")
    try:
        await _apply(page, found, action, reason)
    except InvalidInput as error:
        question = await _question(page, found, action, "Nothing was changed.", problem_of(error))
        return await ask_page(page, question, status=400)
    except TreadleError as error:
        return await ask_page(
            page, await _question(page, await page.state.queue.get(id), action, error.message), status=409
        )
    await page.state.audit.add(page.actor, action, id, reason=reason)
    page.state.forget()
    own = page.url(f"/jobs/{id}")
    back = page.local(await page.field("back"), own)
    if action == "delete" and back.startswith(own):
        back = page.url("/jobs")
    if action == "delete":
        return page.redirect(back, f"{found.topic} …{id[-8:]} deleted.")
    told = "asked to stop" if action == "cancel" and found.status is not Status.PENDING else DONE[action]
    link = own if not back.startswith(own) else ""
    return page.redirect(back, f"{found.topic} …{id[-8:]} {told}.", link=link, link_text="Open it")


async def _apply(page: Page, job: Job, action: str, reason: str) -> None:
    queue = page.state.queue
    force = job.status is Status.COMPLETED
    match action:
        case "requeue":
            await queue.requeue(job.id, force=force)
        case "cancel":
            await queue.cancel(job.id, reason)
        case "delete":
            await queue.delete(job.id, force=force)
        case "release":
            await queue.release(job.id)
        case _:
            await _edit(page, job)


async def _edit(page: Page, job: Job) -> None:
    when, priority, attempts = [await page.field(name) for name in ("runAt", "priority", "maxAttempts")]
    await page.state.queue.reschedule(
        job.id,
        run_at=time_of(when, page.now) if when and when != words.iso(job.run_at) else None,
        priority=priority_of(priority),
        max_attempts=count_of(attempts, "max_attempts"),
    )


async def _requeue_group(page: Page, job: Job) -> Response:
    """Ask again, now about all of them: the dry run counts, and many want the number typed."""
    query = {"action": "requeue", "all": "1", "status": "failed", "back": page.url("/jobs", topic=job.topic)}
    return page.redirect(page.url("/bulk", **query, filter=f'errorGroup = "{job.error_group}"'))
