"""What happens when a job fails: it is tried again, later and later, until it is a dead letter.

    python examples/retries.py

The delays are short so that you can watch. Without `retry=` a job has three attempts, 1 minute after the first
failure and 4 minutes after the second.
"""

import asyncio
import time

from treadle import Context, Fail, JobFailed, Queue, Retry, Snooze, Worker

queue = Queue("sqlite:///jobs.db")


@queue.job(retry=Retry(4, backoff="exponential", delay="50ms", max_delay="1s"))
async def fetch(ctx: Context) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("the server hung up")
    return f"worked at attempt {ctx.attempt} of {ctx.max_attempts}"


@queue.job(retry=Retry(3, backoff=["50ms", "100ms"], on={ValueError: False}))
async def parse(payload: dict[str, str]) -> int:
    return int(payload["number"])  # a ValueError will not go away: no second attempt


@queue.job
async def charge(payload: dict[str, int]) -> None:
    if payload["cents"] < 0:
        raise Fail("an amount can't be negative")  # no matter how many attempts are left


looks: list[float] = []


@queue.job
async def wait_for_file(ctx: Context) -> str:
    looks.append(time.monotonic())
    if len(looks) < 3:
        raise Snooze("50ms")  # not yet: come back later, at no cost
    return f"looked {len(looks)} times in attempt {ctx.attempt}"


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())

        print(await (await fetch.enqueue()).result(timeout="10s"))
        print(await (await wait_for_file.enqueue()).result(timeout="10s"))
        for job in (await parse.enqueue({"number": "seven"}), await charge.enqueue({"cents": -1})):
            try:
                await job.result(timeout="10s")
            except JobFailed as error:
                now = await job.refresh()
                print(f"{now.topic} {error.data['status']} after {now.attempt} attempt")

        for event in await queue.events((await queue.list(topic="fetch", limit=1))[0].id):
            print(event.type, event.message)

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
