"""The jobs of `treadle demo`: a handler of every kind, with waits short enough to watch.

After the demo its database can be worked on like any other:
`treadle worker treadle.cli.demo_jobs:queue --capabilities gpu --db sqlite:///treadle-demo.db`
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from pydantic import BaseModel

from treadle import Concurrency, Context, Fail, Queue, Retry, Snooze

queue = Queue("sqlite:///treadle-demo.db")


class Mail(BaseModel):
    to: str
    subject: str = "Hello"


@queue.job
async def send_mail(mail: Mail) -> str:
    """A coroutine, on the worker's event loop."""
    await asyncio.sleep(0.2)
    return f"sent to {mail.to}"


@queue.job
def resize_image(payload: dict[str, Any]) -> dict[str, int]:
    """A plain function, in a thread."""
    time.sleep(0.3)
    return {"width": payload["width"] // 2}


@queue.job(process=True)
def count_primes(payload: dict[str, Any]) -> int:
    """Busy work, in a process of its own."""
    return sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(2, payload["below"]))


@queue.job
async def build_report(ctx: Context) -> str:
    for page in range(1, 11):
        await asyncio.sleep(0.2)
        await ctx.progress(page * 10, f"page {page} of 10")
    return "10 pages"


@queue.job(retry=Retry(3, backoff=["400ms", "800ms"]))
async def fetch_rates(ctx: Context) -> str:
    if ctx.attempt < 3:
        raise ConnectionError(f"attempt {ctx.attempt}: the server hung up")
    return f"worked at attempt {ctx.attempt}"


@queue.job(retry=Retry(2, backoff=["500ms"]))
async def import_file() -> None:
    raise ValueError("line 7 is not a number")


@queue.job
async def charge_card() -> None:
    raise Fail("the card is stolen: no use in trying again")


@queue.job(timeout="500ms", max_attempts=1)
async def call_partner() -> None:
    await asyncio.sleep(60)


@queue.job
async def remind(payload: dict[str, Any]) -> str:
    return f"reminded of {payload['what']}"


@queue.job
async def wait_for_upload(payload: dict[str, Any]) -> str:
    if time.time() < payload["ready_at"]:
        raise Snooze("500ms", "the upload is not there yet")
    return "the upload is there"


@queue.job
async def export_all(ctx: Context) -> None:
    for percent in range(100):
        await asyncio.sleep(0.1)
        await ctx.progress(percent, "exporting")


@queue.job(idempotency_key="input.order")
async def confirm_order(payload: dict[str, Any]) -> str:
    return f"order {payload['order']} confirmed once"


@queue.job(concurrency=Concurrency(keys=["input.account"]))
async def sync_account(payload: dict[str, Any]) -> str:
    await asyncio.sleep(0.6)
    return f"account {payload['account']} is in sync"


@queue.job(rate=(1, "400ms"))
async def deliver(payload: dict[str, Any]) -> str:
    return f"{payload['parcel']} delivered"


@queue.job(capability="gpu")
async def render_video() -> str:
    return "rendered"
