"""A worker in a separate process that tests kill. Arguments: URL, a folder for notes, the worker's options."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.waiting import until
from treadle import Context, Queue, Worker

GATE, RUNS = "gate", "runs"
PHASES = ("download", "process", "upload")


def note_run(folder: Path, ctx: Context) -> None:
    """Write one line that survives even if this process is killed right after."""
    with (folder / RUNS).open("a") as file:
        file.write(f"{ctx.job_id} {ctx.attempt} {os.getpid()}\n")
        file.flush()


def runs(folder: Path) -> list[tuple[str, int, int]]:
    """Who ran what: (job, attempt, process)."""
    file = folder / RUNS
    lines = file.read_text().splitlines() if file.exists() else []
    return [(id, int(attempt), int(pid)) for id, attempt, pid in (line.split() for line in lines)]


def make_queue(url: str, folder: Path) -> Queue:
    queue = Queue(url)

    @queue.job
    async def wait_for_gate(ctx: Context) -> dict[str, Any]:
        """Runs until a test opens the gate."""
        note_run(folder, ctx)
        await until((folder / GATE).exists, 600)
        return {"pid": os.getpid(), "attempt": ctx.attempt}

    @queue.job
    async def note(ctx: Context) -> None:
        note_run(folder, ctx)

    add_pipeline(queue, folder)
    return queue


def add_pipeline(queue: Queue, folder: Path) -> None:
    """Three steps, each noted; the second one runs until the gate is open."""
    flow = queue.flow("pipeline")

    def note_step(name: str) -> None:
        with (folder / RUNS).open("a") as file:
            file.write(f"{name}\n")

    @flow.step
    async def download(ctx: Context, payload: dict[str, Any]) -> str:
        note_step("download")
        return "download"

    @flow.step
    async def process(ctx: Context, payload: dict[str, Any]) -> str:
        note_step("process")
        await until((folder / GATE).exists, 600)
        return f"{ctx.results['download']}, process"

    @flow.step
    async def upload(ctx: Context, payload: dict[str, Any]) -> str:
        note_step("upload")
        return f"{ctx.results['process']}, upload"


def main() -> None:
    url, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    asyncio.run(Worker(make_queue(url, folder), **options).run(signals=True))


if __name__ == "__main__":
    main()
