"""A worker process for the benchmark: `python -m bench.work URL TALLY OPTIONS-JSON`.

Counts handled jobs in a mapped file that the measuring process reads.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from treadle import Context, Flow, Queue


class Noop(TypedDict):
    t: float
    kind: str
    user: int
    pad: str


def payload() -> Noop:
    """About 100 bytes of JSON; `t` is when the caller was about to enqueue."""
    return {"t": time.time(), "kind": "noop", "user": 123456, "pad": "x" * 40}


class MapPayload(TypedDict):
    items: int


NOTHING = payload()
STEPS = 10


def declare_steps(queue: Queue, hit: Callable[[Noop], None]) -> None:
    """A flow of ten steps that do nothing."""
    flow: Flow[Noop] = queue.flow("steps")

    async def step(ctx: Context, job: Noop) -> dict[str, bool]:
        hit(job)
        return {"ok": True}

    for number in range(STEPS):
        flow.step(name=f"step {number}")(step)


def declare_map(queue: Queue, hit: Callable[[Noop], None]) -> None:
    """A flow that maps over a list of items, each of which does nothing."""
    flow: Flow[MapPayload] = queue.flow("map")

    @flow.step
    async def numbers(ctx: Context, job: MapPayload) -> list[int]:
        return list(range(job["items"]))

    @flow.step(map=numbers, limit=50)
    async def each(ctx: Context, job: MapPayload, number: int) -> dict[str, bool]:
        hit(NOTHING)
        return {"ok": True}

    @flow.step
    async def count(ctx: Context, job: MapPayload) -> int:
        return len(ctx.results["each"])


def topics(count: int) -> list[str]:
    """The topics of a drain: `noop`, and as many more as are asked for."""
    return ["noop", *(f"noop_{number}" for number in range(1, count))]


class Tally:
    def __init__(self, path: Path, latencies: bool) -> None:
        path.write_bytes(b"\0" * 24)
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 24)
        self.count, self.first = 0, 0.0
        self.latencies = path.with_suffix(".latencies").open("w", buffering=1) if latencies else None

    def hit(self, job: Noop) -> None:
        now = time.time()
        if not self.count:
            self.first = now
        self.count += 1
        struct.pack_into("qdd", self.map, 0, self.count, self.first, now)
        if self.latencies:
            self.latencies.write(f"{now - job['t']:.6f}\n")


async def main(url: str, path: Path, options: dict[str, Any]) -> None:
    queue = Queue(url)
    tally = Tally(path, options.get("latencies", False))
    lock = threading.Lock()

    async def noop(ctx: Context, job: Noop) -> dict[str, bool]:
        tally.hit(job)
        return {"ok": True}

    def noop_in_thread(ctx: Context, job: Noop) -> dict[str, bool]:
        with lock:
            tally.hit(job)
        return {"ok": True}

    for topic in topics(options.get("topics", 1)):
        queue.register(topic, noop_in_thread if options.get("threads") else noop)
    if options.get("flow"):
        declare_steps(queue, tally.hit)
        declare_map(queue, tally.hit)
    await queue.open()
    path.with_suffix(".ready").touch()
    await queue.work(slots=options.get("slots", 50), signals=True, drain="5s")
    await queue.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
