"""`treadle jobs …`: show and change jobs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import many, options
from treadle.cli.database import ask, named_database
from treadle.cli.job_ids import whole_id, whole_ids
from treadle.cli.output import (
    Column,
    age,
    complain,
    listed,
    print_facts,
    print_heading,
    print_json,
    print_table,
    relative,
    safe,
    say,
    status,
)
from treadle.insights.lists import COUNT_CAP, Count
from treadle.model.errors import InvalidInput, TreadleError

if TYPE_CHECKING:
    from datetime import datetime

    from rich.text import Text

    from treadle.insights.family import Family
    from treadle.model.events import Event
    from treadle.model.job import Job
    from treadle.queue import Queue

app = typer.Typer(help="Look at jobs and steer them.", rich_markup_mode=None)

Force = Annotated[bool, typer.Option("--force", help="Include completed jobs.")]


@app.command("list")
def list_jobs(
    topic: options.Topic = None,
    wanted_status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="pending, processing, waiting, cancelling, completed, failed, cancelled, expired or stale.",
        ),
    ] = None,
    scope: Annotated[str | None, typer.Option("--scope", metavar="SCOPE", help="Only jobs of this scope.")] = None,
    scope_id: Annotated[
        str | None, typer.Option("--scope-id", metavar="ID", help="Only jobs with this scope id.")
    ] = None,
    filter_: many.Filter = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, clamp=True, help="How many.")] = 30,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, clamp=True, help="How many to skip.")] = 0,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """List jobs, newest first."""
    chosen = {"topic": topic, "status": wanted_status, "scope": scope, "scope_id": scope_id, "filter": filter_}

    async def read(queue: Queue) -> tuple[Sequence[Job], Count, str]:
        where = named_database(queue, db)
        return await queue.list(**chosen, limit=limit, offset=offset), await queue.count(**chosen), where

    found, total, where = ask(db, read)
    if as_json:
        items = (job.as_json() for job in found)
        counted = min(total, COUNT_CAP)
        print_json(listed(items, totalItems=counted, totalCapped=total.capped, limit=limit, offset=offset))
        return
    if found:
        print_table(_COLUMNS, [_row(job) for job in found])
    _say_total(len(found), offset, total, where)


_COLUMNS = (
    Column("id"),
    Column("topic"),
    Column("status"),
    Column("try", number=True),
    Column("age", number=True),
    Column("note", flexible=True, extra=True),
)


def _row(job: Job) -> list[Text | str]:
    return [
        job.id,
        job.topic,
        status(job.status),
        f"{job.attempt}/{job.max_attempts}",
        age(job.created_at),
        note(job),
    ]


def note(job: Job) -> str:
    """The most useful detail next to the status."""
    from treadle.model.error_line import error_line

    if job.status == "pending":
        return _waits_for(job)
    if job.status in ("processing", "cancelling"):
        return f"{job.progress} % {job.progress_message or ''}".rstrip()
    return (
        "" if job.status == "completed" else error_line(job.last_error or job.cancel_reason or "", job.error_type or "")
    )


def _waits_for(job: Job) -> str:
    from treadle.model.error_line import error_line

    needs = [f"needs {job.capability}"] if job.capability else []
    due = [f"due {relative(job.run_at)}"] if job.attempt or job.run_at > job.created_at else []
    return ", ".join([*needs, *due, *([error_line(job.last_error, job.error_type or "")] if job.last_error else [])])


def _say_total(shown: int, offset: int, total: Count, where: str) -> None:
    many = f"more than {COUNT_CAP:,}" if total.capped else f"{total:,}"
    if not total:
        say(f"no jobs{where}")
    elif shown == total:
        say(f"{many} {'job' if total == 1 else 'jobs'}{where}")
    elif offset + shown < total:
        say(f"{shown} of {many} jobs{where}; go on with --offset {offset + shown}")
    else:
        say(f"{shown} of {many} jobs{where}")


@app.command()
def show(job_id: options.JobId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Show everything about a job, with its history."""

    async def read(queue: Queue) -> tuple[Job, Sequence[Event], Family]:
        from treadle.insights.family import family

        found = await queue.get(await whole_id(queue, job_id))
        return found, await queue.events(found.id), await family(queue.store, found)

    job, events, kin = ask(db, read)
    if as_json:
        from treadle.insights.timeline import event_as_json

        print_json({**job.as_json(), "events": [event_as_json(event) for event in events]})
        return
    print_facts(_facts(job))
    if job.steps:
        print_heading("\nsteps")
        for line in _step_tree(job.steps):
            print(safe(line))
    if kin.parents or kin.children:
        print_heading("\nfamily")
        for line in _family_tree(job, kin):
            print(safe(line))
    if job.last_error:
        print_heading("\nerror" if job.status == "failed" else "\nlast error")
        print(safe(job.last_error.rstrip()))
    print_heading("\nhistory")
    print_table(
        (Column("at"), Column("event"), Column("status"), Column("message", flexible=True)),
        [_event_row(event) for event in events],
    )


def _family_tree(job: Job, kin: Family) -> list[str]:
    """Parents, the job itself and its children, one line each."""
    lines = [f"{'   ' * depth}{_relative(one)}" for depth, one in enumerate(kin.parents)]
    indent = "   " * len(kin.parents)
    lines.append(f"{indent}{job.topic}  {job.status}  (this job)")
    more = kin.total - len(kin.children)
    children = [_relative(one) for one in reversed(kin.children)] + ([f"… {more:,} more"] if more else [])
    for place, line in enumerate(children):
        lines.append(f"{indent}{'└─' if place == len(children) - 1 else '├─'} {line}")
    return lines


def _relative(job: Job) -> str:
    return f"{job.topic}  {job.status}  {job.id}"


def _step_tree(steps: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each step, nested ones below the step that made them. Very many alike are counted."""
    lines = []
    folded = _Folded(steps)
    for place, step in enumerate(steps):
        if (told := folded.line(step)) is not None:
            lines += [told] if told else []
            continue
        depth, parent = step["id"].count("/"), step["id"].rpartition("/")[0]
        last = not any(later["id"].rpartition("/")[0] == parent for later in steps[place + 1 :])
        items = step["items"]
        runs = f" {items['done']}/{items['total']}" if items else ""
        failed = f" ({items['failed']} failed)" if items and items["failed"] else ""
        title = step["id"].rpartition("/")[2] if depth else step["name"]
        lines.append(f"{'   ' * depth}{'└─' if last else '├─'} {title}  {step['status']}{runs}{failed}{_took(step)}")
    return lines


# Of steps beside each other whose names differ only in their numbers, so many are shown.
MOST_ALIKE = 10
_SETTLED = ("completed", "skipped", "pending")
_DIGITS = re.compile(r"\d+")


class _Folded:
    """Which steps have no line of their own, and the line that counts them."""

    def __init__(self, steps: Sequence[dict[str, Any]]) -> None:
        self._alike: dict[str, list[dict[str, Any]]] = {}
        for step in steps:
            self._alike.setdefault(_DIGITS.sub("#", step["id"]), []).append(step)

    def line(self, step: dict[str, Any]) -> str | None:
        """None: show the step. A text, which may be empty: instead of it."""
        alike = self._alike[_DIGITS.sub("#", step["id"])]
        hidden = [one for one in alike[MOST_ALIKE:] if one["status"] in _SETTLED]
        if len(hidden) <= 1 or not any(one is step for one in hidden):
            return None
        if step is not hidden[0]:
            return ""
        counts = Counter(one["status"] for one in hidden)
        told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        return f"{'   ' * step['id'].count('/')}├─ … {len(hidden):,} more like {alike[0]['name']}: {told}"


def _took(step: dict[str, Any]) -> str:
    from datetime import datetime

    from treadle.model.durations import format_ms

    if step["startedAt"] is None or step["completedAt"] is None:
        return ""
    took = datetime.fromisoformat(step["completedAt"]) - datetime.fromisoformat(step["startedAt"])
    return f"  {format_ms(round(took.total_seconds() * 1000))}"


def _facts(job: Job) -> dict[str, Text | str]:
    from treadle.model.durations import PRIORITIES

    names = {value: name for name, value in PRIORITIES.items()}
    facts: dict[str, Text | str | None] = {
        "id": job.id,
        "topic": job.topic,
        "status": status(job.status),
        "stale": _time(job.stale_at),
        "attempt": f"{job.attempt} of {job.max_attempts}",
        "priority": names.get(job.priority, str(job.priority)),
        "progress": f"{job.progress} % {job.progress_message or ''}".rstrip(),
        "payload": _json(job.payload),
        "result": None if job.result_value is None else _json(job.result_value),
        "scope": " ".join(part for part in (job.scope, job.scope_id) if part) or None,
        "created by": job.created_by,
        "parent": job.parent_id,
        "idempotency key": job.idempotency_key,
        "capability": job.capability,
        "created": _time(job.created_at),
        "due": _time(job.run_at),
        "expires": _time(job.expires_at),
        "started": _time(job.started_at),
        "completed": _time(job.completed_at),
        "failed": _time(job.failed_at),
        "cancel asked": _time(job.cancel_requested_at),
        "cancelled": _time(job.cancelled_at),
        "reason": job.cancel_reason,
        "worker": job.locked_by,
        "lease until": _time(job.locked_until),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _time(when: datetime | None) -> str | None:
    from treadle.model.job import rfc3339

    return None if when is None else f"{rfc3339(when)} ({relative(when)})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _event_row(event: Event) -> list[Text | str]:
    from treadle.model.job import from_ms, rfc3339

    name = event.type.removeprefix("job:")
    return [rfc3339(from_ms(event.created_at)) or "", name, status(event.to_status or ""), event.message]


@app.command()
def why(job_id: options.JobId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Say why a job is not running."""

    async def read(queue: Queue) -> tuple[Job, Sequence[str]]:
        found = await queue.get(await whole_id(queue, job_id))
        return found, await queue.why(found.id)

    job, reasons = ask(db, read)
    if as_json:
        print_json({"id": job.id, "status": str(job.status), "reasons": list(reasons)})
    elif reasons:
        for reason in reasons:
            say(reason)
    else:
        say(f"it is {job.status}" if job.status != "pending" else "nothing is blocking it")


@app.command()
def requeue(
    job_ids: options.JobIds = None,
    force: Force = False,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", metavar="MODE", help="Which steps run again: unfinished (default), all, or from --step on."
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="NAME", help="With --mode from: the first step to run.")
    ] = None,
    topic: options.Topic = None,
    wanted_status: many.Status = None,
    filter_: many.Filter = None,
    search: many.Search = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which jobs, or which steps of the named ones, would run.")
    ] = False,
    confirm: many.Confirm = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Put ended jobs back with all their attempts. Name them by id, or take all that match."""
    if chosen := many.wanted(job_ids, topic, wanted_status, filter_, search):
        if mode or step:
            raise InvalidInput("--mode and --step are for jobs named by their ids")
        change = many.bulk_change("requeue", force=force)
        many.change_many(change, chosen, only_dry=dry_run, confirm=confirm, db=db, as_json=as_json)
        return
    ids = job_ids or []
    if dry_run:
        _plan_requeue(ids, force, mode, step, db, as_json)
        return
    _steer("requeued", ids, lambda queue, job_id: queue.requeue(job_id, force=force, mode=mode, step=step), db, as_json)


def _plan_requeue(
    job_ids: Sequence[str], force: bool, mode: str | None, step: str | None, db: str | None, as_json: bool
) -> None:
    async def plans(queue: Queue) -> list[tuple[str, list[str]]]:
        found = [
            await queue.requeue_plan(one, force=force, mode=mode, step=step) for one in await whole_ids(queue, job_ids)
        ]
        return [(plan.job.id, plan.steps) for plan in found]

    found = ask(db, plans)
    if as_json:
        print_json(listed({"id": job_id, "wouldRun": steps} for job_id, steps in found))
        return
    for job_id, steps in found:
        say(f"{job_id} would run {', '.join(steps) or 'again; it has no steps'}")


@app.command()
def signal(
    job_id: options.JobId,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The waiting step.")],
    result: Annotated[str | None, typer.Argument(metavar="[JSON]", help="The answer. Default: null.")] = None,
    error: Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Answer with an error instead.")] = None,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The key of one run of the step.")] = "",
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer a step that is waiting, or will wait."""
    from treadle.model.payload import loads

    value = None if result is None else loads(result, "result")

    async def answer(queue: Queue) -> Job:
        return await queue.signal(await whole_id(queue, job_id), step, value, error=error, key=key)

    job = ask(db, answer)
    if as_json:
        print_json(job.as_json())
    else:
        say(f"{job_id}: step {step} is answered; the job is {job.status}")


@app.command()
def cancel(
    job_ids: options.JobIds = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Stored with the job.")] = "",
    topic: options.Topic = None,
    wanted_status: many.Status = None,
    filter_: many.Filter = None,
    search: many.Search = None,
    dry_run: many.DryRun = False,
    confirm: many.Confirm = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Stop jobs: pending ones immediately, running ones at their next checkpoint."""
    if chosen := many.wanted(job_ids, topic, wanted_status, filter_, search):
        change = many.bulk_change("cancel", reason=reason)
        many.change_many(change, chosen, only_dry=dry_run, confirm=confirm, db=db, as_json=as_json)
        return
    _without_dry_run(dry_run)
    _steer("", job_ids or [], lambda queue, job_id: queue.cancel(job_id, reason), db, as_json)


@app.command()
def delete(
    job_ids: options.JobIds = None,
    force: Force = False,
    topic: options.Topic = None,
    wanted_status: many.Status = None,
    filter_: many.Filter = None,
    search: many.Search = None,
    dry_run: many.DryRun = False,
    confirm: many.Confirm = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete jobs that are pending, failed, cancelled or expired."""
    if chosen := many.wanted(job_ids, topic, wanted_status, filter_, search):
        change = many.bulk_change("delete", force=force)
        many.change_many(change, chosen, only_dry=dry_run, confirm=confirm, db=db, as_json=as_json)
        return
    _without_dry_run(dry_run)
    _steer("deleted", job_ids or [], lambda queue, job_id: queue.delete(job_id, force=force), db, as_json)


def _without_dry_run(asked: bool) -> None:
    if asked:
        raise InvalidInput("--dry-run is for jobs chosen with --filter, --search, --topic or --status")


JobAction = Callable[["Queue", str], Awaitable["Job | None"]]


def _steer(done: str, job_ids: Sequence[str], action: JobAction, db: str | None, as_json: bool) -> None:
    """Apply to each job; a refusal is reported on stderr and does not stop the others."""
    answers = ask(db, lambda queue: _each(queue, job_ids, action))
    refused = {job_id: answer for job_id, answer in answers.items() if isinstance(answer, TreadleError)}
    if as_json:
        changed = [(job_id, answer) for job_id, answer in answers.items() if job_id not in refused]
        print_json(
            listed(
                (answer.as_json() if answer is not None and not isinstance(answer, TreadleError) else {"id": job_id})
                for job_id, answer in changed
            )
            | {"errors": [{"id": i, "code": error.code, "message": error.message} for i, error in refused.items()]}
        )
    for job_id, answer in answers.items():
        if isinstance(answer, TreadleError):
            complain(f"{job_id}: {answer.message}" if job_id not in answer.message else answer.message)
        elif not as_json:
            say(f"{job_id} {done or (answer.status if answer else '')}")
    if refused:
        raise typer.Exit(1)


async def _each(queue: Queue, job_ids: Sequence[str], action: JobAction) -> dict[str, Job | TreadleError | None]:
    answers: dict[str, Job | TreadleError | None] = {}
    for job_id in dict.fromkeys(job_ids):
        try:
            answers[job_id] = await action(queue, await whole_id(queue, job_id))
        except TreadleError as error:
            answers[job_id] = error
    return answers
