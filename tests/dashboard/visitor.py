"""A visitor of the dashboard without JavaScript: follows links, fills in forms, reads the page."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.dashboard.flow_jobs import FlowJobs
from tests.faulty import FaultyQueue
from tests.http.api import PASSWORD, joined
from tests.queue.hands import Hands
from treadle import Job, Queue
from treadle.accounts import Accounts
from treadle.dashboard import create_app

SITE = "http://queue.test"
ROOT = "root@example.com"
OURS = {"Origin": SITE}


class Visitor:
    def __init__(self, queue: Queue, client: httpx.AsyncClient) -> None:
        self.queue = queue
        self.client = client
        self.hands = Hands(queue)
        self.flows = FlowJobs(queue, self.hands)
        self.accounts = Accounts(queue.store)

    async def sign_in(self, password: str = PASSWORD) -> httpx.Response:
        return await self.post("/_/login", identity=ROOT, password=password)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    async def text(self, path: str) -> str:
        """What a person reads there, tags taken out."""
        answer = await self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[-500:])
        return words(answer.text)

    async def post(self, path: str, headers: Any = None, **fields: Any) -> httpx.Response:
        return await self.client.post(path, data=fields, headers=OURS if headers is None else headers)

    async def confirm(self, path: str, **more: str) -> httpx.Response:
        """Open the page that asks, and press its button."""
        page = await self.get(path)
        assert page.status_code == 200, page.text[-500:]
        action, fields = form_of(page.text)
        return await self.post(action, **{**fields, **more})

    async def failed_job(self, topic: str = "mail", error: str = "SmtpError: refused", **options: Any) -> Job:
        job = await self.queue.enqueue(topic, options.pop("payload", {"userId": "123"}), **options)
        for claimed in await self.hands.claim(topic, limit=1):
            await self.hands.fail(claimed, error)
        return await self.queue.get(job.id)

    async def completed_job(self, topic: str = "mail", result: Any = None) -> Job:
        job = await self.queue.enqueue(topic, {"userId": "1"})
        (claimed,) = await self.hands.claim(topic, limit=1)
        await self.hands.complete(claimed, result)
        return await self.queue.get(job.id)


def words(page: str) -> str:
    body = re.sub(r"<svg.*?</svg>|<script.*?</script>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def form_of(page: str) -> tuple[str, dict[str, str]]:
    """Where the form that asks is sent, and what it already has in it."""
    form = re.search(r'<form class="ask.*?</form>', page, re.S)
    assert form, page[-1500:]
    action = re.search(r'action="([^"]*)"', form[0])
    assert action
    fields = {}
    for tag in re.findall(r"<input[^>]*>", form[0]):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        unchosen = 'type="radio"' in tag and "checked" not in tag
        if name and not unchosen:
            fields[html.unescape(name[1])] = html.unescape(value[1]) if value else ""
    return html.unescape(action[1]), fields


def flash(answer: httpx.Response) -> str:
    """What the next page says was done."""
    import base64
    import json

    value = answer.cookies.get("treadle_flash")
    assert value, (answer.status_code, answer.text[-500:])
    text: str = json.loads(base64.urlsafe_b64decode(value.strip('"')))["text"]
    return text


@contextlib.asynccontextmanager
async def visiting(url: str, *, signed_in: bool = True, people: bool = False, **options: Any) -> AsyncIterator[Visitor]:
    if people:
        await joined(url)
    async with FaultyQueue(url, **options) as queue:
        app = create_app(queue)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5000))
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=SITE) as client:
            visitor = Visitor(queue, client)
            if signed_in:
                assert (await visitor.sign_in()).status_code == 303
            yield visitor
