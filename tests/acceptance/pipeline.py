"""The example template of seed 002, with handlers that a test steers."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from treadle import CancelPolicy, Concurrency, Context, Flow, Queue, Retry

TITLES = {"prepare": "準備資料", "execute": "執行任務", "finalize": "整理結果"}


class Task(BaseModel):
    target: str
    fails: int = 0


class Pipeline:
    """`demo_long_task` as the seed writes it: `execute` reports 50 % and then waits for `go`."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.ran: list[str] = []
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.flow = self._declared(queue, options)

    def _declared(self, queue: Queue, options: dict[str, Any]) -> Flow[Task]:
        seed: dict[str, Any] = {
            "title": "示範長任務",
            "description": "展示 job template、進度、取消、重跑與排程能力",
            "concurrency": Concurrency("reject_same_scope"),
            "dedupe_keys": ["scope_id", "target"],
            "timeout": 600,
            "cancel": CancelPolicy(supported=True, mode="cooperative", grace=30),
            "retry": Retry(2, [30, 120]),
        }
        flow: Flow[Task] = queue.flow("demo_long_task", **{**seed, **options})

        @flow.step(title=TITLES["prepare"], timeout=60)
        async def prepare(ctx: Context, task: Task) -> list[int]:
            self.ran.append("prepare")
            return [1, 2, 3]

        @flow.step(title=TITLES["execute"], timeout=300)
        async def execute(ctx: Context, task: Task) -> int:
            self.ran.append("execute")
            await ctx.progress(50, "2 of 3")
            self.begun.set()
            await self.go.wait()
            if self.ran.count("execute") <= task.fails:
                raise ConnectionError("the server hung up")
            return sum(ctx.results["prepare"])

        @flow.step(title=TITLES["finalize"], timeout=30, cancelable=False)
        async def finalize(ctx: Context, task: Task) -> dict[str, int]:
            self.ran.append("finalize")
            return {"sum": ctx.results["execute"]}

        return flow
