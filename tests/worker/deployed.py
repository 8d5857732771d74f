"""A program in several versions, in a process of its own: arguments are URL, version and the file that it writes to."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

from treadle import Context, Queue, Worker

VERSIONS = {"plain": (), "flow": ("first", "second"), "longer flow": ("first", "between", "second")}


def program(queue: Queue, version: str, noted: Path) -> None:
    """What a deploy of this version registers."""

    def note(what: str) -> None:
        with noted.open("a") as file:
            file.write(f"{version}: {what}\n")

    if version == "plain":

        @queue.job(topic="shop")
        async def shop(ctx: Context, payload: dict[str, Any]) -> str:
            note("all")
            return "plain"

        return
    flow = queue.flow("shop")

    def declare(name: str) -> None:
        async def step(ctx: Context, payload: dict[str, Any]) -> str:
            note(name)
            return name

        flow.step(name=name)(step)

    for name in VERSIONS[version]:
        declare(name)


def main() -> None:
    url, version, noted = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    queue = Queue(url)
    program(queue, version, Path(noted))
    asyncio.run(Worker(queue, name=version, poll_interval="100ms").run(signals=True))


if __name__ == "__main__":
    main()
