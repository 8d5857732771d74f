"""One job: its fields, its history and its actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.answer_form import AnswerForm, Ask, asks, fresh_form
from treadle.dashboard.folding import SAMPLE_BYTES, ShownValue, shown_value
from treadle.dashboard.job_facts import Fact, facts, origin
from treadle.dashboard.job_history import AttemptRow, TimelineItem, attempt_rows, timeline_items
from treadle.dashboard.output_rows import OutputPart, output_parts
from treadle.dashboard.page import Page
from treadle.dashboard.rows import actions
from treadle.dashboard.snippets import answer_snippets, snippets
from treadle.dashboard.step_graph import StepGraph, job_graph
from treadle.dashboard.step_rows import RUNS_SHOWN, Waterfall, waterfall
from treadle.dashboard.webhook_rows import DeliveryRow, delivery_row
from treadle.insights.error_text import ErrorText, read_error
from treadle.insights.failures import FailureGroup
from treadle.insights.family import NO_FAMILY, Family
from treadle.model.events import Event
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.model.steps import DONE as STEPS_DONE
from treadle.model.steps import LARGE_RESULT_BYTES, StepSpec, StepState

# For more of them only the counts are shown.
MOST_STEPS_WITH_RUNS = 5


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
    payload: ShownValue
    payload_size: str
    has_result: bool
    result: ShownValue
    timeline: Sequence[TimelineItem]
    total: str
    facts: Sequence[Fact]
    origin: Sequence[Fact]
    snippets: Sequence[tuple[str, str]]
    answer_snippets: Sequence[tuple[str, str]]
    flow: Waterfall | None = None
    graph: StepGraph | None = None
    strip: Sequence[tuple[str, str, str]] = ()
    """Name, value and a remark, of a job with steps that goes on."""
    answers: Sequence[AnswerForm] = ()
    output: Sequence[OutputPart] = ()
    webhooks: Sequence[DeliveryRow] = ()
    family: Family = NO_FAMILY


async def job(page: Page) -> Response:
    return await show_job(page, await job_view(page, page.request.path_params["id"]))


async def show_job(page: Page, view: JobView, status: int = 200) -> Response:
    """The page; not live while it shows a form that was refused."""
    live_url = page.url("/live", view="job", id=view.job.id, answer=page.query("answer")) if status == 200 else ""
    return await page.render("job", status, section="Jobs", title=view.job.topic, view=view, live_url=live_url)


async def job_view(page: Page, id: str, *, live: bool = False) -> JobView:
    queue = page.state.queue
    found = await queue.get(id)
    events = await queue.events(id)
    why = await queue.why(id) if found.status is Status.PENDING else []
    error = read_error(found.last_error, found.error_type) if found.status is not Status.COMPLETED else None
    attempts = list(attempt_rows(found, events))
    settings = await page.state.server.site.settings()
    view = JobView(
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
        payload := shown_value(found.payload),
        f"{payload.bytes:,} bytes",
        found.result_value is not None,
        shown_value(found.result_value),
        list(timeline_items(events)),
        words.span(found.created_at, found.ended_at) + " in all" if found.ended else "",
        list(facts(found, settings.retention.kept(found.topic, found.status))),
        await origin(found, page.state.server.accounts),
        snippets(found, page.address) if payload.bytes <= SAMPLE_BYTES else (),
        (),
        output=await output_parts(page.state.insights, found, with_text=not live),
        webhooks=await _deliveries(page, found),
        family=await page.state.insights.family(found),
    )
    return await _with_steps(page, view, events) if found.steps else view


async def _deliveries(page: Page, found: Job) -> list[DeliveryRow]:
    if found.webhook_sent is None:
        return []
    now_ms = round(page.now.timestamp() * 1000)
    return [delivery_row(one, now_ms) for one in await page.state.queue.webhooks.deliveries(job_id=found.id)]


# -- its steps -------------------------------------------------------------------------------------


async def _with_steps(page: Page, view: JobView, events: Sequence[Event]) -> JobView:
    found = view.job
    specs = (await page.state.queue.template(found.topic)).steps
    runs = await _runs(page, found, specs)
    as_json = page.query("answer") == "json"
    if specs and found.status in (Status.WAITING, Status.PENDING):
        found.progress = found.progress or _done_percent(found)
    flow = waterfall(found, events, specs, runs, page.now)
    asked = asks(found, specs, runs)
    code = [answer_snippets(found, one.step, one.key, one.example, page.address) for one in asked[:1]]
    return replace(
        view,
        answer_snippets=code[0] if code else (),
        why=view.why if found.status is Status.PENDING else _now_lines(found),
        flow=flow,
        graph=job_graph(specs, found.steps, flow.rows),
        strip=() if found.ended else list(_strip(found, page.now)),
        answers=[fresh_form(ask, as_json=as_json) for ask in asked],
    )


def _done_percent(found: Job) -> int:
    """Of a flow that no worker has: its finished steps."""
    return sum(step["status"] in STEPS_DONE for step in found.steps) * 100 // len(found.steps)


async def waiting_asks(page: Page, found: Job) -> list[Ask]:
    """The questions that a job waits for an answer to."""
    specs = (await page.state.queue.template(found.topic)).steps
    return asks(found, specs, await _runs(page, found, specs))


async def _runs(page: Page, found: Job, specs: Sequence[StepSpec]) -> dict[str, Sequence[dict[str, Any]]]:
    """The last runs of the first steps with keys, the failing items of mapped ones, and the runs of waiting steps."""
    mapped = {spec.name for spec in specs if spec.map is not None}
    wanted = [step for step in found.steps if step["items"] or step["status"] == StepState.WAITING]
    runs: dict[str, Sequence[dict[str, Any]]] = {}
    for step in wanted[:MOST_STEPS_WITH_RUNS]:
        skipped = max(step["items"]["total"] - RUNS_SHOWN, 0) if step["items"] else 0
        runs[step["id"]] = await _runs_of(page, found.id, step["id"], skipped, step["id"] in mapped)
    return runs


async def _runs_of(page: Page, id: str, step: str, skipped: int, is_mapped: bool) -> Sequence[dict[str, Any]]:
    at_most, insights = LARGE_RESULT_BYTES // RUNS_SHOWN, page.state.insights
    rows = await insights.step(id, step, 0 if is_mapped else skipped, RUNS_SHOWN, at_most, failing_first=is_mapped)
    if rows and not rows.items and rows.total:  # of a map, most items have not begun
        rows = await insights.step(id, step, max(rows.total - RUNS_SHOWN, 0), RUNS_SHOWN, at_most)
    return rows.items if rows else []


def _now_lines(found: Job) -> list[str]:
    """What happens to it now."""
    if found.status not in (Status.PROCESSING, Status.CANCELLING):
        return []
    busy = [step["id"] for step in found.steps if step["status"] == StepState.PROCESSING]
    later = [step["id"] for step in found.steps if step["status"] == StepState.PENDING]
    line = f"Runs on {found.locked_by or found.last_worker or 'a worker'}."
    if busy:
        line += f" Step {busy[0]} is busy." if len(busy) == 1 else f" Steps {', '.join(busy[:5])} are busy."
    return [line + (f" Then comes {later[0]}." if later else "")]


def _strip(found: Job, now: datetime) -> Any:
    waits, runs = found.status is Status.WAITING, found.status in (Status.PROCESSING, Status.CANCELLING)
    done = sum(step["status"] in STEPS_DONE for step in found.steps)
    yield "Progress", f"{found.progress} %", ""
    yield "Steps", f"{done:,} of {len(found.steps):,}", ""
    if waits:
        begun = [step["startedAt"] for step in found.steps if step["status"] == StepState.WAITING and step["startedAt"]]
        if begun:
            yield "Waiting for", words.span(datetime.fromisoformat(min(begun)), now), ""
    elif runs and found.started_at:
        yield "Running for", words.span(found.started_at, now), ""
    yield "Retries", f"{found.retries} / {found.max_attempts}", ""
    if waits and found.waits_until:
        yield "Gives up", words.date_time(found.waits_until)[:16], f"in {words.left(found.waits_until, now)}"
    if runs and found.locked_until:
        yield "Locked until", words.time_of_day(found.locked_until), f"in {words.left(found.locked_until, now)}"


# -- its parts -------------------------------------------------------------------------------------


def _error_note(job: Job, now: datetime) -> str:
    at = job.ended_at
    if job.status is Status.FAILED:
        return f"Failed {words.ago(at, now)} after {job.attempt} of {job.max_attempts} attempts."
    if job.ended:
        return f"Ended {words.ago(at, now)}: {job.status}."
    return f"The last of {words.plural(job.retries, 'attempt')} so far failed with this."


async def _like_this(page: Page, job: Job) -> str:
    group = await failure_group(page, job)
    count = group.since(page.now - timedelta(hours=1)) if group else 0
    return f"{count:,} jobs failed like this in the last hour" if count > 1 else ""


async def failure_group(page: Page, job: Job) -> FailureGroup | None:
    return next((one for one in await page.state.failures.get() if one.key == job.error_group), None)


def _left(job: Job, now: datetime) -> str:
    """The remaining time at the current pace; nothing if it is too early to tell."""
    if job.status is not Status.PROCESSING or not job.started_at or not 5 <= job.progress < 100:
        return ""
    ran = (now - job.started_at) / timedelta(milliseconds=1)
    return words.duration(ran * (100 - job.progress) / job.progress)
