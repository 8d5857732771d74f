"""Flows: steps per second, and what jobs that wait cost the others."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.processes import workers
from bench.scenarios import Figures, remaining, settle_disk
from bench.work import STEPS, declare_map, declare_steps, payload
from treadle import Queue

LIMIT_S = 60.0


async def load(url: str, jobs: int) -> None:
    """Flows of ten steps that do nothing."""
    queue = Queue(url)
    declare_steps(queue, lambda job: None)
    async with queue:
        for start in range(0, jobs, 1000):
            await queue.enqueue_many("steps", [payload() for _ in range(min(1000, jobs - start))])
        await settle_disk(queue.store)


async def steps(url: str, folder: Path, jobs: int) -> Figures:
    """From the first step's start on one worker until the database shows no unfinished job."""
    wanted = jobs * STEPS
    async with Queue(url) as queue:
        with workers(folder, url, 1, flow=True) as group:
            group.ready()
            cpu, deadline = group.cpu(), time.monotonic() + LIMIT_S
            while (group.read()[0] < wanted or await remaining(queue.store)) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            ended = time.time()
            done, first, _ = group.read()
            if done != wanted or await remaining(queue.store):
                raise SystemExit(f"flows: {done:,} of {wanted:,} steps ran in {LIMIT_S:.0f} s")
            return {"flow steps /s": done / (ended - first), "worker us/step": (group.cpu() - cpu) / done * 1e6}


async def map_items(url: str, folder: Path, items: int) -> Figures:
    """One job that maps over a list, on one worker: from its first item's start until it has ended."""
    async with Queue(url) as queue:
        declare_map(queue, lambda job: None)
        await queue.save_templates()
        with workers(folder, url, 1, flow=True) as group:
            group.ready()
            job = await queue.enqueue("map", {"items": items})
            before = group.memory()
            await job.result(LIMIT_S)
            ended = time.time()
            done, first, _ = group.read()
            if done != items:
                raise SystemExit(f"flows: {done:,} of {items:,} items ran")
            return {"map items /s": done / (ended - first), "map memory MB": group.memory() - before}


async def park(url: str, jobs: int) -> None:
    """Jobs that wait for an answer."""
    queue = Queue(url)
    queue.flow("approval").external("approve")
    async with queue:
        for start in range(0, jobs, 1000):
            await queue.enqueue_many("approval", [{}] * min(1000, jobs - start))
        await queue.run_until_empty()
        waiting = await queue.count(status="waiting")
        if waiting != jobs:
            raise SystemExit(f"flows: {waiting:,} of {jobs:,} jobs wait")
        await settle_disk(queue.store)
