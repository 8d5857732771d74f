"""Why a job is not running, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from treadle.insights.templates import template_from
from treadle.model.durations import format_ms
from treadle.model.error_line import error_line
from treadle.model.errors import JobNotFound
from treadle.model.job import Job, from_ms, rfc3339
from treadle.model.status import Status
from treadle.model.steps import StepState, is_sleep, shown_step
from treadle.policy.flow import LISTED, UNSERVED
from treadle.policy.saved_template import KIND
from treadle.store.protocol import Store
from treadle.store.views import FOREVER, LimitReached, Obstacle

# Of one step; more would not help a reader.
MOST_RUNS = 1000
# Of its lease, without a word from the worker: it should have renewed after a third.
SILENT_PART = 0.4


async def why(store: Store, id: str, sees: Callable[[Job], bool] | None = None) -> list[str]:
    """Why this job is not running, in sentences; empty if it runs or could start immediately. Of one that runs, whether
    its worker has been silent for long.

    Other jobs are named if the reader `sees` them.
    """
    job = (await store.get([id]))[0]
    if job is None:
        raise JobNotFound(f"no job has the id {id}", id=id)
    if job.status is Status.PROCESSING or job.status is Status.CANCELLING:
        return _silence(job, from_ms(await store.now()))
    if job.status is Status.WAITING:
        return await _waits(store, job, sees)
    if job.status is not Status.PENDING:
        return [
            f"it has ended: {job.status}"
            + (f" ({error_line(job.last_error, job.error_type or '')})" if job.last_error else "")
        ]
    return [
        *_by_time(job, from_ms(await store.now())),
        *await _by_topic(store, job),
        *[_by_limit(obstacle, await _named(store, obstacle, sees)) for obstacle in await store.obstacles(id)],
        *await _unserved(store, job),
    ]


def _silence(job: Job, now: datetime | None) -> list[str]:
    """A worker renews its lease after a third of its time, so later it has probably died."""
    heard, until = job.last_heartbeat_at, job.locked_until
    if heard is None or until is None or now is None:
        return []
    silent_s = (now - heard).total_seconds()
    if silent_s < SILENT_PART * (until - heard).total_seconds():
        return []
    then = "ended" if until <= now else "ends"
    return [f"its worker {job.locked_by} was last heard of {silent_s:.0f} s ago; its lease {then} {until:%H:%M:%S} UTC"]


async def _waits(store: Store, job: Job, sees: Callable[[Job], bool] | None) -> list[str]:
    waiting = [step["id"] for step in job.steps if step["status"] == StepState.WAITING]
    pages = [await store.steps(job.id, name, 0, MOST_RUNS, 0) for name in waiting]
    runs = [run for page in pages if page for run in page.items if run["status"] == StepState.WAITING]
    answers = [_waits_for(run) for run in runs if run["childId"] is None]
    children = await _children(store, [run["childId"] for run in runs if run["childId"]], sees)
    return [*answers, *children] or ["it waits for an answer"]


async def _children(store: Store, ids: Sequence[str], sees: Callable[[Job], bool] | None) -> list[str]:
    """The first of the jobs that it waits for, with what they do."""
    found = [job for job in await store.get(ids[:LISTED]) if job is not None]
    seen = [job for job in found if sees is None or sees(job)]
    sentences = [f"it waits for its child {job.id} of {job.topic} ({job.status})" for job in seen]
    hidden = len(ids) - len(seen)
    return [*sentences, f"it waits for {hidden} more children"] if hidden else sentences


def _waits_for(run: Mapping[str, Any]) -> str:
    step, until = shown_step(run["id"], run["key"] or ""), run["waitsUntil"]
    if is_sleep(run["id"]):
        return f"it sleeps in step {step} until {until}"
    limit = f"until {until}" if until else "without a time limit"
    return f"it waits for an answer to step {step} since {run['startedAt']}, {limit}"


async def _unserved(store: Store, job: Job) -> list[str]:
    """A worker that lacks the code of the next step says so when it puts the job back."""
    if not job.steps:
        return []
    events = await store.events(job.id) or []
    last = events[-1].message if events and events[-1].type == "job:snoozed" else ""
    return [last] if last.startswith(UNSERVED) else []


async def _named(store: Store, obstacle: Obstacle, sees: Callable[[Job], bool] | None) -> str:
    """The running jobs that it waits for."""
    if not isinstance(obstacle, LimitReached):
        return ""
    running = obstacle.running
    if sees is not None:
        running = [job.id for job in await store.get(running) if job is not None and sees(job)]
    others = len(obstacle.running) > len(running)
    return ", ".join([*([f"job {', '.join(running)}"] if running else []), *(["another job"] if others else [])])


def _by_limit(obstacle: Obstacle, named: str) -> str:
    if isinstance(obstacle, LimitReached):
        return f"its key allows {obstacle.most} running jobs: it waits for {named} ({obstacle.ahead} wait ahead of it)"
    return f"its topic's rate limit of {obstacle.most} per {format_ms(obstacle.window_ms)} is used up"


def _by_time(job: Job, now: datetime | None) -> list[str]:
    now = now or datetime.now(UTC)
    if job.run_at <= now:
        return []
    seconds = (job.run_at - now).total_seconds()
    cause = f"attempt {job.attempt} of {job.max_attempts} failed; it is tried again" if job.attempt else "it is due"
    return [f"{cause} at {rfc3339(job.run_at)}, in {seconds:.0f} s"]


async def _by_topic(store: Store, job: Job) -> list[str]:
    reasons = []
    for topic in await store.topics():
        if topic.topic == job.topic and topic.paused_until is not None:
            until = (
                "until it is resumed"
                if topic.paused_until >= FOREVER
                else f"until {rfc3339(from_ms(topic.paused_until))}"
            )
            reasons.append(f"topic {job.topic} is paused {until}")
    workers = await store.workers()
    serving = [worker for worker in workers if job.topic in worker.topics]
    if not serving:
        needs = f", and the job needs one with the capability {job.capability!r}" if job.capability else ""
        reasons.append(f"no live worker serves topic {job.topic}{needs}")
        if await _is_flow(store, job.topic):
            reasons.append(f"topic {job.topic} is a flow: workers that claim over HTTP don't get its jobs")
    elif not (able := [one for one in serving if not job.capability or job.capability in one.capabilities]):
        reasons.append(f"no live worker that serves topic {job.topic} has the capability {job.capability!r}")
    elif all(one.slots and one.running >= one.slots for one in able):
        slots = sum(one.slots for one in able)
        of = f"worker {able[0].name}" if len(able) == 1 else f"the {len(able)} workers that serve topic {job.topic}"
        reasons.append(f"all {slots} slots of {of} are busy")
    return reasons


async def _is_flow(store: Store, topic: str) -> bool:
    record = (await store.get_records([(KIND, topic)]))[0]
    return record is not None and bool(template_from(record).template.steps)
