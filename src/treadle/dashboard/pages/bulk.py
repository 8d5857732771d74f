"""Bulk actions: a dry run first, then an operation with progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.asking import DryLine, DryRun, Field, Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.forms import count_of, priority_of, problem_of, time_of
from treadle.dashboard.page import Page, macros
from treadle.dashboard.pages.jobs import search_of, search_query
from treadle.insights.search import JobSearch
from treadle.model.errors import InvalidInput
from treadle.model.job import rfc3339
from treadle.model.status import Status
from treadle.policy.rules import InvalidRule
from treadle.queue import bulk
from treadle.queue.operations import RUNNING, STOPPED, DryRunCount, Operation, change_selected, dry_run

# Above this many jobs, and before a deletion, the user has to type the number.
TYPED_ABOVE = 1000
# How long a response waits for a short operation before it shows the progress page.
PATIENCE_S = 1.0
MAX_SELECTED = 1000

WORDS = {
    "requeue": ("Requeue", "requeued: pending now, attempts back to 0", "Requeued"),
    "cancel": ("Cancel", "cancelled, or asked to stop if they are running", "Cancelled"),
    "delete": ("Delete", "deleted with their history", "Deleted"),
    "release": ("Release", "taken from their workers and put back", "Released"),
    "patch": ("Reschedule", "changed", "Changed"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    action: bulk.Action
    search: JobSearch
    ids: Sequence[str]
    everything: bool
    force: bool
    back: str


def _asked(page: Page, values: Mapping[str, Sequence[str]]) -> Asked:
    first = {name: given[0] for name, given in values.items() if given}
    action = first.get("action", "")
    if action not in WORDS:
        raise InvalidInput(f"action: {action[:40]!r} is not one of {', '.join(WORDS)}", field="action")
    ids = [id for given in values.get("id", ()) for id in given.split(",") if id]
    if len(ids) > MAX_SELECTED:
        raise InvalidInput(f"id: at most {MAX_SELECTED:,} jobs can be selected one by one", field="id")
    return Asked(
        cast(bulk.Action, action),
        search_of(first),
        list(dict.fromkeys(ids)),
        first.get("all") == "1",
        first.get("force") == "1",
        page.local(first.get("back", ""), page.url("/jobs")),
    )


async def ask(page: Page) -> Response:
    params = page.request.query_params
    values = {name: params.getlist(name) for name in params}
    asked = _asked(page, values)
    # By the database's clock, because the jobs' times are compared with it.
    return await ask_page(page, await _question(page, asked, await page.state.insights.time()))


async def _question(
    page: Page, asked: Asked, as_of: datetime, problem: str = "", problems: dict[str, str] | None = None
) -> Question:
    verb, effect, _ = WORDS[asked.action]
    outcomes = await _outcomes(page, asked, as_of)
    count = sum(one.count for one in outcomes if not one.skipped)
    typed = asked.action == "delete" or count > TYPED_ABOVE
    return Question(
        f"{verb} {words.plural(count, 'job')}?",
        page.url("/bulk"),
        f"{verb} {words.plural(count, 'job')}" if count else "",
        asked.back,
        "Keep them" if asked.action == "delete" else "Keep as they are",
        danger=asked.action == "delete",
        filter_words=(asked.search.words or "all jobs") if asked.everything else "",
        hidden=_hidden(asked, as_of, count),
        dry=DryRun(as_of, _lines(outcomes, effect)),
        fields=[*_fields(asked), *([_typed(count)] if typed and count else [])],
        after=_after(asked, count),
        problem=problem,
        problems=problems or {},
    )


async def _outcomes(page: Page, asked: Asked, as_of: datetime) -> list[DryRunCount]:
    change = bulk.BulkChange(asked.action, force=_force(asked), priority=0 if asked.action == "patch" else None)
    if asked.everything:
        try:
            return await dry_run(page.state.queue, change, asked.search, as_of)
        except InvalidRule as error:
            raise InvalidInput(error.message, field="q") from None
    found = [job for job in await page.state.insights.jobs(asked.ids) if job is not None]
    by_status = {status: sum(job.status is status for job in found) for status in Status}
    outcomes = [DryRunCount(n, status.value, status not in change.applies_to) for status, n in by_status.items() if n]
    missing = len(asked.ids) - len(found)
    return [*outcomes, *([DryRunCount(missing, "deleted since", True)] if missing else [])]


def _force(asked: Asked) -> bool:
    """Completed jobs are included if they were selected individually, or if the list shows only completed jobs."""
    return asked.force or not asked.everything or asked.search.narrowed.status == Status.COMPLETED


def _lines(outcomes: Sequence[DryRunCount], effect: str) -> list[DryLine]:
    changed = sum(one.count for one in outcomes if not one.skipped)
    skipped = [DryLine(one.count, f"skipped: {one.status}", True) for one in outcomes if one.skipped]
    return [DryLine(changed, effect), *skipped]


def _hidden(asked: Asked, as_of: datetime, count: int) -> list[tuple[str, str]]:
    chosen = list(search_query(asked.search).items()) if asked.everything else [("id", ",".join(asked.ids))]
    more = [("action", asked.action), ("all", "1" if asked.everything else ""), ("asOf", rfc3339(as_of) or "")]
    return [*chosen, *more, ("expected", str(count)), ("back", asked.back), ("force", "1" if asked.force else "")]


def _typed(count: int) -> Field:
    """As it is shown or without its commas: 5213, 5,213 or 5 213."""
    shown = f"{count:,}"
    return Field("typed", f"Type {shown} to confirm", pattern=shown.replace(",", "[, ]?"))


def _digits(text: str) -> str:
    return text.replace(",", "").replace(" ", "")


def _fields(asked: Asked) -> list[Field]:
    if asked.action == "cancel":
        return [Field("reason", "Reason", optional=True)]
    if asked.action != "patch":
        return []
    return [
        Field("runAt", "Run at", hint="A time such as 2026-01-08T10:00:00Z, or a delay such as 15m", optional=True),
        Field("priority", "Priority", hint="critical, high, normal, low, background or a number", optional=True),
        Field("maxAttempts", "Attempts", optional=True),
    ]


def _after(asked: Asked, count: int) -> str:
    if not count:
        return "No job is in a state that allows it."
    frozen = "Jobs that change or arrive after this moment are left alone. " if asked.everything else ""
    kept = "History and errors are kept." if asked.action == "requeue" else ""
    return frozen + kept


async def act(page: Page) -> Response:
    asked = _asked(page, await page.form())
    as_of = time_of(await page.field("asOf") or rfc3339(await page.state.insights.time()) or "", page.now, "asOf")
    expected = count_of(await page.field("expected") or "0", "expected") or 0
    typed = _digits(await page.field("typed"))
    if (asked.action == "delete" or expected > TYPED_ABOVE) and typed != str(expected):
        told = {"typed": f"Type {expected:,} to confirm."}
        return await ask_page(page, await _question(page, asked, as_of, problems=told), status=400)
    try:
        change = await _change(page, asked)
    except InvalidInput as error:
        question = await _question(page, asked, as_of, "Nothing was changed. " + error.message, problem_of(error))
        return await ask_page(page, question, status=400)
    if asked.everything:
        return await _run(page, asked, change, as_of, expected)
    changed, skipped = await change_selected(page.state.queue, change, asked.ids, page.actor)
    page.state.forget()
    return page.redirect(asked.back, _told(asked.action, changed, skipped))


async def _change(page: Page, asked: Asked) -> bulk.BulkChange:
    if asked.action == "cancel":
        return bulk.BulkChange("cancel", reason=await page.field("reason"))
    if asked.action != "patch":
        return bulk.BulkChange(asked.action, force=asked.action != "release" and _force(asked))
    when = await page.field("runAt")
    return bulk.BulkChange(
        "patch",
        run_at=time_of(when, page.now) if when else None,
        priority=priority_of(await page.field("priority")),
        max_attempts=count_of(await page.field("maxAttempts"), "max_attempts"),
    )


async def _run(page: Page, asked: Asked, change: bulk.BulkChange, as_of: datetime, expected: int) -> Response:
    operations = page.state.operations
    started = await operations.start(change, asked.search, as_of, page.actor, expected)
    await operations.wait(started.id, PATIENCE_S)
    page.state.forget()
    if started.state == RUNNING:
        return page.redirect(page.url(f"/operations/{started.id}"))
    return page.redirect(asked.back, _told(asked.action, started.changed, started.refused))


def _told(action: str, changed: int, skipped: int) -> str:
    done = WORDS[action][2].lower()
    return f"{words.plural(changed, 'job')} {done}" + (f", {skipped:,} skipped." if skipped else ".")


# -- progress --------------------------------------------------------------------------------------


def operation_view(operation: Operation, now: datetime) -> dict[str, Any]:
    verb, _, done = WORDS[operation.action]
    states = {RUNNING: f"{verb} is under way", STOPPED: "Stopped"}
    return {
        "id": operation.id,
        "title": f"{verb} {words.plural(operation.expected, 'job')}",
        "by": operation.by.name,
        "started": operation.created_at or operation.as_of,
        "state_words": states.get(operation.state, f"{done} {words.plural(operation.changed, 'job')}"),
        "running": operation.state == RUNNING,
        "percent": operation.percent,
        "filter": operation.search.words or "all jobs",
        "as_of": operation.as_of,
        "matched": operation.expected,
        "done_word": done,
        "changed": operation.changed,
        "refused": operation.refused,
    }


async def operation(page: Page) -> Response:
    found = await page.state.operations.get(page.request.path_params["id"])
    view = operation_view(found, page.now)
    live_url = page.url("/live", view="operation", id=found.id) if found.state == RUNNING else ""
    return await page.render("operation", section="Jobs", title=view["title"], view=view, live_url=live_url)


async def operation_regions(page: Page, id: str) -> dict[str, str]:
    view = operation_view(await page.state.operations.get(id), page.now)
    return {"operation": str(macros("operation").operation(view, page.base, page.read_only))}


async def stop(page: Page) -> Response:
    id = page.request.path_params["id"]
    await page.state.operations.stop(id)
    await page.state.operations.wait(id, PATIENCE_S)
    return page.redirect(page.url(f"/operations/{id}"), "Stopped.")
