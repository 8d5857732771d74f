"""`queue.webhooks`: who is told of events by HTTP, and what was sent to them.

An endpoint is a record, and every write a compare-and-set on its version. How it has answered is another record, which
senders write. Only the version of the first one counts for its owner.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic_core import to_json
from typing_extensions import Unpack
from uuid_utils import uuid7

from treadle.model.durations import Duration, duration_ms
from treadle.model.errors import (
    DeliveryNotFound,
    EndpointNotFound,
    InvalidInput,
    StoreUnavailable,
    VersionConflict,
)
from treadle.model.job import checked_topic, from_ms, rfc3339, to_ms
from treadle.model.webhooks import (
    LARGEST_NUMBER,
    TEST,
    WEBHOOK_EVENTS,
    Delivery,
    DeliveryCount,
    DeliveryQuery,
    DeliveryStatus,
    Endpoint,
    EndpointState,
    PolledEvent,
)
from treadle.policy.saved_endpoint import KIND, STATE_KIND, body_of, endpoint_from, state_body, state_from
from treadle.policy.webhook_signing import checked_secret, secret_of
from treadle.store.protocol import Store
from treadle.store.values import Record, RecordWrite

if TYPE_CHECKING:
    from treadle.queue.queue import Queue

TRIES = 20
MOST_ENDPOINTS = 1_000
KEEP = "24h"
SECRET_BYTES = 32
KEY_PREFIX = "whk_"
TEST_LOOK_S = 0.1
MOST_AT_ONCE = 500
_ID = re.compile(r"[a-z0-9][a-z0-9_\-]{0,62}")


class EndpointFields(TypedDict, total=False):
    events: Iterable[str] | None
    topics: Iterable[str] | None
    enabled: bool
    description: str


class EndpointChanges(EndpointFields, total=False):
    url: str | None


class EndpointOptions(EndpointFields, total=False):
    id: str | None
    secret: str | None


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """An endpoint as people see it."""

    endpoint: Endpoint
    state: EndpointState
    secret: str | None = None
    """Only in the answer that makes or rotates it."""
    key: str | None = None
    """The same, of an endpoint that reads its events itself."""

    @property
    def id(self) -> str:
        return self.endpoint.id

    def as_json(self) -> dict[str, Any]:
        one, state = self.endpoint, self.state
        shown: dict[str, Any] = {
            "id": one.id,
            "url": one.url,
            "events": list(one.events),
            "topics": list(one.topics),
            "enabled": one.enabled,
            "description": one.description,
            "disabledReason": one.disabled_reason,
            "failingSince": rfc3339(from_ms(state.failing_since_ms)),
            "lastDeliveredAt": rfc3339(from_ms(state.last_delivered_ms)),
            "lastFailedAt": rfc3339(from_ms(state.last_failed_ms)),
            "previousSecretUntil": rfc3339(from_ms(one.previous_until_ms)),
            "warnings": [
                {"at": rfc3339(from_ms(event.at_ms)), "type": event.type, "message": event.message}
                for event in state.events
            ],
            "version": one.version,
            "createdAt": rfc3339(from_ms(one.created_ms)),
            "updatedAt": rfc3339(from_ms(one.updated_ms)),
        }
        new = {"secret": self.secret, "key": self.key}
        return shown | {name: value for name, value in new.items() if value is not None}


class Webhooks:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    # -- endpoints ---------------------------------------------------------------------------------

    async def create(self, url: str | None, **options: Unpack[EndpointOptions]) -> WebhookEndpoint:
        """Make an endpoint; it is told of events from 5 seconds later on. `url=None`: it reads them itself (`poll`).

        Its secret, and its key if it reads itself, are in this answer and never again.
        """
        store = await self._store()
        given = dict(options)
        id = _checked_id(given.pop("id", None))
        chosen = given.pop("secret", None)
        secret = _new_secret() if chosen is None else checked_secret(str(chosen))
        key = _new_key() if url is None else None
        made = Endpoint(id, None, secret=secret, key_hash=None if key is None else _hashed(key))
        made = self._edited(made, {"url": url, **given})
        if len(await store.find_records(KIND, limit=MOST_ENDPOINTS)) >= MOST_ENDPOINTS:
            raise InvalidInput(f"there are {MOST_ENDPOINTS:,} endpoints, which is the limit; delete some", field="id")
        (record,) = await store.write_records([RecordWrite(KIND, id, id, body_of(made))])
        if record is None:
            raise VersionConflict(f"there is an endpoint {id} already", id=id)
        return WebhookEndpoint(_endpoint(record), EndpointState(), secret, key)

    async def list(self) -> Sequence[WebhookEndpoint]:
        """All of them, oldest first."""
        store = await self._store()
        records = await store.find_records(KIND, limit=MOST_ENDPOINTS)
        states = await store.get_records([(STATE_KIND, one.id) for one in records])
        return [WebhookEndpoint(_endpoint(one), _state(two)) for one, two in zip(records, states, strict=True)]

    async def get(self, endpoint_id: str) -> WebhookEndpoint:
        """EndpointNotFound if there is none."""
        record, state = await (await self._store()).get_records([(KIND, endpoint_id), (STATE_KIND, endpoint_id)])
        if record is None:
            raise _not_found(endpoint_id)
        return WebhookEndpoint(_endpoint(record), _state(state))

    async def update(
        self, endpoint_id: str, *, version: int | None = None, **changes: Unpack[EndpointChanges]
    ) -> WebhookEndpoint:
        """Change an endpoint; `enabled=True` switches it on again. VersionConflict if `version` is an older one.

        One that gets `url=None` needs a key, which `rotate` makes.
        """
        changed = await self._change(endpoint_id, lambda one, _: self._edited(one, dict(changes)), version)
        return await self._start_over(changed) if "url" in changes or changes.get("enabled") else changed

    async def _start_over(self, one: WebhookEndpoint) -> WebhookEndpoint:
        """What it has failed before does not count any more."""
        store = await self._store()
        (record,) = await store.get_records([(STATE_KIND, one.id)])
        if record is None or one.state.failing_since_ms is None:
            return one
        state = _state(record)._replace(failing_since_ms=None, failures=0, warned=0)
        # A sender that writes at the same moment knows better.
        await store.write_records([RecordWrite(STATE_KIND, one.id, one.id, state_body(state), None, record.version)])
        return replace(one, state=state)

    async def delete(self, endpoint_id: str) -> None:
        """Deliveries that are still to be made to it are given up."""
        store = await self._store()
        if not await store.delete_records([(KIND, endpoint_id)]):
            raise _not_found(endpoint_id)
        await store.delete_records([(STATE_KIND, endpoint_id)])

    async def rotate(self, endpoint_id: str, *, keep: Duration = KEEP) -> WebhookEndpoint:
        """Make a new secret, and a new key if it reads its events itself. Until the old secret ends, after `keep`, both
        sign."""
        keep_ms = duration_ms(keep, "keep")
        secret, key = _new_secret(), _new_key()

        def rotated(one: Endpoint, now: int) -> Endpoint:
            old = one.secret if keep_ms else None
            one = replace(one, secret=secret, previous_secret=old, previous_until_ms=now + keep_ms if old else None)
            return replace(one, key_hash=_hashed(key) if one.url is None else None)

        changed = await self._change(endpoint_id, rotated)
        return replace(changed, secret=secret, key=key if changed.endpoint.url is None else None)

    async def _change(self, endpoint_id: str, how: Any, version: int | None = None) -> WebhookEndpoint:
        store = await self._store()
        for _ in range(TRIES):
            old = await self.get(endpoint_id)
            _check_version(old.endpoint, version)
            new = how(old.endpoint, await store.now())
            if new == old.endpoint:
                return old
            write = RecordWrite(KIND, endpoint_id, endpoint_id, body_of(new), None, old.endpoint.version)
            (record,) = await store.write_records([write])
            if record is not None:
                return WebhookEndpoint(_endpoint(record), old.state)
        raise StoreUnavailable(f"endpoint {endpoint_id} is changed too often just now; try again")

    def _edited(self, one: Endpoint, changes: Mapping[str, Any]) -> Endpoint:
        given = dict(changes)
        if given.get("url") is not None:
            self._queue._urls.check(given["url"])
        if "events" in given:
            given["events"] = _checked_events(given["events"])
        if "topics" in given:
            given["topics"] = tuple(dict.fromkeys(checked_topic(one) for one in _listed(given["topics"], "topics")))
        if "description" in given:
            given["description"] = _checked_description(given["description"])
        if unknown := given.keys() - EndpointChanges.__annotations__.keys():
            name = sorted(unknown)[0]
            raise InvalidInput(f"{name}: an endpoint has no such option", field=name)
        if given.get("enabled") and not one.enabled:
            given["disabled_reason"] = None
        return replace(one, **given)

    async def hints(self, one: WebhookEndpoint) -> Sequence[str]:
        """What may be a mistake: topics that nothing is known of."""
        if not one.endpoint.topics:
            return []
        known = {topic.topic for topic in await (await self._store()).topics()}
        return [f"no job of topic {topic} is known" for topic in one.endpoint.topics if topic not in known]

    # -- deliveries --------------------------------------------------------------------------------

    async def deliveries(
        self,
        endpoint_id: str | None = None,
        *,
        job_id: str | None = None,
        status: str | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> Sequence[Delivery]:
        """Of an endpoint or of a job, newest first. `after`: the id of the last one on the page before."""
        if (endpoint_id is None) == (job_id is None):
            raise InvalidInput("give endpoint_id or job_id", field="endpoint_id")
        query = DeliveryQuery(endpoint_id, job_id, _checked_status(status), after, max(1, min(limit, MOST_AT_ONCE)))
        return await (await self._store()).deliveries(query)

    async def delivery(self, endpoint_id: str | None, delivery_id: int) -> Delivery:
        """With its body. DeliveryNotFound if it is another endpoint's."""
        known = 0 < delivery_id < LARGEST_NUMBER
        found = await (await self._store()).deliveries(DeliveryQuery(id=delivery_id)) if known else ()
        if not found or found[0].endpoint != endpoint_id:
            raise DeliveryNotFound(f"no delivery of {endpoint_id} has the id {delivery_id}", id=delivery_id)
        return found[0]

    async def counts(self, endpoint_ids: Sequence[str], age: Duration = "24h") -> Sequence[DeliveryCount]:
        """What came of their deliveries since then, of at most the newest 1,000 each."""
        return await (await self._store()).delivery_counts(endpoint_ids, duration_ms(age, "age"))

    async def redeliver(self, endpoint_id: str | None, delivery_id: int) -> Delivery:
        """Send it again, with the same webhook-id. One that is under way is left to its sender."""
        await self.delivery(endpoint_id, delivery_id)
        if endpoint_id is not None:
            await self._must_be_on(endpoint_id)
        await (await self._store()).redeliver([delivery_id])
        return await self.delivery(endpoint_id, delivery_id)

    async def redeliver_since(self, endpoint_id: str, since: datetime, *, only_undelivered: bool = False) -> int:
        """Send all of the endpoint's events since then again, or only those that it has not got; returns how many."""
        await self._must_be_on(endpoint_id)
        store, ids = await self._store(), []
        query = DeliveryQuery(endpoint_id, since=to_ms(since, "since"), limit=MOST_AT_ONCE)
        while page := await store.deliveries(query):
            ids += [
                one.id
                for one in page
                if one.job_id is not None and not (only_undelivered and one.status is DeliveryStatus.DELIVERED)
            ]
            query = query._replace(before=page[-1].id)
        sent = 0
        for first in range(0, len(ids), MOST_AT_ONCE):  # the oldest first
            sent += len(await store.redeliver(ids[::-1][first : first + MOST_AT_ONCE]))
        return sent

    async def test(self, endpoint_id: str, *, wait: Duration = "5s") -> Delivery:
        """Send a test event once, and wait this long for what comes of it. It reaches a disabled endpoint too, and
        enables one that was disabled because it failed."""
        store = await self._store()
        await self.get(endpoint_id)
        at = rfc3339(from_ms(await store.now()))
        body = {"type": TEST, "timestamp": at, "data": {"event": TEST, "at": at, "job": None}}
        delivery = await store.test_delivery(endpoint_id, to_json(body).decode())
        found = await self.delivery(endpoint_id, delivery)
        for _ in range(int(duration_ms(wait, "wait") / 1000 / TEST_LOOK_S)):
            if found.status is not DeliveryStatus.PENDING or (found.url is None and found.next_try_at is None):
                break
            await asyncio.sleep(TEST_LOOK_S)
            found = await self.delivery(endpoint_id, delivery)
        return found

    async def _must_be_on(self, endpoint_id: str) -> None:
        if not (await self.get(endpoint_id)).endpoint.enabled:
            raise InvalidInput(f"endpoint {endpoint_id} is disabled; enable it first", field="enabled")

    # -- reading by cursor -------------------------------------------------------------------------

    async def poll(self, endpoint_id: str, after: int = 0, limit: int = 100) -> Sequence[PolledEvent]:
        """The events of an endpoint without a URL after a number; the ones up to it count as delivered."""
        one = (await self.get(endpoint_id)).endpoint
        if one.url is not None:
            raise InvalidInput(f"endpoint {endpoint_id} has a URL, so its events are sent", field="url")
        if not 0 <= after < LARGEST_NUMBER:
            raise InvalidInput(f"after: {after} is no number of an event", field="after")
        return await (await self._store()).poll(endpoint_id, after, max(1, min(limit, MOST_AT_ONCE)))

    async def has_key(self, endpoint_id: str, key: str) -> bool:
        """Whether this is the key of an endpoint that may read its events now."""
        (record,) = await (await self._store()).get_records([(KIND, endpoint_id)])
        one = _endpoint(record) if record else None
        if one is None or one.key_hash is None or one.url is not None or not one.enabled:
            return False
        return hmac.compare_digest(_hashed(key).encode(), one.key_hash.encode())

    async def _store(self) -> Store:
        await self._queue.open()
        return self._queue.store


def delivery_as_json(one: Delivery) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": str(one.id),
        "webhookId": one.webhook_id,
        "endpointId": one.endpoint,
        "jobId": one.job_id,
        "topic": one.topic,
        "event": one.event,
        "url": one.url,
        "status": one.status.value,
        "createdAt": rfc3339(from_ms(one.created_at)),
        "finishedAt": rfc3339(from_ms(one.finished_at)),
        "nextTryAt": rfc3339(from_ms(one.next_try_at)),
        "attempts": [
            {
                "at": rfc3339(from_ms(each.at_ms)),
                "status": each.status,
                "error": each.error,
                "durationMs": each.duration_ms,
                "answer": each.answer,
            }
            for each in one.tries
        ],
    }
    return shown


def _endpoint(record: Record) -> Endpoint:
    return endpoint_from(record.id, record.body, record.version, record.created_at, record.updated_at)


def _state(record: Record | None) -> EndpointState:
    return state_from(record.body if record else None)


def _new_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _hashed(key: str) -> str:
    """Keys are long and random, so a fast hash is enough."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _checked_id(id: object) -> str:
    if id is None:
        return str(uuid7())
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidInput("id: use lower-case letters, digits, - and _, at most 63 characters", field="id")
    return id


def _checked_events(events: object) -> tuple[str, ...]:
    if events is None:
        return tuple(WEBHOOK_EVENTS)
    found = _listed(events, "events")
    if not found:
        raise InvalidInput(f"events: name at least one of {', '.join(WEBHOOK_EVENTS)}", field="events")
    for one in found:
        if one not in WEBHOOK_EVENTS:
            message = f"events: {str(one)[:60]!r} is no event of a webhook; use {', '.join(WEBHOOK_EVENTS)}"
            raise InvalidInput(message, field="events")
    return tuple(name for name in WEBHOOK_EVENTS if name in found)


def _listed(values: object, field: str) -> list[Any]:
    if values is None:
        return []
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(f"{field}: give a list", field=field)
    return list(values)[:1_000]


def _checked_description(text: object) -> str:
    if not isinstance(text, str) or len(text) > 255 or not (text.isprintable() or not text):
        raise InvalidInput("description: use at most 255 printable characters", field="description")
    return text


def _checked_status(status: str | None) -> DeliveryStatus | None:
    try:
        return None if status is None else DeliveryStatus(status)
    except ValueError:
        known = ", ".join(one.value for one in DeliveryStatus)
        raise InvalidInput(f"status: {str(status)[:40]!r} is not one of {known}", field="status") from None


def _check_version(one: Endpoint, version: int | None) -> None:
    if version is not None and version != one.version:
        message = f"endpoint {one.id} is at version {one.version}, not {version}; read it again"
        raise VersionConflict(message, version=one.version)


def _not_found(endpoint_id: str) -> EndpointNotFound:
    return EndpointNotFound(f"no webhook endpoint has the id {str(endpoint_id)[:60]!r}", id=str(endpoint_id)[:60])
