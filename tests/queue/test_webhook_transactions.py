"""Webhooks in the caller's own transaction, with every driver."""

import pytest

from tests.contract.relational import RelationalDatabase
from tests.http.test_webhooks import URL, age
from tests.queue.drivers import WAYS, Way, transaction
from tests.queue.test_webhooks import sent
from treadle import Concurrency, Queue
from treadle.model.webhooks import Delivered


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture
def url(way: Way, request: pytest.FixtureRequest) -> str:
    database: str = request.getfixturevalue(f"{way.store}_url")
    return database


@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_that_a_users_transaction_replaces(way: Way, url: str, commits: bool) -> None:
    """Its delivery shares the fate of that transaction."""
    queue = Queue(url)
    queue.register("newest", lambda: None, concurrency=Concurrency("replace_same_scope"))
    async with queue:
        await queue.webhooks.create(URL, id="ops")
        await age(queue)
        first = await queue.enqueue("newest", {"n": 1})
        async with transaction(way, url, queue) as begun:
            await begun.enqueue("newest", {"n": 2})
            await (begun.commit() if commits else begun.rollback())
        found = await queue.webhooks.deliveries(job_id=first.id)
        assert [one.event for one in found] == (["job:cancelled"] if commits else [])
        assert (await queue.get(first.id)).webhook_sent is (False if commits else None)
        assert await sent(queue, Delivered()) == ([URL] if commits else [])
        assert await RelationalDatabase(url).problems() == []
