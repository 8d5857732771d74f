"""`treadle serve`: the HTTP API, and a worker beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import logs, options
from treadle.cli.loading import load_queue
from treadle.errors import StoreUnavailable

if TYPE_CHECKING:
    import uvicorn

    from treadle.queue import Queue
    from treadle.worker import Worker

log = logging.getLogger("treadle.serve")

# How long open connections have to end once no new ones are taken; streams end at once.
LINGER_S = 3


def serve(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:QUEUE]",
            help="Where the queue is, such as app:queue; its jobs are run as well. Without it only the API is served.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Serve on this address. Default: 127.0.0.1, this machine only."),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", metavar="PORT", help="Default: 8090.")] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", metavar="N", help="Run so many jobs at once. Default: 10.")
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run the queue's jobs in this process too.")
    ] = True,
    drain: Annotated[
        str, typer.Option("--drain", metavar="TIME", help="How long running jobs may go on after a stop signal.")
    ] = "30s",
    db: options.Db = None,
) -> None:
    """Serve the HTTP API, and run the jobs of a queue in your code.

    The first start prints a link that makes the first superuser. SIGTERM or Ctrl-C stops it as it stops a worker.
    """
    from treadle.queue import Queue

    queue = load_queue(target) if target else Queue(db)
    if target and db is not None:
        queue.use(db)
    queue.settings = queue.settings.override({"host": host, "port": port, "slots": slots})
    logs.configure(queue.settings.log_format)
    from treadle.cli.worker import run_on_uvloop

    run_on_uvloop(_serve(queue, runs_jobs=worker and bool(queue.handlers), drain=drain))


async def _serve(queue: Queue, *, runs_jobs: bool, drain: str) -> None:
    from treadle.http import create_app
    from treadle.worker import Worker
    from treadle.worker.signals import on_signals

    listener = _listen(queue.settings.host, queue.settings.port)
    try:
        await queue.open()
        # Without handlers it runs no jobs, but still sees to delayed and lost ones, so that nothing extra is needed.
        worker = Worker(queue, topics=None if runs_jobs else [], drain=drain)
        app = create_app(queue, worker_metrics=[worker.metrics])
        server = _server(app)
        address = _address(queue.settings.host, listener)
        with on_signals(_stopper(queue, server, worker)):
            log.info("serving on %s%s", address, _works(queue, runs_jobs))
            await _tell_how_to_begin(queue, address)
            await _together(server, worker, listener)
    finally:
        listener.close()
        await queue.close()
    log.info("the server has stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Bound here, so that a port that is taken is one line and not a trace."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except (OSError, UnicodeError) as error:
        raise StoreUnavailable(f"can't serve on {host}:{port}: {error}; choose another --host or --port") from None
    return listener


def _server(app: Any) -> uvicorn.Server:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=LINGER_S,
        h11_max_incomplete_event_size=65_536,
        proxy_headers=False,
    )

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the worker has to hear them too

    return Server(config)


async def _together(server: uvicorn.Server, worker: Worker, listener: socket.socket) -> None:
    """Both, until one of them is at its end: then the other has nothing to stay for."""
    working = asyncio.create_task(worker.run())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        if not working.done() and not worker.stopping:
            worker.stop()
        await asyncio.wait({working, serving})
    for task in (working, serving):
        task.result()
    if not server.started:
        raise StoreUnavailable("the server did not start; its log says why")


def _stopper(queue: Queue, server: uvicorn.Server, worker: Worker) -> Callable[[], None]:
    """The first call stops server and worker in good order, the second at once."""
    ending: set[asyncio.Task[None]] = set()

    def stop() -> None:
        server.should_exit = True
        server.force_exit = worker.stopping
        worker.stop()
        ending.add(asyncio.create_task(queue.feed.stop()))  # streams would not end by themselves

    return stop


def _works(queue: Queue, runs_jobs: bool) -> str:
    from treadle.connect import shown

    if not runs_jobs:
        return f", from {shown(queue.url)}; no jobs are run here"
    return f", and running {', '.join(sorted(queue.handlers))} from {shown(queue.url)}"


async def _tell_how_to_begin(queue: Queue, address: str) -> None:
    """As long as there is no superuser, the way to become one."""
    from treadle.accounts import Accounts

    token = await Accounts(queue.store).setup_token()
    if token is not None:
        log.info("make the first superuser, once, within a day: %s/_/setup?token=%s", address, token)


def _address(host: str, listener: socket.socket) -> str:
    """Where to reach it from here: a server on every address is also on this machine's own."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    name = everywhere.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"
