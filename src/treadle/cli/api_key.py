"""`treadle api-key …`: keys for services."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import options
from treadle.cli.database import ask, writable
from treadle.cli.output import Column, age, print_json, print_list, relative, say

if TYPE_CHECKING:
    from treadle.accounts import ApiKey

app = typer.Typer(help="Manage API keys for services.", rich_markup_mode=None)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, such as ci.", show_default=False)],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="A,B",
            help="What it may do: enqueue, manage, workers, topics, templates, schedules, webhooks, settings, metrics.",
            show_default=False,
        ),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help='When it expires, such as "90d". Default: never.')
    ] = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Create an API key and print it once.

    Only a hash of it is stored. Send it as Authorization: Bearer KEY.
    """
    from treadle.accounts import Accounts

    scopes = options.names(scope) or []
    ends = None if expires is None else _from_now(expires)

    async def make() -> tuple[ApiKey, str]:
        async with writable(db) as queue:
            return await Accounts(queue.store).api_keys.create(name, scopes, ends, created_by="command line")

    key, secret = asyncio.run(make())
    if as_json:
        print_json({**key.as_json(), "secret": secret})
    else:
        say(f"made API key {key.name} ({key.id}); copy it now, it is not shown again:")
        say(secret)


def _from_now(text: str) -> datetime:
    from treadle.model.durations import duration_ms

    return datetime.now(UTC) + timedelta(milliseconds=duration_ms(text, "--expires"))


@app.command("list")
def list_keys(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List the API keys, oldest first, without their secrets."""
    from treadle.accounts import Accounts

    found = ask(db, lambda queue: Accounts(queue.store).api_keys.list())
    columns = (
        Column("id"),
        Column("name", flexible=True),
        Column("scopes", flexible=True),
        Column("age", number=True),
        Column("used"),
        Column("expires"),
    )
    print_list((key.as_json() for key in found), columns, [_row(key) for key in found], "no API keys", as_json)


def _row(key: ApiKey) -> list[str]:
    ends = "never" if key.expires_at is None else relative(key.expires_at)
    used = "never" if key.last_used_at is None else relative(key.last_used_at)
    return [key.id, key.name, ", ".join(sorted(key.scopes)), age(key.created_at), used, ends]


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.", show_default=False)],
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Revoke an API key; it stops working immediately."""
    from treadle.accounts import Accounts

    ask(db, lambda queue: Accounts(queue.store).api_keys.revoke(key_id))
    if as_json:
        print_json({"id": key_id})
    else:
        say(f"revoked API key {key_id}")
