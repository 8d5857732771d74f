"""Several OS processes on one database that start their work at the same moment.

`python -m tests.contract.crew URL ACT [ARGUMENT, …]` forks one process for each argument. Each gets
ready, waits for the others, and answers with JSON.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.policy.lifecycle import Completed
from treadle.store.connect import make_store
from treadle.store.protocol import Store
from treadle.store.values import Inserted, Wants
from treadle.testing.workbench import DAY, HOUR, TOPIC, new_job, settlement


async def crew(url: str, act: str, arguments: list[Any]) -> list[Any]:
    """One process for each argument; their answers."""
    command = [sys.executable, "-m", "tests.contract.crew", url, act, json.dumps(arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(arguments), "a process did not answer"
    return answers


async def start(store: Store, name: str) -> str:
    """Open a database that may be empty, and use it."""
    await store.open()
    job = new_job(topic=f"of.{name}")
    await store.insert([job])
    return job.id


async def same_key(store: Store, clients: int) -> list[str]:
    """Many clients enqueue with one key; returns the ids of the jobs they got."""
    jobs = [new_job(idempotency_key="the one") for _ in range(clients)]
    answers = await asyncio.gather(*(store.insert([job]) for job in jobs))
    got = [(job.id, answer) for job, (answer,) in zip(jobs, answers, strict=True)]
    return [answer.existing_id or id for id, answer in got if isinstance(answer, Inserted)]


async def drain(store: Store, name: str) -> list[str]:
    """Claim and complete until there is nothing left: the ids of the jobs that were completed here."""
    lease = await store.open_lease(name, HOUR)
    done: list[str] = []
    while jobs := (await store.claim(lease, Wants([TOPIC], [], 5, 5))).jobs:
        assert await store.settle([settlement(job, Completed()) for job in jobs]) == []
        done += [job.id for job in jobs]
    return done


async def produce(store: Store, count: int) -> list[str]:
    jobs = [new_job() for _ in range(count)]
    for job in jobs:
        await store.insert([job])
    return [job.id for job in jobs]


ACTS: dict[str, Callable[[Store, Any], Awaitable[Any]]] = {
    "start": start,
    "same_key": same_key,
    "drain": drain,
    "produce": produce,
}


async def be_a_member(url: str, act: str, argument: Any, ready: int, go: int) -> Any:
    store = make_store(url, stale_after_ms=7 * DAY)
    if act != "start":
        await store.open()
    os.write(ready, b"!")
    await asyncio.to_thread(os.read, go, 1)  # ends when the parent closes the other side
    answer = await ACTS[act](store, argument)
    await store.close()
    return answer


def main(url: str, act: str, arguments: list[Any]) -> None:
    is_ready, ready = os.pipe()
    go, start_signal = os.pipe()
    children = []
    answers = [tempfile.TemporaryFile() for _ in arguments]
    for argument, file in zip(arguments, answers, strict=True):
        child = os.fork()
        if child == 0:
            os.close(start_signal)
            answer = asyncio.run(be_a_member(url, act, argument, ready, go))
            file.write(json.dumps(answer).encode() + b"\n")
            file.flush()
            os._exit(0)
        children.append(child)
    os.close(ready)
    waiting = len(children)
    while waiting and (said := os.read(is_ready, waiting)):
        waiting -= len(said)
    os.close(start_signal)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for file in answers:
        file.seek(0)
        sys.stdout.buffer.write(file.read())
    sys.stdout.flush()
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
