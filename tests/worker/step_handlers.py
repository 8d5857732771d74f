"""Handlers and flows with steps; processes import them by name."""

import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.waiting import until_blocking
from treadle import Context, Queue

queue = Queue("sqlite:///never-opened.db")


class Doc(BaseModel):
    id: int
    words: list[str]


def note(path: str, word: str) -> None:
    with Path(path).open("a") as file:
        file.write(word + "\n")


def noted(path: str) -> list[str]:
    return Path(path).read_text().split() if Path(path).exists() else []


def make_doc(path: str, number: int) -> Doc:
    note(path, f"doc{number}")
    return Doc(id=number, words=["a"] * number)


async def make_doc_async(path: str, number: int) -> Doc:
    return make_doc(path, number)


async def in_coroutine(ctx: Context, payload: dict[str, Any]) -> list[Any]:
    docs = [await ctx.step("doc", make_doc_async, payload["path"], n, key=n) for n in range(3)]
    docs.append(await ctx.step("plain", make_doc, payload["path"], 9))
    return _after(docs, payload)


def in_thread(ctx: Context, payload: dict[str, Any]) -> list[Any]:
    docs = [ctx.step("doc", make_doc, payload["path"], n, key=n) for n in range(3)]
    docs.append(ctx.step("plain", make_doc_async, payload["path"], 9))
    return _after(docs, payload)


def _after(docs: list[Doc], payload: dict[str, Any]) -> list[Any]:
    assert all(isinstance(doc, Doc) for doc in docs)
    note(payload["path"], "between")
    if noted(payload["path"]).count("between") < payload.get("fails", 0) + 1:
        raise ValueError("not yet")
    return [doc.id for doc in docs]


def finish(payload: dict[str, Any]) -> None:
    Path(payload["begun"]).touch()
    until_blocking(Path(payload["go"]).exists)
    note(payload["path"], "careful")


async def careful(ctx: Context, payload: dict[str, Any]) -> None:
    await ctx.step("careful", finish, payload, cancelable=False)
    await ctx.step("never", make_doc, payload["path"], 1)


def careful_in_thread(ctx: Context, payload: dict[str, Any]) -> None:
    ctx.step("careful", finish, payload, cancelable=False)
    ctx.step("never", make_doc, payload["path"], 1)


def tells_progress(ctx: Context, payload: dict[str, Any]) -> None:
    ctx.progress(40, "page 4\x00")
    finish(payload)
    ctx.progress(60)
    if payload.get("fails"):
        raise ValueError("torn page")


async def tells_progress_async(ctx: Context, payload: dict[str, Any]) -> None:
    for percent in range(2001):
        ctx.progress(percent / 50, "page 4\x00")
    await asyncio.to_thread(finish, payload)
    await ctx.progress(60)
    if payload.get("fails"):
        raise ValueError("torn page")


def nothing(ctx: Context, payload: dict[str, Any]) -> None: ...


def careful_step(ctx: Context, payload: dict[str, Any]) -> None:
    finish(payload)


async def waits(ctx: Context, payload: dict[str, Any]) -> str:
    await ctx.step("before", make_doc_async, payload["path"], 1)
    said = await ctx.wait_external("approve", answer=Doc, timeout=payload.get("timeout"))
    assert isinstance(said, Doc)
    await ctx.sleep(payload.get("nap", "1ms"))
    return f"approved {said.id}"


def waits_in_thread(ctx: Context, payload: dict[str, Any]) -> str:
    ctx.step("before", make_doc, payload["path"], 1)
    said = ctx.wait_external("approve", answer=Doc, timeout=payload.get("timeout"))
    ctx.sleep(payload.get("nap", "1ms"))
    return f"approved {said.id}"


async def waits_in_a_step(ctx: Context, payload: dict[str, Any]) -> str:
    async def outer() -> str:
        note(payload["path"], "outer")
        await ctx.step("before", make_doc_async, payload["path"], 1)
        said = await ctx.wait_external("approve", answer=Doc)
        await ctx.sleep(payload.get("nap", "1ms"))
        return f"approved {said.id}"

    return await ctx.step("outer", outer)


def waits_in_a_step_in_thread(ctx: Context, payload: dict[str, Any]) -> str:
    def outer() -> str:
        note(payload["path"], "outer")
        ctx.step("before", make_doc, payload["path"], 1)
        said = ctx.wait_external("approve", answer=Doc)
        ctx.sleep(payload.get("nap", "1ms"))
        return f"approved {said.id}"

    return str(ctx.step("outer", outer))


flow = queue.flow("mixed")


@flow.step(title="In a coroutine")
async def first(ctx: Context, payload: dict[str, Any]) -> Doc:
    note(payload["path"], "first")
    return Doc(id=os.getpid(), words=["x"])


@flow.step
def second(ctx: Context, payload: dict[str, Any]) -> int:
    note(payload["path"], "second")
    doc = ctx.results["first"]
    assert isinstance(doc, Doc)
    return doc.id


@flow.step(process=True)
def third(ctx: Context, payload: dict[str, Any]) -> list[int]:
    note(payload["path"], "third")
    assert isinstance(ctx.results["first"], Doc)
    ctx.step("inner", make_doc, payload["path"], 5)
    return [ctx.results["second"], os.getpid()]
