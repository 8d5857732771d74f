"""`treadle serve`: the HTTP API and the dashboard, and a worker in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import logs, options
from treadle.cli.database import moved
from treadle.cli.loading import load_queue
from treadle.model.errors import StoreUnavailable

if TYPE_CHECKING:
    import uvicorn

    from treadle.queue import Queue
    from treadle.worker import Worker

log = logging.getLogger("treadle.serve")

# How long open connections may take to end after shutdown begins; streams end immediately.
LINGER_S = 3
# Between two attempts to reach an unavailable database.
AWAY_S = 1.0
# How long the set-up link may hold up the start.
ANSWER_S = 5.0


def serve(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:QUEUE]",
            help="Where the queue is, such as app:queue; its jobs run here too. Without it, no jobs run here.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Serve on this address. Default: 127.0.0.1, this machine only."),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", metavar="PORT", help="Default: 8090.")] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", metavar="N", help="Run up to this many jobs concurrently. Default: 10.")
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Run the queue's jobs in this process too, or not.")
    ] = True,
    drain: Annotated[
        str, typer.Option("--drain", metavar="TIME", help="How long running jobs may go on after a stop signal.")
    ] = "30s",
    log_level: options.LogLevel = "info",
    db: options.Db = None,
) -> None:
    """Serve the HTTP API and the dashboard, and run the jobs of a queue in your code.

    The first start prints a link that makes the first superuser. SIGTERM or Ctrl-C stops it as it stops a worker.
    """
    from treadle.queue import Queue

    queue = moved(load_queue(target), target, db) if target else Queue(db)
    queue.settings = queue.settings.override({"host": host, "port": port, "slots": slots})
    logs.configure(queue.settings.log_format, log_level)
    from treadle.cli.worker import run_on_uvloop

    run_on_uvloop(_serve(queue, runs_jobs=worker and bool(queue.handlers), drain=drain))


async def _serve(queue: Queue, *, runs_jobs: bool, drain: str) -> None:
    from treadle.worker import Worker

    listener = listen(queue.settings.host, queue.settings.port)
    try:
        await queue.open()
    except BaseException:
        listener.close()
        raise

    async def tell(address: str) -> Coroutine[Any, Any, None] | None:
        log.info("serving on %s%s", address, _works(queue, runs_jobs))
        return None if await _tell_how_to_begin(queue, address) else tell_later(address)

    async def tell_later(address: str) -> None:
        await asyncio.sleep(AWAY_S)
        while not await _tell_how_to_begin(queue, address, warn=False):
            await asyncio.sleep(AWAY_S)

    # Without handlers it runs no jobs, but still promotes delayed jobs and reclaims lost ones, so no extra process is
    # needed.
    await serve_queue(queue, listener, Worker(queue, topics=None if runs_jobs else [], drain=drain), tell)
    log.info("the server has stopped")


Tell = Callable[[str], Coroutine[Any, Any, Coroutine[Any, Any, None] | None]]


async def serve_queue(queue: Queue, listener: socket.socket, worker: Worker, tell: Tell) -> None:
    """Run the API, the dashboard and a worker of an open queue until a signal.

    `tell` gets the address before serving starts; the task that it returns runs as long as the server.
    """
    from treadle.dashboard import create_app
    from treadle.worker.signals import on_signals

    server = _server(create_app(queue, worker_metrics=[worker.metrics]))
    aside: asyncio.Task[None] | None = None
    try:
        with on_signals(_stopper(queue, server, worker)):
            rest = await tell(_address(queue.settings.host, listener))
            aside = asyncio.create_task(rest) if rest else None
            await _together(server, worker, listener)
    finally:
        if aside is not None:
            aside.cancel()
            await asyncio.gather(aside, return_exceptions=True)
        listener.close()
        await queue.close()


def listen(host: str, port: int) -> socket.socket:
    """Bind here, so that a port in use gives one line and not a traceback."""
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

    from treadle.http.connections import limited_protocol, limits, websocket_options

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=LINGER_S,
        http=limited_protocol(limits()),
        h11_max_incomplete_event_size=65_536,
        proxy_headers=False,
        **websocket_options(),
    )

    class UvicornServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the worker has to receive them too

    return UvicornServer(config)


async def _together(server: uvicorn.Server, worker: Worker, listener: socket.socket) -> None:
    """Run both until one of them ends, then stop the other. A server goes on without a worker that was drained."""
    working = asyncio.create_task(worker.run())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
        if worker.drained:
            await asyncio.wait({serving})
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
    """The first call stops server and worker gracefully, the second immediately."""
    ending: set[asyncio.Task[None]] = set()

    def stop() -> None:
        server.should_exit = True
        server.force_exit = worker.stopping
        worker.stop()
        ending.add(asyncio.create_task(queue.feed.stop()))  # streams would not end otherwise

    return stop


def _works(queue: Queue, runs_jobs: bool) -> str:
    from treadle.store.connect import shown

    if not runs_jobs:
        return f", from {shown(queue.url)}; no jobs are run here"
    return f", and running {', '.join(sorted(queue.handlers))} from {shown(queue.url)}"


async def _tell_how_to_begin(queue: Queue, address: str, *, warn: bool = True) -> bool:
    """While there is no superuser, show how to create one. False if the database is unavailable."""
    from treadle.accounts import Accounts

    try:
        async with asyncio.timeout(ANSWER_S):
            token = await Accounts(queue.store).setup_token()
    except (StoreUnavailable, TimeoutError) as error:
        if warn:
            log.warning("the set-up link waits for the database: %s", str(error) or "it does not answer")
        return False
    if token is not None:
        site = queue.settings.public_url.rstrip("/") or address
        log.info("create the first superuser (this link works once, for a day): %s/_/setup#token=%s", site, token)
    return True


def _address(host: str, listener: socket.socket) -> str:
    """A local address to reach it; a server on all addresses is also reachable on localhost."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    name = everywhere.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"
