"""Run a job again with edited input: as the same job, or as a new one. What would happen is shown first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.forms import object_of, problem_of
from treadle.dashboard.job_history import timeline_items
from treadle.dashboard.page import Page
from treadle.dashboard.rows import actions
from treadle.dashboard.template_rows import Difference, value_differences, value_leaves
from treadle.model.errors import InvalidInput, TreadleError, WrongState
from treadle.model.job import Job
from treadle.model.secrets import HIDDEN
from treadle.model.status import Status

SAME, NEW = "same", "new"


@dataclass(frozen=True, slots=True)
class StepPlan:
    id: str
    status: str
    runs: bool


@dataclass(slots=True)
class Draft:
    payload: str
    way: str
    delay: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    changes: Sequence[Difference] = ()
    steps: Sequence[StepPlan] = ()
    checked: bool = False


async def form(page: Page) -> Response:
    job = await _job(page)
    draft = Draft(words.pretty_json(job.payload), SAME if _may_be_same(job) else NEW)
    return await _show(page, job, draft)


async def _job(page: Page) -> Job:
    return await page.state.queue.get(page.request.path_params["id"])


def _may_be_same(job: Job) -> bool:
    return "requeue" in actions(job)


async def _show(page: Page, job: Job, draft: Draft, status: int = 200) -> Response:
    events = await page.state.queue.events(job.id)
    view = {"timeline": list(timeline_items(events)), "total": words.span(job.created_at, job.ended_at)}
    return await page.render(
        "run_again",
        status,
        section="Jobs",
        title=f"Run {job.topic} again",
        job=job,
        draft=draft,
        view=view,
        may_be_same=_may_be_same(job),
        size=f"{len(draft.payload.encode()):,} bytes of 1 MiB",
        rows=min(max(draft.payload.count("\n") + 2, 8), 28),
    )


async def run(page: Page) -> Response:
    job = await _job(page)
    way = SAME if await page.field("way") == SAME and _may_be_same(job) else NEW
    draft = Draft(await page.field("payload") or "{}", way, await page.field("delay"))
    try:
        payload = object_of(draft.payload)
        draft.changes = value_differences(job.payload, payload)
        await _refuse_hidden(page, job, draft, payload)
        if await page.field("check"):
            await _check(page, job, draft, payload)
            return await _show(page, job, draft)
        made = await _run(page, job, draft, payload)
    except InvalidInput as error:
        draft.problem, draft.problems = error.message, problem_of(error)
        return await _show(page, job, draft, 400)
    except TreadleError as error:
        draft.problem = error.message
        return await _show(page, job, draft, 409)
    page.state.forget()
    told = "Requeued with this input." if draft.way == SAME else "Enqueued as a new job."
    return page.redirect(page.url(f"/jobs/{made.id}"), told)


async def _refuse_hidden(page: Page, job: Job, draft: Draft, payload: Mapping[str, Any]) -> None:
    """Three stars stand for a secret that is not shown: stored as they are, they would be its new value."""
    kept = draft.way == SAME and not draft.changes
    if kept or not (await page.state.queue.template(job.topic)).secret:
        return
    before, after = value_leaves(job.payload), value_leaves(payload)
    hidden = [path for path, text in after.items() if text == before.get(path) == f'"{HIDDEN}"']
    if hidden:
        raise InvalidInput(f"payload: {hidden[0]} is secret and not shown here; type its value", field="payload")


async def _check(page: Page, job: Job, draft: Draft, payload: Mapping[str, Any]) -> None:
    """The payload against the template, and the steps that would run: nothing is stored."""
    try:
        plan = await page.state.queue.requeue_plan(job.id, force=True, mode="all", payload=payload)
        runs = set(plan.steps)
    except WrongState:
        if draft.way == SAME:
            raise
        runs = {step["id"] for step in job.steps}  # it has not ended; its input was checked before
    draft.steps = [StepPlan(step["id"], step["status"], step["id"] in runs) for step in job.steps]
    draft.checked = True


async def _run(page: Page, job: Job, draft: Draft, payload: dict[str, Any]) -> Job:
    queue = page.state.queue
    if draft.way == SAME:
        # Without a change, the stored input stays, with what is secret in it.
        given = payload if draft.changes else None
        made = await queue.requeue(job.id, force=job.status is Status.COMPLETED, mode="all", payload=given)
        await page.state.audit.add(page.actor, "requeue", job.id, reason="with edited input" if draft.changes else "")
        return made
    options: dict[str, Any] = {
        "delay": draft.delay or None,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "capability": job.capability,
        "scope": job.scope,
        "scope_id": job.scope_id,
        "created_by": page.caller.account_id if page.caller else None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    made = await queue.enqueue(job.topic, payload, **given)
    await page.state.audit.add(page.actor, "enqueue", made.id)
    return made
