"""`treadle templates …`: show templates and their versions, switch them off and on, roll them back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import Column, listed, print_facts, print_heading, print_json, print_list, print_table, say

if TYPE_CHECKING:
    from treadle.policy.saved_template import SavedTemplate

app = typer.Typer(help="List and inspect templates, switch them off and on, roll them back.", rich_markup_mode=None)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The template's topic.", show_default=False)]


@app.command("list")
def list_templates(db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List the current template of every topic."""
    found = ask(db, lambda queue: queue.templates.list())
    rows = [_row(one) for one in found]
    print_list((one.as_json() for one in found), _COLUMNS, rows, "no templates", as_json)
    if found and not as_json:
        say(f"{len(found)} {'template' if len(found) == 1 else 'templates'}")


_COLUMNS = (
    Column("topic"),
    Column("version"),
    Column("enabled"),
    Column("timeout"),
    Column("attempts"),
    Column("concurrency"),
    Column("name", flexible=True, extra=True),
)


def _row(saved: SavedTemplate) -> list[str]:
    shown = saved.as_json()
    return [
        saved.topic,
        f"{saved.version} (rolled back)" if saved.rolled_back else str(saved.version),
        "yes" if saved.enabled else "no",
        f"{shown['timeoutSeconds']:g} s",
        str(shown["retryPolicy"]["maxAttempts"]),
        shown["concurrencyPolicy"],
        shown["name"],
    ]


@app.command()
def show(topic: TopicName, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Show the current template of a topic."""
    _print_one(ask(db, lambda queue: queue.templates.get(topic)), as_json)


@app.command()
def versions(topic: TopicName, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """List every version of a template, newest first, with what changed."""
    found = ask(db, lambda queue: queue.templates.versions(topic))
    if as_json:
        print_json(listed(found))
        return
    columns = (Column("version"), Column("current"), Column("saved"), Column("changed", flexible=True))
    print_table(columns, _version_rows(found))


def _version_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    from treadle.policy.saved_template import changed_fields

    older: list[dict[str, Any] | None] = [*found[1:], None]
    return [
        [
            str(one["version"]),
            "yes" if one["current"] else "",
            one["createdAt"],
            "first version" if before is None else ", ".join(changed_fields(before, one)),
        ]
        for one, before in zip(found, older, strict=True)
    ]


@app.command()
def use(
    topic: TopicName,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A saved version.", show_default=False)],
    db: options.Db = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a saved version the current one, to roll back or forward. Code with a new definition replaces it."""
    _print_one(ask(db, lambda queue: queue.templates.use(topic, version)), as_json)


@app.command()
def enable(topic: TopicName, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Accept jobs of a topic again."""
    _print_one(ask(db, lambda queue: queue.templates.enable(topic)), as_json)


@app.command()
def disable(topic: TopicName, db: options.Db = None, as_json: options.AsJson = False) -> None:
    """Refuse new jobs of a topic, also after restarts and deploys. Pending jobs still run."""
    _print_one(ask(db, lambda queue: queue.templates.disable(topic)), as_json)


def _print_one(saved: SavedTemplate, as_json: bool) -> None:
    shown = saved.as_json()
    if as_json:
        print_json(shown)
        return
    print_facts(_facts(saved, shown))
    if shown["steps"]:
        print_heading("\nsteps")
        columns = (Column("id"), Column("name", flexible=True), Column("worker"))
        print_table(
            columns, [[one["id"], one.get("name") or "", one.get("workerType") or ""] for one in shown["steps"]]
        )
    if shown["payloadSchema"]:
        print_heading("\npayload schema")
        say(json.dumps(shown["payloadSchema"], ensure_ascii=False, indent=2))


def _facts(saved: SavedTemplate, shown: dict[str, Any]) -> dict[str, str]:
    retry, cancel = shown["retryPolicy"], shown["cancelPolicy"]
    backoff = ", ".join(f"{one:g} s" for one in retry["backoffSeconds"][:5])
    facts = {
        "topic": saved.topic,
        "name": shown["name"],
        "description": shown["description"] or None,
        "version": f"{saved.version} of {len(saved.versions)}" + (", rolled back" if saved.rolled_back else ""),
        "enabled": ("yes" if saved.enabled else "no") + ("" if saved.switched is None else ", set by an operator"),
        "timeout": f"{shown['timeoutSeconds']:g} s",
        "attempts": f"{retry['maxAttempts']}" + (f", backoff {backoff}" if backoff else ""),
        "concurrency": shown["concurrencyPolicy"],
        "dedupe keys": ", ".join(shown["dedupeKeys"]) or None,
        "repeatable": "yes" if shown["repeatable"] else "no",
        "schedulable": "yes" if shown["schedulable"] else "no",
        "cancel": f"{cancel['mode']}, grace {cancel['graceSeconds']:g} s" if cancel["supported"] else "not supported",
        "capability": shown["capability"],
        "saved": shown["updatedAt"],
    }
    return {name: value for name, value in facts.items() if value is not None}
