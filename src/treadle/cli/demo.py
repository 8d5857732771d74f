"""`treadle demo`: a queue, a worker and a job of every kind, to watch for a few seconds."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import options
from treadle.cli.demo_view import ChangesAsLines, LiveTable, Nothing, View, print_result
from treadle.cli.output import console, listed, print_heading, print_json, say
from treadle.errors import InvalidInput, TreadleError

if TYPE_CHECKING:
    from treadle.job import Job
    from treadle.queue import Queue

FILE = "treadle-demo.db"
# Everything is over in about five seconds; a machine that is very busy gets more.
LONGEST_S = 60.0
LOOK_EVERY_S = 0.1


@dataclass
class Scene:
    """One job of the demo."""

    shows: str
    topic: str
    payload: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    twice: bool = False
    """Is enqueued a second time."""
    cancel: bool = False
    """Is cancelled while it runs."""
    stays: bool = False
    """Is still pending when the demo is over."""


def scenes() -> list[Scene]:
    run = time.time()
    return [
        Scene("coroutine", "send_mail", {"to": "ada@example.com"}),
        Scene("function in a thread", "resize_image", {"width": 800}),
        Scene("function in a process", "count_primes", {"below": 50_000}),
        Scene("progress", "build_report"),
        Scene("fails twice, is retried", "fetch_rates"),
        Scene("fails until it may not", "import_file"),
        Scene("fails for good at once", "charge_card"),
        Scene("takes too long", "call_partner"),
        Scene("delayed", "remind", {"what": "tea"}, {"delay": "2s"}),
        Scene("snoozes until it can", "wait_for_upload", {"ready_at": run + 1.5}),
        Scene("cancelled while it runs", "export_all", cancel=True),
        Scene("same key twice, one job", "confirm_order", {"order": f"{run:.3f}"}, twice=True),
        Scene("one account at a time", "sync_account", {"account": "a"}),
        Scene("one account at a time", "sync_account", {"account": "a"}),
        Scene("another one beside it", "sync_account", {"account": "b"}),
        Scene("low priority goes last", "deliver", {"parcel": "catalogue"}, {"priority": "low"}),
        Scene("normal priority", "deliver", {"parcel": "book"}),
        Scene("critical goes first", "deliver", {"parcel": "medicine"}, {"priority": "critical"}),
        Scene("nobody took it in time", "render_video", options={"expires": "2s"}),
        Scene("waits for a GPU worker", "render_video", stays=True),
    ]


def demo(
    folder: Annotated[
        Path,
        typer.Option("--dir", metavar="FOLDER", help=f"Where to put {FILE}.", show_default="the current folder"),
    ] = Path(),
    as_json: options.AsJson = False,
) -> None:
    """Watch a queue at work: one job of every kind, on a SQLite file.

    Takes a few seconds and ends by itself. The file stays, so that you can look at the jobs; run it again and
    there are more.
    """
    logging.getLogger("treadle").addHandler(logging.NullHandler())  # failures are part of the show
    url, cast = _database_in(folder), scenes()
    view: View = Nothing() if as_json else LiveTable() if console().is_terminal else ChangesAsLines()
    if not as_json:
        say(f"{len(cast)} jobs in {url}, one worker, a few seconds …")
    jobs = asyncio.run(_play(url, cast, view))
    if as_json:
        print_json(listed(job.as_json() for job in jobs))
    else:
        print_result([scene.shows for scene in cast], jobs)
        _print_commands(url, jobs)


def _database_in(folder: Path) -> str:
    from urllib.parse import quote

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--dir: {folder} can't be used: {error.strerror}") from None
    return f"sqlite:///{quote(str(folder / FILE))}"


async def _play(url: str, cast: Sequence[Scene], view: View) -> list[Job]:
    """Enqueue, work and watch; the jobs as they are at the end, in the order of the scenes."""
    from treadle.cli.demo_jobs import queue
    from treadle.worker import Worker

    queue.use(url)
    async with queue:
        made = {await _enqueue(queue, scene): scene for scene in cast}
        worker = Worker(queue, name="demo", slots=8, reap_interval="500ms", drain="2s")
        working = asyncio.create_task(worker.run())
        try:
            with view:
                return await _while(working, _watch(queue, made, view))
        finally:
            worker.stop()
            await working


async def _while(working: asyncio.Task[None], watching: Coroutine[Any, Any, list[Job]]) -> list[Job]:
    """Watch as long as there is a worker."""
    jobs = asyncio.create_task(watching)
    await asyncio.wait({jobs, working}, timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
    if jobs.done():
        return jobs.result()
    jobs.cancel()
    if working.done():
        working.result()
    raise TreadleError(f"the demo is not over after {LONGEST_S:.0f} s; this machine is very busy")


async def _enqueue(queue: Queue, scene: Scene) -> str:
    job = await queue.enqueue(scene.topic, scene.payload, **scene.options)
    if scene.twice:
        job = await queue.enqueue(scene.topic, scene.payload, **scene.options)
    return job.id


async def _watch(queue: Queue, made: Mapping[str, Scene], view: View) -> list[Job]:
    while True:
        jobs = [await queue.get(job_id) for job_id in made]
        view.show([scene.shows for scene in made.values()], jobs)
        if all(job.ended or made[job.id].stays for job in jobs):
            return jobs
        for job in jobs:
            if made[job.id].cancel and job.status == "processing" and job.progress >= 10:
                await queue.cancel(job.id, "nobody needs it any more")
        await asyncio.sleep(LOOK_EVERY_S)


def _print_commands(url: str, jobs: Sequence[Job]) -> None:
    treadle, db = _this_command(), f"--db {url}"
    failed = next(job for job in jobs if job.status == "failed")
    print_heading("\nLook further:")
    for command in (
        f"{treadle} jobs list {db}",
        f"{treadle} jobs show {failed.id} {db}",
        f"{treadle} jobs requeue {failed.id} {db}",
        f"{treadle} jobs why {jobs[-1].id} {db}",
        f"{treadle} worker treadle.cli.demo_jobs:queue --capabilities gpu {db}",
        f"{treadle} stats {db}",
    ):
        print(f"  {command}")


def _this_command() -> str:
    """As it can be typed again: `treadle` if that is what the shell finds, else the way it was started."""
    found = shutil.which("treadle")
    if found and Path(found).resolve() == Path(sys.argv[0]).resolve():
        return "treadle"
    return sys.argv[0] if Path(sys.argv[0]).name == "treadle" else f"{Path(sys.executable).name} -m treadle"
