"""The queue that the SDK's tests talk to; copied to the folder of their server."""

import asyncio
from dataclasses import dataclass

from treadle import Context, Fail, Queue

queue = Queue()


@queue.job
async def mail_digest(payload: dict[str, str]) -> dict[str, str]:
    """Digests for one user."""
    return {"sent": payload["userId"]}


@queue.job
async def breaks(payload: dict[str, str]) -> None:
    raise Fail("SMTP is down")


@dataclass
class Export:
    format: str
    rows: int = 3


@dataclass
class Exported:
    count: int


@queue.job
async def export_users(ctx: Context, payload: Export) -> Exported:
    """Ends */ comments, if it can."""
    for row in range(payload.rows):
        await ctx.progress(100 * row // payload.rows, f"row {row}")
        await asyncio.sleep(0.05)
    return Exported(payload.rows)


@queue.job
async def endless(ctx: Context, payload: dict[str, str]) -> None:
    for number in range(100_000):
        await ctx.progress(number % 100, f"lap {number}")
        await asyncio.sleep(0.05)


@queue.job
async def large(payload: dict[str, str]) -> str:
    return "x" * 30_000


@dataclass
class Approval:
    ok: bool


publish = queue.flow("publish")


@publish.step
async def draft(ctx: Context, payload: dict[str, str]) -> str:
    return "a draft"


approve = publish.external("approve", answer=Approval)


@publish.step
async def release(ctx: Context, payload: dict[str, str]) -> bool:
    return bool(ctx.results["approve"].ok)


@queue.job(idempotency_key="input.payment")
async def pay_once(payload: dict[str, str]) -> None: ...
