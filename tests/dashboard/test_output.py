"""What a job emits, on its page."""

from typing import Any

from pydantic_core import to_json

from tests.dashboard.visitor import Visitor, words
from treadle.dashboard.page import api_of
from treadle.policy.output import Chunk
from treadle.store.values import OutputWrite, Wants


async def talking(visitor: Visitor, *chunks: Chunk) -> str:
    """The id of a running job that has emitted this."""
    queue = visitor.queue
    job = await queue.enqueue("chat")
    lease = await queue.store.open_lease("w1", 60_000)
    (claimed,) = (await queue.store.claim(lease, Wants(["chat"]))).jobs
    if chunks:
        assert not await queue.store.write_output(lease, [OutputWrite(claimed.n, claimed.token, 5, chunks)])
    return job.id


async def output_of(visitor: Visitor, id: str) -> str:
    page = (await visitor.get(f"/_/jobs/{id}")).text
    return page[page.index('<div id="output">') : page.index('<div id="answer"')]


def texts(*values: str) -> Chunk:
    return Chunk("tokens", to_json(list(values)).decode(), len(values), 1)


async def test_texts_are_shown_as_one_and_other_values_as_lines(visitor: Visitor) -> None:
    id = await talking(visitor, texts("Hello ", "<b>you</b>\n"), Chunk("log", '[{"left": 2}, 3]', 2, 1))
    part = await output_of(visitor, id)
    assert "Hello &lt;b&gt;you&lt;/b&gt;\n</pre>" in part
    assert "{&#34;left&#34;:2}\n3\n</pre>" in part
    assert f'data-output="/api/jobs/{id}/output/tokens" data-after="2"' in part
    assert "2 values" in words(part)
    assert part.count("<details") == part.count(" open") + 1 == 2, "the first channel is open"


async def test_a_job_without_output_has_no_panel(visitor: Visitor) -> None:
    assert "<details" not in await output_of(visitor, await talking(visitor))


async def test_the_newest_values_of_a_long_channel_are_shown(visitor: Visitor) -> None:
    id = await talking(visitor, texts(*(f"word{i} " for i in range(600))))
    part = await output_of(visitor, id)
    assert "word599 " in part
    assert "word99 " not in part
    assert 'data-after="600"' in part
    assert "the newest are shown" in part


async def test_what_an_attempt_before_has_emitted_is_not_shown(visitor: Visitor) -> None:
    again = texts("new")._replace(attempt=2)
    part = await output_of(visitor, await talking(visitor, texts("old"), again))
    assert ">new</pre>" in part


async def test_a_live_patch_has_the_panel_and_not_its_text(visitor: Visitor) -> None:
    id = await talking(visitor, texts("Hello"))
    patch: Any = (await visitor.get(f"/_/live?view=job&id={id}&once=1")).json()
    part = str(patch)
    assert f"/api/jobs/{id}/output/tokens" in part
    assert "Hello" not in part


def test_a_dashboard_that_is_mounted_elsewhere_finds_its_api() -> None:
    assert (api_of("/_"), api_of("/queue/_")) == ("", "/queue")
