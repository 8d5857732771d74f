"""What follows from one try to send a webhook."""

import itertools
from typing import Any

import pytest

from treadle.model.webhooks import (
    CLOSED,
    TEST,
    Circuit,
    ClaimedDelivery,
    Delivered,
    DisableEndpoint,
    EndpointState,
    GaveUp,
    Try,
    TryAgain,
)
from treadle.policy.delivery_tries import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    TRIES,
    after_try,
    circuit_after,
    enables,
    endpoint_after,
    host_works,
    may_send,
)

NOW = 1_800_000_000_000


def delivery(attempt: int = 1, **more: Any) -> ClaimedDelivery:
    given: dict[str, Any] = {"id": 1, "token": 1, "webhook_id": "msg_1", "endpoint": "e1", "job_id": "j", "topic": "t"}
    given |= {"event": "job:completed", "url": "https://example.com/", "host": "example.com:443", "body": "{}"}
    return ClaimedDelivery(attempt=attempt, created_at=NOW, **given | more)


def wait_ms(attempt: int, answer: Try, webhook_id: str = "msg_1") -> int:
    verdict = after_try(delivery(attempt, webhook_id=webhook_id), answer, NOW)
    assert isinstance(verdict, TryAgain)
    return verdict.at_ms - NOW


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_a_success(status: int) -> None:
    assert after_try(delivery(), Try(status), NOW) == Delivered()


@pytest.mark.parametrize("status", [None, 100, 199, 300, 301, 302, 307, 400, 401, 404, 418, 422, 500, 599])
def test_everything_else_is_tried_again(status: int | None) -> None:
    assert isinstance(after_try(delivery(), Try(status), NOW), TryAgain)


@pytest.mark.parametrize(
    ("attempt", "base_s"),
    [(1, 5), (2, 300), (3, 1_800), (4, 7_200), (5, 18_000), (6, 36_000), (7, 36_000)],
)
def test_the_waits_grow_and_are_spread_by_a_fifth(attempt: int, base_s: int) -> None:
    waits = [wait_ms(attempt, Try(500), f"msg_{number}") for number in range(200)]
    assert min(waits) >= base_s * 800
    assert max(waits) <= base_s * 1_200
    assert max(waits) - min(waits) > base_s * 300
    assert wait_ms(attempt, Try(500)) == wait_ms(attempt, Try(None, "timed out"))


def test_after_the_eighth_try_it_is_given_up() -> None:
    assert TRIES == 8
    verdict = after_try(delivery(8), Try(404), NOW)
    assert verdict == GaveUp("it was tried 8 times; the last time: the answer was 404")
    assert isinstance(after_try(delivery(9), Try(None, "timed out"), NOW), GaveUp)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asked_s", "waited_s"), [(0, 300), (1, 300), (400, 400), (600, 600), (10**9, 600)])
def test_retry_after_counts_between_one_and_two_times_the_wait(status: int, asked_s: int, waited_s: int) -> None:
    assert wait_ms(2, Try(status, retry_after_ms=asked_s * 1_000)) == waited_s * 1_000


def test_other_answers_have_no_say_in_the_wait() -> None:
    assert wait_ms(2, Try(500, retry_after_ms=590_000)) == wait_ms(2, Try(500))


def test_410_disables_the_endpoint() -> None:
    verdict = after_try(delivery(), Try(410), NOW)
    assert isinstance(verdict, DisableEndpoint)
    assert "410" in verdict.reason


def test_five_days_of_failures_disable_the_endpoint_and_not_a_moment_less() -> None:
    almost = delivery(2, failing_since_ms=NOW - 5 * DAY_MS + 1)
    assert isinstance(after_try(almost, Try(500), NOW), TryAgain)
    verdict = after_try(delivery(2, failing_since_ms=NOW - 5 * DAY_MS), Try(None, "connection refused"), NOW)
    assert verdict == DisableEndpoint("it has failed for 5d; the last time: connection refused")
    assert after_try(delivery(2, failing_since_ms=NOW - 9 * DAY_MS), Try(204), NOW) == Delivered()


@pytest.mark.parametrize("status", [410, 500, None])
def test_a_test_is_sent_once_and_disables_nothing(status: int | None) -> None:
    test = delivery(event=TEST, job_id=None, failing_since_ms=NOW - 9 * DAY_MS)
    assert isinstance(after_try(test, Try(status), NOW), GaveUp)


def test_only_a_test_that_was_received_enables() -> None:
    test = delivery(event=TEST)
    assert enables(test, Delivered())
    assert not enables(test, GaveUp())
    assert not enables(delivery(), Delivered())


def test_an_endpoint_is_warned_twice_before_it_is_disabled() -> None:
    state = EndpointState()
    for hours in range(0, 5 * 24, 6):
        state = endpoint_after(state, TryAgain(0), NOW + hours * HOUR_MS)
    state = endpoint_after(state, DisableEndpoint("it has failed for 5d"), NOW + 5 * DAY_MS)
    assert [(event.at_ms - NOW, event.type) for event in state.events] == [
        (DAY_MS, "warned"),
        (3 * DAY_MS, "warned"),
        (5 * DAY_MS, "disabled"),
    ]
    assert [event.message for event in state.events] == [
        "it has failed for 1d; after 5d it is disabled",
        "it has failed for 3d; after 5d it is disabled",
        "disabled: it has failed for 5d",
    ]
    assert (state.failing_since_ms, state.failures) == (NOW, 21)


def test_after_a_long_silence_one_warning_says_it_all() -> None:
    state = endpoint_after(endpoint_after(EndpointState(), TryAgain(0), NOW), GaveUp(), NOW + 4 * DAY_MS)
    assert [event.message for event in state.events] == ["it has failed for 3d; after 5d it is disabled"]
    assert endpoint_after(state, GaveUp(), NOW + 4 * DAY_MS + 1).events == state.events


def test_a_success_ends_the_failure_and_the_warnings_begin_again() -> None:
    state = endpoint_after(EndpointState(), TryAgain(0), NOW)
    state = endpoint_after(state, TryAgain(0), NOW + DAY_MS)
    state = endpoint_after(state, Delivered(), NOW + DAY_MS + 1)
    assert (state.failing_since_ms, state.failures, state.warned) == (None, 0, 0)
    assert (state.last_failed_ms, state.last_delivered_ms) == (NOW + DAY_MS, NOW + DAY_MS + 1)
    state = endpoint_after(state, TryAgain(0), NOW + 2 * DAY_MS)
    state = endpoint_after(state, TryAgain(0), NOW + 3 * DAY_MS)
    assert [event.type for event in state.events] == ["warned", "warned"]


def test_an_endpoint_keeps_its_newest_events() -> None:
    state = EndpointState()
    for day in range(100):
        state = endpoint_after(state, DisableEndpoint("again"), NOW + day * DAY_MS)
    assert len(state.events) == 20
    assert state.events[-1].at_ms == NOW + 99 * DAY_MS


def failed(times: int, circuit: Circuit = CLOSED, now: int = NOW) -> Circuit:
    for _ in range(times):
        circuit = circuit_after(circuit, False, now)
    return circuit


def test_a_host_that_fails_20_times_in_a_row_gets_a_circuit() -> None:
    assert may_send(failed(19), NOW, 4) == 4
    opened = failed(20)
    assert may_send(opened, NOW, 4) == 0
    assert may_send(opened, NOW + MINUTE_MS - 1, 4) == 0
    assert may_send(opened, NOW + MINUTE_MS, 4) == 1
    assert circuit_after(failed(19), True, NOW) == circuit_after(opened, True, NOW) == CLOSED
    assert may_send(CLOSED, NOW, 4) == 4


def test_an_open_circuit_is_probed_each_minute_and_after_ten_every_ten() -> None:
    circuit, probes = failed(20), [NOW]
    for _ in range(13):
        assert circuit.probe_ms is not None
        probes.append(circuit.probe_ms)
        circuit = circuit_after(circuit, False, circuit.probe_ms)
    minutes = [(after - before) // MINUTE_MS for before, after in itertools.pairwise(probes)]
    assert minutes == [1] * 10 + [10] * 3


@pytest.mark.parametrize(
    ("status", "works"),
    [(200, True), (302, True), (404, True), (410, True), (408, False), (429, False), (500, False), (None, False)],
)
def test_a_host_that_refuses_one_endpoint_works_for_others(status: int | None, works: bool) -> None:
    assert host_works(Try(status)) is works
