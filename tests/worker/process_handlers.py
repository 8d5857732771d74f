"""Handlers for tests of processes, which import them by name."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.waiting import for_ever, give_way, until_blocking, work_until_told
from treadle import Context, Fail, InvalidInput, JobCancelled, Queue, RetryAfter, Snooze
from treadle.telemetry import running_job

queue = Queue("sqlite:///never-opened.db")


class Picture(BaseModel):
    width: int
    height: int


class Flaky(Exception):
    pass


@queue.job(process=True)
def decorated(ctx: Context, picture: Picture) -> dict[str, Any]:
    return {"pid": os.getpid(), "area": picture.width * picture.height, "topic": ctx.topic}


def limited(payload: dict[str, Any]) -> int:
    """Notes its call and hears 429 until the gate is open."""
    with Path(payload["calls"]).open("a") as calls:
        calls.write("x")
    if not Path(payload["gate"]).exists():
        raise RetryAfter("1h", "429 Too Many Requests", topic=True)
    return 1


async def limited_async(payload: dict[str, Any]) -> int:
    await give_way()
    return limited(payload)


def plain(payload: dict[str, Any]) -> dict[str, Any]:
    return {"pid": os.getpid(), **payload}


def fails_until(ctx: Context, payload: dict[str, Any]) -> str:
    if ctx.attempt < payload["attempt"]:
        raise LookupError("not yet")
    return "worked"


async def coroutine(ctx: Context) -> int:
    await ctx.progress(10, "begun")
    await ctx.heartbeat()
    await give_way()
    return os.getpid()


def signed(ctx: Context, call: Callable[[], Any]) -> Any:
    return {**call(), "signed": [ctx.topic, os.getpid()]}


async def signed_async(ctx: Context, call: Callable[[], Any]) -> Any:
    return await call() + 1_000_000


def report(ctx: Context, payload: dict[str, Any]) -> dict[str, Any]:
    ctx.progress(42, "working")
    ctx.log.warning("a line from %s", "the child")
    ctx.heartbeat()
    job = ctx.enqueue("plain", {"x": 1}, delay=3600)
    wait_for(payload["gate"])
    return {"made": job.id, "auth": ctx.auth, "status": str(job.status)}


async def enqueues(ctx: Context) -> str:
    job = await ctx.enqueue("plain", {"x": 1}, delay=timedelta(hours=1))
    return str(job.id)


def enqueue_wrongly(ctx: Context) -> str:
    try:
        ctx.enqueue("plain", {"x": 1}, delay=-1)
    except InvalidInput as error:
        return str(error)
    return "?"


def raises(ctx: Context, payload: dict[str, Any]) -> int:
    if ctx.attempt == 1:
        match payload["what"]:
            case "flaky":
                raise Flaky("once")
            case "fail":
                raise Fail("never")
            case "retry":
                raise RetryAfter("20ms")
            case "snooze":
                raise Snooze("20ms")
            case "exit":
                sys.exit(4)
    return ctx.attempt


def who() -> str | None:
    job = running_job.get()
    return job.id if job else None


def unstorable() -> Any:
    return object()


def leaves_a_thread() -> int:
    """It keeps the process from ending by itself."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    return os.getpid()


def dies(payload: dict[str, Any]) -> None:
    match payload["by"]:
        case "exit":
            os._exit(7)
        case name:
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(60)  # until it is killed


def stops_when_told(ctx: Context, payload: dict[str, Any]) -> None:
    Path(payload["started"]).touch()
    try:
        work_until_told(ctx)
    except JobCancelled:
        Path(payload["cleaned"]).touch()
        raise


async def waits(payload: dict[str, Any]) -> None:
    Path(payload["started"]).touch()
    try:
        await for_ever()
    finally:
        Path(payload["cleaned"]).touch()


def sleeps(payload: dict[str, Any]) -> None:
    """Never checks for a cancel, but is stopped by SIGTERM and cleans up."""
    Path(payload["started"]).write_text(str(os.getpid()))
    try:
        time.sleep(60)  # until it is killed
    finally:
        Path(payload["cleaned"]).touch()


def deaf(payload: dict[str, Any]) -> None:
    """Not even SIGTERM stops it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(payload["started"]).write_text(str(os.getpid()))
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)  # until it is killed


def with_family(payload: dict[str, Any]) -> None:
    """Runs in a child process and never checks for a cancel."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(payload["started"]).write_text(f"{os.getpid()} {grandchild.pid}")
    time.sleep(60)  # until it is killed


def forks_and_dies(payload: dict[str, Any]) -> None:
    """A fork holds the line to the worker open after its parent is gone."""
    grandchild = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    grandchild.start()
    Path(payload["started"]).write_text(str(grandchild.pid))
    os._exit(9)


def wait_for(path: str) -> None:
    until_blocking(Path(path).exists)


def chain(ctx: Context, payload: dict[str, Any]) -> str:
    job = ctx.enqueue("next", {"n": payload["n"]}, with_outcome=True, **payload.get("options", {}))
    if payload.get("raises"):
        raise ValueError("no")
    return job.id


async def async_chain(ctx: Context, payload: dict[str, Any]) -> str:
    job = await ctx.enqueue("next", {"n": payload["n"]}, with_outcome=True, **payload.get("options", {}))
    if payload.get("raises"):
        raise ValueError("no")
    return job.id


def holds_on(ctx: Context, payload: dict[str, Any]) -> None:
    ctx.heartbeat("30m")
    until_blocking(Path(payload["until"]).exists)
