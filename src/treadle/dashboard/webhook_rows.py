"""Webhook endpoints and their deliveries as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.dashboard import words
from treadle.model.job import from_ms
from treadle.model.webhooks import (
    QUEUE_ENDPOINT,
    WEBHOOK_EVENTS,
    Delivery,
    DeliveryCount,
    DeliveryStatus,
    Endpoint,
    EndpointEvent,
    Try,
)
from treadle.policy.delivery_tries import DISABLE_AFTER_MS, TRIES, good
from treadle.queue.webhooks import WebhookEndpoint

Counts = Mapping[tuple[str, DeliveryStatus], DeliveryCount]
SHORT_ID = 8


@dataclass(frozen=True, slots=True)
class EndpointRow:
    id: str
    name: str
    where: str
    events: str
    topics: str
    enabled: bool
    state: str
    state_css: str
    state_icon: str
    state_note: str
    success: float | None
    delivered: int
    waiting: int
    failed: int
    why: Sequence[str]
    """Why it was disabled, or that it fails."""
    signed_with: str
    polled: bool
    from_settings: bool
    log: Sequence[tuple[datetime | None, str]]


@dataclass(frozen=True, slots=True)
class TryRow:
    number: int
    at: datetime | None
    outcome: str
    css: str
    took: str
    answer: str


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    id: int
    endpoint: str
    """Empty: the URL that its job names."""
    webhook_id: str
    created: datetime | None
    topic: str
    job_id: str
    event: str
    outcome: str
    css: str
    took: str
    answer: str
    then: str
    then_note: str
    tries: Sequence[TryRow]
    can_redeliver: bool


def endpoint_row(one: WebhookEndpoint, counts: Counts, now_ms: int) -> EndpointRow:
    endpoint, state = one.endpoint, one.state
    delivered, waiting, failed = (_count(counts, one.id, status) for status in _STATUSES)
    name, note, css, icon = _state(one, waiting, now_ms)
    return EndpointRow(
        one.id,
        endpoint.description or one.id,
        endpoint.url or "reads its events itself",
        _events(endpoint),
        ", ".join(endpoint.topics) or "all topics",
        endpoint.enabled,
        name,
        css,
        icon,
        note,
        delivered / (delivered + failed) if delivered + failed else None,
        delivered,
        waiting,
        failed,
        _why(one, now_ms),
        _signed_with(endpoint, now_ms),
        endpoint.url is None,
        one.id == QUEUE_ENDPOINT,
        [(from_ms(event.at_ms), _told(event)) for event in reversed(state.events)],
    )


_STATUSES = (DeliveryStatus.DELIVERED, DeliveryStatus.PENDING, DeliveryStatus.FAILED)


def _count(counts: Counts, id: str, status: DeliveryStatus) -> int:
    found = counts.get((id, status))
    return found.total if found else 0


def _events(endpoint: Endpoint) -> str:
    if len(endpoint.events) == len(WEBHOOK_EVENTS):
        return "every event"
    return ", ".join(name.removeprefix("job:") for name in endpoint.events)


def _state(one: WebhookEndpoint, waiting: int, now_ms: int) -> tuple[str, str, str, str]:
    """Its state, a remark, a color and an icon."""
    state = one.state
    if not one.endpoint.enabled:
        return "switched off", one.endpoint.disabled_reason or "by an operator", "failed", "stop"
    if state.failing_since_ms is not None:
        waits = f"{words.plural(waiting, 'waits', 'wait')} to be tried again" if waiting else ""
        return f"failing for {words.duration(now_ms - state.failing_since_ms)}", waits, "cancelling", "requeue"
    if state.last_delivered_ms is not None:
        return "healthy", f"last {words.ago(from_ms(state.last_delivered_ms))}", "completed", "st_completed"
    return "new", "nothing sent yet", "pending", "st_pending"


def _why(one: WebhookEndpoint, now_ms: int) -> list[str]:
    state = one.state
    if not one.endpoint.enabled:
        reason = one.endpoint.disabled_reason
        if reason is None:
            return []
        last = from_ms(state.last_delivered_ms)
        return [
            f"It was switched off: {reason}.",
            f"The last good answer came at {words.exact(last)}." if last else "It has never given a good answer.",
            "Nothing is lost: switch it on, or send a test that succeeds, and then send everything since.",
        ]
    if state.failing_since_ms is None:
        return []
    since, off_at = from_ms(state.failing_since_ms), from_ms(state.failing_since_ms + DISABLE_AFTER_MS)
    off = f"If it goes on failing it is switched off at {words.exact(off_at)}."
    return [
        f"It has failed since {words.exact(since)}, {words.plural(state.failures, 'time', 'times')} in a row.",
        f"{off} Nothing is lost: everything since can be sent again.",
    ]


def _signed_with(endpoint: Endpoint, now_ms: int) -> str:
    if endpoint.secret is None:
        return "TREADLE_WEBHOOK_SECRET"
    old = endpoint.previous_until_ms is not None and endpoint.previous_until_ms > now_ms
    until = f", and the old one until {words.exact(from_ms(endpoint.previous_until_ms))}" if old else ""
    return f"…{endpoint.secret[-4:]}{until}"


def _told(event: EndpointEvent) -> str:
    return event.message[:1].upper() + event.message[1:]


def delivery_row(one: Delivery, now_ms: int) -> DeliveryRow:
    tries = [_try_row(number, each) for number, each in enumerate(one.tries, 1)]
    last = tries[-1] if tries else None
    pending = one.status is DeliveryStatus.PENDING
    return DeliveryRow(
        one.id,
        one.endpoint or "",
        one.webhook_id,
        from_ms(one.created_at),
        one.topic or "a test",
        one.job_id or "",
        one.event,
        last.outcome
        if last
        else "waits to be read"
        if pending and one.url is None and one.next_try_at is None
        else "–",
        last.css if last else "pending",
        last.took if last else "",
        last.answer if last else "",
        *_then(one, now_ms),
        tries,
        one.endpoint is not None and not pending,
    )


def _then(one: Delivery, now_ms: int) -> tuple[str, str]:
    if one.status is DeliveryStatus.DELIVERED:
        return "delivered", words.plural(len(one.tries), "try", "tries") if one.tries else ""
    if one.status is DeliveryStatus.FAILED:
        return "given up", f"after {words.plural(len(one.tries), 'try', 'tries')}"
    if one.next_try_at is None:
        return "waits", ""
    away = words.duration(one.next_try_at - now_ms) if one.next_try_at > now_ms else ""
    when = f"in {away}" if away else "now"
    return (f"again {when}", f"try {len(one.tries)} of {TRIES}") if one.tries else (f"sent {when}", "")


def _try_row(number: int, one: Try) -> TryRow:
    worked = good(one)
    outcome = str(one.status) if one.status is not None else "no answer"
    answer = one.answer if one.status is not None else one.error or ""
    css = "completed" if worked else "failed"
    return TryRow(number, from_ms(one.at_ms), outcome, css, words.duration(one.duration_ms), answer)
