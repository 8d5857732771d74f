"""`treadle superuser …`: manage superusers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import options
from treadle.cli.database import ask, writable
from treadle.cli.output import Column, age, print_json, print_list, say
from treadle.cli.password import Password, password
from treadle.cli.user import delete_account

if TYPE_CHECKING:
    from treadle.accounts import Account

app = typer.Typer(help="Manage superusers, who may do everything.", rich_markup_mode=None)

Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The e-mail address.", show_default=False)]


@app.command()
def upsert(email: Email, given: Password = None, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Create a superuser, or give one a new password.

    A new password signs them out everywhere.
    """
    from treadle.accounts import Accounts

    chosen = password(given)

    async def save() -> Account:
        async with writable(db) as queue:
            return await Accounts(queue.store).upsert_superuser(email, chosen)

    account = asyncio.run(save())
    if as_json:
        print_json(account.as_json())
    else:
        say(f"saved superuser {account.email}")


@app.command("list")
def list_superusers(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List the superusers, oldest first."""
    from treadle.accounts import SUPERUSERS, Accounts

    found = ask(db, lambda queue: Accounts(queue.store).list(SUPERUSERS))
    columns = (Column("id"), Column("email"), Column("age", number=True))
    rows = [[account.id, account.email, age(account.created)] for account in found]
    none = "no superusers; make one with treadle superuser upsert EMAIL"
    print_list((account.as_json() for account in found), columns, rows, none, as_json)


@app.command()
def delete(
    account: Annotated[str, typer.Argument(metavar="EMAIL", help="The e-mail address, or the id.", show_default=False)],
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a superuser and sign them out everywhere. The last one stays."""
    from treadle.accounts import SUPERUSERS

    gone = ask(db, lambda queue: delete_account(queue, SUPERUSERS, account))
    if as_json:
        print_json(gone.as_json())
    else:
        say(f"deleted superuser {gone.email}")
