"""What type checkers must accept, and which types they must see. Checked by mypy and pyright, never run."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from treadle import Context, Flow, Job, Queue, Retry, SyncJob

queue = Queue("sqlite:///jobs.db")


class Video(BaseModel):
    url: str


@dataclass
class Mail:
    to: str


class Point(TypedDict):
    x: int


@queue.job(timeout="30m", priority="high", retry=Retry(5))
async def transcode(ctx: Context, video: Video) -> list[int]:
    child = await ctx.enqueue(send, Mail("ann"), delay="15m")
    assert_type(child, Job[bool])
    await ctx.enqueue("mail_digest", {"userId": "123"}, scope="user")
    return [1]


@queue.job
def send(mail: Mail) -> bool:
    return True


index: Flow[Video] = queue.flow("index", timeout="6h")


@index.step(timeout="10m", retry=Retry(4))
async def fetch(ctx: Context, video: Video) -> list[str]:
    return [video.url]


@index.step
def embed(video: Video) -> int:
    return len(video.url)


@index.step(cancelable=False)
async def publish(ctx: Context) -> None: ...


index.external("approve", answer=bool, timeout="3d")
untyped = queue.flow("untyped")


@untyped.step
async def whole(ctx: Context, payload: dict[str, Any]) -> str:
    return ""


async def flows() -> None:
    assert_type(await index.enqueue(Video(url="a"), delay="15m"), Job[Any])
    assert_type(await index.options(priority="high").enqueue_many([Video(url="a")]), list[Job[Any]])
    assert_type(embed(Video(url="a")), int)
    await untyped.enqueue({"a": 1})
    await untyped.enqueue()
    assert_type(index.sync.enqueue(Video(url="a"), delay="15m"), SyncJob[Any])
    assert_type(index.options(priority="high").sync.enqueue_many([Video(url="a")]), list[SyncJob[Any]])
    untyped.sync.enqueue()
    assert_type(await queue.enqueue(index, Video(url="a"), delay="15m"), Job[Any])
    assert_type(queue.sync.enqueue(index, Video(url="a")), SyncJob[Any])


@queue.job
def plot(ctx: Context, point: Point) -> None:
    assert_type(ctx.enqueue(send, Mail("ann")).id, str)


@queue.job(title="Digest", idempotent=True)
async def digest(payload: dict[str, str]) -> str:
    return ""


@queue.job
async def anything(payload: dict[str, Any]) -> str:
    return ""


@queue.job
def loose(payload: Mapping[str, int]) -> None: ...


@queue.job
def add(a: int, b: int = 2) -> int:
    return a + b


@queue.job()
async def scale(ctx: Context, width: int, *, by: float = 2.0) -> float:
    return width * by


@queue.job
def cleanup(days: int = 30) -> None: ...


@queue.job
async def rotate(ctx: Context, *, keep: int = 7) -> bool:
    return True


@queue.job
async def ping(ctx: Context) -> str:
    return "pong"


@queue.job
def tick() -> None: ...


async def enqueued() -> None:
    video = await transcode.enqueue(Video(url="a"), delay="15m", idempotency_key="k", run_at=datetime.now(UTC))
    assert_type(video, Job[list[int]])
    assert_type(await video.result(timeout="1m"), list[int])
    assert_type(await video.refresh(), Job[list[int]])
    assert_type(await (await send.enqueue(Mail("ann"))).result(), bool)
    assert_type(await plot.enqueue({"x": 1}, priority=7), Job[None])
    assert_type(await digest.enqueue({"user": "ann"}, expires=timedelta(hours=1)), Job[str])
    await anything.enqueue({"any": 1}, delay="1m")
    assert_type(await loose.enqueue({"a": 1}), Job[None])
    assert_type(await transcode.enqueue_many([Video(url="a")], scope="user"), list[Job[list[int]]])


async def enqueued_with_arguments() -> None:
    assert_type(await add.enqueue(1, b=3), Job[int])
    assert_type(await add.enqueue(a=1), Job[int])
    assert_type(await scale.enqueue(5, by=1.5), Job[float])
    assert_type(await cleanup.enqueue(days=3), Job[None])
    assert_type(await cleanup.enqueue(), Job[None])
    assert_type(await rotate.enqueue(keep=3), Job[bool])
    assert_type(await rotate.options(delay="1h").enqueue(), Job[bool])
    assert_type(await queue.enqueue(rotate, {"keep": 3}, delay="1h"), Job[bool])
    assert_type(await ping.enqueue(), Job[str])
    assert_type(await ping.enqueue({"as": "ctx.payload"}, delay="1h"), Job[str])
    assert_type(await tick.enqueue(), Job[None])
    assert_type(await tick.enqueue(delay="1h"), Job[None])
    assert_type(await queue.enqueue(tick, delay="1h"), Job[None])
    assert_type(await tick.options(delay="1h", priority="low").enqueue(), Job[None])
    assert_type(await add.options(delay="15m").enqueue(1, b=3), Job[int])
    assert_type(await transcode.options(delay="15m").enqueue(Video(url="a")), Job[list[int]])
    assert_type(await add.enqueue_many([(1, 2), {"a": 3}]), list[Job[int]])


def called() -> None:
    assert_type(add(1, 2), int)
    assert_type(send(Mail("ann")), bool)


async def awaited(ctx: Context) -> None:
    assert_type(await transcode(ctx, Video(url="a")), list[int])
    assert_type(await scale(ctx, 5, by=1.0), float)


def blocking() -> None:
    job = add.options(priority="low").sync.enqueue(1, b=3)
    assert_type(job, SyncJob[int])
    assert_type(job.result(timeout="1m"), int)
    assert_type(job.cancel("enough"), SyncJob[int])
    assert_type(tick.sync.enqueue(), SyncJob[None])
    assert_type(cleanup.sync.enqueue(3), SyncJob[None])
    assert_type(rotate.sync.enqueue(keep=3), SyncJob[bool])
    assert_type(tick.sync.enqueue(delay="1h"), SyncJob[None])
    assert_type(send.sync.enqueue(Mail("ann"), delay="1m").result(), bool)
    assert_type(queue.sync.enqueue(add, {"a": 1}), SyncJob[int])
    assert_type(queue.sync.enqueue("mail_digest", {"userId": "123"}), SyncJob[Any])
    assert_type(queue.sync.get(job.id), SyncJob[Any])


async def by_the_queue() -> None:
    assert_type(await queue.enqueue(transcode, Video(url="a"), delay="1m"), Job[list[int]])
    assert_type(await queue.enqueue(add, {"a": 1}), Job[int])
    assert_type(await queue.enqueue("mail_digest", {"userId": "123"}), Job[Any])
    async for job in (await queue.enqueue(add, {"a": 1})).watch():
        assert_type(job, Job[int])


async def streamed() -> None:
    async for event in queue.stream(topic="mail", snapshot=True):
        assert_type(event, dict[str, Any])
    async for text in queue.stream(format="sse"):
        assert_type(text, bytes)


def streamed_blocking() -> None:
    for event in queue.sync.stream():
        assert_type(event, dict[str, Any])
    for text in queue.sync.stream(format="sse", snapshot=True):
        assert_type(text, bytes)
