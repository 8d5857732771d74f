"""A report every night at half past two, at that time in Berlin also when the clocks change.

python examples/nightly_report.py
"""

import asyncio

from treadle import Queue, Worker

queue = Queue("sqlite:///jobs.db")


@queue.job(schedule="30 2 * * *", timezone="Europe/Berlin")
async def nightly_report(payload: dict[str, str]) -> str:
    return "7 orders"


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())

        [schedule] = await queue.schedules.list("nightly_report")
        print(schedule.description)

        job = await queue.schedules.run(schedule.id)  # now, without moving the next run
        print(await job.result(timeout="10s"))
        after = await queue.schedules.get(schedule.id)
        print("same next run:", after.next_run_at == schedule.next_run_at)
        print("last job:", after.last_job_id == job.id)

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
