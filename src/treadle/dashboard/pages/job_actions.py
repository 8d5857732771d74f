"""What an operator does to one job: each action is asked for first."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.asking import Choice, DryLine, DryRun, Field, Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.forms import count_of, priority_of, problem_of, time_of
from treadle.dashboard.page import Page
from treadle.dashboard.pages.job import failure_group
from treadle.dashboard.rows import actions
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.job import Job
from treadle.model.status import Status

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
    if action == "requeue" and "requeue" in actions(job) and job.steps:
        return await _requeue_question(page, job, back, problem, problems or {})
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


async def _requeue_question(
    page: Page, job: Job, back: str, problem: str, problems: dict[str, str], step: str = ""
) -> Question:
    """Which of its steps run again: all at a choice, or from one on with its dry run."""
    heading, go = LABELS["requeue"]
    step = step or page.query("step")
    line = f"{job.topic} …{job.id[-8:]}, {job.status}"
    target, keep, hidden = page.url(f"/jobs/{job.id}/requeue"), "Keep as it is", [("back", back)]
    if step:
        hidden += [("mode", "from"), ("step", step), ("seen", step)]
        dry = DryRun(page.now, _rerun_lines(job, await _would_run(page, job, "from", step)))
        heading = f"Run from {step}?"
        return Question(heading, target, go, back, keep, lines=[line], hidden=hidden, dry=dry, problem=problem)
    return Question(
        heading,
        target,
        go,
        back,
        keep,
        lines=[line],
        hidden=hidden,
        choices=[*await _modes(page, job), *await _same_way(page, job)],
        dry=DryRun(page.now, _effects(job, "requeue")),
        fields=[_step_field(job)],
        problem=problem,
        problems=problems,
    )


async def _would_run(page: Page, job: Job, mode: str, step: str | None = None) -> Sequence[str]:
    force = job.status is Status.COMPLETED
    return (await page.state.queue.requeue_plan(job.id, force=force, mode=mode, step=step)).steps


async def _modes(page: Page, job: Job) -> list[Choice]:
    completed = job.status is Status.COMPLETED
    every = _named(await _would_run(page, job, "all"))
    rest = "" if completed else _named(await _would_run(page, job, "unfinished"))
    unfinished = Choice("mode", "unfinished", "Only what has not completed", rest, checked=True)
    return [
        *([] if completed else [unfinished]),
        Choice("mode", "all", "All steps", every, checked=completed),
        Choice("mode", "from", "From a step on", "choose it below; the dry run comes first"),
    ]


def _step_field(job: Job) -> Field:
    options = [("", "choose a step"), *((one["id"], one["id"]) for one in job.steps)]
    return Field("step", "From step", options=options, optional=True)


def _rerun_lines(job: Job, runs: Sequence[str]) -> list[DryLine]:
    kept = [one["id"] for one in job.steps if one["id"] not in runs]
    lines = [DryLine(len(runs), f"{'step runs' if len(runs) == 1 else 'steps run'}: {_named(runs)}")]
    return [*lines, DryLine(len(kept), f"kept, results included: {_named(kept)}", skipped=True)] if kept else lines


def _named(steps: Sequence[str], most: int = 8) -> str:
    more = f" and {len(steps) - most:,} more" if len(steps) > most else ""
    return ", ".join(steps[:most]) + more


async def _same_way(page: Page, job: Job) -> Sequence[Choice]:
    """Lets the user include other jobs that failed in the same way; empty if there are none."""
    if job.status is not Status.FAILED:
        return ()
    group = await failure_group(page, job)
    if group is None or len(group.ended) < 2:
        return ()
    return (
        Choice("which", "one", "Only this job", checked=True),
        Choice(
            "which", "group", f"All {len(group.ended):,} that failed the same way", f"topic:{group.topic} {group.type}"
        ),
    )


def _effects(job: Job, action: str) -> Sequence[DryLine]:
    match action:
        case "requeue":
            text = f"requeued: pending now, attempts back to 0 of {job.max_attempts}"
            return [DryLine(1, text + (", although it completed" if job.status is Status.COMPLETED else ""))]
        case "cancel":
            later = {
                Status.PENDING: "cancelled before it starts",
                Status.WAITING: "cancelled now: no worker has it, and its steps do not go on",
            }
            return [DryLine(1, later.get(job.status, "asked to stop at its next checkpoint"))]
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
    if action == "requeue" and found.steps and (unseen := await _unseen_step(page)):
        question = await _requeue_question(page, found, await page.field("back"), "", {}, unseen)
        return await ask_page(page, question)
    try:
        await _apply(page, found, action, reason)
    except InvalidInput as error:
        question = await _question(page, found, action, "Nothing was changed.", problem_of(error))
        return await ask_page(page, question, status=400)
    except TreadleError as error:
        return await ask_page(
            page, await _question(page, await page.state.queue.get(id), action, error.message), status=409
        )
    await page.note(action, id, reason=reason)
    own = page.url(f"/jobs/{id}")
    back = page.local(await page.field("back"), own)
    if action == "delete" and back.startswith(own):
        back = page.url("/jobs")
    if action == "delete":
        return page.redirect(back, f"{found.topic} …{id[-8:]} deleted.")
    told = "asked to stop" if action == "cancel" and found.status is Status.PROCESSING else DONE[action]
    link = own if not back.startswith(own) else ""
    return page.redirect(back, f"{found.topic} …{id[-8:]} {told}.", link=link, link_text="Open it")


async def _unseen_step(page: Page) -> str:
    """The step from which to run, if its dry run was not shown yet."""
    step = await page.field("step")
    return step if step != await page.field("seen") else ""


async def _apply(page: Page, job: Job, action: str, reason: str) -> None:
    queue = page.state.queue
    force = job.status is Status.COMPLETED
    match action:
        case "requeue" if job.steps:
            mode = await page.field("mode") or "unfinished"
            step = await page.field("step") if mode == "from" else ""
            await queue.requeue(job.id, force=force, mode=mode, step=step or None)
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
