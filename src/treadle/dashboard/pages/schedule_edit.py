"""Make a schedule, or edit one: a form that shows what it means before it is saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from starlette.responses import Response

from treadle.dashboard import words
from treadle.dashboard.forms import count_of, object_of, problem_of, time_of
from treadle.dashboard.page import Page
from treadle.dashboard.schedule_rows import LAST, RunTime, clock_words, last_runs, offset_words, run_times
from treadle.model.durations import format_ms
from treadle.model.errors import InvalidInput, TreadleError, VersionConflict
from treadle.model.job import rfc3339
from treadle.policy.cron import time_zone
from treadle.policy.schedule import Schedule
from treadle.policy.schedule_outlook import CronPart, cron_parts

FIELDS = (
    "id", "topic", "cron", "every", "timezone", "startAt", "endAt", "jitter", "payload", "scope", "scopeId",
    "missed", "overlap", "version",
)  # fmt: skip
EMPTY = dict.fromkeys(FIELDS, "") | {
    "timezone": "UTC",
    "payload": "{}",
    "missed": "one",
    "overlap": "allow",
    "jitter": "0",
}
EXAMPLES = (
    ("@daily", "@daily"),
    ("0 9 * * MON-FRI", "weekdays at 09:00"),
    ("0 */6 * * *", "every 6 hours"),
    ("0 6 1 * *", "on the 1st"),
)
ZONES = "UTC Europe/Berlin Europe/London America/New_York America/Los_Angeles Asia/Taipei Asia/Tokyo".split()


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a schedule means: in words, its parts, its next runs, and what is wrong with it."""

    words: str = ""
    parts: list[CronPart] = field(default_factory=list)
    runs: list[RunTime] = field(default_factory=list)
    clock: str = ""
    zone_now: str = ""
    fits: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    problem: str = ""


async def new(page: Page) -> Response:
    given = EMPTY | {name: page.query(name) for name in ("topic", "cron") if page.query(name)}
    outlook = await _outlook(page, given) if given["cron"] else Outlook()
    return await _show(page, None, given, outlook)


async def edit(page: Page) -> Response:
    schedule = await page.state.queue.schedules.get(page.request.path_params["id"])
    given = _given(schedule)
    if page.query("cron"):
        given |= {"cron": page.query("cron"), "every": ""}
    return await _show(page, schedule, given, await _outlook(page, given))


def _given(schedule: Schedule) -> dict[str, str]:
    return {
        "id": schedule.id,
        "topic": schedule.topic,
        "cron": schedule.cron or "",
        "every": "" if schedule.every_ms is None else format_ms(schedule.every_ms),
        "timezone": schedule.timezone,
        "startAt": rfc3339(schedule.start_at) or "",
        "endAt": rfc3339(schedule.end_at) or "",
        "jitter": str(schedule.jitter_ms // 1000),
        "payload": words.pretty_json(schedule.payload),
        "scope": schedule.scope or "",
        "scopeId": schedule.scope_id or "",
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "version": str(schedule.version),
    }


async def _posted(page: Page) -> dict[str, str]:
    return {name: await page.field(name, EMPTY[name] if name in ("missed", "overlap") else "") for name in FIELDS}


async def _show(
    page: Page,
    schedule: Schedule | None,
    given: dict[str, str],
    outlook: Outlook,
    *,
    refused: str = "",
    status: int = 400,
) -> Response:
    now = await page.state.queue.schedules.now()
    jobs = await page.state.queue.schedules.recent_jobs([schedule] if schedule else [], LAST)
    here = page.url(f"/schedules/{schedule.id}") if schedule else page.url("/new-schedule")
    return await page.render(
        "schedule",
        status if refused else 200,
        section="Schedules",
        title=schedule.id if schedule else "New schedule",
        schedule=schedule,
        form=given,
        outlook=outlook,
        refused=refused,
        action=here,
        examples=[(text, f"{here}?cron={_quoted(cron)}", cron) for cron, text in EXAMPLES],
        last=last_runs(schedule, jobs)[::-1] if schedule else [],
        topics=[one.topic for one in (await page.state.now.get()).topics],
        zones=ZONES,
        now_ms=now,
    )


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


async def preview(page: Page) -> Response:
    """The parts of the form that show what it means, for JavaScript."""
    outlook = await _outlook(page, await _posted(page))
    return await page.render("schedule_preview", fragment=True, title="", outlook=outlook)


async def save(page: Page) -> Response:
    id_ = page.request.path_params.get("id")
    queue = page.state.queue
    schedule = await queue.schedules.get(id_) if id_ else None
    given = await _posted(page)
    if await page.field("preview"):
        return await _show(page, schedule, given, await _outlook(page, given))
    try:
        options = _options(given, page.now)
        if schedule is None:
            if given["id"]:
                options["id"] = given["id"]
            creator = page.caller.account_id if page.caller else None
            made = await queue.schedules.create(given["topic"], created_by=creator, **options)
        else:
            topic = given["topic"] or schedule.topic
            version = count_of(given["version"], "version")
            made = await queue.schedules.update(schedule.id, version=version, topic=topic, **options)
    except VersionConflict as error:
        assert schedule is not None
        return await _conflict(page, schedule.id, given, error)
    except TreadleError as error:
        problems = problem_of(error) if isinstance(error, InvalidInput) else {}
        outlook = await _outlook(page, given)
        shown = Outlook(**{**_fields(outlook), "problems": {**outlook.problems, **_renamed(problems)}})
        return await _show(page, schedule, given, shown, refused=error.message)
    await page.note("edit_schedule" if schedule else "create_schedule", made.id)
    return page.redirect(page.url("/schedules", open=made.id), f"{made.id} is saved: {made.description}.")


async def _conflict(page: Page, id_: str, given: dict[str, str], error: VersionConflict) -> Response:
    """Someone else saved first: show what differs and keep the input. Saving again overwrites it."""
    saved = await page.state.queue.schedules.get(id_)
    now = _given(saved)
    differs = [f"{name} {now[name] or 'empty'}" for name in FIELDS[1:-1] if now[name] != given[name]]
    text = f"{error.message}. Saved now: {', '.join(differs) or 'the same as here'}. Saving again overwrites it."
    kept = given | {"version": now["version"]}
    return await _show(page, saved, kept, await _outlook(page, kept), refused=text, status=409)


def _fields(outlook: Outlook) -> dict[str, Any]:
    return {name: getattr(outlook, name) for name in Outlook.__dataclass_fields__}


def _renamed(problems: dict[str, str]) -> dict[str, str]:
    names = {"start_at": "startAt", "end_at": "endAt", "jitterSeconds": "jitter", "scope_id": "scopeId"}
    return {names.get(name, name): text for name, text in problems.items()}


def _options(given: dict[str, str], now: datetime) -> dict[str, Any]:
    """The form's fields as arguments of `queue.schedules`; an error names the field."""
    return {
        "cron": given["cron"] or None,
        "every": given["every"] or None,
        "timezone": given["timezone"] or "UTC",
        "payload": object_of(given["payload"] or "{}"),
        "scope": given["scope"] or None,
        "scope_id": given["scopeId"] or None,
        "start_at": time_of(given["startAt"], now, "startAt") if given["startAt"] else None,
        "end_at": time_of(given["endAt"], now, "endAt") if given["endAt"] else None,
        "jitter": count_of(given["jitter"], "jitter") or 0,
        "missed": given["missed"],
        "overlap": given["overlap"],
    }


async def _outlook(page: Page, given: dict[str, str]) -> Outlook:
    """Nothing is stored. Each problem stands at its field; what can be shown is shown."""
    schedules = page.state.queue.schedules
    now = await schedules.now()
    try:
        saved = given["id"] if given["version"] else None
        schedule = await schedules.draft(given["topic"] or "topic", _options(given, page.now), now, saved)
    except TreadleError as error:
        problems = problem_of(error) if isinstance(error, InvalidInput) else {"topic": error.message}
        return Outlook(problems=_renamed(problems), zone_now=_zone_now(page, given["timezone"]))
    fits, problem = "", ""
    if given["topic"]:
        try:
            job = await schedules.check(schedule, now)
            fits = f"The next job gets {job.payload[:200]}" if job else "The template is disabled; nothing is checked."
        except TreadleError as error:
            problem = error.message
    return Outlook(
        f"{schedule.description}.",
        list(cron_parts(schedule.cron)) if schedule.cron else [],
        run_times(schedule, now),
        clock_words(schedule, now),
        _zone_now(page, schedule.timezone),
        fits,
        {"payload": problem} if problem else {},
    )


def _zone_now(page: Page, name: str) -> str:
    try:
        local = page.now.astimezone(time_zone(name or "UTC"))
    except InvalidInput:
        return ""
    return f"now {local:%H:%M}, {offset_words(local)}"
