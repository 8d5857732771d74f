"""A loop with a model that keeps each turn: after a crash it goes on where it was, and no answer is paid for twice.

python examples/agent_loop.py
"""

import asyncio

from pydantic import BaseModel

from treadle import Context, Fail, Queue, Retry, Worker

queue = Queue("sqlite:///jobs.db")
prices = {"apples": 3, "pears": 4}


class Message(BaseModel):
    text: str
    done: bool = False
    look_up: str | None = None


async def call_model(talk: list[str]) -> Message:
    """Stands for a model: it asks for the prices it does not know yet, then it answers."""
    print("the model reads:", talk[-1])
    for fruit in prices:
        if not any(line.startswith(fruit) for line in talk):
            return Message(text=f"I need the price of {fruit}.", look_up=fruit)
    return Message(text="Pears cost more than apples.", done=True)


async def look_up(fruit: str) -> str:
    return f"{fruit} cost {prices[fruit]}"


@queue.job(timeout="2h", retry=Retry(2, backoff=["100ms"]))
async def agent(ctx: Context, payload: dict[str, str]) -> str:
    talk = [payload["question"]]
    for turn in range(10):
        message = await ctx.step("model", call_model, talk, key=turn, timeout="2m", retry=Retry(3))
        if message.done:
            return message.text
        if turn == 1 and ctx.attempt == 1:
            raise ConnectionError("the process dies here")
        talk.append(await ctx.step("tool", look_up, message.look_up, key=turn))
    raise Fail("no answer after 10 turns")


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())
        job = await agent.enqueue({"question": "What costs more, apples or pears?"})
        print(await job.result(timeout="20s"))
        for step in (await job.refresh()).steps:
            print(step["id"], step["status"], step["items"]["done"], "of", step["items"]["total"])
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
