"""The program that fault tests start, kill, freeze and starve: a worker with handlers of every kind, and a client."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from tests.fault import crash, handlers
from tests.fault.journal import Pen
from treadle import Queue, Worker
from treadle.errors import StoreUnavailable
from treadle.store import postgres_link, sqlite_engine


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if arguments.crash:
        crash.set_trap(crash.Crash.parse(arguments.crash))
    if arguments.deaf:
        sqlite_engine.Engine.watch = lambda *_: None  # type: ignore[method-assign]
        postgres_link.Link.listen = lambda *_: None  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(COMMANDS[arguments.command](arguments))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("url")
    parser.add_argument("--journal", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--crash")
    parser.add_argument("--topics", type=lambda text: text.split(","))
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--lease", default="2s")
    parser.add_argument("--reap", default="200ms")
    parser.add_argument("--poll", default="300ms")
    parser.add_argument("--drain", default="10s")
    parser.add_argument("--no-maintenance", action="store_true")
    parser.add_argument("--deaf", action="store_true", help="hear no hints from other processes")
    parser.add_argument("--topic", default="quick")
    parser.add_argument("--key")
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=10)
    return parser


async def work(arguments: argparse.Namespace) -> None:
    queue = handlers.make_queue(arguments.url, Pen(arguments.journal, arguments.name))
    queue.register("in_own_process", handlers.in_own_process, process=True, retry=handlers.AGAIN_SOON)
    await queue.open()
    queue.store_of_worker = queue.store  # type: ignore[attr-defined]
    queue.loop_of_worker = asyncio.get_running_loop()  # type: ignore[attr-defined]
    worker = Worker(
        queue,
        name=arguments.name,
        topics=arguments.topics,
        slots=arguments.slots,
        lease=arguments.lease,
        reap_interval=arguments.reap,
        poll_interval=arguments.poll,
        drain=arguments.drain,
        maintenance=not arguments.no_maintenance,
    )
    try:
        await worker.run(signals=True)
    finally:
        await queue.close()


async def enqueue(arguments: argparse.Namespace) -> None:
    """One job; its id is written down when the enqueue is answered."""
    pen = Pen(arguments.journal, arguments.name)
    async with Queue(arguments.url) as queue:
        job = await queue.enqueue(arguments.topic, {}, idempotency_key=arguments.key)
        pen.note("enqueued", job.id)


async def many_keys(arguments: argparse.Namespace) -> None:
    """So many clients, each enqueuing every key once in an order of its own; every answer is written down."""
    pen = Pen(arguments.journal, arguments.name)

    async def client(number: int) -> None:
        keys = list(range(arguments.keys))
        random.Random(f"{arguments.seed}-{number}").shuffle(keys)
        for key in keys:
            pen.note(f"key-{key}", await _certainly(queue, f"key-{key}"))

    async with Queue(arguments.url) as queue:
        await asyncio.gather(*map(client, range(arguments.clients)))


async def _certainly(queue: Queue, key: str) -> str:
    while True:
        try:
            return (await queue.enqueue("quick", {"key": key}, idempotency_key=key)).id
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def prune(arguments: argparse.Namespace) -> None:
    pen = Pen(arguments.journal, arguments.name)
    async with Queue(arguments.url) as queue:
        deleted = await queue.store.prune(0, arguments.limit)
        pen.note("pruned", str(deleted))


async def migrate(arguments: argparse.Namespace) -> None:
    async with Queue(arguments.url):
        Pen(arguments.journal, arguments.name).note("migrated", "-")


async def starve(arguments: argparse.Namespace) -> None:
    """Read when no file can be opened, and again when it can: so much at once that another connection is needed."""
    pen = Pen(arguments.journal, arguments.name)
    slow = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 300000) SELECT count(*) FROM c"
    async with Queue(arguments.url) as queue:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with Path("/dev/null").open() as lowest:
            free = lowest.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        store: Any = queue.store
        answers = await asyncio.gather(*(store.query(slow, []) for _ in range(4)), return_exceptions=True)
        if any(isinstance(answer, StoreUnavailable) for answer in answers):
            pen.note("unavailable", "-")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await asyncio.gather(*(store.query(slow, []) for _ in range(4)))
        pen.note("back", "-")


COMMANDS = {one.__name__: one for one in (work, enqueue, many_keys, prune, migrate, starve)}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
