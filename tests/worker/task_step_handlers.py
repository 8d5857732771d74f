"""Tasks that are steps of other handlers; processes import them by name."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.waiting import for_ever, until
from tests.worker.step_handlers import note, noted
from treadle import Context, Queue, Retry

queue = Queue("sqlite:///never-opened.db")
AGAIN = Retry(3, backoff="fixed", delay="10ms")


class Picture(BaseModel):
    width: int


@queue.job
async def measure(ctx: Context, picture: Picture) -> int:
    await ctx.progress(50, "measuring")
    assert ctx.payload == picture
    return picture.width + await ctx.step("inner", _one)


@queue.job
def measure_in_thread(ctx: Context, picture: Picture) -> int:
    ctx.heartbeat()
    assert ctx.payload == picture
    return int(picture.width + ctx.step("inner", _one_here))


@queue.job(process=True)
def measure_in_process(ctx: Context, picture: Picture) -> list[int]:
    return [os.getpid(), picture.width + ctx.step("inner", _one_here)]


async def _one() -> int:
    return 1


def _one_here() -> int:
    return 1


@queue.job
async def add(a: int, *, b: int = 2) -> int:
    return a + b


@queue.job(retry=AGAIN)
async def third_time(path: str) -> int:
    note(path, "tried")
    return _unless_early(path)


@queue.job(retry=AGAIN, process=True)
def third_time_in_process(path: str) -> int:
    note(path, "tried")
    return _unless_early(path)


def _unless_early(path: str) -> int:
    if len(noted(path)) < 3:
        raise ValueError("too early\nlook it up")
    return len(noted(path))


@queue.job(timeout="300ms")
async def endless() -> None:
    await for_ever()


@queue.job(timeout="1s", process=True)
def endless_in_process() -> None:
    time.sleep(3600)  # its work


@queue.job(process=True)
def beats_in_process(ctx: Context, path: str) -> str:
    for _ in range(36_000):
        note(path, "beat")
        time.sleep(0.1)  # its work
    return ""


@queue.job(process=True)
def asks_in_process(ctx: Context) -> Any:
    return ctx.wait_external("yes")


async def _each(ctx: Context, *calls: Any) -> list[Any]:
    return [await ctx.step(task.topic, task, *given) for task, *given in calls]


async def in_coroutine(ctx: Context, payload: dict[str, Any]) -> list[Any]:
    picture = {"width": 4}
    return await _each(
        ctx, (measure, picture), (measure_in_thread, Picture(width=5)), (measure_in_process, picture), (add, 1)
    )


def in_thread(ctx: Context, payload: dict[str, Any]) -> list[Any]:
    picture = {"width": 4}
    calls: list[Any] = [(measure_in_thread, picture), (measure_in_process, picture), (add, 4)]
    return [ctx.step(task.topic, task, *given) for task, *given in calls]


async def retries(ctx: Context, payload: dict[str, Any]) -> int:
    return int(await ctx.step("third", globals()[payload["task"]], payload["path"]))


async def takes_too_long(ctx: Context, payload: dict[str, Any]) -> None:
    await ctx.step("slow", globals()[payload["task"]])


async def gives_up(ctx: Context, payload: dict[str, Any]) -> str:
    step = asyncio.ensure_future(ctx.step("slow", beats_in_process, payload["path"]))
    if payload["alone"]:
        await until(Path(payload["path"]).exists)
        step.cancel()
        await asyncio.wait({step})
        return "gave up"
    return await step


async def asks(ctx: Context, payload: dict[str, Any]) -> Any:
    return await ctx.step("asks", asks_in_process)
