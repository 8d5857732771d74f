"""A job's page shows its parents and children."""

from typing import Any

from tests.dashboard.visitor import Visitor, words
from treadle import Context


async def test_parents_and_children_are_a_tree(visitor: Visitor) -> None:
    queue = visitor.queue

    @queue.job(topic="leaf")
    async def leaf() -> int:
        return 1

    @queue.job(topic="middle")
    async def middle(ctx: Context) -> Any:
        return await ctx.run_many(leaf, [{}, {}], delay="1h")

    @queue.job(topic="top")
    async def top(ctx: Context) -> Any:
        return await ctx.run(middle)

    job = await top.enqueue()
    await queue.run_until_empty()
    [child] = await queue.list(topic="middle")
    page = (await visitor.get(f"/_/jobs/{child.id}")).text
    start = page.index('id="family"')
    family = page[start : page.index("</section>", start)]
    text = words(family)
    assert "2 children" in text
    assert text.index("top") < text.index("middle this job") < text.index("leaf")
    for one in (job, *await queue.list(topic="leaf")):
        assert f"/_/jobs/{one.id}" in family
    assert 'id="answer"' not in page or "Answer" not in words(page[page.index('id="answer"') :][:400])


async def test_a_job_without_relatives_has_none(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("alone", {})
    assert "Parents and children" not in (await visitor.get(f"/_/jobs/{job.id}")).text
