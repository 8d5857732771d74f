"""Handlers that wait, and that do odd things on the way; those in processes are found by name."""

import asyncio
import contextlib
import time
from typing import Any

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
    """Catches that nobody answered, and fails for another reason afterwards."""
    try:
        await ctx.wait_external("approve", timeout=payload.get("timeout"))
    except (WaitTimeout, AnswerError) as error:
        note(payload["path"], type(error).__name__)
    if noted(payload["path"]).count("WaitTimeout") < 2:
        raise ValueError("another reason")
    return "done"


def sleeps_long(ctx: Context, payload: Payload) -> None:
    note(payload["path"], "begun")
    for _ in range(600):
        time.sleep(0.1)
        ctx.check_cancelled()
