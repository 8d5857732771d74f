"""`treadle jobs output`: what a job emits."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.jobs import app
from treadle.cli.output import Column, complain, listed, print_json, print_table, safe, say

if TYPE_CHECKING:
    from treadle.events.output import OutputEvent
    from treadle.queue import Queue
    from treadle.store.views import OutputState


@app.command("output")
def output(
    job_id: options.JobId,
    channel: Annotated[
        str | None, typer.Argument(metavar="[CHANNEL]", help="Such as tokens; without it, list the job's channels.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Begin after the value with this number.")
    ] = 0,
    latest: Annotated[bool, typer.Option("--latest", help="Only what comes from now on; with --follow.")] = False,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a job emits to a channel: texts as they are, other values as JSON, one in a line.

    With --json each value is a line with its number and attempt.
    """
    if channel is None:
        _list_channels(ask(db, lambda queue: _state(queue, job_id)), as_json)
        return

    async def read(queue: Queue) -> None:
        if follow:
            async for event in queue.output(job_id, channel, after=after, latest=latest, events=True):
                _print(event, as_json)
        else:
            await _print_page(queue, job_id, channel, after, as_json)

    ask(db, read)


async def _state(queue: Queue, job_id: str) -> OutputState:
    found = (await queue.store.output_states([(await queue.get(job_id)).id])).get(job_id)
    assert found, "the job exists"
    return found


def _list_channels(state: OutputState, as_json: bool) -> None:
    rows = sorted(state.channels.items())
    if as_json:
        print_json(listed({"channel": name, "values": one.last, "bytes": one.bytes} for name, one in rows))
    elif rows:
        columns = (Column("channel"), Column("values", number=True), Column("bytes", number=True))
        print_table(columns, [[name, f"{one.last:,}", f"{one.bytes:,}"] for name, one in rows])
    else:
        say("the job has emitted nothing")


async def _print_page(queue: Queue, job_id: str, channel: str, after: int, as_json: bool) -> None:
    """What there is now, without waiting."""
    from treadle.events.output import OutputReader

    reader = OutputReader(queue.output_watch, queue.store, job_id, channel, after)
    await reader.begin()
    try:
        while events := await reader.page():
            for event in events:
                _print(event, as_json)
            if events[-1].kind == "end":
                break
    finally:
        reader.close()


def _print(event: OutputEvent, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_json(event)), flush=True)
    elif event.kind == "value":
        text = event.value if isinstance(event.value, str) else json.dumps(event.value) + "\n"
        print(safe(text), end="", flush=True)
    elif event.kind == "reset":
        print(flush=True)
        complain(f"attempt {event.attempt} begins anew")
    elif sys.stdout.isatty():
        print(flush=True)


def _as_json(event: OutputEvent) -> dict[str, Any]:
    if event.kind == "value":
        return {"event": "value", "id": event.id, "attempt": event.attempt, "value": event.value}
    if event.kind == "reset":
        return {"event": "reset", "attempt": event.attempt}
    return {"event": "end", "status": event.status}


__all__ = ["app"]
