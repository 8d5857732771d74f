"""What type checkers must reject: every line that says so, and no other. Checked by mypy and pyright, never run."""

from dataclasses import dataclass

from pydantic import BaseModel

from treadle import Context, Flow, Queue

queue = Queue("sqlite:///jobs.db")


class Video(BaseModel):
    url: str


@dataclass
class Mail:
    to: str


@queue.job
async def transcode(ctx: Context, video: Video) -> list[int]:
    await ctx.enqueue(transcode, Mail("ann"))  # reject
    await ctx.enqueue("mail", prioritty="high")  # reject
    return [1]


index: Flow[Video] = queue.flow("index")


@index.step
async def fetch(ctx: Context, video: Video) -> list[str]:
    return [video.url]


async def flows() -> None:
    await index.enqueue(Mail("ann"))  # reject
    await index.enqueue()  # reject
    await index.enqueue(Video(url="a"), prioritty="high")  # reject
    await index.enqueue_many([Mail("ann")])  # reject
    await index.options(delay="15m").enqueue(Mail("ann"))  # reject
    index.sync.enqueue(Mail("ann"))  # reject
    index.sync.enqueue()  # reject
    index.sync.enqueue(Video(url="a"), prioritty="high")  # reject
    await queue.enqueue(index, Mail("ann"))  # reject
    queue.sync.enqueue(index, Mail("ann"))  # reject


def wrong(ctx: Context, mail: Mail) -> None: ...


index.step(wrong)  # reject
index.step(timeout="10m")(wrong)  # reject


@queue.job
def add(a: int, b: int = 2) -> int:
    return a + b


@queue.job
def send(mail: Mail) -> None: ...


@queue.job
def tick() -> None: ...


@queue.job
def cleanup(days: int = 30) -> None: ...


@queue.job
async def rotate(ctx: Context, *, keep: int = 7) -> None: ...


@queue.job(prioritty="high")  # reject
def misspelled(mail: Mail) -> None: ...


@queue.job(timeout=object())  # reject
def mistyped(mail: Mail) -> None: ...


async def enqueued() -> None:
    await transcode.enqueue(5)  # reject
    await transcode.enqueue(Mail("ann"))  # reject
    await transcode.enqueue(Video(url="a"), prioritty="high")  # reject
    await transcode.enqueue(Video(url="a"), delay=object())  # reject
    await transcode.options(prioritty="high").enqueue(Video(url="a"))  # reject
    await transcode.options(delay=object()).enqueue(Video(url="a"))  # reject
    await transcode.enqueue_many([5])  # reject
    await send.enqueue(Video(url="a"))  # reject


async def enqueued_with_arguments() -> None:
    await add.enqueue("x")  # reject
    await add.enqueue()  # reject
    await add.enqueue(1, 2, 3)  # reject
    await add.enqueue(1, c=3)  # reject
    await add.enqueue(1, delay="15m")  # reject
    await add.options(delay=object()).enqueue(1)  # reject
    await tick.enqueue(5)  # reject
    await tick.enqueue(prioritty="high")  # reject
    await tick.enqueue(delay=object())  # reject


async def enqueued_with_defaults_only() -> None:
    await cleanup.enqueue(prioritty="high")  # reject
    await cleanup.enqueue(delay="15m")  # reject
    await cleanup.enqueue({"days": 3})  # reject
    await cleanup.enqueue(days="3")  # reject
    await rotate.enqueue(delay="15m")  # reject
    await rotate.enqueue(3)  # reject
    cleanup.sync.enqueue(delay="15m")  # reject
    rotate.sync.enqueue(prioritty="high")  # reject
    await cleanup.options(prioritty="high").enqueue(3)  # reject


def blocking() -> None:
    add.sync.enqueue("x")  # reject
    send.sync.enqueue(5)  # reject
    tick.sync.enqueue(5)  # reject
    tick.sync.enqueue(prioritty="high")  # reject
    send.sync.enqueue(Mail("ann"), prioritty="high")  # reject
    text: str = add.sync.enqueue(1).result()  # reject
    print(text)


async def results() -> None:
    text: str = await (await add.enqueue(1)).result()  # reject
    add("x")  # reject
    print(text)


async def by_the_queue() -> None:
    await queue.enqueue(send, 5)  # reject
    await queue.enqueue("mail", {}, prioritty="high")  # reject
    await queue.enqueue("mail", {}, delay=object())  # reject
