"""A flow that waits for a person. Waiting costs nothing: no slot, no thread, no attempt.

python examples/approval.py
"""

import asyncio

from pydantic import BaseModel

from treadle import Context, InvalidAnswer, Queue, Worker

queue = Queue("sqlite:///jobs.db")
newsletter = queue.flow("newsletter")


class Approval(BaseModel):
    ok: bool
    note: str = ""


@newsletter.step
async def write(ctx: Context, payload: dict[str, str]) -> str:
    return f"News about {payload['subject']}"


approve = newsletter.external("approve", answer=Approval, timeout="3d")


@newsletter.step(when=lambda ctx, payload: ctx.results["approve"].ok)
async def send(ctx: Context, payload: dict[str, str]) -> str:
    return f"sent: {ctx.results['write']}"


async def wait_for_approval(job_id: str) -> None:
    while (await queue.get(job_id)).status != "waiting":
        await asyncio.sleep(0.02)


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())

        job = await newsletter.enqueue({"subject": "looms"})
        await wait_for_approval(job.id)
        waiting = await job.refresh()
        print(waiting.status, "for", waiting.step)
        try:
            await queue.signal(job.id, "approve", {"ok": "perhaps"})
        except InvalidAnswer as error:
            print("refused:", error.message)
        await queue.signal(job.id, "approve", {"ok": True}, answered_by="ada")
        print(await job.result(timeout="10s"))

        job = await newsletter.enqueue({"subject": "spindles"})
        await wait_for_approval(job.id)
        await queue.signal(job.id, "approve", {"ok": False, "note": "not this week"})
        await job.result(timeout="10s")
        print({step["id"]: step["status"] for step in (await job.refresh()).steps})

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
