"""Schedules: when they run next, how the last runs ended; run now, switch off and on."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.asking import Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.page import Page, macros
from treadle.dashboard.schedule_rows import ScheduleRow, schedule_rows

PER_PAGE = 50


async def schedules(page: Page) -> Response:
    context = await _context(page)
    live_url = page.url("/live", view="schedules", **_view(page))
    return await page.render("schedules", section="Schedules", title="Schedules", live_url=live_url, **context)


async def schedules_regions(page: Page) -> dict[str, str]:
    context, part = await _context(page), macros("lists")
    shown = {name: context[name] for name in ("rows", "open", "links", "any", "search")}
    return {
        "schedules-note": str(part.note("schedules-note", context["note"])),
        "schedule-list": str(part.schedule_list(base=page.base, read_only=page.read_only, **shown)),
    }


def _view(page: Page) -> dict[str, str]:
    return {name: page.query(name) for name in ("q", "page", "open")}


async def _context(page: Page) -> dict[str, Any]:
    queue, search, number = page.state.queue, page.query("q")[:100], _number(page.query("page"))
    found = await queue.schedules.page((number - 1) * PER_PAGE, PER_PAGE, search)
    now = await queue.schedules.now()
    rows = await schedule_rows(queue, found.schedules, now)
    told = [f"{found.on:,} on", f"{found.off:,} off"]
    if found.next_ms is not None:
        told.append(f"next in {words.duration(found.next_ms - now)}")
    told += [f"{one.worker} leads" for one in (await page.state.now.get()).leaders]
    pages = max(-(-found.total // PER_PAGE), 1)
    return {
        "rows": rows,
        "open": _opened(page, rows),
        "note": ", ".join(told[:2]) + "".join(f" · {one}" for one in told[2:]),
        "any": found.on + found.off > 0,
        "search": search,
        "links": {row.id: page.url("/schedules", q=search, page=page.query("page"), open=row.id) for row in rows},
        "page_words": f"Page {number} of {pages}",
        "before": page.url("/schedules", q=search, page=number - 1) if number > 1 else "",
        "after": page.url("/schedules", q=search, page=number + 1) if number < pages else "",
    }


def _number(text: str) -> int:
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def _opened(page: Page, rows: list[ScheduleRow]) -> str:
    """The chosen one, else the first that a clock change concerns, else the first."""
    asked = page.query("open")
    if asked:
        return asked
    marked = [row.id for row in rows if row.enabled and row.has_clock_change]
    return (marked or [row.id for row in rows if row.enabled] or [""])[0]


# -- actions ---------------------------------------------------------------------------------------


async def run(page: Page) -> Response:
    id_ = page.request.path_params["id"]
    job = await page.state.queue.schedules.run(id_)
    await page.note("run_schedule", id_)
    back = page.local(await page.field("back"), page.url("/schedules"))
    return page.redirect(back, f"{id_} made a job.", link=page.url(f"/jobs/{job.id}"), link_text="Open it")


async def enable(page: Page) -> Response:
    return await _switch(page, True)


async def disable(page: Page) -> Response:
    return await _switch(page, False)


async def _switch(page: Page, enabled: bool) -> Response:
    id_ = page.request.path_params["id"]
    await page.state.queue.schedules.update(id_, enabled=enabled)
    await page.note("enable_schedule" if enabled else "disable_schedule", id_)
    back = page.local(await page.field("back"), page.url("/schedules"))
    return page.redirect(back, f"{id_} is on." if enabled else f"{id_} is off; its existing jobs still run.")


async def ask_delete(page: Page) -> Response:
    schedule = await page.state.queue.schedules.get(page.request.path_params["id"])
    question = Question(
        f"Delete the schedule {schedule.id}?",
        page.url(f"/schedules/{schedule.id}/delete"),
        "Delete",
        page.url(f"/schedules/{schedule.id}"),
        danger=True,
        lines=[schedule.description, "It makes no more jobs. The jobs that it made stay."],
    )
    return await ask_page(page, question, section="Schedules")


async def delete(page: Page) -> Response:
    id_ = page.request.path_params["id"]
    await page.state.queue.schedules.delete(id_)
    await page.note("delete_schedule", id_)
    return page.redirect(page.url("/schedules"), f"{id_} is deleted.")
