"""Who is to be told of an event by webhook."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from treadle.model.webhooks import QUEUE_ENDPOINT, WEBHOOK_EVENTS, NewDelivery, Subscriber


def plan(
    event: str, topic: str, job_url: str | None, at_ms: int, subscribers: Sequence[Subscriber]
) -> list[NewDelivery]:
    """One delivery for each subscriber. The job's own URL takes the place of the queue's, and comes first."""
    found: list[NewDelivery] = []
    if job_url is not None and event in WEBHOOK_EVENTS:
        found.append(NewDelivery(None, job_url, f"@{host_of(job_url)}"))
    for one in subscribers:
        if one.endpoint == QUEUE_ENDPOINT and job_url is not None:
            continue
        if one.wants(event, topic, at_ms):
            found.append(NewDelivery(one.endpoint, None, None if one.url is None else one.endpoint))
    return found


def host_of(url: str) -> str:
    """The host and port of a URL that was checked before, for counting what is sent there at the same time."""
    parts = urlsplit(url)
    return f"{(parts.hostname or '').lower()}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
