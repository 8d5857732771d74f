"""Enqueue a job by hand, or again with edited input."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.forms import count_of, object_of, priority_of, problem_of
from treadle.dashboard.page import Page
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.job import Job

FIELDS = ("topic", "payload", "delay", "priority", "maxAttempts", "capability", "scope", "scopeId")


async def form(page: Page) -> Response:
    source = await _source(page, page.query("from"))
    given = dict.fromkeys(FIELDS, "") | {"topic": page.query("topic"), "payload": "{}"}
    if source is not None:
        given |= {
            "topic": source.topic,
            "payload": words.pretty_json(source.payload),
            "priority": str(source.priority),
            "maxAttempts": str(source.max_attempts),
            "capability": source.capability or "",
            "scope": source.scope or "",
            "scopeId": source.scope_id or "",
        }
    return await _show(page, given, source)


async def _source(page: Page, id: str) -> Job | None:
    return await page.state.queue.get(id) if id else None


async def _show(
    page: Page, given: dict[str, str], source: Job | None, problem: str = "", problems: dict[str, str] | None = None
) -> Response:
    topics = [topic.topic for topic in (await page.state.now.get()).topics]
    return await page.render(
        "new",
        400 if problem else 200,
        section="Jobs",
        title="Run again" if source else "Enqueue a job",
        form=given,
        source=source,
        topics=topics,
        rows=min(max(given["payload"].count("\n") + 2, 6), 24),
        problem=problem,
        problems=problems or {},
    )


async def enqueue(page: Page) -> Response:
    given = {name: await page.field(name) for name in FIELDS}
    source = await _source(page, await page.field("from"))
    try:
        made = await page.state.queue.enqueue(
            given["topic"], object_of(given["payload"] or "{}"), **_options(page, given)
        )
    except InvalidInput as error:
        return await _show(page, given, source, error.message, problem_of(error))
    except TreadleError as error:
        return await _show(page, given, source, error.message)
    return await enqueued(page, made)


async def enqueued(page: Page, made: Job) -> Response:
    await page.note("enqueue", made.id)
    text = "An equal job already existed; this is it." if made.deduplicated else "Enqueued."
    return page.redirect(page.url(f"/jobs/{made.id}"), text)


def _options(page: Page, given: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "delay": given["delay"] or None,
        "priority": priority_of(given["priority"]),
        "max_attempts": count_of(given["maxAttempts"], "max_attempts"),
        "capability": given["capability"] or None,
        "scope": given["scope"] or None,
        "scope_id": given["scopeId"] or None,
        "created_by": page.caller.account_id if page.caller else None,
    }
    return {name: value for name, value in options.items() if value is not None}
