"""`treadle codegen typescript`: types for front ends, from the templates of a queue or of a server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.database import ask
from treadle.cli.output import complain, say
from treadle.model.errors import InvalidInput, StoreUnavailable

app = typer.Typer(help="Generate code for clients from the templates.", rich_markup_mode=None)

SECONDS = 30


# The group would disappear if it had only this command.
@app.callback()
def codegen() -> None: ...


@app.command("typescript")
def generate(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write to this file.", show_default="print the code"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if FILE is not what would be written.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Ask this server instead of a database.", show_default=False),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="For --url: a token or an API key. Default: TREADLE_TOKEN.",
            show_default=False,
        ),
    ] = None,
    db: options.Db = None,
) -> None:
    """Generate TypeScript for the SDK: typed topics, payloads, results and answers, and a tracker for each topic."""
    if check and out is None:
        raise InvalidInput("--check needs --out")
    if url is not None and db is not None:
        raise InvalidInput("give --url or --db, not both")
    code = _code(url, token, db)
    if out is None:
        print(code, end="")
        return
    old = out.read_text(encoding="utf-8") if out.exists() else None
    if check:
        if old != code:
            complain(f"{out} is out of date; run treadle codegen typescript --out {out}")
            raise typer.Exit(1)
        say(f"{out} is up to date")
        return
    if old != code:  # tools that watch the file don't wake for nothing
        _write(out, code)
    say(f"wrote {out}" if old != code else f"{out} is up to date")


def _code(url: str | None, token: str | None, db: str | None) -> str:
    from treadle.cli.typescript import typescript

    if url is not None:
        return typescript(_templates_of(url, token or os.environ.get("TREADLE_TOKEN") or ""))
    return typescript(one.as_json() for one in ask(db, lambda queue: queue.templates.list()))


def _write(out: Path, code: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(code, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--out: {out} can't be written: {error.strerror}") from None


def _templates_of(url: str, token: str) -> Sequence[Mapping[str, Any]]:
    import aiohttp

    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"--url: {url[:100]} does not begin with http:// or https://")
    address = url.rstrip("/") + "/api/templates"
    try:
        status, body = asyncio.run(_get(address, token))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise StoreUnavailable(f"{address} can't be reached: {error}") from None
    if status != 200:
        hint = "; give a token with --token or TREADLE_TOKEN" if status in (401, 403) else ""
        raise InvalidInput(f"--url: {address} answered {status}{hint}")
    try:
        found = json.loads(body)
    except ValueError:
        raise InvalidInput(f"--url: {address} did not answer with JSON; is it a Treadle server?") from None
    items = found.get("items") if isinstance(found, dict) else None
    if not isinstance(items, list) or not all(isinstance(one, dict) and "topic" in one for one in items):
        raise InvalidInput(f"--url: {address} did not answer with templates; is it a Treadle server?")
    return items


async def _get(address: str, token: str) -> tuple[int, bytes]:
    import aiohttp

    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    # A redirect would carry the token to another server.
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as session,
        session.get(address, headers=headers, allow_redirects=False) as response,
    ):
        return response.status, await response.read()
