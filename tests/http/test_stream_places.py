"""Streams are limited, for a caller and for all together."""

import contextlib

import httpx

from tests.http.live import LiveServer
from tests.waiting import until
from treadle import Queue
from treadle.accounts import Accounts


async def test_streams_are_limited_for_a_caller_and_in_all(sqlite_url: str) -> None:
    async with Queue(sqlite_url) as queue:
        accounts = Accounts(queue.store)
        keys = [(await accounts.api_keys.create(f"key{i}", ["manage"]))[1] for i in range(3)]
    async with (
        LiveServer(sqlite_url, streams=3, streams_per_caller=2) as server,
        httpx.AsyncClient(base_url=server.base_url, timeout=30) as client,
        contextlib.AsyncExitStack() as streams,
    ):

        async def stream(key: str) -> httpx.Response:
            headers = {"Authorization": key}
            return await streams.enter_async_context(client.stream("GET", "/api/jobs/stream", headers=headers))

        opened = [await stream(keys[0]) for _ in range(2)]
        assert [one.status_code for one in opened] == [200, 200]
        refused = await stream(keys[0])
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        assert '"too_many_streams"' in (await refused.aread()).decode()
        assert [(await stream(key)).status_code for key in keys[1:]] == [200, 429]
        await opened[0].aclose()

        async def again() -> bool:
            return (await stream(keys[0])).status_code == 200

        await until(again)
