"""A statement that takes 20 times its usual time is logged with what to do."""

import logging

import pytest

from treadle.telemetry.slow_statements import KNOWN_AFTER, REPEAT_S, SlowStatements


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slow(clock: Clock) -> SlowStatements:
    slow = SlowStatements("run treadle doctor", clock)
    for _ in range(KNOWN_AFTER):
        slow.observe("claim", 0.02)
    return slow


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_20_times_the_usual_time_is_told_with_what_to_do(
    slow: SlowStatements, caplog: pytest.LogCaptureFixture
) -> None:
    slow.observe("claim", 0.39)
    assert told(caplog) == []
    slow.observe("claim", 2.0)
    (line,) = told(caplog)
    assert line.startswith("statement claim took 2.0 s, usually ")
    assert line.endswith("; run treadle doctor")


def test_it_is_told_once_a_minute(slow: SlowStatements, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        slow.observe("claim", 60.0)
        slow.observe("claim", 0.0)
    assert len(told(caplog)) == 1
    clock.now += REPEAT_S
    for _ in range(200):
        slow.observe("claim", 0.001)
    slow.observe("claim", 60.0)
    assert len(told(caplog)) == 2


def test_a_quick_statement_may_vary(slow: SlowStatements, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        slow.observe("quick", 0.0001)
    slow.observe("quick", 0.2)
    assert told(caplog) == []


def test_nothing_is_told_before_its_usual_time_is_known(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowStatements("")
    for seconds in (0.001, 9.0, 0.001):
        slow.observe("first", seconds)
    assert told(caplog) == []


def test_what_is_always_slow_is_usual(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowStatements("")
    for _ in range(100):
        slow.observe("export", 5.0)
    assert told(caplog) == []
