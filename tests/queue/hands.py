"""A worker without a loop: it claims and settles one job at a time, when the test says so."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from tests.waiting import until as eventually
from treadle import Job, Queue
from treadle.model.status import Status
from treadle.policy.lifecycle import Completed, Failed, Outcome, RowState, decide
from treadle.queue import steering
from treadle.store.values import Claimed, Settlement, Wants

__all__ = ["HOUR_MS", "WITHOUT_ZONE", "Hands", "eventually"]

HOUR_MS = 3_600_000
WITHOUT_ZONE = datetime(2026, 1, 1)  # noqa: DTZ001 - which is refused


class Hands:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._lease: int | None = None
        self._claimed_at = time.monotonic()

    async def claim(self, *topics: str, limit: int = 100, capabilities: tuple[str, ...] = ()) -> list[Claimed]:
        lease = self._lease or await self.arrive(*topics, capabilities=capabilities)
        jobs = (await self.queue.store.claim(lease, Wants(topics, capabilities, limit, limit))).jobs
        self._claimed_at = time.monotonic()
        return jobs

    async def arrive(self, *topics: str, capabilities: tuple[str, ...] = ()) -> int:
        """Register as a live worker for these topics."""
        serves = {"topics": list(topics), "capabilities": list(capabilities), "slots": 10}
        self._lease = await self.queue.store.open_lease("hands", HOUR_MS, serves)
        return self._lease

    async def claim_one(self, topic: str) -> Claimed:
        (job,) = await self.claim(topic, limit=1)
        return job

    async def claimable(self, *topics: str) -> list[str]:
        """The ids that a worker would get, in its order; nothing stays claimed."""
        jobs = await self.claim(*topics)
        await steering.release(self.queue.store, [job.id for job in jobs])
        return [job.id for job in jobs]

    async def settle(self, job: Claimed, outcome: Outcome) -> bool:
        state = RowState(Status.PROCESSING, job.attempt, job.max_attempts)
        return not await self.queue.store.settle([Settlement(job, decide(state, outcome), self.ran_ms())])

    def ran_ms(self) -> int:
        return int((time.monotonic() - self._claimed_at) * 1000)

    async def complete(self, job: Claimed, result: Any = None) -> None:
        text = None if result is None else to_json(result).decode()
        assert await self.settle(job, Completed(text))

    async def fail(self, job: Claimed, error: str = "Boom: no more", *, retry_in_ms: int | None = None) -> None:
        assert await self.settle(job, Failed(error, "Boom", retry_in_ms))

    async def promoted(self) -> bool:
        """Whether a delayed job is due now."""
        return (await self.queue.store.advance()).promoted > 0

    async def do(self, job: Job, result: Any = None) -> None:
        """Claim and complete this very job, which must be the first of its topic."""
        claimed = await self.claim_one(job.topic)
        assert claimed.id == job.id
        await self.complete(claimed, result)
