"""Jobs with steps in every state, made by hand: a claim, checkpoints, and an ending."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from tests.queue.hands import HOUR_MS, Hands
from treadle import Job, Queue
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.lifecycle import Failed, Outcome, Parked, RowState, decide
from treadle.store.values import Answer, Checkpoint, Claimed, Effects, Settlement, StepWrite

NAMES = ("fetch", "approve", "publish")
DAY_MS = 24 * HOUR_MS
APPROVAL: dict[str, Any] = {
    "title": "Approval",
    "type": "object",
    "properties": {
        "ok": {"type": "boolean", "description": "Publish these documents?"},
        "audience": {"enum": ["customers", "internal"], "description": "Who may search them"},
        "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        "note": {"type": "string", "maxLength": 20, "default": ""},
        "tags": {"type": "object", "default": {}},
    },
    "required": ["ok", "audience"],
    "additionalProperties": False,
}


def write(name: str, state: StepState = StepState.COMPLETED, **fields: Any) -> StepWrite:
    """A step as its owner reports it; `result` is a value."""
    result = to_json(fields.pop("result")).decode() if "result" in fields else None
    place = NAMES.index(name) if name in NAMES else len(NAMES)
    begun = {"attempt": 1, "started_ago_ms": 900} if state is not StepState.PENDING else {}
    return StepWrite(name, fields.pop("key", ""), state, place, **{**begun, "result": result, **fields})


def declared(**titles: str) -> list[StepWrite]:
    return [write(name, StepState.PENDING, title=titles.get(name, name)) for name in NAMES]


class FlowJobs:
    def __init__(self, queue: Queue, hands: Hands) -> None:
        self.queue, self.hands = queue, hands

    async def begun(self, *steps: StepWrite, topic: str = "rag_index", **options: Any) -> tuple[Job, Claimed]:
        """A running job that has written these steps."""
        job = await self.queue.enqueue(topic, {"corpus": "support-eu"}, **options)
        claimed = await self.hands.claim_one(topic)
        assert claimed.id == job.id
        await self.wrote(claimed, *declared(), *steps)
        return job, claimed

    async def wrote(self, claimed: Claimed, *steps: StepWrite, progress: int | None = None) -> None:
        """Each step once per checkpoint, as the store demands."""
        for step in steps:
            point = Checkpoint(claimed.n, claimed.token, 10, (step,), progress=progress)
            assert await self.queue.store.checkpoint(claimed.lease, [point]) == []

    async def ended(self, claimed: Claimed, outcome: Outcome, *steps: StepWrite) -> None:
        state = RowState(Status.PROCESSING, claimed.attempt, claimed.max_attempts)
        ending = Settlement(claimed, decide(state, outcome), 1000, effects=Effects(steps=steps))
        assert await self.queue.store.settle([ending]) == []

    async def failed(self, error: str = "Boom: the index is read-only", **options: Any) -> Job:
        """Two steps have completed, the third failed for good."""
        done = (write("fetch", result={"documents": 24}), write("approve", result={"ok": True}))
        job, claimed = await self.begun(*done, max_attempts=1, **options)
        wrong = write("publish", StepState.FAILED, error=error, error_type="Boom")
        await self.ended(claimed, Failed(error, "Boom"), wrong)
        return await self.queue.get(job.id)

    async def waiting(self, schema: Any = APPROVAL, **options: Any) -> Job:
        """It waits for `approve`, three days at most."""
        limit: int | None = options.pop("until_ms", 3 * DAY_MS - HOUR_MS // 2)
        job, claimed = await self.begun(write("fetch", result={"documents": 24}), **options)
        text = None if schema is None else to_json(schema).decode()
        await self.ended(claimed, Parked("approve"), write("approve", StepState.WAITING, until_ms=limit, schema=text))
        return await self.queue.get(job.id)

    async def asleep(self) -> Job:
        """In `ctx.sleep`: it waits for a time, and for nobody."""
        job, claimed = await self.begun()
        await self.ended(claimed, Parked("sleep"), write("sleep", StepState.WAITING, until_ms=DAY_MS))
        return await self.queue.get(job.id)

    async def answered(self, job: Job, result: str) -> None:
        """By another caller, as JSON text."""
        assert await self.queue.store.answer([Answer(job.id, "approve", result=result)]) == [None]
