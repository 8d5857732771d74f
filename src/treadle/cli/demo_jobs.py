"""The jobs of `treadle demo`: one handler of every kind, with short waits.

A second worker can join it, for example one with a GPU:
`treadle worker treadle.cli.demo_jobs:queue --capabilities gpu --db sqlite:///treadle-demo.db`
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Any, Literal

from pydantic import BaseModel, Field

from treadle import CancelPolicy, Concurrency, Context, Fail, Flow, Queue, Retry, Snooze

queue = Queue("sqlite:///treadle-demo.db")


class Mail(BaseModel):
    to: str
    thread: int = 0
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
    """CPU-bound work, in a separate process."""
    return sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(2, payload["below"]))


@queue.job
async def build_report(ctx: Context, payload: dict[str, Any]) -> str:
    pages = payload["pages"]
    for page in range(1, pages + 1):
        await asyncio.sleep(random.uniform(0.2, 0.8))
        await ctx.progress(page * 100 // pages, f"page {page} of {pages}")
    return f"{pages} pages"


@queue.job(retry=Retry(3, backoff=["5s", "20s"]))
async def fetch_rates(ctx: Context, payload: dict[str, Any]) -> str:
    await asyncio.sleep(0.4)
    if ctx.attempt < random.randrange(1, 5):
        raise ConnectionError(f"rates.example.com hung up after {random.randrange(100, 900)} bytes")
    return f"{payload['currency']} at attempt {ctx.attempt}"


@queue.job(retry=Retry(2, backoff=["10s"]))
async def import_file(payload: dict[str, Any]) -> None:
    await asyncio.sleep(0.8)
    _parse_amount("12,4O", payload["line"])


def _parse_amount(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"line {line} of the file: {text!r} is not an amount") from error


@queue.job
async def charge_card(payload: dict[str, Any]) -> str:
    await asyncio.sleep(0.6)
    if payload["orderId"] % 3 == 0:
        raise Fail(f"order {payload['orderId']}: the card was reported stolen, trying again is no use")
    return "charged"


@queue.job(timeout="2s", max_attempts=2, retry=Retry(2, backoff=["15s"]))
async def call_partner(payload: dict[str, Any]) -> str:
    await asyncio.sleep(random.choice([0.3, 60]))
    return "200 OK"


@queue.job
async def remind(payload: dict[str, Any]) -> str:
    return f"reminded of {payload['what']}"


@queue.job
async def wait_for_upload(ctx: Context, payload: dict[str, Any]) -> str:
    first = _first_seen.setdefault(ctx.job_id, time.monotonic())
    if time.monotonic() < first + payload["ready_in"]:
        raise Snooze("5s", "the upload is not there yet")
    _first_seen.pop(ctx.job_id, None)
    return "the upload is there"


_first_seen: dict[str, float] = {}


@queue.job
async def export_all(ctx: Context, payload: dict[str, Any]) -> str:
    for percent in range(100):
        await asyncio.sleep(0.3)
        await ctx.progress(percent, f"exporting {payload['accountId']}, part {percent // 10 + 1} of 10")
    return "10 parts"


@queue.job(idempotency_key="input.order")
async def confirm_order(payload: dict[str, Any]) -> str:
    return f"order {payload['order']} confirmed once"


@queue.job(concurrency=Concurrency(keys=["input.account"]))
async def sync_account(payload: dict[str, Any]) -> str:
    await asyncio.sleep(random.uniform(2, 6))
    return f"account {payload['account']} is in sync"


@queue.job(rate=(1, "1s"))
async def deliver(payload: dict[str, Any]) -> str:
    await asyncio.sleep(0.2)
    return f"{payload['parcel']} delivered"


@queue.job(capability="gpu")
async def render_video(payload: dict[str, Any]) -> str:
    return f"{payload['assetId']} rendered"


# The example templates of the requirements, with their fields.


class LongTask(BaseModel):
    target: str = Field(min_length=1, description="What to work on")
    items: int = Field(20, ge=1, le=1000, description="How many parts it has")


long_task = queue.flow(
    "demo_long_task",
    title="示範長任務",
    description="展示 job template、進度、取消、重跑與排程能力",
    concurrency=Concurrency("reject_same_scope"),
    dedupe_keys=["scope_id", "target"],
    timeout=600,
    cancel=CancelPolicy(supported=True, mode="cooperative", grace=30),
    retry=Retry(2, [30, 120]),
)


@long_task.step(name="prepare", title="準備資料", timeout=60)
async def prepare_task(ctx: Context, task: LongTask) -> list[int]:
    await asyncio.sleep(1)
    return list(range(task.items))


@long_task.step(name="execute", title="執行任務", timeout=300)
async def execute_task(ctx: Context, task: LongTask) -> int:
    for item in ctx.results["prepare"]:
        await asyncio.sleep(0.4)
        await ctx.progress(item * 100 // task.items, f"{task.target}: {item} of {task.items}")
    return task.items


@long_task.step(name="finalize", title="整理結果", timeout=30, cancelable=False)
async def finalize_task(ctx: Context, task: LongTask) -> dict[str, int]:
    await asyncio.sleep(0.5)
    return {"items": ctx.results["execute"]}


class Report(BaseModel):
    month: str = Field("2026-01", pattern=r"^\d{4}-\d{2}$", description="Such as 2026-01")
    format: Literal["pdf", "csv", "html"] = "pdf"
    since: str | None = None


@queue.job(
    title="Scheduled report",
    description="Made by a schedule; can be made by hand, too",
    schedule=[
        {"cron": "0 9 * * *", "timezone": "Asia/Taipei", "payload": {"since": "{{previousAt}}"}},
        {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "id": "nightly_report", "missed": "skip"},
        {"every": "30s", "id": "report_often", "overlap": "skip", "payload": {"format": "csv"}},
    ],
    timeout="5m",
)
async def scheduled_report(ctx: Context, report: Report) -> str:
    for page in range(5):
        await asyncio.sleep(0.5)
        await ctx.progress(page * 20, f"page {page + 1} of 5")
    return f"report-{report.month}.{report.format}"


class Pipeline(BaseModel):
    source: str
    rows: int = Field(1000, ge=1)
    options: dict[str, Any] = {}


pipeline: Flow[Pipeline] = queue.flow(
    "multi_step_pipeline", title="Pipeline of several steps", description="prepare, execute, finalize", timeout="10m"
)


@pipeline.step(name="prepare", title="準備資料", timeout=60)
async def prepare_rows(ctx: Context, wanted: Pipeline) -> dict[str, Any]:
    await asyncio.sleep(random.uniform(0.5, 2))
    return {"source": wanted.source, "rows": wanted.rows}


@pipeline.step(name="execute", title="執行任務", timeout=300, retry=Retry(3, ["1s"]))
async def execute_rows(ctx: Context, wanted: Pipeline) -> int:
    for part in range(4):
        await ctx.progress(part * 25, f"part {part + 1} of 4")
        await asyncio.sleep(random.uniform(0.2, 0.8))
    if random.random() < 0.4:
        raise ConnectionError(f"{wanted.source} hung up")
    return int(ctx.results["prepare"]["rows"])


@pipeline.step(name="finalize", title="整理結果", timeout=30, cancelable=False)
async def finalize_rows(ctx: Context, wanted: Pipeline) -> dict[str, Any]:
    await asyncio.sleep(random.uniform(0.2, 1))
    return {"source": wanted.source, "rows": ctx.results["execute"]}


# A flow that waits for a person, and a loop of unknown length that keeps each turn.


class Corpus(BaseModel):
    corpus: str
    documents: int = 24


class Approval(BaseModel):
    ok: bool = Field(description="Publish these documents?")
    audience: Literal["customers", "internal"] = Field("customers", description="Who may search them afterwards.")
    note: str | None = Field(None, max_length=500, description="Goes to the person who asked.")


corpus: Flow[Corpus] = queue.flow(
    "publish_corpus", title="Publish a corpus", description="Indexed, approved by a person, published"
)


@corpus.step
async def fetch(ctx: Context, wanted: Corpus) -> list[str]:
    await asyncio.sleep(1.5)
    return [f"document-{n:02}" for n in range(wanted.documents)]


@corpus.step(map=fetch, key=str, limit=4, max_failed="10%", retry=Retry(2, backoff="fixed", delay="1s"))
async def embed(ctx: Context, wanted: Corpus, document: str) -> list[float]:
    await asyncio.sleep(random.uniform(0.2, 0.8))
    if document == "document-07":
        raise ValueError(f"{document} has no text")
    return [random.random() for _ in range(4)]


@corpus.step(after=[fetch])
async def summarise(ctx: Context, wanted: Corpus) -> str:
    for part in range(10):
        await asyncio.sleep(0.3)
        await ctx.progress(part * 10, f"{part * 41} words")
    return f"The corpus {wanted.corpus} holds {wanted.documents} documents. Two expire this year."


corpus.external("approve", after=[embed, summarise], answer=Approval, timeout="3d")


@corpus.step(when=lambda ctx, wanted: ctx.results["approve"].ok, cancelable=False)
async def publish(ctx: Context, wanted: Corpus) -> str:
    await asyncio.sleep(1)
    return f"{wanted.corpus} for {ctx.results['approve'].audience}"


@queue.job(timeout="10m", retry=Retry(3, ["2s"]))
async def ask_agent(ctx: Context, payload: dict[str, Any]) -> str:
    for turn in range(random.Random(ctx.job_id).randrange(3, 12)):
        await ctx.step("model", _think, key=turn, retry=Retry(3, ["500ms"]))
        await ctx.step("tool", _use_tool, payload["question"], key=turn)
    return "three invoices are unpaid"


async def _think() -> dict[str, int]:
    await asyncio.sleep(random.uniform(0.3, 1.5))
    if random.random() < 0.1:
        raise TimeoutError("the model took too long")
    return {"tokens": random.randrange(100, 900)}


async def _use_tool(question: str) -> str:
    await asyncio.sleep(random.uniform(0.1, 0.8))
    return f"looked for {question}"
