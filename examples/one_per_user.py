"""One job per user at a time, while other users' jobs run; and what to do with one job too many.

python examples/one_per_user.py
"""

import asyncio

from treadle import Concurrency, ConcurrencyRejected, Queue, Worker

queue = Queue("sqlite:///jobs.db")
running: dict[str, int] = {}
most: dict[str, int] = {}


@queue.job(concurrency=Concurrency(keys=["input.user"], limit=1))
async def sync_mailbox(payload: dict[str, str]) -> None:
    user = payload["user"]
    running[user] = running.get(user, 0) + 1
    most[user] = max(most.get(user, 0), running[user])
    most["everybody"] = max(most.get("everybody", 0), sum(running.values()))
    await asyncio.sleep(0.1)
    running[user] -= 1


@queue.job(concurrency=Concurrency("reject_same_scope"))
async def export_account() -> None:
    """Without keys it is the job's scope that counts."""


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        jobs = await sync_mailbox.enqueue_many([{"user": user} for user in ("ada", "ada", "ada", "bob", "bob")])

        first = await export_account.enqueue(scope="user", scope_id="ada")
        try:
            await export_account.enqueue(scope="user", scope_id="ada")
        except ConcurrencyRejected as error:
            print("refused, the first one is still there:", error.data["jobId"] == first.id)

        worker = Worker(queue)
        tasks.create_task(worker.run())
        for job in (*jobs, first):
            await job.result(timeout="10s")
        print(f"at once: ada {most['ada']}, bob {most['bob']}, everybody {most['everybody']}")
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
