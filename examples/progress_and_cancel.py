"""A long job that reports its progress and stops when it is cancelled.

python examples/progress_and_cancel.py
"""

import asyncio

from treadle import Context, Queue, Worker

queue = Queue("sqlite:///jobs.db")


@queue.job(timeout="1h")
async def export(ctx: Context, payload: dict[str, int]) -> str:
    rows = payload["rows"]
    try:
        for row in range(rows):
            await asyncio.sleep(0.02)  # a coroutine is cancelled at its next await
            await ctx.progress(100 * row / rows, f"row {row} of {rows}")
    except asyncio.CancelledError:
        print("cleaning up")
        raise
    return f"{rows} rows"


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())

        short = await export.enqueue({"rows": 10})
        print(await short.result(timeout="10s"))

        long = await export.enqueue({"rows": 10_000})
        while (now := await long.refresh()).progress < 1:
            await asyncio.sleep(0.05)
        print(now.status, now.progress_message is not None)
        await long.cancel("nobody needs it any more")
        while not (now := await long.refresh()).ended:
            await asyncio.sleep(0.05)
        print(now.status, "because", now.cancel_reason)

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
