"""`treadle user …`: manage users, who may do what the rules allow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask, writable
from treadle.cli.output import Column, age, print_json, print_list, say
from treadle.cli.password import Password, password

if TYPE_CHECKING:
    from treadle.accounts import Account
    from treadle.queue import Queue

app = typer.Typer(help="Manage users, who may do what the rules allow.", rich_markup_mode=None)

Who = Annotated[str, typer.Argument(metavar="EMAIL", help="The e-mail address, or the id.", show_default=False)]


@app.command()
def create(
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The e-mail address.", show_default=False)],
    given: Password = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="JSON", help="Extra fields as an object; rules see @request.auth.NAME."),
    ] = None,
    verified: Annotated[bool, typer.Option("--verified", help="Mark the e-mail address as verified.")] = False,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a user."""
    from treadle.accounts import Accounts

    fields, chosen = _fields(data), password(given)

    async def make() -> Account:
        async with writable(db) as queue:
            return await Accounts(queue.store).create_user(email, chosen, fields, verified=verified)

    _tell("made", asyncio.run(make()), as_json)


@app.command()
def update(
    user: Who,
    email: Annotated[str | None, typer.Option("--email", metavar="EMAIL", help="A new e-mail address.")] = None,
    given: Annotated[
        str | None,
        typer.Option("--password", metavar="PASSWORD", help="A new password; - asks for it, or reads it from stdin."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="Extra fields to change; null removes one.")
    ] = None,
    verified: Annotated[
        bool | None,
        typer.Option("--verified/--unverified", help="Mark the e-mail address as verified or not."),
    ] = None,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Change a user.

    A new password or e-mail address signs them out everywhere.
    """
    from treadle.accounts import Accounts
    from treadle.model.errors import InvalidInput

    fields = _fields(data)
    chosen = None if given is None else password(given)

    def change(queue: Queue) -> Awaitable[Account]:
        if email is None and given is None and data is None and verified is None:
            raise InvalidInput("nothing to change; see treadle user update --help")
        return Accounts(queue.store).update_user(user, email=email, password=chosen, data=fields, verified=verified)

    _tell("changed", ask(db, change), as_json)


@app.command("list")
def list_users(
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, clamp=True, help="How many.")] = 1000,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """List the users, oldest first."""
    from treadle.accounts import USERS, Accounts

    found = ask(db, lambda queue: Accounts(queue.store).list(USERS, limit))
    columns = (
        Column("id"),
        Column("email"),
        Column("verified"),
        Column("age", number=True),
        Column("data", flexible=True, extra=True),
    )
    rows = [_row(account) for account in found]
    print_list((account.as_json() for account in found), columns, rows, "no users", as_json)


def _row(account: Account) -> list[str]:
    data = json.dumps(dict(account.data), ensure_ascii=False) if account.data else ""
    return [account.id, account.email, "yes" if account.verified else "no", age(account.created), data]


@app.command()
def delete(user: Who, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Delete a user and sign them out everywhere. Their jobs stay."""
    from treadle.accounts import USERS

    _tell("deleted", ask(db, lambda queue: delete_account(queue, USERS, user)), as_json)


async def delete_account(queue: Queue, collection: str, who: str) -> Account:
    """Its schedules stop with it."""
    from treadle.accounts import Accounts

    gone = await Accounts(queue.store).delete(collection, who)
    await queue.schedules.disable_created_by(gone.id, f"the account {gone.email} was deleted")
    return gone


def _fields(text: str | None) -> Mapping[str, Any] | None:
    from treadle.model.errors import InvalidInput
    from treadle.model.payload import loads

    if text is None:
        return None
    fields = loads(text, "--data")
    if not isinstance(fields, dict):
        raise InvalidInput('--data: write an object, such as {"role": "editor"}')
    return fields


def _tell(done: str, account: Account, as_json: bool) -> None:
    if as_json:
        print_json(account.as_json())
    else:
        say(f"{done} user {account.email} ({account.id})")
