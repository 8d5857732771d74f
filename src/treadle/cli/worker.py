"""`treadle worker`: run the handlers of a module."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import logs, options
from treadle.cli.loading import load_queue
from treadle.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.queue import Queue

log = logging.getLogger("treadle.worker")

# How long what is left of the handlers has to end after the worker has stopped.
STOP_S = 1.0


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:QUEUE",
            help="Where the queue is, such as app:queue for queue = Queue(…) in app.py.",
            show_default=False,
        ),
    ],
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, max=256, help="Run so many worker processes.")
    ] = 1,
    slots: Annotated[
        int | None,
        typer.Option("--slots", metavar="N", help="Run so many jobs at once in each process. Default: 10."),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option("--topics", metavar="A,B", help="Serve only these topics. Default: all with a handler."),
    ] = None,
    capabilities: Annotated[
        str | None,
        typer.Option("--capabilities", metavar="A,B", help="Also take jobs that need one of these."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The worker's name in lists and logs.")
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="TIME",
            help="After so long without a sign of life others take over its jobs. Default: 5m.",
        ),
    ] = None,
    drain: Annotated[
        str, typer.Option("--drain", metavar="TIME", help="How long running jobs may go on after a stop signal.")
    ] = "30s",
    db: options.Db = None,
) -> None:
    """Run the jobs of a queue in your code.

    SIGTERM or Ctrl-C stops it: no new jobs, those that run may finish until --drain is over, the rest is
    given back. A second signal leaves at once; what was running is recovered when its lease is over.
    """
    if processes > 1:
        raise typer.Exit(_supervised(processes))
    queue = load_queue(target)
    if db is not None:
        queue.use(db)
    if not queue.handlers:
        raise InvalidInput(f"{target} has no handlers; register one with @queue.job")
    logs.configure(queue.settings.log_format)
    choices = {
        "slots": slots,
        "topics": options.names(topics),
        "capabilities": options.names(capabilities) or (),
        "name": name,
        "lease": lease,
        "drain": drain,
    }
    run_on_uvloop(_work(queue, choices))


async def _work(queue: Queue, choices: dict[str, Any]) -> None:
    from treadle.connect import shown
    from treadle.worker import Worker

    worker = Worker(queue, **choices)
    served = ", ".join(sorted(worker.options.topics or queue.handlers))
    log.info("%s runs %s from %s, %d at a time", worker.name, served, shown(queue.url), worker.options.slots)
    try:
        await worker.run(signals=True)
    finally:
        await queue.close()
    log.info("%s has stopped", worker.name)
    await _leave_the_deaf_behind()


async def _leave_the_deaf_behind() -> None:
    """A handler that swallows its cancel would keep the process, and run on beside whoever has its job by now."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=STOP_S))[1]:
        log.warning("a handler won't stop: leaving without it")
        logging.shutdown()
        os._exit(0)


def run_on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end, on uvloop where there is one, with the garbage collector out of the way.

    Measured: looking for cycles among all that was imported took a tenth of what a server under load does.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        import uvloop
    except ImportError:
        new_loop = None
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)


def _supervised(processes: int) -> int:
    """The same command without --processes, so many times."""
    from treadle import settings
    from treadle.worker.supervisor import supervise

    logs.configure(settings.load().log_format)
    return supervise([sys.executable, "-m", "treadle", *_alone(sys.argv[1:])], processes)


def _alone(argv: list[str]) -> list[str]:
    kept, words = [], iter(argv)
    for word in words:
        if word == "--processes":
            next(words, None)
        elif not word.startswith("--processes="):
            kept.append(word)
    return kept
