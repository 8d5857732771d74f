"""Groups of topics: names and patterns that a worker serves, and those that it leaves out."""

from collections.abc import Sequence

import pytest

from treadle import InvalidInput, Queue, Worker
from treadle.worker.served_topics import served_topics

HANDLERS = ["mail.digest", "mail.welcome", "shop.order", "shop.mail.receipt", "report", "django:shop.tasks.Send"]
MAIL, SHOP = ["mail.digest", "mail.welcome"], ["shop.mail.receipt", "shop.order"]


@pytest.mark.parametrize(
    ("topics", "excepted", "served"),
    [
        (None, [], None),
        ([], [], []),
        (["report"], [], ["report"]),
        (["mail.*"], [], MAIL),
        (["shop.*", "report"], [], [*SHOP, "report"]),
        (["*"], ["mail.*"], ["django:shop.tasks.Send", "report", *SHOP]),
        (None, ["mail.*"], ["shop.order", "shop.mail.receipt", "report", "django:shop.tasks.Send"]),
        (["shop.*"], ["*.receipt"], ["shop.order"]),
        (["django:*"], [], ["django:shop.tasks.Send"]),
        (["report", "rep*"], [], ["report"]),
    ],
)
def test_patterns_are_resolved_against_the_handlers(
    topics: Sequence[str] | None, excepted: Sequence[str], served: list[str] | None
) -> None:
    found = served_topics(HANDLERS, topics, excepted)
    assert (None if found is None else list(found)) == served


@pytest.mark.parametrize(
    ("topics", "excepted", "message"),
    [
        (["nothing"], [], "topics: no handler is registered for nothing"),
        (["no.*"], [], r"topics: no handler is registered for a topic like no\.\*"),
        (["mail.[a-z]*"], [], "is not a pattern"),
        (["shop *"], [], "is not a pattern"),
        ("shop.*", [], "a list, please"),
        (None, ["post.*"], "except_topics: no handler"),
        (None, ["*"], "no topic is left"),
        (["mail.*"], ["mail.*"], "no topic is left"),
    ],
)
def test_mistakes_are_told(topics: Sequence[str] | None, excepted: Sequence[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        served_topics(HANDLERS, topics, excepted)


async def test_a_worker_claims_only_its_group(sqlite_url: str) -> None:
    async with Queue(sqlite_url) as queue:
        for topic in HANDLERS:
            queue.register(topic, _nothing)
            await queue.enqueue(topic)
        await Worker(queue, topics=["*"], except_topics=["mail.*"], burst=True).run()
        left = {job.topic for job in await queue.list(status="pending")}
        assert left == set(MAIL)
        await Worker(queue, topics=["mail.*"], burst=True).run()
        assert await queue.count(status="pending") == 0


def _nothing(payload: dict[str, object]) -> None: ...
