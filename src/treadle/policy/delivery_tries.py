"""What follows from one try to send a webhook: for the delivery, for its endpoint, and for its host."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from treadle.model.durations import format_ms
from treadle.model.webhooks import (
    CLOSED,
    TEST,
    Circuit,
    ClaimedDelivery,
    Delivered,
    DisableEndpoint,
    EndpointEvent,
    EndpointState,
    GaveUp,
    Try,
    TryAgain,
    Verdict,
)

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
DELAYS_MS: Sequence[int] = (
    *(5 * SECOND_MS, 5 * MINUTE_MS, 30 * MINUTE_MS),
    *(2 * HOUR_MS, 5 * HOUR_MS, 10 * HOUR_MS, 10 * HOUR_MS),
)
"""Between one try and the next. The first try is immediate, so there is one more."""
TRIES = len(DELAYS_MS) + 1
JITTER = 0.2
LONGEST_RETRY_AFTER = 2
"""Times the usual delay: a receiver may ask for at most that much."""

GONE = 410
TOO_MANY, UNAVAILABLE = 429, 503
HOST_IS_BUSY = frozenset({408, 425, TOO_MANY})

WARN_AFTER_MS: Sequence[int] = (DAY_MS, 3 * DAY_MS)
DISABLE_AFTER_MS = 5 * DAY_MS
KEPT_EVENTS = 20

OPEN_AFTER = 20
PROBE_EVERY_MS, LATER_EVERY_MS = MINUTE_MS, 10 * MINUTE_MS
OFTEN_FOR_MS = 10 * MINUTE_MS
"""For this long after a circuit has opened its host is probed every minute."""


def good(answer: Try) -> bool:
    return answer.status is not None and 200 <= answer.status < 300


# -- the delivery ----------------------------------------------------------------------------------


def after_try(delivery: ClaimedDelivery, answer: Try, now_ms: int) -> Verdict:
    """What becomes of the delivery."""
    if good(answer):
        return Delivered()
    if delivery.event == TEST:
        return GaveUp("a test is sent once")
    if answer.status == GONE:
        return DisableEndpoint("it answered 410 Gone, which asks for no more deliveries")
    if delivery.failing_since_ms is not None and now_ms - delivery.failing_since_ms >= DISABLE_AFTER_MS:
        return DisableEndpoint(f"it has failed for {format_ms(DISABLE_AFTER_MS)}; the last time: {reason(answer)}")
    if delivery.attempt >= TRIES:
        return GaveUp(f"it was tried {TRIES} times; the last time: {reason(answer)}")
    return TryAgain(now_ms + _delay_ms(delivery, answer))


def reason(answer: Try) -> str:
    """Why a try failed."""
    return answer.error or f"the answer was {answer.status}"


def _delay_ms(delivery: ClaimedDelivery, answer: Try) -> int:
    base = DELAYS_MS[delivery.attempt - 1]
    if answer.status in (TOO_MANY, UNAVAILABLE) and answer.retry_after_ms is not None:
        return min(max(answer.retry_after_ms, base), LONGEST_RETRY_AFTER * base)
    return round(base * (1 + JITTER * _spread(f"{delivery.webhook_id} {delivery.attempt}")))


def _spread(text: str) -> float:
    """Between -1 and 1, the same for the same text: spreads deliveries over time without a random number."""
    return crc32(text.encode()) / 0x7FFF_FFFF - 1


# -- the endpoint ----------------------------------------------------------------------------------


def endpoint_after(state: EndpointState, verdict: Verdict, now_ms: int) -> EndpointState:
    """How the endpoint has answered from now on, with warnings. The store calls it for each try."""
    if isinstance(verdict, Delivered):
        return EndpointState(last_delivered_ms=now_ms, last_failed_ms=state.last_failed_ms, events=state.events)
    since = now_ms if state.failing_since_ms is None else state.failing_since_ms
    failed = state._replace(failing_since_ms=since, failures=state.failures + 1, last_failed_ms=now_ms)
    if isinstance(verdict, DisableEndpoint):
        return with_event(failed, EndpointEvent(now_ms, "disabled", f"disabled: {verdict.reason}"))
    return _warned(failed, now_ms - since, now_ms)


def _warned(state: EndpointState, failing_ms: int, now_ms: int) -> EndpointState:
    due = [after for after in WARN_AFTER_MS if failing_ms >= after]
    if len(due) <= state.warned:
        return state
    message = f"it has failed for {format_ms(due[-1])}; after {format_ms(DISABLE_AFTER_MS)} it is disabled"
    return with_event(state._replace(warned=len(due)), EndpointEvent(now_ms, "warned", message))


def with_event(state: EndpointState, event: EndpointEvent) -> EndpointState:
    return state._replace(events=(*state.events, event)[-KEPT_EVENTS:])


def enables(delivery: ClaimedDelivery, verdict: Verdict) -> bool:
    """Whether an endpoint that was disabled is enabled again: after a test that it has received."""
    return delivery.event == TEST and isinstance(verdict, Delivered)


# -- the host --------------------------------------------------------------------------------------


def host_works(answer: Try) -> bool:
    """Whether the host does its work. One that refuses what an endpoint gets, such as with 404, still does: it may
    serve the endpoints of many."""
    return answer.status is not None and answer.status < 500 and answer.status not in HOST_IS_BUSY


def circuit_after(circuit: Circuit, worked: bool, now_ms: int) -> Circuit:
    """The store calls it for each try; `CLOSED` is not kept. `worked`: see `host_works`."""
    if worked:
        return CLOSED
    failures = circuit.failures + 1
    if failures < OPEN_AFTER:
        return Circuit(failures)
    opened = now_ms if circuit.opened_ms is None else circuit.opened_ms
    every = PROBE_EVERY_MS if now_ms - opened < OFTEN_FOR_MS else LATER_EVERY_MS
    return Circuit(failures, opened, now_ms + every)


def may_send(circuit: Circuit, now_ms: int, per_host: int) -> int:
    """How many deliveries may be under way to this host at once: `per_host` while closed, 1 for a probe, else 0."""
    if circuit.opened_ms is None:
        return per_host
    return 1 if now_ms >= (circuit.probe_ms or 0) else 0
