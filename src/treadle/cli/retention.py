"""`treadle retention …`: how long ended jobs are kept, and which hooks are asked first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import Column, print_json, print_table, say
from treadle.model.errors import InvalidInput, TreadleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from treadle.policy.retention import Ages
    from treadle.queue import Queue
    from treadle.queue.handlers.retention_hooks import Registration
    from treadle.queue.runtime_settings import StoredSettings

app = typer.Typer(help="Show or change how long ended jobs are kept.", rich_markup_mode=None)

DEFAULT = "default"
_COLUMNS = (Column("jobs", flexible=True), Column("stale after"), Column("deleted, after that"), Column("from"))

StaleAfter = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=f"Mark them stale so long after their end, or `{DEFAULT}`.", show_default=False),
]
DeleteAfter = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=f"Delete them so long after that, or `{DEFAULT}`.", show_default=False),
]


@app.command()
def show(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Show how long ended jobs are kept, with exceptions and hooks."""
    settings, hooks = ask(db, _look)
    if as_json:
        print_json(_document(settings, hooks))
        return
    print_table(_COLUMNS, list(_rows(settings)))
    for one in hooks:
        say(f"hook: {one}")


@app.command("set")
def set_ages(
    stale_after: StaleAfter = None,
    delete_after: DeleteAfter = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only for jobs of this topic.", show_default=False)
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS", help="Only for jobs that are completed, failed, cancelled or expired.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what these ages would do now.", show_default=False)
    ] = False,
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Change how long ended jobs are kept: all of them, or those of a topic or a status."""
    changes = _changes(stale_after, delete_after, topic, status)
    if dry_run:
        stale, deleted = ask(db, lambda queue: _count(queue, changes))
        if as_json:
            print_json({"stale": stale, "deleted": deleted})
        else:
            say(f"as it stands, {stale:,} jobs would be stale and {deleted:,} deleted; nothing was saved")
        return
    settings, hooks = ask(db, lambda queue: _change(queue, changes))
    if as_json:
        print_json(_document(settings, hooks))
    else:
        print_table(_COLUMNS, list(_rows(settings)))


@app.command("forget-hook")
def forget_hook(
    moment: Annotated[str, typer.Argument(metavar="HOOK", help="on_stale or on_delete.", show_default=False)],
    topic: Annotated[
        str, typer.Argument(metavar="[TOPIC]", help="Its topic. Default: the hook for every topic.", show_default=False)
    ] = "*",
    db: options.Db = None,
) -> None:
    """Mark and delete jobs without asking a hook that no program has any more.

    A running program that has the hook registers it again.
    """
    from treadle.queue.handlers.retention_hooks import RETENTION_MOMENTS, Registration, forget

    found = next((one for one in RETENTION_MOMENTS if one == moment), None)
    if found is None:
        raise InvalidInput(f"{moment!r} is not one of {', '.join(RETENTION_MOMENTS)}", field="HOOK")
    one = Registration(found, topic)
    if not ask(db, lambda queue: forget(queue.store, one)):
        raise TreadleError(f"no {one} is registered; treadle retention show lists the hooks")
    say(f"forgot {one}")


def _changes(
    stale_after: str | None, delete_after: str | None, topic: str | None, status: str | None
) -> dict[str, Any]:
    from treadle.model.job import checked_topic

    ages = {
        f"{name}_ms": _age(text, name)
        for name, text in (("stale_after", stale_after), ("delete_after", delete_after))
        if text is not None
    }
    if not ages:
        raise InvalidInput("give --stale-after, --delete-after or both", field="stale_after")
    if topic is not None and status is not None:
        raise InvalidInput("give --topic or --status, not both", field="topic")
    if topic is not None:
        return {"by_topic": {checked_topic(topic): ages}}
    return ages if status is None else {"by_status": {_ended(status): ages}}


def _age(text: str, name: str) -> int | None:
    from treadle.model.durations import duration_ms

    return None if text == DEFAULT else duration_ms(text, name)


def _ended(status: str) -> str:
    from treadle.model.status import ENDED

    if status not in ENDED:
        raise InvalidInput(f"{status!r} is not one of {', '.join(sorted(ENDED))}", field="status")
    return status


async def _look(queue: Queue) -> tuple[StoredSettings, list[Registration]]:
    from treadle.queue.handlers.retention_hooks import registered

    await queue.site.read()
    return await queue.site.settings(), sorted((await registered(queue.store)).all)


async def _change(queue: Queue, changes: dict[str, Any]) -> tuple[StoredSettings, list[Registration]]:
    await queue.site.change(changes)
    return await _look(queue)


async def _count(queue: Queue, changes: dict[str, Any]) -> tuple[int, int]:
    from treadle.insights.retention import effect_of

    return await effect_of(queue.store, (await queue.site.draft(changes)).retention)


def _rows(settings: StoredSettings) -> Iterable[list[str]]:
    from treadle.model.durations import format_ms

    yield ["all", format_ms(settings.stale_after_ms), format_ms(settings.delete_after_ms), ""]
    for kind, found, source in _exceptions(settings):
        for name, ages in sorted(found.items()):
            yield [f"{kind}:{name}", *("as others" if ms is None else format_ms(ms) for ms in ages), source]


def _exceptions(settings: StoredSettings) -> Iterable[tuple[str, Mapping[str, Ages], str]]:
    yield "status", settings.by_status, "settings"
    yield "topic", settings.by_topic, "settings"
    yield "topic", settings.by_template, "template"


def _document(settings: StoredSettings, hooks: Iterable[Registration]) -> dict[str, Any]:
    from treadle.model.durations import format_ms

    def shown(found: Mapping[str, Ages]) -> dict[str, Any]:
        names = ("stale_after", "delete_after")
        return {
            name: {age: None if ms is None else format_ms(ms) for age, ms in zip(names, ages, strict=True)}
            for name, ages in found.items()
        }

    return {
        "stale_after": format_ms(settings.stale_after_ms),
        "delete_after": format_ms(settings.delete_after_ms),
        "by_status": shown(settings.by_status),
        "by_topic": shown(settings.by_topic),
        "templates": shown(settings.by_template),
        "hooks": [{"hook": one.moment, "topic": one.topic} for one in hooks],
    }
