"""The search in the header, and the list of keyboard shortcuts."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from treadle.dashboard.page import Page
from treadle.model.errors import JobNotFound
from treadle.model.job import is_job_id

PAGES = {
    "overview": "/",
    "errors": "/errors",
    "jobs": "/jobs",
    "topics": "/topics",
    "workers": "/workers",
    "webhooks": "/webhooks",
    "system": "/system",
}
SHORTCUTS = [
    (["/"], "Search"),
    (["⌘", "K"], "Find a job, topic or page"),
    (
        ["g", "o"],
        "Overview; then e errors, j jobs, t topics, c schedules, w workers, h webhooks, p templates, s system",
    ),
    (["0"], "to 8: the status tabs"),
    (["j", "k"], "Next and previous row"),
    (["↵"], "Open the row"),
    (["x"], "Select the row; ⇧x selects a range"),
    (["a"], "Select the page; ⇧a all that match"),
    (["r"], "Requeue"),
    (["c"], "Cancel"),
    (["d"], "Delete"),
    (["y"], "Copy the id"),
    (["["], "Previous page, ] next page"),
    (["."], "Show new jobs"),
    (["l"], "Live on and off"),
    (["t"], "Theme"),
    (["⌘", "↵"], "Confirm a dialog"),
    (["Esc"], "Close, clear"),
]


async def find(page: Page) -> Response:
    """Goes to a job id, a page or a topic; anything else is a job search."""
    topics = [topic.topic for topic in await page.state.queue.topics()]
    if page.query("names"):
        return JSONResponse({"topics": topics}, headers={"Cache-Control": "no-store"})
    text = page.query("q").strip()
    if await _is_job(page, text):
        return page.redirect(page.url(f"/jobs/{text}"))
    if text.lower() in PAGES:
        return page.redirect(page.url(PAGES[text.lower()]))
    if text in topics:
        return page.redirect(page.url("/jobs", topic=text))
    return page.redirect(page.url("/jobs", q=text))


async def _is_job(page: Page, text: str) -> bool:
    if not is_job_id(text):
        return False
    try:
        await page.state.queue.get(text)
    except JobNotFound:
        return False
    return True


async def shortcuts(page: Page) -> Response:
    return await page.render("shortcuts", title="Keyboard shortcuts", shortcuts=SHORTCUTS, fragment=page.in_dialog)
