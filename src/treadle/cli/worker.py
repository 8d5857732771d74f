"""`treadle worker`: run the handlers of a module."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from treadle.cli import logs, options
from treadle.cli.database import moved
from treadle.cli.loading import include_modules, load_queue
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.queue import Queue
    from treadle.worker import Worker

log = logging.getLogger("treadle.worker")

# How long remaining handlers may take to end after the worker has stopped.
STOP_S = 1.0
LOOK_AT_MEMORY_S = 1.0

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:QUEUE",
        help="Where the queue is, such as app:queue for queue = Queue(…) in app.py.",
        show_default=False,
    ),
]
ProcessesOption = Annotated[
    int, typer.Option("--processes", metavar="N", min=1, max=256, help="How many worker processes to run.")
]
SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", metavar="N", help="Run up to this many jobs concurrently in each process. Default: 10."),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topics", metavar="A,B", help="Serve only these topics; 'shop.*' is a group. Default: all with a handler."
    ),
]
ExceptOption = Annotated[
    list[str] | None,
    typer.Option("--except", metavar="A,B", help="Don't serve these topics; 'mail.*' is a group."),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="MODULE,…", help="Import these modules too, which register handlers."),
]
ReloadOption = Annotated[
    bool,
    typer.Option("--reload", help="Start again when a Python file below the current folder changes; to develop with."),
]
CapabilitiesOption = Annotated[
    list[str] | None,
    typer.Option("--capabilities", metavar="A,B", help="Also take jobs that need one of these."),
]
NameOption = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The worker's name in lists and logs.")]
LeaseOption = Annotated[
    str | None,
    typer.Option(
        "--lease",
        metavar="TIME",
        help="How long it may be silent before others take over its jobs. Default: 5m.",
    ),
]
DrainOption = Annotated[
    str, typer.Option("--drain", metavar="TIME", help="How long running jobs may go on after a stop signal.")
]
BurstOption = Annotated[bool, typer.Option("--burst", help="Exit when no job is left that could start now.")]
MaxJobsOption = Annotated[
    int | None,
    typer.Option("--max-jobs", metavar="N", min=1, help="Replace a process after this many jobs."),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory", metavar="SIZE", help="Replace a process that uses more memory than this, such as 512M."
    ),
]
PrefetchOption = Annotated[
    int | None,
    typer.Option(
        "--prefetch",
        metavar="N",
        min=0,
        help="Claim at most N jobs beyond the free slots; 0: none. Default: as many as start within 100 ms.",
    ),
]
MemberOption = Annotated[bool, typer.Option("--member", hidden=True)]


def worker(
    target: TargetArgument,
    processes: ProcessesOption = 1,
    slots: SlotsOption = None,
    topics: TopicsOption = None,
    except_: ExceptOption = None,
    include: IncludeOption = None,
    capabilities: CapabilitiesOption = None,
    name: NameOption = None,
    lease: LeaseOption = None,
    drain: DrainOption = "30s",
    burst: BurstOption = False,
    max_jobs: MaxJobsOption = None,
    max_memory: MaxMemoryOption = None,
    prefetch: PrefetchOption = None,
    reload: ReloadOption = False,
    log_level: options.LogLevel = "info",
    member: MemberOption = False,
    db: options.Db = None,
) -> None:
    """Run the jobs of a queue in your code.

    SIGTERM or Ctrl-C stops it: it takes no new jobs, running ones may finish until --drain is over, and the
    rest are released. A second signal releases them without waiting.
    """
    if reload:
        raise typer.Exit(_reloaded(log_level))
    limits = Limits(max_jobs, options.size(max_memory, "--max-memory"))
    if not member and (processes > 1 or any(limits)):
        raise typer.Exit(_supervised(processes, log_level, burst=burst))
    queue = moved(load_queue(target), target, db)
    include_modules(options.names(include) or ())
    if not queue.handlers:
        raise InvalidInput(f"{target} has no handlers; register one with @queue.job")
    logs.configure(queue.settings.log_format, log_level)
    choices = {
        "slots": slots,
        "topics": options.names(topics),
        "except_topics": options.names(except_) or (),
        "capabilities": options.names(capabilities) or (),
        "name": name,
        "lease": options.shortest(lease, "--lease", "1s"),
        "drain": drain,
        "burst": burst,
        "prefetch": prefetch,
    }
    replace_me: list[bool] = []
    drained: list[bool] = []
    run_on_uvloop(_work(queue, choices, limits, replace_me, drained))
    if member and (replace_me or drained):
        from treadle.worker.supervisor import DRAINED, REPLACE_ME

        raise typer.Exit(DRAINED if drained else REPLACE_ME)


class Limits(NamedTuple):
    """When to replace a process with a fresh one."""

    jobs: int | None
    memory_bytes: int | None


async def _work(
    queue: Queue, choices: dict[str, Any], limits: Limits, replace_me: list[bool], drained: list[bool]
) -> None:
    from treadle.store.connect import shown
    from treadle.worker import Worker

    worker = Worker(queue, **choices)
    served = ", ".join(sorted(worker.options.topics or queue.handlers))
    log.info("%s runs %s from %s, %d at a time", worker.name, served, shown(queue.url), worker.options.slots)
    watching = asyncio.create_task(_replaced_by(worker, limits, replace_me))
    try:
        await worker.run(signals=True)
    finally:
        watching.cancel()
        await queue.close()
    log.info("%s has stopped", worker.name)
    drained += [True] * worker.drained
    await _exit_despite_stuck_handlers()


def _replaced_by(worker: Worker, limits: Limits, replace_me: list[bool]) -> Coroutine[Any, Any, None]:
    """Stop the worker when it reaches a limit; the supervisor starts another."""
    done = 0

    def enough(reason: str) -> None:
        if not worker.stopping:
            log.info("%s %s and is replaced by a fresh process", worker.name, reason)
            replace_me.append(True)
            worker.stop()

    def count(settlements: Sequence[object]) -> None:
        nonlocal done
        done += len(settlements)
        if limits.jobs and done >= limits.jobs:
            enough(f"has run {done} jobs")

    async def look_at_memory() -> None:
        while limits.memory_bytes and not worker.stopping:
            used = _memory_bytes()
            if used > limits.memory_bytes:
                enough(f"has grown to {used // 2**20} MiB")
            await asyncio.sleep(LOOK_AT_MEMORY_S)

    worker.on_settled = count
    return look_at_memory()


def _memory_bytes() -> int:
    """The current memory use of this process, or its peak if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


async def _exit_despite_stuck_handlers() -> None:
    """Exit even if a handler swallows its cancel, because another worker may already have its job."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=STOP_S))[1]:
        log.warning("a handler does not stop; the worker exits without it")
        logging.shutdown()
        os._exit(0)


def run_on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end, on uvloop if installed, with the garbage collector tuned.

    Measured: searching all imported modules for cycles took a tenth of a loaded server's time.
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


def _supervised(processes: int, log_level: str, *, burst: bool) -> int:
    """Run several processes of the same command under a supervisor."""
    from treadle.queue import own_settings
    from treadle.worker.supervisor import supervise

    logs.configure(own_settings.load().log_format, log_level)
    command = [sys.executable, "-m", "treadle", *_without_processes(sys.argv[1:]), "--member"]
    return supervise(command, processes, until_done=burst)


def _reloaded(log_level: str) -> int:
    """Run the same command without --reload, again after each change of the code."""
    from treadle.cli.reloading import Reloader
    from treadle.queue import own_settings

    logs.configure(own_settings.load().log_format, log_level)
    words = [word for word in sys.argv[1:] if word != "--reload"]
    return Reloader([sys.executable, "-m", "treadle", *words], Path.cwd()).run()


def _without_processes(argv: list[str]) -> list[str]:
    kept, words = [], iter(argv)
    for word in words:
        if word == "--processes":
            next(words, None)
        elif not word.startswith("--processes="):
            kept.append(word)
    return kept
