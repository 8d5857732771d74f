"""Tools for store tests: a database, stores on it, and jobs in any state. Needs no pytest."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from uuid_utils import uuid7

from treadle.model.fields import Given
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.admission import QUEUE, Limit
from treadle.policy.lifecycle import CancelAcknowledged, Completed, Failed, Outcome, RowState, decide
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Graces, Inserted, Moved, NewJob, Settlement, Wants
from treadle.store.views import FOREVER

TOPIC = "mail"
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
LEASES_ONLY = Graces(FOREVER)
"""A reaper with this grace only looks for lost leases and ends no cancels."""

# Every state that a job can be in, in more detail than its status.
PENDING = ("pending", "delayed", "retrying", "held")
RUNNING = ("processing", "cancelling")
ENDED = ("completed", "failed", "cancelled", "expired")
STATES = PENDING + RUNNING + ENDED


class Database(ABC):
    """One fresh database. A store's author implements how to open it, how to move its time and how to check it."""

    @abstractmethod
    def make_store(self) -> Store:
        """A new, unopened store on this database, with `stale_after_ms` of seven days."""

    @abstractmethod
    async def pass_time(self, ms: int) -> None:
        """Age all stored data by `ms`, as if that time had passed."""

    @abstractmethod
    async def problems(self) -> Sequence[str]:
        """Inconsistencies: a job in no place or in two, a count that drifted, an orphaned row."""


class Workbench:
    """A database with one open store (and more on demand), and short methods for common test steps."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.store: Store = database.make_store()
        self._stores: list[Store] = []

    async def open(self) -> None:
        await self.store.open()
        self._stores.append(self.store)

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self._stores), return_exceptions=True)

    async def another(self) -> Store:
        """A second store on the same database, as another process would open it."""
        store = self.database.make_store()
        await store.open()
        self._stores.append(store)
        return store

    async def others(self, count: int) -> list[Store]:
        return list(await asyncio.gather(*(self.another() for _ in range(count))))

    async def pass_time(self, ms: int) -> None:
        await self.database.pass_time(ms)

    # -- doing ---------------------------------------------------------------------------------

    async def enqueue(self, count: int = 1, store: Store | None = None, **options: Any) -> list[str]:
        """Enqueue this many identical jobs in one call and return their ids."""
        jobs = [new_job(**options) for _ in range(count)]
        answers = await (store or self.store).insert(jobs)
        assert all(isinstance(answer, Inserted) and answer.existing_id is None for answer in answers), answers
        return [job.id for job in jobs]

    async def enqueue_one(self, **options: Any) -> str:
        return (await self.enqueue(1, **options))[0]

    async def insert(self, job: NewJob) -> Inserted:
        """The answer for a job that is not refused."""
        (answer,) = await self.store.insert([job])
        assert isinstance(answer, Inserted)
        return answer

    async def lease(self, ms: int = HOUR, store: Store | None = None, worker: str = "w1") -> int:
        return await (store or self.store).open_lease(worker, ms)

    async def claim(
        self,
        limit: int = 1,
        *,
        topics: Sequence[str] = (TOPIC,),
        capabilities: Sequence[str] = (),
        free: int | None = None,
        lease: int | None = None,
        store: Store | None = None,
    ) -> list[Claimed]:
        """Claim into free slots, under a new one-hour lease unless one is given."""
        store = store or self.store
        lease = await self.lease(store=store) if lease is None else lease
        wants = Wants(topics, capabilities, limit, limit if free is None else free)
        return (await store.claim(lease, wants)).jobs

    async def claim_one(self, **options: Any) -> Claimed:
        jobs = await self.claim(1, **options)
        assert len(jobs) == 1, "there was nothing to claim"
        return jobs[0]

    async def settle(self, job: Claimed, outcome: Outcome, store: Store | None = None, ran_ms: int | None = 5) -> bool:
        """Whether the ending was accepted."""
        return not await (store or self.store).settle([settlement(job, outcome, ran_ms)])

    async def promoted(self) -> bool:
        """Promote due jobs; whether any were due."""
        return (await self.store.advance()).promoted > 0

    async def reap(
        self, grace_ms: int = FOREVER, topics: Mapping[str, int] | None = None, store: Store | None = None
    ) -> list[Moved]:
        """Everything that a reaper sweep reclaims or ends; it ends no cancels unless a grace is given."""
        moved: list[Moved] = []
        more = True
        while more:
            some, more = await (store or self.store).reap(Graces(grace_ms, topics or {}))
            moved += some
        return moved

    # -- looking -------------------------------------------------------------------------------

    async def job(self, id: str) -> Job:
        job = (await self.store.get([id]))[0]
        assert job is not None, f"job {id} is gone"
        return job

    async def status(self, id: str) -> Status:
        return (await self.job(id)).status

    async def statuses(self, ids: Sequence[str]) -> list[Status | None]:
        return [job.status if job else None for job in await self.store.get(ids)]

    async def history(self, id: str) -> list[str]:
        events = await self.store.events(id)
        assert events is not None, f"job {id} is gone"
        return [event.type.removeprefix("job:") for event in events]

    async def claimable(self, topics: Sequence[str] = (TOPIC,)) -> list[str]:
        """The ids of the jobs that a worker could claim now, in claim order; none of them stays claimed."""
        jobs = await self.claim(1000, topics=topics)
        await steering.release(self.store, [job.id for job in jobs])
        return [job.id for job in jobs]

    # -- a job in any state --------------------------------------------------------------------

    async def make(self, state: str, **options: Any) -> str:
        """A job in this state. Create jobs that have run before other jobs of the same topic wait to be claimed."""
        match state:
            case "pending":
                return await self.enqueue_one(**options)
            case "delayed":
                return await self.enqueue_one(**{"delay_ms": HOUR, **options})
            case "held":
                return await self._held(options)
            case "expired":
                return await self._expired(options)
        id = await self.enqueue_one(**options)
        if state == "cancelled":
            await steering.cancel(self.store, [id], "not wanted")
            return id
        job = await self.claim_one(topics=[options.get("topic", TOPIC)], capabilities=[options.get("capability", "")])
        assert job.id == id, "an older job of the same topic was claimed instead; make this one first"
        await self._lead_on(state, job)
        return id

    async def _lead_on(self, state: str, job: Claimed) -> None:
        match state:
            case "processing":
                return
            case "cancelling":
                await steering.cancel(self.store, [job.id], "not wanted")
            case "retrying":
                assert await self.settle(job, Failed("Boom: again", "Boom", retry_in_ms=HOUR))
            case "completed":
                assert await self.settle(job, Completed('{"sent": 1}'))
            case "failed":
                assert await self.settle(job, Failed("Boom: no more", "Boom"))
            case _:
                raise ValueError(f"{state!r} is not one of {STATES}")

    async def _held(self, options: dict[str, Any]) -> str:
        """Held behind a job of another topic that runs under the same key."""
        limit = Limit(f"held-{uuid7()}", QUEUE, 1)
        await self.enqueue_one(limit=limit, topic="in.front")
        await self.claim_one(topics=["in.front"])
        id = await self.enqueue_one(**{**options, "limit": limit})
        assert await self.claimable([options.get("topic", TOPIC)]) == []
        return id

    async def _expired(self, options: dict[str, Any]) -> str:
        id = await self.enqueue_one(**{"max_attempts": 1, **options})
        job = await self.claim_one(topics=[options.get("topic", TOPIC)])
        assert job.id == id, "an older job of the same topic was claimed instead; make this one first"
        await self.store.close_lease(job.lease)
        await self.reap()
        return id


def new_job(**options: Any) -> NewJob:
    """`options`: fields of `NewJob` and of `Given`."""
    given = Given(**{name: options.pop(name) for name in Given._fields if name in options})
    return NewJob(**{"id": str(uuid7()), "topic": TOPIC, "payload": '{"to": "ann"}', "given": given, **options})


def settlement(job: Claimed, outcome: Outcome, ran_ms: int | None = 5) -> Settlement:
    """As a worker reports it: it assumes that the job is processing unless it was told about the cancel."""
    status = Status.CANCELLING if isinstance(outcome, CancelAcknowledged) else Status.PROCESSING
    state = RowState(status, job.attempt, job.max_attempts)
    return Settlement(job, decide(state, outcome), ran_ms)


async def eventually(
    condition: Callable[[], Any], seconds: float = 120, explain: Callable[[], str] = lambda: "", every: float = 0.005
) -> Any:
    """What the condition, a function or a coroutine function, returns once that is true.

    Time only runs out when something is wrong, so there is plenty of it.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still not so after {seconds} s\n{explain()}"
        await asyncio.sleep(every)
