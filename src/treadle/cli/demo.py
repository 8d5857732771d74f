"""`treadle demo`: a busy queue and its dashboard, on a SQLite file, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.output import say
from treadle.model.errors import InvalidInput, StoreUnavailable, TreadleError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from treadle.queue import Queue

FILE = "treadle-demo.db"
EMAIL = "demo@example.com"
REVIEW_EVERY_S = 30.0
PORTS = 20
"""How many ports to try, starting from the requested one."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Jobs of one kind: how often they arrive and what they contain."""

    topic: str
    every_s: float
    payload: Callable[[], dict[str, Any]] = dict
    options: Callable[[], dict[str, Any]] = dict
    at_once: int = 1
    at_start: int = 1
    """How many there are when the demo starts, so that the first look sees a queue at work."""


def arrivals() -> list[Arrival]:
    """Every kind of job: quick, slow, delayed, failing, retried, held by a key, never claimed."""
    names = ["ada", "grace", "linus", "margaret", "alan", "barbara"]
    accounts = ["acc_2201", "acc_2202", "acc_7731"]
    return [
        Arrival("send_mail", 0.7, lambda: {"to": f"{random.choice(names)}@example.com", "thread": _big()}, at_start=90),
        Arrival(
            "resize_image",
            1.6,
            lambda: {"width": random.choice([640, 800, 1280]), "file": f"img_{_id()}.jpg"},
            at_start=40,
        ),
        Arrival("count_primes", 20, lambda: {"below": random.randrange(20_000, 90_000)}),
        Arrival("build_report", 14, lambda: {"month": f"2026-{random.randrange(1, 13):02d}", "pages": 24}, at_start=2),
        Arrival("fetch_rates", 11, lambda: {"currency": random.choice(["EUR", "CHF", "JPY"])}, at_start=8),
        Arrival(
            "import_file", 23, lambda: {"file": f"orders_{_id()}.csv", "line": random.randrange(2, 900)}, at_start=3
        ),
        Arrival("charge_card", 17, lambda: {"orderId": random.randrange(10_000, 99_999), "amount": 4200}, at_start=12),
        Arrival("call_partner", 29, lambda: {"endpoint": "/v2/contacts"}, at_start=3),
        Arrival(
            "remind",
            9,
            lambda: {"what": random.choice(["tea", "stand-up", "lunch"])},
            lambda: {"delay": "40s"},
            at_start=4,
        ),
        Arrival("wait_for_upload", 25, lambda: {"fileId": f"f_{_id()}", "ready_in": 12}),
        Arrival("export_all", 33, lambda: {"accountId": random.choice(accounts), "format": "parquet"}),
        Arrival("confirm_order", 6, lambda: {"order": f"ord_{random.randrange(40)}"}, at_start=10),
        Arrival("sync_account", 8, lambda: {"account": random.choice(accounts)}, at_once=2),
        Arrival("deliver", 5, lambda: {"parcel": random.choice(["book", "medicine"])}, _priority, at_once=3),
        Arrival("render_video", 45, lambda: {"assetId": f"v_{_id()}", "preset": "1080p"}, lambda: {"expires": "4m"}),
        Arrival("demo_long_task", 37, lambda: {"target": f"album_{_id()}"}, _user),
        Arrival("multi_step_pipeline", 19, lambda: {"source": f"s3://demo/{_id()}", "rows": 1000}, at_start=2),
        Arrival("publish_corpus", 40, lambda: {"corpus": random.choice(["support-eu", "legal-eu"])}, at_start=2),
        Arrival("ask_agent", 25, lambda: {"question": "Which invoices from September are unpaid?"}),
    ]


def _user() -> dict[str, Any]:
    return {"scope": "user", "scope_id": f"user_{random.randrange(100, 200)}"}


def _priority() -> dict[str, Any]:
    return {"priority": random.choice(["critical", "normal", "low"])}


def _id() -> str:
    return secrets.token_hex(4)


def _big() -> int:
    return 1_970_670_598_291_000_000 + random.randrange(10**6)


def demo(
    folder: Annotated[
        Path,
        typer.Option("--dir", metavar="FOLDER", help=f"Where to put {FILE}.", show_default="the current folder"),
    ] = Path(),
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", help="Default: 8090, or the next one that is free.")
    ] = None,
) -> None:
    """See the dashboard at work: jobs of every kind arrive, run, fail and are retried.

    Serves until Ctrl-C and prints where, and how to sign in. The database file stays, so that you can go on later.
    """
    from treadle.cli.demo_jobs import queue
    from treadle.cli.worker import run_on_uvloop

    logging.getLogger("treadle").addHandler(logging.NullHandler())  # failures are part of the demo
    logging.getLogger("treadle").propagate = False
    queue.use(_database_in(folder))
    queue.settings = queue.settings.override(
        {"port": port, "environment": queue.settings.environment or "demo", "stale_after": "6h", "delete_after": "6h"}
    )
    run_on_uvloop(_serve(queue))
    say("The demo has stopped.")


def _database_in(folder: Path) -> str:
    from urllib.parse import quote

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--dir: {folder} can't be used: {error.strerror}") from None
    return f"sqlite:///{quote(str(folder / FILE))}"


async def _serve(queue: Queue) -> None:
    from treadle.accounts import Accounts
    from treadle.cli.serve import serve_queue
    from treadle.worker import Worker

    listener = _listen(queue.settings.host, queue.settings.port)
    await queue.open()
    password = secrets.token_urlsafe(9)
    await Accounts(queue.store).upsert_superuser(EMAIL, password)

    async def show(address: str) -> Coroutine[Any, Any, None]:
        for name, value in (("Dashboard", f"{address}/_/"), ("Sign in", EMAIL), ("Password", password)):
            print(f"{name:<10} {value}", flush=True)
        print("Ctrl-C stops it.", flush=True)
        return _keep_enqueuing(queue)

    worker = Worker(queue, slots=10, reap_interval="1s", drain="3s")
    await serve_queue(queue, listener, worker, show)


def _listen(host: str, port: int) -> socket.socket:
    """The requested port, or the next free one."""
    from treadle.cli.serve import listen

    for candidate in range(port, min(port + PORTS, 65_536)):
        try:
            return listen(host, candidate)
        except StoreUnavailable as error:
            problem = error
    raise problem


async def _keep_enqueuing(queue: Queue) -> None:
    await asyncio.gather(*(_arrive(queue, arrival) for arrival in arrivals()), _cancel_some(queue), _review_some(queue))


async def _arrive(queue: Queue, arrival: Arrival) -> None:
    """Some of each kind immediately, then each kind at its pace."""
    count = arrival.at_start
    while True:
        for _ in range(count):
            await _try(queue.enqueue(arrival.topic, arrival.payload(), **arrival.options()))
        await asyncio.sleep(arrival.every_s * random.uniform(0.5, 1.5))
        count = arrival.at_once


async def _cancel_some(queue: Queue) -> None:
    while True:
        await asyncio.sleep(20)
        for job in await queue.list(topic="export_all", status="processing", limit=1):
            await _try(_cancel(queue, job.id))


async def _cancel(queue: Queue, job_id: str) -> None:
    from treadle.queue.audit import Actor, AuditLog

    reason = "not needed any more"
    await queue.cancel(job_id, reason)
    await AuditLog(queue).add(Actor("demo", "script"), "cancel", job_id, reason=reason)


async def _review_some(queue: Queue) -> None:
    """Answer for one corpus; the other one waits for the person at the dashboard."""
    while True:
        await asyncio.sleep(REVIEW_EVERY_S)
        for job in await queue.list(topic="publish_corpus", status="waiting", limit=100):
            if job.payload["corpus"] == "support-eu":
                answer = {"ok": random.random() < 0.8, "note": "read it twice"}
                await _try(queue.signal(job.id, "approve", answer, answered_by="ada"))


async def _try(work: Coroutine[Any, Any, Any]) -> None:
    """A refusal, or a database that is briefly busy, does not end the demo."""
    try:
        await work
    except TreadleError as error:
        logging.getLogger("treadle.demo").info("%s", error)
