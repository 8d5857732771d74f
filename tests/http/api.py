"""A client for tests that can call as any of its accounts."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
from argon2 import PasswordHasher

from tests.queue.hands import Hands
from treadle import Queue
from treadle.accounts import SUPERUSERS, USERS, Account, Accounts, Passwords
from treadle.http import create_app

PASSWORD = "correct horse"
QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class Api:
    """`await api.post("/api/jobs/enqueue", …)` calls as the superuser, `as_="ann"` as a user, None without a token."""

    def __init__(self, queue: Queue, client: httpx.AsyncClient, accounts: Accounts) -> None:
        self.queue = queue
        self.client = client
        self.accounts = accounts
        self.hands = Hands(queue)
        self.people: dict[str, Account] = {}
        self.tokens: dict[str, str] = {}

    async def meet(self) -> None:
        """Get a token for every account; create the accounts if there are none."""
        if not await self.accounts.superuser_exists():
            await join(self.accounts)
        for collection in (SUPERUSERS, USERS):
            for account in await self.accounts.list(collection):
                name = account.email.partition("@")[0]
                self.people[name] = account
                self.tokens[name] = await self.accounts.token(account)

    async def key(self, *scopes: str) -> str:
        """The name of a new API key with these scopes."""
        name = f"key:{','.join(scopes)}"
        _, self.tokens[name] = await self.accounts.api_keys.create(name, scopes)
        return name

    async def request(self, method: str, path: str, *, as_: str | None = "root", **options: Any) -> httpx.Response:
        headers: dict[str, str] = dict(options.pop("headers", {}))
        if as_ is not None:
            headers["Authorization"] = self.tokens[as_]
        return await self.client.request(method, path, headers=headers, **options)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.request("GET", path, **options)

    async def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return await self.request("POST", path, **({"json": json} if json is not None else {}), **options)

    async def patch(self, path: str, json: Any, **options: Any) -> httpx.Response:
        return await self.request("PATCH", path, json=json, **options)

    async def delete(self, path: str, **options: Any) -> httpx.Response:
        return await self.request("DELETE", path, **options)

    async def rules(self, **jobs: Any) -> None:
        """Set enqueue_rule, manage_rule, http_enabled or allowed_topics."""
        answer = await self.patch("/api/settings", {"jobs": jobs})
        assert answer.status_code == 200, answer.text

    async def enqueue(
        self, topic: str = "mail", payload: Mapping[str, Any] | None = None, **body: Any
    ) -> dict[str, Any]:
        """A job made over HTTP."""
        as_ = body.pop("as_", "root")
        answer = await self.post("/api/jobs/enqueue", {"topic": topic, "payload": payload or {}, **body}, as_=as_)
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        return job


async def join(accounts: Accounts) -> None:
    await accounts.upsert_superuser("root@example.com", PASSWORD)
    for name, team in (("ann", "red"), ("bob", "blue")):
        account = await accounts.create_user(f"{name}@example.com", PASSWORD, {"team": team})
        await accounts.token(account)  # the key that signs them is made with the first


async def joined(url: str) -> None:
    """A database with these accounts."""
    async with Queue(url) as queue:
        await join(Accounts(queue.store, passwords=Passwords(QUICK)))


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Api]:
    async with Queue(url, **options) as queue:
        app = create_app(queue)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True, client=("127.0.0.1", 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://queue.test") as client:
            api = Api(queue, client, Accounts(queue.store, passwords=Passwords(QUICK)))
            await api.meet()
            yield api
        await app.state.servers.close()


def failure(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error response, after a check of its shape."""
    body = answer.json()
    assert set(body) == {"status", "code", "message", "data"}, body
    assert body["status"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, body["code"]
