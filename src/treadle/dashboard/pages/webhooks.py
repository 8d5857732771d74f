"""Webhooks: endpoints, what was sent to them with each attempt; test, send again, rotate, switch off and on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from treadle.dashboard.asking import Choice, Field, Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.forms import count_of, problem_of, time_of
from treadle.dashboard.page import Page
from treadle.dashboard.webhook_rows import EndpointRow, delivery_row, endpoint_row
from treadle.model.errors import InvalidInput, TreadleError, VersionConflict
from treadle.model.job import rfc3339
from treadle.model.webhooks import WEBHOOK_EVENTS, DeliveryStatus
from treadle.queue.webhooks import Webhooks

PER_PAGE = 25
OUTCOMES = (("", "All"), ("pending", "Waiting"), ("delivered", "Delivered"), ("failed", "Given up"))
KEEP = (
    ("24h", "In 24 hours", ""),
    ("7d", "In 7 days", ""),
    ("0s", "At once", "deliveries fail until the receiver knows the new one"),
)
TEXTS = ("id", "url", "topics", "description")


def _webhooks(page: Page) -> Webhooks:
    return page.state.queue.webhooks


async def webhooks(page: Page) -> Response:
    return await _show(page)


async def _show(page: Page, status: int = 200, **extra: Any) -> Response:
    now = await page.state.queue.schedules.now()
    endpoints = await _webhooks(page).list()
    counted = await _webhooks(page).counts([one.id for one in endpoints])
    counts = {(one.endpoint, one.status): one for one in counted}
    rows = [endpoint_row(one, counts, now) for one in endpoints]
    opened = _opened(rows, extra.pop("open", "") or page.query("open"))
    outcome = page.query("status") if page.query("status") in dict(OUTCOMES) else ""
    found = (
        await _webhooks(page).deliveries(
            opened.id, status=outcome or None, after=_number(page.query("after")), limit=PER_PAGE
        )
        if opened
        else []
    )
    links = {row.id: page.url("/webhooks", open=row.id) for row in rows}
    here = {"open": opened.id if opened else "", "status": outcome}
    context: dict[str, Any] = {
        "rows": rows,
        "opened": opened,
        "links": links,
        "note": _note(rows),
        "deliveries": [delivery_row(one, now) for one in found],
        "delivery": _number(page.query("delivery")),
        "folds": {one.id: page.url("/webhooks", **here, after=page.query("after"), delivery=one.id) for one in found},
        "closed": page.url("/webhooks", **here, after=page.query("after")),
        "outcome": outcome,
        "outcomes": [(value, text, page.url("/webhooks", open=here["open"], status=value)) for value, text in OUTCOMES],
        "older": page.url("/webhooks", **here, after=found[-1].id) if len(found) == PER_PAGE else "",
        "new_secret": None,
    }
    return await page.render("webhooks", status, section="Webhooks", title="Webhooks", **{**context, **extra})


def _opened(rows: list[EndpointRow], asked: str) -> EndpointRow | None:
    """The chosen one, else the first in trouble, else the first."""
    chosen = [row for row in rows if row.id == asked] or [row for row in rows if row.why] or rows
    return chosen[0] if chosen else None


def _note(rows: list[EndpointRow]) -> str:
    on = sum(row.enabled for row in rows)
    told = [f"{on} on", f"{len(rows) - on} switched off"]
    waiting = sum(row.waiting for row in rows)
    return ", ".join(told) + (f" · {waiting:,} deliveries wait" if waiting else "")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


# -- making and editing ------------------------------------------------------------------------------


async def new(page: Page) -> Response:
    given = dict.fromkeys(TEXTS, "") | {"version": ""}
    return await _form(page, "", given, list(WEBHOOK_EVENTS))


async def edit(page: Page) -> Response:
    one = (await _webhooks(page).get(page.request.path_params["id"])).endpoint
    given = {
        "id": one.id,
        "url": one.url or "",
        "topics": " ".join(one.topics),
        "description": one.description,
        "version": str(one.version),
    }
    return await _form(page, one.id, given, list(one.events))


async def _form(
    page: Page, id: str, given: dict[str, str], events: list[str], error: TreadleError | None = None
) -> Response:
    problems = problem_of(error) if isinstance(error, InvalidInput) else {}
    status = 200 if error is None else 409 if isinstance(error, VersionConflict) else 400
    return await page.render(
        "webhook",
        status,
        section="Webhooks",
        title=id or "New endpoint",
        id=id,
        form=given,
        events=events,
        known=[(name, name.removeprefix("job:")) for name in WEBHOOK_EVENTS],
        problems=problems,
        refused=error.message if error else "",
        action=page.url(f"/webhooks/{id}/edit" if id else "/new-webhook"),
    )


async def save(page: Page) -> Response:
    id = page.request.path_params.get("id", "")
    given = {name: await page.field(name) for name in (*TEXTS, "version")}
    events = (await page.form()).get("events", [])
    chosen: Any = {
        "events": events,
        "topics": given["topics"].replace(",", " ").split(),
        "description": given["description"],
    }
    url = given["url"] or None
    try:
        if id:
            version = count_of(given["version"], "version")
            await _webhooks(page).update(id, version=version, url=url, **chosen)
            await page.note("edit_webhook", id)
            return page.redirect(page.url("/webhooks", open=id), f"{id} is saved.")
        made = await _webhooks(page).create(url, id=given["id"] or None, **chosen)
    except TreadleError as error:
        return await _form(page, id, given, events, error)
    await page.note("create_webhook", made.id)
    # Not a redirect, because the secret would have to be stored until the next request.
    return await _show(page, open=made.id, new_secret={"id": made.id, "secret": made.secret, "key": made.key})


# -- actions -----------------------------------------------------------------------------------------


async def enable(page: Page) -> Response:
    return await _switch(page, True)


async def disable(page: Page) -> Response:
    return await _switch(page, False)


async def _switch(page: Page, enabled: bool) -> Response:
    id = page.request.path_params["id"]
    await _webhooks(page).update(id, enabled=enabled)
    await page.note("enable_webhook" if enabled else "disable_webhook", id)
    text = f"{id} is on." if enabled else f"{id} is off; deliveries that wait are given up."
    return page.redirect(page.url("/webhooks", open=id), text)


async def test(page: Page) -> Response:
    id = page.request.path_params["id"]
    sent = await _webhooks(page).test(id)
    await page.note("test_webhook", id)
    back = page.url("/webhooks", open=id, delivery=sent.id)
    if sent.status is DeliveryStatus.DELIVERED:
        return page.redirect(back, f"{id} has received the test.")
    if sent.status is DeliveryStatus.PENDING:
        return page.redirect(back, f"The test for {id} waits: a worker or a server that runs jobs sends it.")
    last = sent.tries[-1] if sent.tries else None
    why = "" if last is None else last.error or f"it answered {last.status}"
    return page.redirect(back, f"The test for {id} failed: {why}.", "bad")


async def redeliver(page: Page) -> Response:
    id, delivery = page.request.path_params["id"], page.request.path_params["delivery"]
    await _webhooks(page).redeliver(id, delivery)
    await page.note("redeliver", id, reason=f"delivery {delivery}")
    return page.redirect(page.url("/webhooks", open=id, delivery=delivery), "It is sent again.")


async def body(page: Page) -> Response:
    """What was sent."""
    found = await _webhooks(page).delivery(page.request.path_params["id"], page.request.path_params["delivery"])
    headers = {**page.headers(), "Content-Disposition": f'inline; filename="{found.webhook_id}.json"'}
    return Response(found.body or "", headers=headers, media_type="application/json")


async def ask_rotate(page: Page) -> Response:
    id = page.request.path_params["id"]
    await _webhooks(page).get(id)
    question = Question(
        f"Rotate the secret of {id}?",
        page.url(f"/webhooks/{id}/rotate"),
        "Rotate",
        page.url("/webhooks", open=id),
        "Keep the old one",
        lines=[
            "A new secret is made and shown once.",
            "Until the old one ends both sign, so nothing is missed while you change the receiver.",
            "The old secret ends:",
        ],
        choices=[Choice("keep", value, text, note, value == "24h") for value, text, note in KEEP],
    )
    return await ask_page(page, question, section="Webhooks")


async def rotate(page: Page) -> Response:
    id = page.request.path_params["id"]
    rotated = await _webhooks(page).rotate(id, keep=await page.field("keep", "24h"))
    await page.note("rotate_webhook", id)
    return await _show(page, open=id, new_secret={"id": id, "secret": rotated.secret, "key": rotated.key})


async def ask_since(page: Page) -> Response:
    return await ask_page(page, await _since_question(page), section="Webhooks")


async def _since_question(page: Page, given: str = "", problem: str = "") -> Question:
    id = page.request.path_params["id"]
    one = await _webhooks(page).get(id)
    since = given or rfc3339(page.now - timedelta(days=1)) or ""
    if not given and one.state.failing_since_ms is not None:
        since = one.as_json()["failingSince"]
    return Question(
        "Send everything again?",
        page.url(f"/webhooks/{id}/since"),
        "Send",
        page.url("/webhooks", open=id),
        "Send nothing",
        lines=[f"Events for {id} that happened since then, as long as their jobs are kept."],
        fields=[Field("since", "Since", since, "a time, or an age such as 2h")],
        choices=[
            Choice("which", "undelivered", "Only what was not delivered", checked=True),
            Choice("which", "all", "Everything, delivered or not"),
        ],
        problems={"since": problem} if problem else {},
    )


async def since(page: Page) -> Response:
    id, given = page.request.path_params["id"], await page.field("since")
    only = await page.field("which") != "all"
    try:
        when = _since_of(given, page.now)
        count = await _webhooks(page).redeliver_since(id, when, only_undelivered=only)
    except InvalidInput as error:
        question = await _since_question(page, given, error.message)
        return await ask_page(page, question, section="Webhooks", status=400)
    await page.note("redeliver_since", id, reason=f"{count} since {given}")
    return page.redirect(page.url("/webhooks", open=id), f"{count:,} sent again.")


def _since_of(text: str, now: datetime) -> datetime:
    """An instant, or an age."""
    when = time_of(text, now, "since")
    return now - (when - now) if when > now else when


async def ask_delete(page: Page) -> Response:
    id = page.request.path_params["id"]
    await _webhooks(page).get(id)
    question = Question(
        f"Delete {id}?",
        page.url(f"/webhooks/{id}/delete"),
        "Delete",
        page.url("/webhooks", open=id),
        danger=True,
        lines=["It is told of nothing any more. Deliveries that wait are given up, and its secret is gone."],
    )
    return await ask_page(page, question, section="Webhooks")


async def delete(page: Page) -> Response:
    id = page.request.path_params["id"]
    await _webhooks(page).delete(id)
    await page.note("delete_webhook", id)
    return page.redirect(page.url("/webhooks"), f"{id} is deleted.")
