"""Changes all jobs that match a filter: a dry run first, then the question that the dashboard asks."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import print_json, say
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from datetime import datetime

    from treadle.insights.search import JobSearch
    from treadle.queue import Queue
    from treadle.queue.bulk import Action, BulkChange
    from treadle.queue.operations import DryRunCount, Operation

# Above this many jobs, and before a deletion, the number has to be typed.
TYPED_ABOVE = 1000
WAIT_S = 3600.0

Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="EXPRESSION",
        help="Jobs for which this holds: 'failedAt >= \"2026-11-18T20:27:00Z\" && priority > 50'.",
    ),
]
Search = Annotated[
    str | None,
    typer.Option("--search", metavar="TEXT", help="As in the dashboard: 'topic:mail failed:>20:27 error:SMTP'."),
]
Status = Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Only jobs with this status.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")]
Confirm = Annotated[
    str | None,
    typer.Option("--confirm", metavar="N", help="Answers the question: as many jobs as the dry run counts."),
]


def wanted(
    job_ids: Sequence[str] | None, topic: str | None, status: str | None, filter_: str | None, search: str | None
) -> JobSearch | None:
    """The jobs that options choose; None if ids do."""
    from treadle.insights.search import JobSearch

    chosen = any((topic, status, filter_, search))
    if bool(job_ids) == chosen:
        raise InvalidInput(
            "give ids, or choose jobs with --filter, --search, --topic and --status"
            + (", but not both" if chosen else "")
            + "; see treadle jobs --help"
        )
    return JobSearch(topic or "", status or "", search or "", filter_ or "") if chosen else None


def change_many(
    change: BulkChange, search: JobSearch, *, only_dry: bool, confirm: str | None, db: str | None, as_json: bool
) -> None:
    as_of, outcomes = ask(db, lambda queue: _dry_run(queue, change, search))
    count = sum(one.count for one in outcomes if not one.skipped)
    if not as_json:
        say(f"{options.plural(count, 'job')} would be {_DONE[change.action]}: {search.words}")
        for one in outcomes:
            if one.skipped:
                say(f"{options.plural(one.count, 'job')} skipped: {one.status}")
    if only_dry or not count:
        if as_json:
            skipped = {one.status: one.count for one in outcomes if one.skipped}
            print_json({"dryRun": True, "matched": count, "skipped": skipped})
        return
    _confirm(change.action, count, confirm)
    done = ask(db, lambda queue: _run(queue, change, search, as_of, count))
    if as_json:
        print_json({"dryRun": False, "matched": count, "changed": done.changed, "refused": done.refused})
    else:
        refused = f", {done.refused:,} had changed meanwhile" if done.refused else ""
        say(f"{options.plural(done.changed, 'job')} {_DONE[change.action]}{refused}")


_DONE = {"requeue": "requeued", "cancel": "cancelled", "delete": "deleted"}


async def _dry_run(queue: Queue, change: BulkChange, search: JobSearch) -> tuple[datetime, list[DryRunCount]]:
    from treadle.model.job import EPOCH, from_ms
    from treadle.policy.rules import InvalidRule
    from treadle.queue.operations import dry_run

    as_of = from_ms(await queue.store.now()) or EPOCH
    try:
        return as_of, await dry_run(queue, change, search, as_of)
    except InvalidRule as error:
        raise InvalidInput(f"--filter: {error.message}") from None


def _confirm(action: str, count: int, given: str | None) -> None:
    if given is not None:
        if _number(given) != count:
            raise InvalidInput(f"--confirm: {given[:20]} is not {count:,}, so nothing was changed")
        return
    if not sys.stdin.isatty():
        raise InvalidInput(f"nothing was changed; to do it without a terminal, add --confirm {count}")
    if action == "delete" or count > TYPED_ABOVE:
        if _number(typer.prompt(f"Type {count:,} to confirm")) != count:
            raise InvalidInput("that is another number, so nothing was changed")
    elif not typer.confirm(f"{action.capitalize()} {options.plural(count, 'job')}?"):
        raise typer.Abort


def _number(text: str) -> int | None:
    """5213, 5,213 or 5 213."""
    digits = text.replace(",", "").replace(" ", "").replace("\u202f", "").strip()
    return int(digits) if digits.isdecimal() else None


async def _run(queue: Queue, change: BulkChange, search: JobSearch, as_of: datetime, count: int) -> Operation:
    """As an operation, so that it is in the audit log, and the leader finishes it if this process ends."""
    from treadle.queue.audit import Actor
    from treadle.queue.operations import Operations

    operations = Operations(queue)
    try:
        started = await operations.start(change, search, as_of, Actor(getpass.getuser(), "cli"), count)
        await operations.wait(started.id, WAIT_S)
        return started
    finally:
        await operations.close()


def bulk_change(action: str, *, force: bool = False, reason: str = "") -> BulkChange:
    from treadle.queue.bulk import BulkChange

    return BulkChange(cast("Action", action), force=force, reason=reason)
