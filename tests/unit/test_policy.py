"""Durations, priorities and retry policies."""

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.model.durations import INT32, MAX_DURATION_MS, PRIORITIES, checked_count, duration_ms, format_ms
from treadle.model.durations import priority_value as priority
from treadle.model.errors import InvalidInput
from treadle.model.retry import Retry, families_of

HUGE = pytest.param(10**5_000, id="5000 digits")
LONG = pytest.param("x" * 10_000, id="10000 letters")

# -- durations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1000ms", 1_000),
        ("1d", 86_400_000),
        ("1.5s", 1_500),
        ("0s", 0),
        (" 30s ", 30_000),
        (30, 30_000),
        (0.25, 250),
        (0, 0),
        (timedelta(minutes=15), 900_000),
        (timedelta(microseconds=1_499), 1),
        (timedelta(0), 0),
        ("36500d", MAX_DURATION_MS),
        (timedelta(days=36_500), MAX_DURATION_MS),
    ],
)
def test_a_duration_is_text_seconds_or_a_timedelta(value: Any, ms: int) -> None:
    assert duration_ms(value) == ms
    assert type(duration_ms(value)) is int


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "30",
        "30 s",
        "30S",
        "30sec",
        "-30s",
        "+30s",
        "1e3s",
        ".5s",
        "5.s",
        "1h30m",
        "30s\n30s",
        "３s",  # a full-width digit
        "nan",
        "inf",
        LONG,
        None,
        True,
        False,
        b"30s",
        [30],
        object(),
    ],
)
def test_nonsense_is_no_duration(value: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        duration_ms(value, "delay")
    assert refusal.value.data == {"field": "delay"}
    assert refusal.value.message.startswith("delay: ")
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        MAX_DURATION_MS,  # seconds
        10**400,
        HUGE,
        "9" * 400 + "s",
        "36501d",
        timedelta.max,
    ],
)
def test_a_duration_out_of_range_is_refused_with_a_short_message(value: Any) -> None:
    with pytest.raises(InvalidInput, match="out of range") as refusal:
        duration_ms(value, "timeout")
    assert refusal.value.data == {"field": "timeout"}
    assert len(refusal.value.message) < 120


@given(st.integers(0, MAX_DURATION_MS))
def test_the_shortest_spelling_reads_back_as_the_same_duration(ms: int) -> None:
    assert duration_ms(format_ms(ms)) == ms
    assert duration_ms(timedelta(milliseconds=ms)) == ms


@given(st.floats(0, 10**9))
def test_seconds_as_a_number_are_rounded_to_the_millisecond(seconds: float) -> None:
    assert abs(duration_ms(seconds) - seconds * 1000) <= 0.5


@given(st.text() | st.integers() | st.floats() | st.none() | st.binary() | st.booleans())
def test_every_input_becomes_a_duration_or_is_refused(value: Any) -> None:
    try:
        assert 0 <= duration_ms(value) <= MAX_DURATION_MS
    except InvalidInput:
        pass


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (1, "1ms"), (1_500, "1500ms"), (2_000, "2s"), (60_000, "1m"), (7_200_000, "2h"), (86_400_000, "1d")],
)
def test_a_duration_is_shown_in_its_largest_whole_unit(ms: int, text: str) -> None:
    assert format_ms(ms) == text


# -- priorities and counts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("critical", 100), ("high", 75), ("normal", 50), ("low", 25), ("background", 0)]
)
def test_a_priority_has_a_name(name: str, value: int) -> None:
    assert priority(name) == value


def test_there_are_five_named_priorities() -> None:
    assert len(PRIORITIES) == 5


@pytest.mark.parametrize("value", [0, 1, -1, 1_000, INT32, -INT32 - 1])
def test_any_32_bit_integer_is_a_priority(value: int) -> None:
    assert priority(value) == value


@pytest.mark.parametrize(
    "value",
    ["urgent", "HIGH", "", "50", LONG, INT32 + 1, -INT32 - 2, HUGE, 1.0, math.nan, True, None, [1]],
)
def test_anything_else_is_no_priority(value: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        priority(value)
    assert refusal.value.data == {"field": "priority"}
    assert len(refusal.value.message) < 150


@pytest.mark.parametrize("value", [1, 2, 1_000_000])
def test_a_count_is_between_one_and_a_million(value: int) -> None:
    assert checked_count(value, "rate") == value


@pytest.mark.parametrize("value", [0, -1, 1_000_001, 10**9, HUGE, 2.0, "3", None, True, math.nan])
def test_a_count_outside_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^rate: .* is not between 1 and 1,000,000$") as refusal:
        checked_count(value, "rate")
    assert refusal.value.data == {"field": "rate"}


# -- retry: how long --------------------------------------------------------------------------------


def waits(retry: Retry, failures: int = 5) -> list[float]:
    """Seconds after each of the first failures."""
    return [retry.delay_ms(n) / 1000 for n in range(1, failures + 1)]


def test_the_default_waits_one_minute_then_four() -> None:
    assert Retry().max_attempts == 3
    assert waits(Retry(), 2) == [60, 240]


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (Retry(), [60, 240, 960, 3_840, 15_360]),
        (Retry(backoff="fixed"), [1, 1, 1, 1, 1]),
        (Retry(backoff="linear"), [1, 2, 3, 4, 5]),
        (Retry(backoff="exponential"), [1, 2, 4, 8, 16]),
        (Retry(delay="2s"), [2, 8, 32, 128, 512]),
        (Retry(backoff="fixed", delay="10s"), [10] * 5),
        (Retry(backoff="linear", delay="500ms"), [0.5, 1, 1.5, 2, 2.5]),
        (Retry(backoff="exponential", delay=10), [10, 20, 40, 80, 160]),
        (Retry(backoff="exponential", delay=0), [0] * 5),
        (Retry(backoff="exponential", max_delay="5s"), [1, 2, 4, 5, 5]),
        (Retry(max_delay="1m"), [60] * 5),
        (Retry(backoff=[1, "5s", timedelta(minutes=1)]), [1, 5, 60, 60, 60]),
        (Retry(backoff=(0,)), [0] * 5),
        (Retry(backoff=["1h", "10s"], max_delay="1m"), [60, 10, 10, 10, 10]),
    ],
)
def test_each_backoff_grows_as_it_says(retry: Retry, seconds: list[float]) -> None:
    assert waits(retry) == seconds


@pytest.mark.parametrize("backoff", ["quadrupling", "exponential", "linear", "fixed"])
def test_even_the_millionth_wait_is_at_most_a_hundred_years(backoff: Any) -> None:
    assert 0 < Retry(1_000_000, backoff).delay_ms(1_000_000) <= MAX_DURATION_MS
    assert Retry(1_000_000, backoff, delay="1000d").delay_ms(1_000_000) <= MAX_DURATION_MS


@given(st.integers(1, 40), st.floats(0, 1), st.sampled_from(["quadrupling", "fixed", "linear", "exponential"]))
def test_jitter_stays_within_its_share_and_never_passes_the_cap(failures: int, jitter: float, backoff: Any) -> None:
    plain = Retry(backoff=backoff, max_delay="1h").delay_ms(failures)
    shaken = Retry(backoff=backoff, max_delay="1h", jitter=jitter).delay_ms(failures)
    assert plain * (1 - jitter) - 1 <= shaken <= min(plain * (1 + jitter) + 1, 3_600_000)


def test_jitter_really_spreads() -> None:
    random.seed(1)
    seen = {Retry(backoff="fixed", jitter=0.5).delay_ms(1) for _ in range(500)}
    assert len(seen) > 200
    assert 500 <= min(seen) < 550
    assert 1_450 < max(seen) <= 1_500


def test_without_jitter_the_wait_is_always_the_same() -> None:
    assert len({Retry().delay_ms(2) for _ in range(100)}) == 1


# -- retry: by exception type -----------------------------------------------------------------------


class Rejected(ConnectionError):
    pass


BY_TYPE = Retry(
    on={
        OSError: "10s",
        ConnectionError: Retry(backoff="exponential"),
        ValueError: False,
        TimeoutError: 0,
        BaseExceptionGroup: "1m",
    }
)


@pytest.mark.parametrize(
    ("error", "failures", "wait"),
    [
        (OSError(), 1, 10_000),
        (FileNotFoundError(), 2, 10_000),
        (ConnectionError(), 3, 4_000),
        (Rejected(), 4, 8_000),  # the nearest class in the MRO: ConnectionError before OSError
        (ValueError(), 1, None),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), 1, None),
        (TimeoutError(), 1, 0),
        (ExceptionGroup("several", [KeyError()]), 1, 60_000),
        (KeyError(), 1, 60_000),  # not named: the policy's own backoff
        (KeyError(), 2, 240_000),
    ],
)
def test_an_exception_type_can_choose_the_wait(error: BaseException, failures: int, wait: int | None) -> None:
    assert BY_TYPE.decide(families_of(error), failures) == wait


def test_without_choices_every_exception_waits_alike() -> None:
    assert Retry().decide(families_of(KeyError()), 1) == Retry(on={}).decide(families_of(OSError()), 1) == 60_000


# -- retry: what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 10**9}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"backoff": "cubic"}, "backoff"),
        ({"backoff": "x" * 10_000}, "backoff"),
        ({"backoff": []}, "backoff"),
        ({"backoff": 5}, "backoff"),
        ({"backoff": ["1s", "soon"]}, "backoff"),
        ({"backoff": [-1]}, "backoff"),
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"max_delay": -1}, "max_delay"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"jitter": "0.5"}, "jitter"),
        ({"on": {ValueError: "soon"}}, "on"),
        ({"on": {ValueError: True}}, "on"),
        ({"on": {ValueError: None}}, "on"),
    ],
)
def test_a_retry_policy_that_makes_no_sense_is_refused_when_it_is_made(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Retry(**options)
    assert refusal.value.data == {"field": field}
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize(
    ("retry", "json"),
    [
        (Retry(), {"maxAttempts": 3, "backoffSeconds": [60, 240]}),
        (Retry(1), {"maxAttempts": 1, "backoffSeconds": []}),
        (Retry(4, "exponential", max_delay="3s"), {"maxAttempts": 4, "backoffSeconds": [1, 2, 3]}),
        (Retry(3, ["100ms"], jitter=0.5), {"maxAttempts": 3, "backoffSeconds": [0.1, 0.1]}),
        (Retry(1_000, "fixed"), {"maxAttempts": 1_000, "backoffSeconds": [1] * 20}),
    ],
)
def test_in_json_the_delays_are_spelled_out(retry: Retry, json: dict[str, Any]) -> None:
    assert retry.as_json() == json
