"""Workers: their capabilities, slots and running jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.asking import Field, Question, ask
from treadle.dashboard.page import Page, macros
from treadle.http.errors import ApiError
from treadle.model.job import Job, from_ms
from treadle.store.views import LiveWorker

# How many running jobs are shown per worker, and how many slots are drawn.
SHOWN, DRAWN, LOOKED_AT = 4, 12, 200


@dataclass(frozen=True, slots=True)
class RunningJob:
    id: str
    status: str
    topic: str
    message: str
    progress: int
    ran: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    name: str
    leader: bool
    where: str
    """Its host and version."""
    older: bool
    """Its version is not this server's."""
    state: str
    state_note: str
    state_icon: str
    state_css: str
    silent: bool
    heartbeat: datetime | None
    slots: int
    running: int
    cells: Sequence[bool]
    topics: str
    capabilities: str
    jobs: Sequence[RunningJob]
    more_jobs: int
    jobs_url: str
    failed_url: str
    change_url: str
    """To drain it, or to let it go on; empty if neither can be done from here."""
    draining: bool


async def workers(page: Page) -> Response:
    context = await _context(page)
    live_url = page.url("/live", view="workers")
    return await page.render("workers", section="Workers", title="Workers", live_url=live_url, **context)


async def workers_regions(page: Page) -> dict[str, str]:
    context, part = await _context(page), macros("lists")
    return {
        "workers-note": str(part.note("workers-note", context["note"])),
        "worker-list": str(part.worker_list(context["workers"], page.base, context["lease_words"])),
    }


async def _context(page: Page) -> dict[str, Any]:
    now = await page.state.now.get()
    running = await page.state.insights.running(LOOKED_AT)
    leaders = {one.worker for one in now.leaders}
    rows = [_row(page, worker, running, now.at, leaders) for worker in now.workers]
    used, slots = sum(row.running for row in rows), sum(row.slots for row in rows)
    states = Counter(row.state for row in rows)
    told = [
        f"{used:,} of {slots:,} slots in use",
        ", ".join(f"{states[state]} {state}" for state in ("live", "draining", "silent") if states[state]),
    ]
    lease = page.state.queue.settings.lease_ms
    return {
        "workers": sorted(rows, key=lambda row: (not row.silent, row.name)),
        "note": " · ".join(told) if rows else "none connected",
        "lease_words": f"By default a worker renews its lease every {words.duration(lease / 3)}; "
        f"after {words.duration(lease)} of silence its jobs go to others.",
    }


def _row(page: Page, worker: LiveWorker, running: Sequence[Job], at: int, leaders: set[str]) -> WorkerRow:
    lease = max(worker.locked_until - worker.renewed_at, 1)
    quiet = max(at - worker.renewed_at, 0)
    silent = quiet > lease / 2
    state, note, icon, css = _state(worker, silent, words.duration(worker.locked_until - at))
    jobs = [job for job in running if job.locked_by == worker.name]
    shown = [_running(job, page.now) for job in jobs[:SHOWN]]
    leads = any(holder == worker.name or holder.startswith(worker.name) for holder in leaders)
    return WorkerRow(
        worker.name,
        leads,
        " · ".join(filter(None, (worker.host, worker.version))) or "over HTTP",
        bool(worker.version) and worker.version != version("treadle"),
        state,
        note,
        icon,
        css,
        silent,
        from_ms(worker.renewed_at),
        worker.slots,
        worker.running,
        _cells(worker),
        ", ".join(worker.topics) or "none: it only does maintenance",
        " ".join(worker.capabilities),
        shown,
        max(worker.running - len(shown), 0),
        page.url("/jobs", status="processing", filter=f'lockedBy = "{worker.name}"'),
        page.url("/jobs", status="failed", filter=f'lastWorker = "{worker.name}"'),
        page.url("/workers/undrain" if worker.draining else "/workers/drain", worker=worker.name)
        if worker.slots and not page.read_only
        else "",
        worker.draining,
    )


def _state(worker: LiveWorker, silent: bool, left: str) -> tuple[str, str, str, str]:
    """Word, note, icon and colour."""
    if silent:
        return "silent", f"its jobs move in {left}", "errors", "failed"
    if worker.draining:
        note = f"finishes {words.plural(worker.running, 'job')}" if worker.running else "stops at its next heartbeat"
        return "draining", note, "drain", "cancelling"
    return "live", "works" if worker.running else "waits for jobs", "st_completed", "completed"


async def ask_drain(page: Page) -> Response:
    lines = [
        "It claims no more jobs, finishes the ones that it runs, and stops.",
        "It learns this from its next heartbeat. Jobs that it has not started go to other workers.",
    ]
    reason = Field("reason", "Reason", optional=True)
    return await _ask(page, "drain", "Drain {}?", "Drain this worker", "Keep it working", lines, [reason])


async def ask_undrain(page: Page) -> Response:
    lines = [
        "It claims jobs again, as if it had never been asked to drain.",
        "It learns this from its next heartbeat. If its last job ends before that, it stops nevertheless.",
    ]
    return await _ask(page, "undrain", "Undo the drain of {}?", "Let it go on", "Let it drain", lines)


async def _ask(
    page: Page, action: str, heading: str, go: str, keep: str, lines: Sequence[str], fields: Sequence[Field] = ()
) -> Response:
    worker = await _drainable(page, page.query("worker"))
    question = Question(
        heading.format(worker.name),
        page.url(f"/workers/{action}"),
        go,
        page.url("/workers"),
        keep,
        lines=[*lines, f"It runs {words.plural(worker.running, 'job')} now."],
        hidden=[("worker", worker.name)],
        fields=fields,
    )
    return await ask(page, question, section="Workers")


async def drain(page: Page) -> Response:
    return await _change(page, "drain", page.state.queue.drain, "drain")


async def undrain(page: Page) -> Response:
    return await _change(page, "undrain", page.state.queue.undrain, "go on")


async def _change(page: Page, action: str, change: Callable[[str], Awaitable[bool]], told: str) -> Response:
    worker = await _drainable(page, await page.field("worker"))
    await change(worker.name)
    await page.note(action, worker.name, reason=await page.field("reason"))
    return page.redirect(page.url("/workers"), f"{worker.name} was asked to {told}.")


async def _drainable(page: Page, name: str) -> LiveWorker:
    for worker in await page.state.insights.workers():
        if worker.name == name and worker.slots:
            return worker
    raise ApiError(404, "not_found", "No live worker has this name.")


def _cells(worker: LiveWorker) -> list[bool]:
    drawn = min(worker.slots, DRAWN)
    used = min(round(worker.running * drawn / worker.slots), drawn) if worker.slots else 0
    return [i < max(used, min(worker.running, 1)) for i in range(drawn)]


def _running(job: Job, now: datetime) -> RunningJob:
    ran = words.span(job.started_at or job.claimed_at, now)
    return RunningJob(job.id, job.status.value, job.topic, job.progress_message or "", job.progress, ran)
