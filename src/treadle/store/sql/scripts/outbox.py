"""Deliveries of webhooks, written in the transaction that stores their event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json
from uuid_utils import uuid7

from treadle.model.job import Job, from_ms, rfc3339
from treadle.model.secrets import hide
from treadle.model.told_job import shortened
from treadle.model.webhooks import NewDelivery, Subscriber
from treadle.policy.delivery import plan
from treadle.policy.retention import Rules
from treadle.policy.saved_endpoint import KIND, endpoint_from, subscribers_of
from treadle.store.secrets import paths_in, records_of
from treadle.store.sql.rows import WEBHOOK, job_from_row, view_row
from treadle.store.sql.scripts.common import JobFacts, Script, numbers
from treadle.store.values import Record
from treadle.store.views import FOREVER

MOST_ENDPOINTS = 10_000
NOT_STALE = Rules(stale_after_ms=FOREVER)
"""For jobs that have only just ended, or go on."""
READ = "?"
"""Begins the receiver of deliveries that an endpoint reads itself."""

Offer = tuple[JobFacts, str]
"""A job, and the event that webhooks may want to be told of."""


def offer(events: Sequence[Offer], now: int, retention: Rules = NOT_STALE) -> Script[None]:
    """Write deliveries for those who want these events. Called last, when the jobs are as the events tell."""
    subscribers = yield from _subscribers()
    wanted = [
        (job, event)
        for job, event in events
        if job.flags & WEBHOOK or any(one.wants(event, job.topic, now) for one in subscribers)
    ]
    if not wanted:
        return
    jobs = yield from _read([job.n for job, _ in wanted], retention)
    rows: list[dict[str, Any]] = []
    receivers: dict[str, NewDelivery] = {}
    for facts, event in wanted:
        job = jobs[facts.n]
        deliveries = plan(event, facts.topic, job.webhook_url, now, subscribers)
        body = event_body(event, now, job) if deliveries else ""
        for one in deliveries:
            id = new_webhook_id()
            receivers[id] = one
            rows.append(_delivery_row(facts.n, one, id, event, now, body))
    yield from add_deliveries(rows, receivers, now)


def add_deliveries(rows: Sequence[Mapping[str, Any]], new: Mapping[str, NewDelivery], now: int) -> Script[list[int]]:
    """`new`: what to do with each, by webhook-id."""
    if not rows:
        return []
    added = {webhook_id: id for id, webhook_id in (yield "add_deliveries", rows)}
    yield (
        "put_outbox",
        [
            outbox_row(added[row["webhook_id"]], row["n"], row["endpoint"], new[row["webhook_id"]].receiver, now)
            for row in rows
        ],
    )
    if due := {row["n"] for row in rows if row["n"]}:
        yield "webhook_due", numbers(due)
    return list(added.values())


def outbox_row(id: int, n: int, endpoint: str | None, receiver: str | None, now: int) -> dict[str, Any]:
    reads = receiver is None
    return {"id": id, "n": n, "receiver": f"{READ}{endpoint}" if reads else receiver, "due_at": None if reads else now}


def new_webhook_id() -> str:
    return f"msg_{uuid7().hex}"


def event_body(event: str, at: int, job: Job) -> str:
    """{type, timestamp, data}."""
    data, _ = shortened({"event": event, "at": rfc3339(from_ms(at)), "job": job.as_json()})
    return to_json({"type": event, "timestamp": data["at"], "data": data}).decode()


def _delivery_row(n: int, new: NewDelivery, webhook_id: str, event: str, now: int, body: str) -> dict[str, Any]:
    return {
        "n": n,
        "endpoint": new.endpoint,
        "webhook_id": webhook_id,
        "event": event,
        "url": new.url,
        "created_at": now,
        "body": body,
    }


def _subscribers() -> Script[list[Subscriber]]:
    return subscribers_of((yield from endpoints()).values())


def endpoints() -> Script[dict[str, Any]]:
    """All of them, by id."""
    records = [Record(*row) for row in (yield "oldest_records", [{"kind": KIND, "top": MOST_ENDPOINTS}])]
    return {one.id: endpoint_from(one.id, one.body, one.version, one.created_at, one.updated_at) for one in records}


def _read(ns: Iterable[int], retention: Rules) -> Script[dict[int, Job]]:
    """By number, without what is secret."""
    rows = [view_row(row) for row in (yield "jobs_by_number", numbers(set(ns)))]
    jobs = {row.n: job_from_row(row, retention, from_json) for row in rows}
    origins = {(job.topic, job.template_version) for job in jobs.values()}
    names = [{"kind": kind, "id": id} for kind, id in records_of(origins)]
    found = {(one.kind, one.id): paths_in(one) for one in [Record(*row) for row in (yield "get_records", names)]}
    for job in jobs.values():
        for name in records_of([(job.topic, job.template_version)]):
            job.payload = hide(job.payload, found.get(name, ()))
    return jobs
