"""Counts the calls that one plain job takes from its enqueue to its stored end, and lists them.

    python scripts/trace_job.py sqlite:////tmp/trace.db [--list] [--json]

A call is a call of a function of Treadle's. A hop is a call that calls another one: leaves, comprehensions and resumed
coroutines don't count. Several jobs are traced one by one and the shortest way is reported, because ticks of background
tasks fall into some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import json
import sys
import threading
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import treadle
from treadle import Queue, Worker

OURS = str(Path(treadle.__file__).parent)
WARM_UP = 20
TRACED = 160


class Trace:
    """Follows calls in every thread that was started after `install`, while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.calls: dict[FrameType, bool] = {}
        """Each call, in order, and whether it called Treadle's own code."""

    def install(self) -> None:
        sys.setprofile(self._event)
        threading.setprofile(self._event)

    def begin(self) -> None:
        self.calls = {}
        self.on = True

    def end(self) -> list[tuple[str, bool]]:
        self.on = False
        return [(_name(frame.f_code), calls) for frame, calls in self.calls.items()]

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.on or event != "call" or not _counts(frame.f_code) or frame.f_lasti > _start(frame.f_code):
            return
        self.calls[frame] = False
        caller = frame.f_back
        while caller and not _counts(caller.f_code):
            caller = caller.f_back
        if caller in self.calls:
            self.calls[caller] = True


@cache
def _counts(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS) and code.co_name not in (
        "<listcomp>",
        "<dictcomp>",
        "<setcomp>",
        "<genexpr>",
    )


@cache
def _start(code: CodeType) -> int:
    """Where a call begins; a coroutine that is resumed stands behind it."""
    return next(one.offset for one in dis.get_instructions(code) if one.opname == "RESUME")


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(OURS).with_suffix('')}:{code.co_qualname}"


async def trace(url: str, tracer: Trace) -> list[tuple[str, bool]]:
    """The calls of the job that took the fewest hops."""
    queue = Queue(url)

    @queue.job
    async def noop(payload: dict[str, Any]) -> None: ...

    worker = Worker(queue, slots=2, maintenance=False, poll_interval="60s")
    async with queue:
        working = asyncio.create_task(worker.run())
        ways = [await _one(queue, worker, tracer) for _ in range(WARM_UP + TRACED)]
        worker.stop()
        await working
    return min(ways[WARM_UP:], key=lambda way: (sum(calls for _, calls in way), len(way)))


async def _one(queue: Queue, worker: Worker, tracer: Trace) -> list[tuple[str, bool]]:
    before = worker.metrics.completed
    tracer.begin()
    await queue.enqueue("noop", {})
    while worker.metrics.completed == before:
        await asyncio.sleep(0)
    way = tracer.end()
    await asyncio.sleep(0.01)  # until every slot is parked again
    return way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--list", action="store_true", help="every call in order; hops have a star")
    parser.add_argument("--json", action="store_true", help="only the two numbers, as JSON")
    options = parser.parse_args()
    tracer = Trace()
    tracer.install()
    way = asyncio.run(trace(options.url, tracer))
    hops = sum(calls for _, calls in way)
    if options.list:
        print("\n".join(f"{'*' if calls else ' '} {name}" for name, calls in way))
    print(json.dumps({"hops": hops, "calls": len(way)}) if options.json else f"{hops} hops, {len(way)} calls")


if __name__ == "__main__":
    main()
