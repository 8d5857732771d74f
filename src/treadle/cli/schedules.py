"""`treadle schedules …`: show, create, change and run schedules."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import (
    Column,
    listed,
    print_facts,
    print_heading,
    print_json,
    print_list,
    print_table,
    relative,
    say,
)
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from datetime import datetime

    from treadle.policy.schedule import Schedule
    from treadle.queue import Queue

app = typer.Typer(help="List, create, change and run schedules.", rich_markup_mode=None)
T = TypeVar("T")

ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.", show_default=False)]
Cron = Annotated[
    str | None,
    typer.Option("--cron", metavar="CRON", help="Five or six fields, or @daily, @hourly, …", show_default=False),
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="DURATION", help="An interval such as 90s.", show_default=False)
]
Timezone = Annotated[
    str | None,
    typer.Option("--timezone", metavar="ZONE", help="Such as Asia/Taipei; UTC if left out.", show_default=False),
]
Payload = Annotated[
    str | None,
    typer.Option(
        "--payload",
        metavar="JSON",
        help="The jobs' payload. May contain {{scheduledAt}}, {{previousAt}} and {{scheduleId}}.",
        show_default=False,
    ),
]
Scope = Annotated[str | None, typer.Option("--scope", metavar="SCOPE", help="The jobs' scope.", show_default=False)]
ScopeIdOption = Annotated[
    str | None, typer.Option("--scope-id", metavar="ID", help="The jobs' scope id.", show_default=False)
]
Missed = Annotated[
    str | None,
    typer.Option(
        "--missed", metavar="POLICY", help="Run skip (none), one or all of the missed slots.", show_default=False
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="POLICY",
        help="allow, skip or queue a run while earlier jobs have not ended.",
        show_default=False,
    ),
]
Jitter = Annotated[
    str | None,
    typer.Option(
        "--jitter", metavar="DURATION", help="Delay each job by a random time up to this.", show_default=False
    ),
]
Start = Annotated[
    str | None, typer.Option("--start", metavar="TIME", help="No run before this time.", show_default=False)
]
End = Annotated[str | None, typer.Option("--end", metavar="TIME", help="No run after this time.", show_default=False)]


@app.command("list")
def list_schedules(topic: options.Topic = None, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List all schedules, oldest first."""
    found, now = ask(db, lambda queue: _with_now(queue, queue.schedules.list(topic)))
    rows = [_row(one) for one in found]
    print_list((one.as_json(now) for one in found), _COLUMNS, rows, "no schedules", as_json)
    if found and not as_json:
        say(f"{len(found)} {'schedule' if len(found) == 1 else 'schedules'}")


_COLUMNS = (
    Column("id"),
    Column("topic"),
    Column("when", flexible=True),
    Column("next run"),
    Column("last run"),
    Column("note", flexible=True, extra=True),
)


def _row(schedule: Schedule) -> list[Any]:
    return [
        schedule.id,
        schedule.topic,
        schedule.description,
        _away(schedule.next_run_at) or ("off" if not schedule.enabled else "never"),
        _away(schedule.last_run_at),
        schedule.problem or "",
    ]


@app.command()
def show(schedule_id: ScheduleId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Show everything about a schedule."""
    schedule, now = ask(db, lambda queue: _with_now(queue, queue.schedules.get(schedule_id)))
    _print_one(schedule, now, as_json)


@app.command("next")
def next_runs(
    schedule_id: ScheduleId,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=1000, clamp=True, help="How many.")] = 5,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Show when a schedule runs next, in its own time zone and in UTC."""
    from treadle.model.job import from_ms, rfc3339

    schedule, now = ask(db, lambda queue: _with_now(queue, queue.schedules.get(schedule_id)))
    times = [found for ms in schedule.next_runs(now, count) if (found := from_ms(ms))]
    if as_json:
        print_json(listed(rfc3339(one) for one in times))
        return
    for one in times:
        say(f"{_local(one, schedule.timezone)}  {rfc3339(one)}  {relative(one)}")


@app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of its jobs.", show_default=False)],
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    payload: Payload = None,
    scope: Scope = None,
    scope_id: ScopeIdOption = None,
    missed: Missed = None,
    overlap: Overlap = None,
    jitter: Jitter = None,
    start: Start = None,
    end: End = None,
    schedule_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Generated if left out.", show_default=False)
    ] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it without running it yet.")] = False,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a schedule."""
    chosen = _chosen(every, timezone, payload, scope, scope_id, missed, overlap, jitter, start, end)

    async def make(queue: Queue) -> tuple[Schedule, int]:
        made = queue.schedules.create(topic, cron, id=schedule_id, enabled=not disabled, **chosen)
        return await _with_now(queue, made)

    _print_one(*ask(db, make), as_json)


@app.command()
def edit(
    schedule_id: ScheduleId,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    payload: Payload = None,
    scope: Scope = None,
    scope_id: ScopeIdOption = None,
    missed: Missed = None,
    overlap: Overlap = None,
    jitter: Jitter = None,
    start: Start = None,
    end: End = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Change the given options of a schedule. This makes no catch-up run."""
    chosen = _chosen(every, timezone, payload, scope, scope_id, missed, overlap, jitter, start, end)
    if cron is not None:
        chosen["cron"] = cron
    if not chosen:
        raise InvalidInput("nothing to change; see treadle schedules edit --help")
    changed = ask(db, lambda queue: _with_now(queue, queue.schedules.update(schedule_id, **chosen)))
    _print_one(*changed, as_json)


@app.command()
def enable(schedule_id: ScheduleId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Run a schedule again, starting with its next run."""
    _print_one(*ask(db, lambda queue: _with_now(queue, queue.schedules.enable(schedule_id))), as_json)


@app.command()
def disable(schedule_id: ScheduleId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Make no more jobs; existing ones still run."""
    _print_one(*ask(db, lambda queue: _with_now(queue, queue.schedules.disable(schedule_id))), as_json)


@app.command()
def run(schedule_id: ScheduleId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Make a job now. The next run does not change."""
    job = ask(db, lambda queue: queue.schedules.run(schedule_id))
    if as_json:
        print_json(job.as_json())
    else:
        say(job.id)


@app.command()
def delete(schedule_id: ScheduleId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Delete a schedule; the jobs that it made stay."""
    ask(db, lambda queue: queue.schedules.delete(schedule_id))
    if as_json:
        print_json({"id": schedule_id})
    else:
        say(f"{schedule_id} deleted")


async def _with_now(queue: Queue, found: Awaitable[T]) -> tuple[T, int]:
    return await found, await queue.schedules.now()


def _chosen(
    every: str | None,
    timezone: str | None,
    payload: str | None,
    scope: str | None,
    scope_id: str | None,
    missed: str | None,
    overlap: str | None,
    jitter: str | None,
    start: str | None,
    end: str | None,
) -> dict[str, Any]:
    """The given options as Python arguments."""
    from treadle.model.payload import loads

    found = {
        "every": every,
        "timezone": timezone,
        "payload": None if payload is None else loads(payload),
        "scope": scope,
        "scope_id": scope_id,
        "missed": missed,
        "overlap": overlap,
        "jitter": jitter,
        "start_at": None if start is None else options.instant(start, "--start"),
        "end_at": None if end is None else options.instant(end, "--end"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _print_one(schedule: Schedule, now: int, as_json: bool) -> None:
    if as_json:
        print_json(schedule.as_json(now))
        return
    print_facts(_facts(schedule))
    if schedule.enabled:
        from treadle.model.job import from_ms

        print_heading("\nnext runs")
        for ms in schedule.next_runs(now):
            if when := from_ms(ms):
                say(f"{_local(when, schedule.timezone)}  {relative(when)}")
    if schedule.events:
        print_heading("\nskipped")
        print_table((Column("at"), Column("why", flexible=True)), _events(schedule))


def _facts(schedule: Schedule) -> dict[str, str]:
    from treadle.model.durations import format_ms

    facts = {
        "id": schedule.id,
        "topic": schedule.topic,
        "when": schedule.description,
        "cron": schedule.cron,
        "enabled": "yes" if schedule.enabled else "no",
        "problem": schedule.problem,
        "payload": json.dumps(schedule.payload, ensure_ascii=False),
        "scope": " ".join(part for part in (schedule.scope, schedule.scope_id) if part) or None,
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "jitter": format_ms(schedule.jitter_ms) if schedule.jitter_ms else None,
        "starts": _time(schedule.start_at),
        "ends": _time(schedule.end_at),
        "last run": _time(schedule.last_run_at),
        "last job": schedule.last_job_id,
        "created by": schedule.created_by,
        "defined in": schedule.source,
        "version": str(schedule.version),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _events(schedule: Schedule) -> Sequence[list[str]]:
    from treadle.model.job import from_ms

    return [[_time(from_ms(one.at_ms)) or "", one.message] for one in schedule.events]


def _time(when: datetime | None) -> str | None:
    from treadle.model.job import rfc3339

    return None if when is None else f"{rfc3339(when)} ({relative(when)})"


def _away(when: datetime | None) -> str:
    return "" if when is None else relative(when)


def _local(when: datetime, timezone: str) -> str:
    from treadle.policy.cron import time_zone

    return when.astimezone(time_zone(timezone)).strftime("%a %d %b %Y %H:%M:%S %z")
