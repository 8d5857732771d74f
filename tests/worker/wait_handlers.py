"""Handlers that wait, and that do unusual things on the way; processes import them by name."""

import asyncio
import contextlib
import time
from typing import Any

from pydantic import BaseModel

from tests.waiting import work_until_told
from tests.worker.step_handlers import note, noted
from treadle import AnswerError, Context, Retry, WaitTimeout

AGAIN = Retry(3, backoff="fixed", delay="1ms")
Payload = dict[str, Any]


async def tells_and_waits(ctx: Context, payload: Payload) -> str:
    await ctx.progress(40, "page 4")
    await ctx.step("before", note, payload["path"], "before")
    return str(await ctx.wait_external("approve"))


def tells_and_waits_in_thread(ctx: Context, payload: Payload) -> str:
    ctx.progress(40, "page 4")
    ctx.step("before", note, payload["path"], "before")
    return str(ctx.wait_external("approve"))


async def gathers(ctx: Context, payload: Payload) -> list[Any]:
    """Exceptions come back as results, so nothing tells the handler to leave."""
    found = await asyncio.gather(*(ctx.wait_external(name) for name in ("one", "two")), return_exceptions=True)
    note(payload["path"], "gathered")
    return found


async def gathers_in_a_group(ctx: Context, payload: Payload) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ctx.wait_external(name)) for name in ("one", "two")]
    note(payload["path"], "gathered")
    return [task.result() for task in tasks]


async def catches_all(ctx: Context, payload: Payload) -> Any:
    answer = None
    with contextlib.suppress(BaseException):
        answer = await ctx.wait_external("approve")
    with contextlib.suppress(BaseException):
        await ctx.step("after", note, payload["path"], f"after-{answer}")
    return answer


def catches_all_in_thread(ctx: Context, payload: Payload) -> Any:
    answer = None
    with contextlib.suppress(BaseException):
        answer = ctx.wait_external("approve")
    with contextlib.suppress(BaseException):
        ctx.step("after", note, payload["path"], f"after-{answer}")
    return answer


async def works_next_to_a_wait(ctx: Context, payload: Payload) -> list[Any]:
    async def work() -> int:
        for turn in range(20):
            await ctx.step("work", note, payload["path"], "work", key=turn)
        return 20

    return list(await asyncio.gather(ctx.wait_external("approve"), work()))


async def works_in_groups_next_to_a_wait(ctx: Context, payload: Payload) -> list[Any]:
    """Each layer of tasks hears of the end of a step some turns of the loop later."""

    async def work(turn: int, depth: int) -> None:
        if depth == 0:
            await ctx.step("work", note, payload["path"], "work", key=turn)
        else:
            await asyncio.gather(asyncio.create_task(work(turn, depth - 1)))

    async def turns() -> int:
        for turn in range(20):
            await asyncio.create_task(work(turn, 5))
        return 20

    return list(await asyncio.gather(ctx.wait_external("approve"), turns()))


def fails_after(ctx: Context, payload: Payload) -> str:
    """Makes a step, then fails twice."""
    ctx.step("inner", note, payload["path"], "inner")
    note(payload["path"], "outer")
    if noted(payload["path"]).count("outer") < 3:
        raise ValueError("not yet")
    return "done"


async def retries_around_a_step(ctx: Context, payload: Payload) -> str:
    async def outer() -> str:
        await ctx.step("inner", note, payload["path"], "inner")
        note(payload["path"], "outer")
        if noted(payload["path"]).count("outer") < 3:
            raise ValueError("not yet")
        return "done"

    return await ctx.step("outer", outer, retry=AGAIN)


def retries_around_a_step_in_thread(ctx: Context, payload: Payload) -> str:
    return str(ctx.step("outer", fails_after, ctx, payload, retry=AGAIN))


async def asks(ctx: Context, payload: Payload) -> str:
    note(payload["path"], "asked")
    return str(await ctx.wait_external("approve", timeout=payload.get("timeout")))


def asks_in_thread(ctx: Context, payload: Payload) -> str:
    note(payload["path"], "asked")
    return str(ctx.wait_external("approve", timeout=payload.get("timeout")))


async def puts_up_with_it(ctx: Context, payload: Payload) -> str:
    """Catches the missing answer, and fails for another reason afterwards."""
    try:
        await ctx.wait_external("approve", timeout=payload.get("timeout"))
    except (WaitTimeout, AnswerError) as error:
        note(payload["path"], type(error).__name__)
    if noted(payload["path"]).count("WaitTimeout") < 2:
        raise ValueError("another reason")
    return "done"


def sleeps_long(ctx: Context, payload: Payload) -> None:
    note(payload["path"], "begun")
    work_until_told(ctx)


def sleeps_in_a_step(ctx: Context, payload: Payload) -> str:
    """Far too long, twice: the outer limit ends what the inner one does not."""
    note(payload["path"], "begun")
    if len(noted(payload["path"])) == 1:
        ctx.step("outer", ctx.step, "inner", time.sleep, 60, timeout="200ms")
    ctx.step("slow", slow_once, payload["path"], timeout="200ms", retry=AGAIN)
    time.sleep(0.4)  # no limit is left behind
    return "done"


def slow_once(path: str) -> None:
    note(path, "slow")
    if noted(path).count("slow") == 1:
        time.sleep(60)  # far too long


# -- values --------------------------------------------------------------------------------------------


class Page(BaseModel):
    number: int
    text: str


def many_pages(count: int = 50) -> list[Page]:
    """100 KiB, so the result is kept apart."""
    return [Page(number=number, text="x" * 2048) for number in range(count)]


async def makes_pages(ctx: Context, payload: Payload) -> list[Page]:
    note(payload["path"], "made")
    return many_pages()


def reads_pages(ctx: Context, payload: Payload) -> int:
    pages = ctx.results["makes_pages"]
    assert all(type(page) is Page for page in pages)
    return len(pages)


def reads_types(ctx: Context, payload: Payload) -> list[str]:
    return [type(value).__name__ + "/" + type(value[0]).__name__ for value in ctx.results.values()]


async def reads_pages_async(ctx: Context, payload: Payload) -> int:
    return reads_pages(ctx, payload)


async def keeps_pages(ctx: Context, payload: Payload) -> int:
    pages = await ctx.step("pages", many_pages)
    assert all(type(page) is Page for page in pages)
    note(payload["path"], "read")
    if ctx.attempt == 1:
        raise ValueError("once more")
    return len(pages)


def keeps_pages_in_thread(ctx: Context, payload: Payload) -> int:
    pages = ctx.step("pages", many_pages)
    assert all(type(page) is Page for page in pages)
    note(payload["path"], "read")
    if ctx.attempt == 1:
        raise ValueError("once more")
    return len(pages)


async def doubles(ctx: Context, payload: Payload) -> str:
    await ctx.step("one", note, payload["path"], "first", key=1)
    await ctx.step("one", note, payload["path"], "second", key=2)
    await ctx.step("one", note, payload["path"], "doubled", key=1)
    return "never"


def doubles_in_thread(ctx: Context, payload: Payload) -> str:
    ctx.step("one", note, payload["path"], "first", key=1)
    ctx.step("one", note, payload["path"], "second", key=2)
    ctx.step("one", note, payload["path"], "doubled", key=1)
    return "never"


def nests(ctx: Context, payload: Payload) -> None:
    """The name of the inner step is one character too long."""
    ctx.step("o" * 255, lambda: ctx.step("i" * 256, note, payload["path"], "never"))


# -- follow-up jobs of steps -----------------------------------------------------------------------------


def enqueues(ctx: Context, payload: Payload) -> None:
    ctx.enqueue("next", {"of": "pay"}, with_outcome=True)


async def follows_up_in_a_step(ctx: Context, payload: Payload) -> None:
    async def pay() -> None:
        await ctx.enqueue("next", {"of": "pay"}, with_outcome=True)

    await ctx.step("pay", pay)
    if payload.get("waits"):
        await ctx.wait_external("approve")
    if payload.get("fails"):
        raise ValueError("no van")


def follows_up_in_a_step_in_thread(ctx: Context, payload: Payload) -> None:
    ctx.step("pay", enqueues, ctx, payload)
    if payload.get("waits"):
        ctx.wait_external("approve")
    if payload.get("fails"):
        raise ValueError("no van")


# -- several waits that fail -----------------------------------------------------------------------------


async def two_short_waits(ctx: Context, payload: Payload) -> list[Any]:
    waits = [ctx.wait_external(name, timeout=payload["timeout"]) for name in ("one", "two")]
    return list(await asyncio.gather(*waits))


async def two_short_waits_in_a_group(ctx: Context, payload: Payload) -> list[Any]:
    try:
        async with asyncio.TaskGroup() as group:
            waits = [ctx.wait_external(name, timeout=payload["timeout"]) for name in ("one", "two")]
            tasks = [group.create_task(wait) for wait in waits]
    except* WaitTimeout as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def catches_the_first_of_two_waits(ctx: Context, payload: Payload) -> list[Any]:
    try:
        first = await ctx.wait_external("one", timeout=payload["timeout"])
    except WaitTimeout as error:
        first = type(error).__name__
    return [first, await ctx.wait_external("two", timeout=payload["timeout"])]
