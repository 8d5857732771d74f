"""One line when an outage begins, one a minute, one when it ends."""

import pytest

from treadle.telemetry import outages
from treadle.telemetry.outages import OutageLog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(outages, "time", clock)
    return clock


AWAY = OSError("the database is away")


def test_many_callers_that_fail_again_and_again_are_one_outage(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    outage = OutageLog()
    callers = [outage.caller(doing) for doing in ("claiming", "settling", "events")]
    for _ in range(130):
        for caller in callers:
            caller.failed(AWAY)
        clock.now += 1
    for caller in callers:
        caller.worked()
    assert caplog.messages == [
        "the database is away; claiming has to wait",
        "the database is away, for 60 s now; waiting: claiming, events, settling",
        "the database is away, for 120 s now; waiting: claiming, events, settling",
        "the store is back after 130.0 s; 390 calls failed",
    ]


def test_it_is_over_when_the_last_caller_got_through(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    outage = OutageLog()
    claiming, settling = outage.caller("claiming"), outage.caller("settling")
    claiming.failed(AWAY)
    settling.failed(AWAY)
    claiming.worked()
    claiming.failed(AWAY)
    claiming.worked()
    assert len(caplog.messages) == 1
    settling.worked()
    assert len(caplog.messages) == 2


def test_one_that_never_failed_tells_nothing(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    OutageLog().caller("claiming").worked()
    assert not caplog.messages


def test_the_next_outage_is_told_again(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    claiming = OutageLog().caller("claiming")
    for _ in range(2):
        claiming.failed(AWAY)
        claiming.worked()
    assert [line.split(";")[0] for line in caplog.messages] == [
        "the database is away",
        "the store is back after 0.0 s",
    ] * 2


def test_a_caller_that_is_gone_does_not_keep_an_outage_going(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    outage = OutageLog()
    gone, claiming = outage.caller("events"), outage.caller("claiming")
    gone.failed(AWAY)
    clock.now += 80
    claiming.failed(AWAY)
    clock.now += 20
    claiming.worked()
    assert caplog.messages[-1].startswith("the store is back")
    gone.failed(AWAY)
    clock.now += 100
    claiming.failed(AWAY)
    assert caplog.messages[-1] == "the database is away; claiming has to wait"


def test_each_database_has_its_own() -> None:
    assert OutageLog.of("one") is OutageLog.of("one")
    assert OutageLog.of("one") is not OutageLog.of("other")
