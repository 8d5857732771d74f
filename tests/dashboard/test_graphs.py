"""The graph of a flow on its template's page and on its jobs' pages, and the items of a mapped step."""

from typing import Any

from tests.dashboard.test_steps import part
from tests.dashboard.visitor import Visitor, words
from treadle import Context, Flow, Queue

Payload = dict[str, Any]


def catalog(queue: Queue) -> Flow[Payload]:
    flow: Flow[Payload] = queue.flow("catalog", max_attempts=1)

    @flow.step
    async def fetch(ctx: Context, payload: Payload) -> list[int]:
        return list(range(60))

    @flow.step(map=fetch, limit=8, max_failed="50%")
    async def enrich(ctx: Context, payload: Payload, item: int) -> int:
        if item in (40, 59):
            raise KeyError("weight")
        return item

    flow.external("legal", after=[fetch], timeout="3d")

    @flow.step(after=[enrich, "legal"])
    async def publish(ctx: Context, payload: Payload) -> int:
        return 1

    return flow


async def test_the_page_of_a_template_has_its_graph(visitor: Visitor) -> None:
    catalog(visitor.queue)
    await visitor.queue.save_templates()
    page = part((await visitor.get("/_/templates/catalog")).text, "steps-h")
    text = words(page)
    assert page.count('class="node ') == 4
    assert page.count('marker-end="url(#graph-head)"') == 4
    assert "each of fetch, 8 at" in text
    assert "a person" in text
    assert "one after the other" not in text
    assert "style=" not in page


async def test_the_page_of_a_job_has_its_graph_and_the_failing_items_first(visitor: Visitor) -> None:
    job = await catalog(visitor.queue).enqueue({})
    await visitor.queue.run_until_empty()
    page = (await visitor.get(f"/_/jobs/{job.id}")).text
    graph = part(page, "graph-h")
    assert f'href="/_/jobs/{job.id}/step?name=enrich" class="node is-completed is-map"' in graph
    assert 'class="node is-waiting is-person"' in graph
    assert "58 of 60, 2 failed" in words(graph)
    assert 'class="b-failed"' in graph
    steps = words(part(page, "steps"))
    assert steps.index("40 ") < steps.index("59 ")
    items = (await visitor.get(f"/_/jobs/{job.id}/step?name=enrich")).text
    text = words(items)
    assert "58 of 60 done, 2 failed; failed ones first" in text
    listed = text.partition("failed ones first")[2]
    assert listed.index("KeyError") < listed.index("completed")
    assert 'aria-label="2 failed, 58 done, 0 to come"' in items
    assert "Next" in text
    alone = words((await visitor.get(f"/_/jobs/{job.id}/step?name=enrich&run=1")).text)
    assert "59" in alone
    assert "KeyError" in alone
    live = (await visitor.get(f"/_/live?view=job&id={job.id}&once=1")).text
    assert "is-waiting is-person" in live


async def test_steps_that_come_one_after_the_other_have_no_graph(visitor: Visitor) -> None:
    job = await visitor.flows.failed()
    assert 'id="graph-h"' not in (await visitor.get(f"/_/jobs/{job.id}")).text
