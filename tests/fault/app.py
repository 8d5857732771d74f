"""The program that fault tests start, kill, freeze and starve: a worker with handlers of every kind, and a client."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from tests.fault import crash, customers, graphs, handlers
from tests.fault.journal import Pen
from tests.waiting import certainly, until_blocking
from treadle import Queue, Worker
from treadle.maintenance import sender as sending
from treadle.maintenance.dispatcher import WebhookDispatcher
from treadle.model.durations import duration_ms
from treadle.model.errors import StoreUnavailable
from treadle.queue.background import forever
from treadle.store.postgres.notifier import Notifier
from treadle.store.sqlite import writer


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if arguments.crash:
        crash.set_trap(crash.Crash.parse(arguments.crash))
    if arguments.deaf:
        writer.Writer.watch = lambda *_: None  # type: ignore[method-assign]
        Notifier.listen = lambda *_: None  # type: ignore[method-assign]
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
    parser.add_argument("--job")
    parser.add_argument("--step")
    parser.add_argument("--mode")
    return parser


async def work(arguments: argparse.Namespace) -> None:
    queue = handlers.make_queue(arguments.url, Pen(arguments.journal, arguments.name))
    queue.register("in_own_process", handlers.in_own_process, process=True, retry=handlers.AGAIN_SOON)
    await queue.open()
    handlers.here.append(handlers.Here(queue.store, asyncio.get_running_loop()))
    await _run(queue, arguments)


async def work_on_graphs(arguments: argparse.Namespace) -> None:
    await _run(
        graphs.make_graphs(arguments.url, Pen(arguments.journal, arguments.name), range(arguments.limit)), arguments
    )


async def _run(queue: Queue, arguments: argparse.Namespace) -> None:
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


async def signal(arguments: argparse.Namespace) -> None:
    pen = Pen(arguments.journal, arguments.name)
    async with handlers.make_queue(arguments.url, pen) as queue:
        await queue.signal(arguments.job, arguments.step, "yes")
        pen.note("signalled", arguments.job)


async def cancel(arguments: argparse.Namespace) -> None:
    pen = Pen(arguments.journal, arguments.name)
    async with handlers.make_queue(arguments.url, pen) as queue:
        await queue.cancel(arguments.job)
        pen.note("cancelled", arguments.job)


async def requeue(arguments: argparse.Namespace) -> None:
    pen = Pen(arguments.journal, arguments.name)
    async with handlers.make_queue(arguments.url, pen) as queue:
        await queue.requeue(arguments.job, mode=arguments.mode, step=arguments.step)
        pen.note("requeued", arguments.job)


async def many_keys(arguments: argparse.Namespace) -> None:
    """Clients that each enqueue every key once, each in a different order, and record every answer."""
    pen = Pen(arguments.journal, arguments.name)

    async def client(number: int) -> None:
        keys = list(range(arguments.keys))
        random.Random(f"{arguments.seed}-{number}").shuffle(keys)
        for key in keys:
            name = f"key-{key}"
            pen.note(name, (await certainly(queue.enqueue, "quick", {"key": name}, idempotency_key=name)).id)

    async with Queue(arguments.url) as queue:
        await asyncio.gather(*map(client, range(arguments.clients)))


async def prune(arguments: argparse.Namespace) -> None:
    pen = Pen(arguments.journal, arguments.name)
    async with Queue(arguments.url) as queue:
        deleted = await queue.store.prune(0, arguments.limit)
        pen.note("pruned", str(deleted))


async def send(arguments: argparse.Namespace) -> None:
    """What the leader does with webhooks, and nothing else."""
    sending.LEASE_MS = duration_ms(arguments.lease)
    sending.LOOK_EVERY_S = 0.1
    async with Queue(arguments.url) as queue:
        sender = sending.Sender(
            queue.store, arguments.name, lambda: WebhookDispatcher(allow="127.0.0.1", timeout=arguments.lease)
        )
        await forever("sending", lambda: sender.step(leads=True), queue.store.outage)


async def migrate(arguments: argparse.Namespace) -> None:
    async with Queue(arguments.url):
        Pen(arguments.journal, arguments.name).note("migrated", "-")


async def starve(arguments: argparse.Namespace) -> None:
    """Read when no file can be opened, and again when it can: enough reads together to need another connection."""
    pen = Pen(arguments.journal, arguments.name)
    slow = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 300000) SELECT count(*) FROM c"
    async with Queue(arguments.url) as queue:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with Path("/dev/null").open() as lowest:
            free = lowest.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        store: Any = queue.store
        answers = await asyncio.gather(*(store.read(slow, []) for _ in range(4)), return_exceptions=True)
        if any(isinstance(answer, StoreUnavailable) for answer in answers):
            pen.note("unavailable", "-")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await asyncio.gather(*(store.read(slow, []) for _ in range(4)))
        pen.note("back", "-")


async def scripts(arguments: argparse.Namespace) -> None:
    """Two queues, used by several threads: some with a loop for every call, some without any, and by this loop too."""
    pen = Pen(arguments.journal, arguments.name)
    queues = [Queue(arguments.url), Queue(arguments.url)]

    def with_a_loop_each(number: int) -> None:
        for _ in range(arguments.keys):
            pen.note("enqueued", asyncio.run(_one(queues[number % 2])))

    def without_a_loop(number: int) -> None:
        for _ in range(arguments.keys):
            pen.note("enqueued", queues[number % 2].sync.enqueue("quick").id)

    calls = [with_a_loop_each, without_a_loop] * arguments.clients
    threads = [asyncio.to_thread(call, number) for number, call in enumerate(calls)]
    gathered = asyncio.gather(*threads)
    while not gathered.done():
        for queue in queues:
            pen.note("enqueued", await _one(queue))
    await gathered
    for queue in queues:
        await queue.close()
        await asyncio.to_thread(queue.sync.close)


async def _one(queue: Queue) -> str:
    return (await queue.enqueue("quick")).id


async def fork(arguments: argparse.Namespace) -> None:
    """Enqueue without end, with a child that was forked off in the middle, does the same once and stays."""
    pen = Pen(arguments.journal, arguments.name)
    async with Queue(arguments.url) as queue:
        busy = asyncio.create_task(_enqueue_without_end(queue, pen))
        await asyncio.sleep(0.05)  # in the middle of any of its enqueues
        child = os.fork()
        if not child:
            pen.note("enqueued", queue.sync.enqueue("quick").id)
            pen.note("forked", str(os.getpid()))
            time.sleep(60)  # it stays
            os._exit(0)
        await busy


async def _enqueue_without_end(queue: Queue, pen: Pen) -> None:
    while True:
        pen.note("enqueued", await _one(queue))


async def hold(arguments: argparse.Namespace) -> None:
    """Write until the file appears that `--key` names."""
    pen = Pen(arguments.journal, arguments.name)
    go_on = Path(arguments.key)

    def write(_: object) -> None:
        pen.note("holding", "-")
        until_blocking(go_on.exists, 600)

    async with Queue(arguments.url) as queue:
        store: Any = queue.store
        await store.engine.write(write)


COMMANDS = {
    one.__name__: one
    for one in (
        work,
        work_on_graphs,
        enqueue,
        signal,
        cancel,
        requeue,
        many_keys,
        prune,
        send,
        cancel,
        migrate,
        starve,
        scripts,
        fork,
        hold,
        customers.transactions,
        customers.stay_open,
        customers.growing,
    )
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
