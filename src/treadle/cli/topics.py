"""`treadle topics …`: the topics with their work, and pausing one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import Column, print_json, print_list, say
from treadle.model.errors import TreadleError
from treadle.model.topic_patterns import is_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from treadle.queue import Queue
    from treadle.store.views import Topic

app = typer.Typer(help="List topics, or pause one.", rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name, or a group such as 'mail.*'.", show_default=False)
]

_COLUMNS = (
    Column("topic", flexible=True),
    Column("state", flexible=True),
    Column("due", number=True),
    Column("later", number=True),
    Column("running", number=True),
    Column("oldest due", number=True),
)


@app.command("list")
def list_topics(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List topics with their pending and running jobs, and what holds the due ones back."""
    from treadle.insights.overview import now

    found = ask(db, lambda queue: now(queue.store))
    from treadle.insights.delays import delay

    rows, documents = [], []
    for topic in found.topics:
        waits = delay(found, topic)
        state = _state(topic, waits.cause.value if waits else "")
        oldest = found.oldest_due(topic.topic)
        later = sum(one.jobs for one in topic.backlog if not one.due)
        due = found.due(topic.topic)
        documents.append(_document(topic, due, later, state))
        waited = options.length(found.at - oldest) if oldest is not None else ""
        rows.append([topic.topic, state, f"{due:,}", f"{later:,}", f"{topic.processing:,}", waited])
    print_list(documents, _COLUMNS, rows, "no topics", as_json)


def _state(topic: Topic, cause: str) -> str:
    until = _until(topic)
    if topic.paused_until is not None:
        return f"paused until {until}" if until else "paused"
    words = {"key": "key is full", "rate": "rate is full", "slots": "slots full", "unclaimed": "due"}
    return words.get(cause, cause) or ("running" if topic.processing else "idle")


def _until(topic: Topic) -> str | None:
    from treadle.model.job import from_ms, rfc3339
    from treadle.store.views import FOREVER

    return rfc3339(from_ms(topic.paused_until)) if topic.paused_until and topic.paused_until < FOREVER else None


def _document(topic: Topic, due: int, later: int, state: str) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "paused": topic.paused_until is not None,
        "pausedUntil": _until(topic),
        "state": state,
        "due": due,
        "later": later,
        "pending": topic.pending,
        "processing": topic.processing,
    }


@app.command()
def pause(
    topic: Name,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="WHEN",
            help="A length such as 1h, or a time such as 2026-12-24T18:00:00Z.",
        ),
    ] = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Start no more jobs of a topic; running ones go on, and new ones stay pending."""
    end = options.until(until)
    ask(db, lambda queue: _pause(queue, topic, end))
    _say(topic, True, end, as_json)


async def _pause(queue: Queue, topic: str, until: datetime | None) -> None:
    await _known(queue, topic)
    await queue.pause(topic, until)


@app.command()
def resume(topic: Name, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Start the jobs of a paused topic again."""
    ask(db, lambda queue: _resume(queue, topic))
    _say(topic, False, None, as_json)


async def _resume(queue: Queue, topic: str) -> None:
    await _known(queue, topic)
    await queue.resume(topic)


async def _known(queue: Queue, topic: str) -> None:
    """A typing error would pause a topic that nobody has."""
    known: Sequence[str] = [one.topic for one in await queue.topics()]
    if topic not in known and not is_pattern(topic):
        raise TreadleError(f"no topic has the name {topic}; treadle topics list shows them")


def _say(topic: str, paused: bool, until: datetime | None, as_json: bool) -> None:
    from treadle.model.job import rfc3339

    if as_json:
        print_json({"topic": topic, "paused": paused, "pausedUntil": rfc3339(until)})
    elif paused:
        say(f"{topic} is paused" + (f" until {rfc3339(until)}" if until else " until it is resumed"))
    else:
        say(f"{topic} is running again")
