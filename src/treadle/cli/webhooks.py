"""`treadle webhooks …`: endpoints, what was sent to them, and sending it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import Column, print_facts, print_heading, print_json, print_list, print_table, relative, say
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.model.webhooks import Delivery
    from treadle.queue import Queue
    from treadle.queue.webhooks import WebhookEndpoint

app = typer.Typer(help="List, create and change webhook endpoints, and send deliveries again.", rich_markup_mode=None)

EndpointId = Annotated[str, typer.Argument(metavar="ID", help="The endpoint's id.", show_default=False)]
Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Where events are sent from now on.", show_default=False)
]
Events = Annotated[
    str | None,
    typer.Option(
        "--events", metavar="A,B", help="Such as job:failed,job:expired; all if left out.", show_default=False
    ),
]
Topics = Annotated[
    str | None, typer.Option("--topics", metavar="A,B", help="Only these topics; all if left out.", show_default=False)
]
Description = Annotated[
    str | None, typer.Option("--description", metavar="TEXT", help="Who gets the events.", show_default=False)
]


@app.command("list")
def list_webhooks(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List all endpoints, oldest first."""
    found = ask(db, lambda queue: queue.webhooks.list())
    print_list((one.as_json() for one in found), _COLUMNS, [_row(one) for one in found], "no webhooks", as_json)


_COLUMNS = (
    Column("id"),
    Column("url", flexible=True),
    Column("events", flexible=True),
    Column("topics", flexible=True),
    Column("state", flexible=True),
)


def _row(one: WebhookEndpoint) -> list[Any]:
    endpoint = one.endpoint
    return [one.id, endpoint.url or "polled", _events(one), ", ".join(endpoint.topics) or "all", _state(one)]


def _events(one: WebhookEndpoint) -> str:
    return ", ".join(name.removeprefix("job:") for name in one.endpoint.events)


def _state(one: WebhookEndpoint) -> str:
    if not one.endpoint.enabled:
        reason = one.endpoint.disabled_reason
        return f"off: {reason}" if reason else "off"
    since = one.state.failing_since_ms
    return "on" if since is None else f"failing since {_time(since)}"


@app.command()
def show(endpoint_id: EndpointId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Show an endpoint and its warnings."""
    _print_one(ask(db, lambda queue: queue.webhooks.get(endpoint_id)), as_json)


@app.command()
def create(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="Where events are sent. Without one, the endpoint polls.", show_default=False
        ),
    ] = None,
    events: Events = None,
    topics: Topics = None,
    description: Description = None,
    endpoint_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Generated if left out.", show_default=False)
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option("--secret", metavar="SECRET", help="whsec_…; generated if left out.", show_default=False),
    ] = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Create an endpoint. Its secret is shown only now; events count from 5 seconds later on."""
    chosen: Any = _chosen(events, topics, description)

    async def make(queue: Queue) -> tuple[WebhookEndpoint, Sequence[str]]:
        made = await queue.webhooks.create(url, id=endpoint_id, secret=secret, **chosen)
        return made, await queue.webhooks.hints(made)

    made, hints = ask(db, make)
    _print_one(made, as_json)
    for hint in () if as_json else hints:
        say(f"hint: {hint}")


@app.command()
def edit(
    endpoint_id: EndpointId,
    url: Url = None,
    events: Events = None,
    topics: Topics = None,
    description: Description = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Change the given options of an endpoint."""
    chosen: Any = _chosen(events, topics, description) | ({} if url is None else {"url": url})
    if not chosen:
        raise InvalidInput("nothing to change; see treadle webhooks edit --help")
    _print_one(ask(db, lambda queue: queue.webhooks.update(endpoint_id, **chosen)), as_json)


@app.command()
def enable(endpoint_id: EndpointId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Send events to an endpoint again."""
    _print_one(ask(db, lambda queue: queue.webhooks.update(endpoint_id, enabled=True)), as_json)


@app.command()
def disable(endpoint_id: EndpointId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Send no more events to an endpoint; waiting deliveries are given up."""
    _print_one(ask(db, lambda queue: queue.webhooks.update(endpoint_id, enabled=False)), as_json)


@app.command()
def delete(endpoint_id: EndpointId, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Delete an endpoint; waiting deliveries are given up."""
    ask(db, lambda queue: queue.webhooks.delete(endpoint_id))
    if as_json:
        print_json({"id": endpoint_id})
    else:
        say(f"{endpoint_id} deleted")


@app.command()
def rotate(
    endpoint_id: EndpointId,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="How long the old secret signs, too.")
    ] = "24h",
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a new secret, shown only now."""
    _print_one(ask(db, lambda queue: queue.webhooks.rotate(endpoint_id, keep=keep)), as_json)


@app.command("test")
def send_test(
    endpoint_id: EndpointId,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait for the answer.")] = "20s",
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Send a test event once. A running worker or server sends it."""
    _print_delivery(ask(db, lambda queue: queue.webhooks.test(endpoint_id, wait=wait)), as_json)


@app.command()
def deliveries(
    endpoint_id: EndpointId,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="pending, delivered or failed.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=500, clamp=True, help="How many.")] = 20,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """List what was or is to be sent to an endpoint, newest first."""
    from treadle.queue.webhooks import delivery_as_json

    async def read(queue: Queue) -> Sequence[Delivery]:
        await queue.webhooks.get(endpoint_id)
        return await queue.webhooks.deliveries(endpoint_id, status=status, limit=limit)

    found = ask(db, read)
    rows = [_delivery_row(one) for one in found]
    print_list(map(delivery_as_json, found), _DELIVERY_COLUMNS, rows, "no deliveries", as_json)


_DELIVERY_COLUMNS = (
    Column("id"),
    Column("event"),
    Column("job"),
    Column("status"),
    Column("tries"),
    Column("last answer", flexible=True),
    Column("next try"),
)


def _delivery_row(one: Delivery) -> list[Any]:
    last = one.tries[-1] if one.tries else None
    answer = "" if last is None else last.error or f"{last.status} {last.answer}"
    waits = "" if one.next_try_at is None else _away(one.next_try_at)
    return [str(one.id), one.event, one.job_id or "", one.status.value, str(len(one.tries)), answer, waits]


@app.command()
def redeliver(
    endpoint_id: EndpointId,
    delivery: Annotated[
        int | None, typer.Argument(metavar="[DELIVERY]", help="The delivery's id.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="All since this time, or for this long.", show_default=False),
    ] = None,
    undelivered: Annotated[
        bool, typer.Option("--undelivered", help="With --since: only what was not delivered.")
    ] = False,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Send a delivery again, or all since a time."""
    if (delivery is None) == (since is None):
        raise InvalidInput("name a delivery, or give --since")
    if delivery is not None:
        _print_delivery(ask(db, lambda queue: queue.webhooks.redeliver(endpoint_id, delivery)), as_json)
        return
    start = options.since(since)
    assert start is not None, "one of both is given"
    count = ask(db, lambda queue: queue.webhooks.redeliver_since(endpoint_id, start, only_undelivered=undelivered))
    if as_json:
        print_json({"redelivered": count})
    else:
        say(f"{count:,} sent again")


def _chosen(events: str | None, topics: str | None, description: str | None) -> dict[str, Any]:
    found = {"events": _names(events), "topics": _names(topics), "description": description}
    return {name: value for name, value in found.items() if value is not None}


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _print_one(one: WebhookEndpoint, as_json: bool) -> None:
    if as_json:
        print_json(one.as_json())
        return
    endpoint = one.endpoint
    facts = {
        "id": one.id,
        "url": endpoint.url or "none: it polls",
        "events": _events(one),
        "topics": ", ".join(endpoint.topics) or "all",
        "state": _state(one),
        "description": endpoint.description or None,
        "secret": one.secret,
        "key": one.key,
        "old secret until": None if endpoint.previous_until_ms is None else _time(endpoint.previous_until_ms),
        "last delivered": None if one.state.last_delivered_ms is None else _time(one.state.last_delivered_ms),
        "version": str(endpoint.version),
    }
    print_facts({name: value for name, value in facts.items() if value is not None})
    if one.secret is not None:
        say("Keep the secret; it is not shown again.")
    if one.state.events:
        print_heading("\nwarnings")
        rows = [[_time(event.at_ms), event.message] for event in one.state.events]
        print_table((Column("at"), Column("what", flexible=True)), rows)


def _print_delivery(one: Delivery, as_json: bool) -> None:
    from treadle.queue.webhooks import delivery_as_json

    if as_json:
        print_json(delivery_as_json(one))
        return
    last = one.tries[-1] if one.tries else None
    facts = {
        "id": str(one.id),
        "webhook-id": one.webhook_id,
        "event": one.event,
        "status": one.status.value,
        "answer": None if last is None else last.error or f"{last.status} in {last.duration_ms} ms",
        "starts with": (last.answer or None) if last else None,
    }
    print_facts({name: value for name, value in facts.items() if value is not None})


def _time(ms: int) -> str:
    from treadle.model.job import from_ms, rfc3339

    return f"{rfc3339(from_ms(ms))} ({_away(ms)})"


def _away(ms: int) -> str:
    from treadle.model.job import from_ms

    when = from_ms(ms)
    return "" if when is None else relative(when)
