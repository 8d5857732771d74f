"""The verbs of webhooks, and which topics have one."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from functools import partial
from typing import Any

from pydantic_core import from_json

from treadle.model.events import COMPLETED
from treadle.model.webhooks import (
    LARGEST_NUMBER,
    Delivery,
    DeliveryClaim,
    DeliveryCount,
    DeliveryQuery,
    DeliveryStatus,
    PolledEvent,
    SettledDelivery,
    parsed_try,
)
from treadle.policy.saved_endpoint import KIND, endpoint_from, subscribers_of
from treadle.store import wakeups
from treadle.store.sql import scripts
from treadle.store.sql.runner import SqlRunner
from treadle.store.sql.scripts.outbox import MOST_ENDPOINTS
from treadle.store.values import Record

HOOKS_KNOWN_S = 2.0
"""How long the topics with webhooks are taken as known: less than until a new endpoint counts."""
MOST_DELIVERIES = 500


class EveryTopic:
    def __contains__(self, topic: object) -> bool:
        return True


class WebhookVerbs(SqlRunner):
    def __init__(self) -> None:
        super().__init__()
        self._hooked: Container[str] = frozenset()
        self._hooked_until = float("-inf")

    async def hooked_topics(self) -> Container[str]:
        """Those whose completions an endpoint wants; they don't take the fast path. Asked for each settlement."""
        if self._hooked_until < time.monotonic():
            until = time.monotonic() + HOOKS_KNOWN_S
            rows = await self._ask("oldest_records", [{"kind": KIND, "top": MOST_ENDPOINTS}])
            self._hooked, self._hooked_until = _topics([Record(*row) for row in rows]), until
        return self._hooked

    def forget_hooked_topics(self) -> None:
        """An endpoint was written here."""
        self._hooked_until = float("-inf")

    async def claim_deliveries(self, holder: str, lease_ms: int, limit: int = 64, per_host: int = 4) -> DeliveryClaim:
        return await self.transact(partial(scripts.claim_deliveries, holder, lease_ms, limit, per_host))

    async def settle_deliveries(self, settled: Sequence[SettledDelivery]) -> Sequence[SettledDelivery]:
        return await self.transact(partial(scripts.settle_deliveries, settled)) if settled else []

    async def deliveries(self, query: DeliveryQuery) -> Sequence[Delivery]:
        if query.id is not None:
            return [_delivery(row) for row in await self._ask("one_delivery", [{"id": query.id}])]
        wanted: dict[str, Any] = {
            "status": query.status.value if query.status else None,
            "endpoint": query.endpoint,
            "before": LARGEST_NUMBER if query.before is None else query.before,
            "since": query.since or 0,
            "top": min(query.limit, MOST_DELIVERIES),
        }
        if query.job_id is not None:
            return [_delivery(row) for row in await self._ask("job_deliveries", [wanted | {"id": query.job_id}])]
        name = "delivery_page_by_status" if query.status else "delivery_page"
        return [_delivery(row) for row in await self._ask(name, [wanted])]

    async def delivery_counts(self, endpoints: Sequence[str], age_ms: int) -> Sequence[DeliveryCount]:
        wanted = [{"endpoint": one, "age": age_ms} for one in endpoints]
        rows = await self._ask("delivery_counts", wanted) if wanted else []
        return [DeliveryCount(endpoint, DeliveryStatus(status), *rest) for endpoint, status, *rest in rows]

    async def redeliver(self, ids: Sequence[int]) -> Sequence[int]:
        return await self.transact(partial(scripts.redeliver, ids), [wakeups.WEBHOOK]) if ids else []

    async def test_delivery(self, endpoint: str, body: str) -> int:
        return await self.transact(partial(scripts.test_delivery, endpoint, body), [wakeups.WEBHOOK])

    async def poll(self, endpoint: str, after: int, limit: int = 100) -> Sequence[PolledEvent]:
        return await self.transact(partial(scripts.poll, endpoint, after, limit))


def _topics(records: Sequence[Record]) -> Container[str]:
    found: set[str] = set()
    endpoints = [endpoint_from(one.id, one.body, one.version, one.created_at, one.updated_at) for one in records]
    for one in subscribers_of(endpoints):
        if COMPLETED in one.events:
            if not one.topics:
                return EveryTopic()
            found |= one.topics
    return frozenset(found)


def _delivery(row: Sequence[Any]) -> Delivery:
    id, webhook_id, endpoint, job_id, topic, event, url, status, created_at, finished_at, due_at, tries, body = row
    known = [parsed_try(one) for one in from_json(tries)]
    return Delivery(
        id,
        webhook_id,
        endpoint,
        job_id,
        topic,
        event,
        url,
        DeliveryStatus(status),
        created_at,
        finished_at,
        due_at,
        known,
        body,
    )
