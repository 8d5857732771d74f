"""`treadle workers …`: the live workers, and draining one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import Column, print_json, print_list, say
from treadle.model.errors import TreadleError

if TYPE_CHECKING:
    from treadle.store.views import LiveWorker

app = typer.Typer(help="List the live workers, or drain one.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The worker's name, as list shows it.", show_default=False)]

COLUMNS = (
    Column("name", flexible=True),
    Column("state"),
    Column("running", number=True),
    Column("slots", number=True),
    Column("topics", flexible=True),
    Column("version"),
)


@app.command("list")
def list_workers(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List the workers with a live lease."""
    from treadle.insights.workers import live_workers

    found = ask(db, lambda queue: live_workers(queue.store))
    print_list(map(document, found), COLUMNS, [row(one) for one in found], "no workers", as_json)


def document(one: LiveWorker) -> dict[str, Any]:
    return {
        "name": one.name,
        "topics": list(one.topics),
        "capabilities": list(one.capabilities),
        "slots": one.slots,
        "running": one.running,
        "draining": one.draining,
        "host": one.host,
        "version": one.version,
    }


def row(one: LiveWorker) -> list[str]:
    state = "draining" if one.draining else "working" if one.running else "idle"
    return [one.name, state, str(one.running), str(one.slots), ", ".join(one.topics), one.version]


@app.command()
def drain(name: Name, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Ask a worker to claim nothing more, finish its jobs and stop.

    It learns this from its next heartbeat, usually within seconds.
    """
    _ask(name, db, as_json, draining=True)


@app.command()
def undrain(name: Name, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Let a worker go on that was asked to drain and has not stopped yet."""
    _ask(name, db, as_json, draining=False)


def _ask(name: str, db: str | None, as_json: bool, *, draining: bool) -> None:
    if not ask(db, lambda queue: queue.drain(name) if draining else queue.undrain(name)):
        raise TreadleError(f"no live worker has the name {name}; treadle workers list shows them")
    if as_json:
        print_json({"name": name, "draining": draining})
    else:
        say(f"asked {name} to {'drain' if draining else 'go on'}")
