"""Topics: pending jobs, success and run times, pause and resume."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.asking import Field, Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.forms import problem_of, time_of
from treadle.dashboard.page import Page, macros
from treadle.dashboard.ranges import range_of, segments
from treadle.dashboard.topic_rows import FAILING, TopicRow, topic_rows
from treadle.model.errors import InvalidInput

SPANS = [
    ("", "until it is resumed"),
    ("15m", "for 15 minutes"),
    ("1h", "for an hour"),
    ("4h", "for 4 hours"),
    ("1d", "for a day"),
]


async def topics(page: Page) -> Response:
    range_ = range_of(page, "24h")
    rows = await topic_rows(page.state, range_)
    return await page.render(
        "topics",
        section="Topics",
        title="Topics",
        topics=rows,
        note=_note(rows),
        range=range_.name,
        ranges=segments(page, "/topics"),
        live_url=page.url("/live", view="topics", range=range_.name),
    )


async def topics_regions(page: Page) -> dict[str, str]:
    rows, part = await topic_rows(page.state, range_of(page, "24h")), macros("lists")
    return {
        "topics-note": str(part.note("topics-note", _note(rows))),
        "topic-list": str(part.topic_list(rows, page.base, page.read_only)),
    }


def _note(rows: Sequence[TopicRow]) -> str:
    unserved = sum(row.state == "no worker" for row in rows)
    paused = sum(row.paused for row in rows)
    failing = sum(row.state == FAILING for row in rows)
    told = [words.plural(len(rows), "topic")]
    told += [f"{failing} failing"] if failing else []
    told += [f"{unserved} without a worker"] if unserved else []
    told += [f"{paused} paused"] if paused else []
    disabled = sum(not row.enabled for row in rows)
    told += [f"{disabled} disabled"] if disabled else []
    return " · ".join(told)


async def ask_pause(page: Page) -> Response:
    return await ask_page(
        page,
        await _question(page, page.request.path_params["topic"], _back(page, page.query("back"))),
        section="Topics",
    )


async def _question(page: Page, topic: str, back: str, problems: dict[str, str] | None = None) -> Question:
    due = (await page.state.now.get()).due(topic)
    return Question(
        f"Pause {topic}?",
        page.url(f"/topics/{topic}/pause"),
        "Pause",
        back,
        "Keep it running",
        hidden=[("back", back)],
        lines=[f"No more of its jobs are started; running ones continue. {words.plural(due, 'job')} due now."],
        fields=[
            Field("span", "How long", options=SPANS),
            Field("until", "Or until", placeholder="2026-01-08T15:00:00Z", optional=True),
            Field("reason", "Reason", optional=True),
        ],
        after="Jobs can still be enqueued; they stay pending.",
        problems=problems or {},
    )


async def pause(page: Page) -> Response:
    topic = page.request.path_params["topic"]
    back = _back(page, await page.field("back"))
    text = await page.field("until") or await page.field("span")
    try:
        until = time_of(text, page.now, "until") if text else None
        await page.state.queue.pause(topic, until)
    except InvalidInput as error:
        return await ask_page(page, await _question(page, topic, back, problem_of(error)), section="Topics", status=400)
    told = f"until {until:%Y-%m-%d %H:%M} UTC" if until else "until it is resumed"
    await page.note("pause", topic, filter=told, reason=await page.field("reason"))
    return page.redirect(back, f"{topic} is paused {told}.")


def _back(page: Page, asked: str) -> str:
    """The page that the question was asked on."""
    return page.local(asked, page.url("/topics"))


async def resume(page: Page) -> Response:
    topic = page.request.path_params["topic"]
    await page.state.queue.resume(topic)
    await page.note("resume", topic)
    return page.redirect(page.url("/topics"), f"{topic} is running again.")
