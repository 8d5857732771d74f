"""A first job: write a function, enqueue it, let a worker run it, get the result.

    python examples/first_job.py

Here one program does everything. In real life the web application enqueues and `treadle worker first_job:queue`
runs as another process; both only share the database.
"""

import asyncio

from pydantic import BaseModel

from treadle import Queue, Worker

queue = Queue("sqlite:///jobs.db")


class Greeting(BaseModel):
    name: str
    language: str = "en"


@queue.job
async def greet(greeting: Greeting) -> str:
    words = {"en": "Hello", "fr": "Bonjour"}
    return f"{words[greeting.language]}, {greeting.name}!"


async def main() -> None:
    async with queue, asyncio.TaskGroup() as tasks:
        worker = Worker(queue)
        tasks.create_task(worker.run())

        job = await greet.enqueue(Greeting(name="Ada"))
        print(job.status)
        print(await job.result(timeout="10s"))

        # Any process can enqueue by topic, without importing the function.
        job = await queue.enqueue("greet", {"name": "Zoë", "language": "fr"})
        print(await job.result(timeout="10s"))

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
