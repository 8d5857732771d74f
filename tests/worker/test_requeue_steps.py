"""Requeue of a plain handler with steps: what runs again, and what a dry run says."""

from typing import Any

from tests.waiting import ended
from tests.worker.conftest import Start
from treadle import Context, Job, Queue, Status


class Loop:
    """A model and a tool in turns, as an agent uses them; its ask fails at the end."""

    def __init__(self, queue: Queue) -> None:
        self.ran: list[str] = []
        self.fails = True
        self.queue = queue
        queue.register("agent", self.agent, max_attempts=1)

    async def agent(self, ctx: Context, payload: dict[str, Any]) -> str:
        await ctx.step("ask", self.note, "ask")
        for turn in range(2):
            await ctx.step("llm", self.note, f"llm{turn}", key=turn)
            await ctx.step("tool", self.note, f"tool{turn}", key=turn)
        await ctx.step("tell", self.tell)
        return "told"

    def note(self, word: str) -> None:
        self.ran.append(word)

    def tell(self) -> None:
        self.ran.append("tell")
        if self.fails:
            raise ValueError("no")

    async def again(self, job: Job, **how: Any) -> tuple[list[str], list[str]]:
        """What the dry run named, and what ran."""
        said = (await self.queue.requeue_plan(job.id, **how)).steps
        assert (await self.queue.get(job.id)).status is Status.FAILED
        self.ran.clear()
        await self.queue.requeue(job.id, **how)
        await ended(self.queue, job)
        return list(said), list(self.ran)


async def test_the_ways_to_requeue_a_handler_with_steps(queue: Queue, start: Start) -> None:
    loop = Loop(queue)
    job = await queue.enqueue("agent", {})
    await start(queue)
    await ended(queue, job)
    assert await loop.again(job) == (["tell"], ["tell"])
    everything = ["ask", "llm0", "tool0", "llm1", "tool1", "tell"]
    assert await loop.again(job, mode="all") == (["ask", "llm", "tool", "tell"], everything)
    assert await loop.again(job, mode="from", step="tell") == (["tell"], ["tell"])
    # Of the model only the second turn came after the first use of the tool.
    assert await loop.again(job, mode="from", step="tool") == (
        ["tool", "llm", "tell"],
        ["tool0", "llm1", "tool1", "tell"],
    )
    loop.fails = False
    assert await loop.again(job, payload={"new": True}) == (["ask", "llm", "tool", "tell"], everything)
    assert (await job.refresh()).payload == {"new": True}
