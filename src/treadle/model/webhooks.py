"""Webhooks as data: endpoints, deliveries, and what follows from one try to send one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

WEBHOOK_EVENTS: Sequence[str] = (
    "job:completed",
    "job:failed",
    "job:retrying",
    "job:cancelled",
    "job:stale",
    "job:expired",
)
"""The events that a webhook can be told of, and is told of by default."""

TEST = "webhook:test"
"""The event of a test delivery, which belongs to no job."""

QUEUE_ENDPOINT = "queue"
"""The id of the endpoint that `TREADLE_WEBHOOK_URL` makes. It is not told of jobs that name a URL themselves."""

LARGEST_NUMBER = 2**62
"""No delivery and no event has a larger number."""

COUNTS_AFTER_MS = 5_000
"""An endpoint is told of events from this long after it was made."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Someone who is told of events."""

    id: str
    url: str | None
    """None: it reads its events itself (`GET /api/webhooks/{id}/events`)."""
    events: tuple[str, ...] = tuple(WEBHOOK_EVENTS)
    topics: tuple[str, ...] = ()
    """Empty: all."""
    enabled: bool = True
    description: str = ""
    secret: str | None = field(default=None, repr=False)
    """None: `TREADLE_WEBHOOK_SECRET` of the process that sends."""
    previous_secret: str | None = field(default=None, repr=False)
    previous_until_ms: int | None = None
    """Until then both secrets sign."""
    key_hash: str | None = field(default=None, repr=False)
    """Of the key that reads its events."""
    disabled_reason: str | None = None
    """Why it was disabled, if nobody did it on purpose."""
    created_ms: int = 0
    updated_ms: int = 0
    version: int = 0

    def secrets(self, now_ms: int) -> tuple[str, ...]:
        """What signs now, the newest first; none: `TREADLE_WEBHOOK_SECRET` does."""
        if self.secret is None:
            return ()
        old = self.previous_secret is not None and now_ms < (self.previous_until_ms or 0)
        return (self.secret, self.previous_secret) if old and self.previous_secret else (self.secret,)


class EndpointEvent(NamedTuple):
    """A line of an endpoint's own history."""

    at_ms: int
    type: str
    """warned, disabled or enabled."""
    message: str


class EndpointState(NamedTuple):
    """How an endpoint has answered; kept apart from what its owner edits."""

    failing_since_ms: int | None = None
    """None: the last answer was good, or there was none yet."""
    failures: int = 0
    """In a row."""
    warned: int = 0
    """How many of the warnings were given since it began to fail."""
    last_delivered_ms: int | None = None
    last_failed_ms: int | None = None
    events: tuple[EndpointEvent, ...] = ()
    """The newest ones, newest last."""


class Circuit(NamedTuple):
    """How a host has answered, whoever's deliveries it gets. While it is open, deliveries wait but for a probe."""

    failures: int = 0
    """In a row; 0: nothing is kept of it."""
    opened_ms: int | None = None
    """None: closed."""
    probe_ms: int | None = None
    """When the next probe may be sent."""


CLOSED = Circuit()


class DeliveryStatus(Enum):
    PENDING = "pending"
    """It is still to be sent, or to be read by its endpoint."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up."""


class Try(NamedTuple):
    """The answer to one try, or why there was none."""

    status: int | None = None
    """Of the HTTP answer. None: there was none, and `error` says why."""
    error: str | None = None
    duration_ms: int = 0
    answer: str = ""
    """How the body of the answer begins, at most `ANSWER_CHARS` characters."""
    retry_after_ms: int | None = None
    """As the answer asks, measured from its arrival."""
    at_ms: int = 0
    """Set by the store."""


ANSWER_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery in the hands of a sender."""

    id: int
    token: int
    """Guards what is written about it, together with `id`; larger with each claim."""
    webhook_id: str
    """`webhook-id`: stable over all tries, without dots."""
    endpoint: str | None
    """None: the URL that its job names."""
    job_id: str | None
    """None: a test."""
    topic: str | None
    event: str
    url: str
    host: str
    """Of the URL: lower case, with the port."""
    body: str
    attempt: int
    """Which try this is, from 1; a redelivery begins again at 1."""
    created_at: int
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What signs it, the newest first; empty: `TREADLE_WEBHOOK_SECRET` does."""
    failing_since_ms: int | None = None
    """Since when its endpoint has failed, as it was when this was claimed."""
    probe: bool = False
    """The circuit of its host is open, and this is the probe."""


class DeliveryClaim(NamedTuple):
    deliveries: Sequence[ClaimedDelivery]
    next_in_ms: int | None
    """When to claim again at the latest: a delivery is due then. None: nothing is to be sent."""
    now_ms: int
    """By the database's clock, for `after_try`."""


# -- what follows from a try (`policy.delivery_tries.after_try`) -----------------------------------


class Delivered(NamedTuple):
    pass


class TryAgain(NamedTuple):
    at_ms: int
    """By the database's clock."""


class GaveUp(NamedTuple):
    reason: str = ""


class DisableEndpoint(NamedTuple):
    """The delivery is given up, and so is everything else for its endpoint. Without an endpoint: only the delivery."""

    reason: str


Verdict = Delivered | TryAgain | GaveUp | DisableEndpoint


class SettledDelivery(NamedTuple):
    """What a sender reports: one try, and what follows from it."""

    delivery: ClaimedDelivery
    answer: Try
    verdict: Verdict


# -- what people see -------------------------------------------------------------------------------


class Delivery(NamedTuple):
    """A delivery as people see it."""

    id: int
    webhook_id: str
    endpoint: str | None
    job_id: str | None
    topic: str | None
    event: str
    url: str | None
    """None: its endpoint reads it itself."""
    status: DeliveryStatus
    created_at: int
    finished_at: int | None
    next_try_at: int | None
    """None: it is finished, or being read, not sent."""
    tries: Sequence[Try]
    body: str | None = None
    """JSON text; None in lists."""


class DeliveryCount(NamedTuple):
    """How many deliveries of an endpoint have come to this."""

    endpoint: str
    status: DeliveryStatus
    total: int
    last_at: int | None
    """When the last of them did."""


class PolledEvent(NamedTuple):
    """An event for an endpoint that reads its events itself."""

    number: int
    """Rises by one with each event of the endpoint: what `after` names."""
    webhook_id: str
    body: str
    """JSON text: {type, timestamp, data}."""


class DeliveryQuery(NamedTuple):
    """Which deliveries to list, newest first: of an endpoint, of a job, or the one with this id."""

    endpoint: str | None = None
    job_id: str | None = None
    status: DeliveryStatus | None = None
    before: int | None = None
    """Only ones with a smaller id: the next page."""
    limit: int = 50
    since: int | None = None
    """Only those made from then on."""
    id: int | None = None


class Subscriber(NamedTuple):
    """Who wants which events, as `policy.delivery.plan` needs to know it."""

    endpoint: str | None
    """None: the URL that the job names."""
    url: str | None
    events: frozenset[str]
    topics: frozenset[str] = frozenset()
    """Empty: all."""
    counts_from_ms: int = 0

    def wants(self, event: str, topic: str, at_ms: int) -> bool:
        return event in self.events and at_ms >= self.counts_from_ms and (not self.topics or topic in self.topics)


class NewDelivery(NamedTuple):
    """A delivery to store with its event. Its body is the same for all of an event."""

    endpoint: str | None
    url: str | None
    """Of the job; the URL of an endpoint is looked up when it is sent."""
    receiver: str | None
    """Whose turn it takes: the endpoint, or the host of the job's URL after an `@`. None: it is read, not sent."""


def parsed_try(kept: Any) -> Try:
    """As it was stored: a list of its values."""
    return Try(*kept)
