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


@queue.job(
    title="示範長任務",
    description="展示 job template、進度、取消、重跑與排程能力",
    concurrency=Concurrency("reject_same_scope"),
    dedupe_keys=["scope_id", "target"],
    timeout=600,
    cancel=CancelPolicy(supported=True, mode="cooperative", grace=30),
    retry=Retry(2, [30, 120]),
)
async def demo_long_task(ctx: Context, task: LongTask) -> dict[str, int]:
    for item in range(task.items):
        await asyncio.sleep(0.4)
        await ctx.progress(item * 100 // task.items, f"{task.target}: {item} of {task.items}")
    return {"items": task.items}


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


multi_step_pipeline: Flow[Pipeline] = queue.flow(
    "multi_step_pipeline", title="Pipeline of several steps", description="prepare, execute, finalize", timeout="10m"
)


@multi_step_pipeline.step(title="準備資料", timeout=60)
async def prepare(ctx: Context, pipeline: Pipeline) -> list[int]:
    await asyncio.sleep(random.uniform(0.5, 2))
    return [pipeline.rows // 4] * 4


@multi_step_pipeline.step(title="執行任務", timeout=300, retry=Retry(3, backoff=["2s"]))
async def execute(ctx: Context, pipeline: Pipeline) -> int:
    parts: list[int] = ctx.results["prepare"]
    for number, _ in enumerate(parts):
        await ctx.progress(number * 100 // len(parts), f"part {number + 1} of {len(parts)}")
        await asyncio.sleep(random.uniform(0.3, 1.2))
        if random.random() < 0.05:
            raise ConnectionError(f"{pipeline.source} closed the connection")
    return sum(parts)


@multi_step_pipeline.step(title="整理結果", timeout=30, cancelable=False)
async def finalize(ctx: Context, pipeline: Pipeline) -> dict[str, Any]:
    await asyncio.sleep(random.uniform(0.5, 2))
    return {"source": pipeline.source, "rows": ctx.results["execute"]}


class Article(BaseModel):
    headline: str
    reviewer: str | None = Field(None, description="Who answers; without one it waits for you")


class Approval(BaseModel):
    ok: bool
    note: str = ""


publish_article: Flow[Article] = queue.flow("publish_article", title="Article with an approval", max_attempts=1)


@publish_article.step(title="Write the draft")
async def draft(ctx: Context, article: Article) -> str:
    await asyncio.sleep(random.uniform(1, 3))
    return f"{article.headline}: lorem ipsum"


publish_article.external("approve", title="Approve the draft", answer=Approval, timeout="20m")


@publish_article.step(title="Publish it", when=lambda ctx, article: ctx.results["approve"].ok, cancelable=False)
async def publish(ctx: Context, article: Article) -> str:
    await asyncio.sleep(0.5)
    return f"https://news.example.com/{article.headline.lower().replace(' ', '-')}"


class Question(BaseModel):
    question: str
    turns: int = Field(5, ge=1, le=30)


@queue.job(title="Agent with a step per turn", timeout="5m")
async def research_agent(ctx: Context, ask: Question) -> str:
    """A loop of unknown length: a restart goes on with the first turn that has not finished."""
    talk = [ask.question]
    for turn in range(ask.turns):
        await ctx.progress(turn * 100 // ask.turns, f"turn {turn + 1}")
        talk.append(await ctx.step("llm", _think, talk, key=turn, timeout="30s", retry=Retry(3, backoff=["1s"])))
        if talk[-1].endswith("!"):
            break
    return talk[-1]


async def _think(talk: list[str]) -> str:
    await asyncio.sleep(random.uniform(0.5, 2))
    if random.random() < 0.1:
        raise ConnectionError("the model is overloaded")
    return f"thought {len(talk)}" + ("!" if random.random() < 0.15 else "")
