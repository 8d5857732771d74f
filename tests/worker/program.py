"""A worker in a separate process, for tests that stop, kill or block it: arguments are URL and options."""

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.waiting import until, until_blocking
from tests.worker import process_handlers
from treadle import Context, LeaseLost, Queue, Worker

queue = Queue(sys.argv[1] if __name__ == "__main__" else "sqlite:///never-opened.db")


@queue.job
async def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "pid": os.getpid()}


@queue.job
async def block(payload: dict[str, Any]) -> None:
    Path(payload["started"]).touch()
    time.sleep(payload["seconds"])  # its work, on the event loop


@queue.job
async def wait(ctx: Context, payload: dict[str, Any]) -> str:
    """Waits for a file; says that it was told to stop."""
    Path(payload["started"]).write_text(str(ctx.attempt))
    try:
        await until(Path(payload["gate"]).exists, 600)
    except asyncio.CancelledError:
        Path(payload["told"]).touch()
        raise
    return f"attempt {ctx.attempt}"


@queue.job
def wait_in_thread(ctx: Context, payload: dict[str, Any]) -> str:
    def opened() -> bool:
        ctx.check_cancelled()
        return Path(payload["gate"]).exists()

    Path(payload["started"]).write_text(str(ctx.attempt))
    try:
        until_blocking(opened, 600)
    except LeaseLost:
        Path(payload["told"]).touch()
        raise
    return f"attempt {ctx.attempt}"


@queue.job
def deaf(payload: dict[str, Any]) -> None:
    Path(payload["started"]).touch()
    time.sleep(60)  # it hears nothing


@queue.job(max_attempts=2)
async def poison(payload: dict[str, Any]) -> None:
    os._exit(66)


@queue.job(process=True)
def in_main_module(payload: dict[str, Any]) -> dict[str, Any]:
    return {"module": __name__, "pid": os.getpid(), "parent": os.getppid()}


queue.register("sleeps_in_process", process_handlers.sleeps, process=True)


def main() -> None:
    options = json.loads(sys.argv[2])
    logging.basicConfig(level=logging.INFO)
    asyncio.run(Worker(queue, **options).run(signals=True))


if __name__ == "__main__":
    main()
