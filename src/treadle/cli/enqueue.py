"""`treadle enqueue`: create a job by hand."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import named_database, writable
from treadle.cli.output import print_json, relative, say
from treadle.model.durations import duration_ms

if TYPE_CHECKING:
    from treadle.model.job import Job
    from treadle.queue import Queue


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="What kind of job.", show_default=False)]
PayloadArgument = Annotated[
    str,
    typer.Argument(metavar="[PAYLOAD]", help="A JSON object; - reads it from stdin.", show_default=False),
]
DelayOption = Annotated[
    str | None, typer.Option("--delay", metavar="TIME", help='Run it after this delay, such as "15m".')
]
RunAtOption = Annotated[
    str | None, typer.Option("--run-at", metavar="TIME", help="Run it at this time, such as 2026-12-24T18:00:00Z.")
]
PriorityOption = Annotated[
    str | None,
    typer.Option("--priority", metavar="P", help="critical, high, normal, low, background, or an integer."),
]
MaxAttemptsOption = Annotated[
    int | None, typer.Option("--max-attempts", metavar="N", help="Give up after this many failures.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Idempotency key: the same key makes no second job."),
]
ScopeOption = Annotated[str | None, typer.Option("--scope", metavar="SCOPE", help="The kind of owner, such as user.")]
ScopeIdOption = Annotated[str | None, typer.Option("--scope-id", metavar="ID", help="Which one, such as 42.")]
CapabilityOption = Annotated[
    str | None,
    typer.Option("--capability", metavar="NAME", help="Only a worker with this capability may run it."),
]
WebhookOption = Annotated[
    str | None, typer.Option("--webhook-url", metavar="URL", help="Told when the job ends or is tried again.")
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until the job ends; exit with 1 if it does not complete.")
]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long --wait waits. The job itself goes on.")
]
CreateOption = Annotated[bool, typer.Option("--create", help="Make the SQLite file if it does not exist.")]


def enqueue(
    topic: TopicArgument,
    payload: PayloadArgument = "{}",
    delay: DelayOption = None,
    run_at: RunAtOption = None,
    priority: PriorityOption = None,
    max_attempts: MaxAttemptsOption = None,
    key: KeyOption = None,
    scope: ScopeOption = None,
    scope_id: ScopeIdOption = None,
    capability: CapabilityOption = None,
    webhook_url: WebhookOption = None,
    wait: WaitOption = False,
    timeout: TimeoutOption = "10m",
    create: CreateOption = False,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Enqueue a job.

    It is stored when the command has returned, and runs as soon as a worker serves its topic.
    """
    chosen = {
        "delay": delay,
        "run_at": None if run_at is None else options.instant(run_at, "--run-at"),
        "priority": options.priority(priority),
        "max_attempts": max_attempts,
        "idempotency_key": key,
        "scope": scope,
        "scope_id": scope_id,
        "capability": capability,
        "webhook_url": webhook_url,
    }
    waiting_ms = duration_ms(timeout, "--timeout") if wait else None
    job = asyncio.run(_enqueue(db, topic, _parsed(payload), chosen, waiting_ms, create=create, quiet=as_json))
    if as_json:
        print_json({**job.as_json(), "deduplicated": job.deduplicated})
    elif wait:
        _say_ending(job)
    if wait and job.status != "completed":
        raise typer.Exit(1)


def _parsed(text: str) -> Any:
    from treadle.model.payload import loads

    return loads(sys.stdin.buffer.read() if text == "-" else text)


async def _enqueue(
    db: str | None,
    topic: str,
    payload: Any,
    chosen: dict[str, Any],
    waiting_ms: int | None,
    *,
    create: bool,
    quiet: bool,
) -> Job:
    _check(topic, payload, chosen)
    async with writable(db, create=create) as queue:
        job = await queue.enqueue(topic, payload, **chosen)
        if not quiet:
            _say_made(job, named_database(queue, db))
        if waiting_ms is None:
            return job
        sys.stdout.flush()
        ended = await _ended(queue, job, waiting_ms / 1000, quiet)
        ended.deduplicated = job.deduplicated
        return ended


def _check(topic: str, payload: Any, chosen: dict[str, Any]) -> None:
    """Report invalid arguments before looking for a database."""
    from treadle.model.template import plain_template
    from treadle.queue.enqueueing.new_jobs import JobMaker

    JobMaker(plain_template(topic), None, None, **chosen).jobs([payload])


async def _ended(queue: Queue, job: Job, seconds: float, quiet: bool) -> Job:
    from treadle.model.errors import JobFailed, ResultTimeout

    if not quiet:
        for reason in await queue.why(job.id):
            if reason.startswith("no live worker"):
                say(f"{reason}; waiting for one")
        sys.stdout.flush()
    try:
        await queue.result(job.id, timeout=seconds)
    except JobFailed:
        pass
    except ResultTimeout as late:
        why = "; ".join(await queue.why(job.id))
        raise ResultTimeout(f"{late.message}{f': {why}' if why else ''}", id=job.id) from None
    return await queue.get(job.id)


def _say_made(job: Job, where: str) -> None:
    if job.deduplicated:
        say(f"job {job.id} is there already{where}, {job.status}")
    elif job.run_at > job.created_at:
        say(f"enqueued job {job.id}{where}, due {relative(job.run_at)}")
    else:
        say(f"enqueued job {job.id}{where}")


def _say_ending(job: Job) -> None:
    from pydantic_core import to_json

    if job.status == "completed":
        say(f"completed: {to_json(job.result_value).decode()}")
    else:
        from treadle.model.error_line import error_line

        say(f"{job.status}: {error_line(job.last_error or job.cancel_reason or '', job.error_type or '')}".rstrip(": "))
