"""DBOS's side of `make bench-peers`, run in an environment that has it: `python dbos_steps.py URL WORKFLOWS STEPS`.

Enqueues workflows of no-op steps, then runs them in one process. Prints, as JSON, the steps and the seconds from the
first step's start until the database shows no unfinished workflow.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import psycopg
from dbos import DBOS, DBOSClient

LIMIT_S = 300.0
JOB = {"kind": "noop", "user": 123456, "pad": "x" * 40}
starts: list[float] = []


@DBOS.step()
async def step(job: dict[str, object]) -> dict[str, bool]:
    starts.append(time.time())
    return {"ok": True}


@DBOS.workflow(name="steps")
async def steps(job: dict[str, object], count: int) -> dict[str, bool]:
    result = {"ok": False}
    for _ in range(count):
        result = await step(job)
    return result


async def main(url: str, workflows: int, count: int) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "application_version": "1"})
    DBOS.launch()
    client = DBOSClient(system_database_url=url)
    for _ in range(workflows):
        client.enqueue({"queue_name": "bench", "workflow_name": "steps", "app_version": "1"}, JOB, count)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        # The queue is only read from here on.
        await DBOS.register_queue_async("bench", polling_interval_sec=0.1, worker_concurrency=200)
        deadline = time.monotonic() + LIMIT_S
        while _unfinished(connection) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        ended, left = time.time(), _unfinished(connection)
    if left or len(starts) != workflows * count:
        raise SystemExit(
            f"DBOS: {len(starts):,} steps ran, and {left:,} workflows are unfinished after {LIMIT_S:.0f} s"
        )
    print(json.dumps({"steps": len(starts), "seconds": ended - starts[0]}), flush=True)
    os._exit(0)  # its threads would go on


def _unfinished(connection: psycopg.Connection[tuple[int]]) -> int:
    found = connection.execute("SELECT count(*) FROM dbos.workflow_status WHERE status <> 'SUCCESS'").fetchone()
    assert found
    return found[0]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
