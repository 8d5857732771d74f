"""Functions of mapped steps that run in processes, and handlers that map in every kind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from treadle import Context


class Doc(BaseModel):
    id: str
    words: int


def note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


def noted(path: str) -> list[str]:
    return Path(path).read_text().split() if Path(path).exists() else []


def measure(ctx: Context, payload: dict[str, Any], doc: Doc) -> tuple[str, int, bool]:
    """In a process: its id says so."""
    note(payload["path"], doc.id)
    return doc.id, doc.words, os.getpid() != payload["pid"]


def squared(number: int) -> int:
    return number * number


def maps_in_thread(ctx: Context, payload: dict[str, Any]) -> list[int]:
    found = ctx.map("square", lambda item: _squared(payload, item), payload["items"], limit=3)
    if payload.get("fails") and not ctx.is_retry:
        raise RuntimeError("as told")
    return [found[-1], *found]


async def maps_in_coroutine(ctx: Context, payload: dict[str, Any]) -> list[int]:
    async def square(item: int) -> int:
        return _squared(payload, item)

    found = await ctx.map("square", square, payload["items"], limit=3)
    if payload.get("fails") and not ctx.is_retry:
        raise RuntimeError("as told")
    return [found[-1], *found]


def _squared(payload: dict[str, Any], item: int) -> int:
    note(payload["path"], str(item))
    return item * item


def sleeps(ctx: Context, payload: dict[str, Any], number: int) -> int:
    """In a process; the first item never ends by itself."""
    note(payload["path"], f"begun-{number}")
    while number == 0:
        ctx.check_cancelled()
        time.sleep(0.01)  # it works
    return number
