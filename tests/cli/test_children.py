"""`treadle jobs show` and `why` of jobs with parents and children."""

from typing import Any

from tests.cli.command import Command
from treadle import Context, Queue


def test_the_family_of_a_job(treadle: Command) -> None:
    made = Queue(treadle.database)

    @made.job(topic="leaf")
    async def leaf(n: int) -> int:
        return n

    @made.job(topic="top")
    async def top(ctx: Context) -> Any:
        return await ctx.map("leaves", leaf, [1, 2], delay="1h")

    with made.sync as queue:
        job = queue.enqueue("top")
        queue.run_until_empty()
        first, second = sorted(one.id for one in queue.list(topic="leaf"))
        shown = treadle("jobs", "show", job.id).done().out
        assert f"top  waiting  (this job)\n├─ leaf  pending  {first}\n└─ leaf  pending  {second}\n" in shown
        assert "leaves  waiting 0/2" in shown
        child = treadle("jobs", "show", first).done().out
        assert f"top  waiting  {job.id}\n   leaf  pending  (this job)\n" in child
        told = treadle("jobs", "why", job.id).done().out
        assert f"it waits for its child {first} of leaf (pending)" in told
