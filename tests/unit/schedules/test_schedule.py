"""What a due schedule does: missed slots, overlapping jobs, jitter, payloads, and its description."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.counting import counted
from treadle.model.errors import InvalidInput, InvalidPayload
from treadle.model.job import from_ms, to_ms
from treadle.policy.schedule import MISSED_AFTER_MS, Firing, Schedule, fire, rendered_payload, slot

MINUTE_MS = 60_000
DAY_MS = 86_400_000
NINE = to_ms(datetime(2026, 3, 2, 9, tzinfo=UTC))


def daily(**changes) -> Schedule:
    return replace(Schedule(id="report", topic="report", cron="0 9 * * *", next_ms=NINE), **changes)


def slots(firing: Firing) -> list[int]:
    return [one.at_ms for one in firing.slots]


def test_a_schedule_that_is_not_due_does_nothing():
    assert fire(daily(), NINE - 1) == Firing((), NINE, 0)


def test_a_due_schedule_fires_its_slot_and_names_the_next():
    firing = fire(daily(), NINE + 40)
    assert slots(firing) == [NINE]
    assert firing.next_ms == NINE + DAY_MS
    assert firing.skipped == 0


def test_a_disabled_schedule_does_nothing():
    assert fire(daily(enabled=False), NINE).slots == ()


@pytest.mark.parametrize(("missed", "expected"), [("skip", []), ("one", [9]), ("all", list(range(10)))])
def test_ten_missed_slots_follow_the_policy(missed, expected):
    firing = fire(daily(missed=missed), NINE + 9 * DAY_MS + 60 * MINUTE_MS)
    assert slots(firing) == [NINE + day * DAY_MS for day in expected]
    assert firing.next_ms == NINE + 10 * DAY_MS
    assert firing.skipped == 10 - len(expected)


def test_a_slot_that_is_a_little_late_was_not_missed():
    assert slots(fire(daily(missed="skip"), NINE + MISSED_AFTER_MS)) == [NINE]
    assert slots(fire(daily(missed="skip"), NINE + MISSED_AFTER_MS + 1)) == []


def test_at_most_a_hundred_slots_are_caught_up_and_they_are_the_newest():
    schedule = Schedule(id="tick", topic="tick", cron="* * * * *", missed="all", next_ms=NINE)
    firing = fire(schedule, NINE + 500 * MINUTE_MS)
    assert slots(firing) == [NINE + minute * MINUTE_MS for minute in range(401, 501)]
    assert firing.skipped == 401


@pytest.mark.parametrize("timing", [{"cron": "* * * * * *"}, {"every_ms": 1000}])
@pytest.mark.parametrize("missed", ["one", "all"])
def test_years_of_missed_seconds_are_not_gone_through_one_by_one(timing, missed):
    schedule = Schedule(id="tick", topic="tick", missed=missed, next_ms=NINE, start_ms=NINE, **timing)
    now = NINE + 3 * 365 * DAY_MS
    with counted() as work:
        firing = fire(schedule, now)
    assert 0 < work.steps < 1_000_000
    count = 100 if missed == "all" else 1
    assert slots(firing) == [now - 1000 * i for i in reversed(range(count))]
    assert firing.skipped == 1000 - count


def test_a_weekly_schedule_fires_though_everything_restarts_daily():
    """What is due is stored, not counted from a start."""
    schedule = Schedule(id="weekly", topic="weekly", cron="0 9 * * 1", next_ms=NINE)
    made: list[int] = []
    for day in range(22):  # a new process each day, for a minute at noon
        now = NINE + day * DAY_MS + 180 * MINUTE_MS
        firing = fire(schedule, now)
        made += slots(firing)
        schedule = replace(schedule, next_ms=firing.next_ms)
    assert made == [NINE, NINE + 7 * DAY_MS, NINE + 14 * DAY_MS, NINE + 21 * DAY_MS]


def test_overlap_skip_leaves_the_slot_out_while_a_job_is_live():
    assert slots(fire(daily(overlap="skip"), NINE, live_jobs=1)) == []
    assert fire(daily(overlap="skip"), NINE, live_jobs=1).skipped == 1
    assert slots(fire(daily(overlap="skip"), NINE)) == [NINE]
    assert slots(fire(daily(overlap="allow"), NINE, live_jobs=1)) == [NINE]


def test_overlap_skip_makes_one_job_of_many_missed_slots():
    firing = fire(daily(overlap="skip", missed="all"), NINE + 3 * DAY_MS)
    assert slots(firing) == [NINE + 3 * DAY_MS]
    assert firing.skipped == 3


def test_overlap_queue_holds_the_slot_until_the_jobs_before_it_have_ended():
    schedule = daily(overlap="queue", missed="skip")
    held = fire(schedule, NINE, live_jobs=1)
    assert held == Firing((), NINE, 0, held=True)
    late = fire(replace(schedule, held=True), NINE + 60 * MINUTE_MS)
    assert slots(late) == [NINE]
    assert late.next_ms == NINE + DAY_MS
    assert not late.held


def test_overlap_queue_runs_missed_slots_one_after_the_other():
    schedule = daily(overlap="queue", missed="all")
    now = NINE + 2 * DAY_MS
    made = []
    for _ in range(3):
        firing = fire(schedule, now)
        made += slots(firing)
        assert fire(replace(schedule, next_ms=firing.next_ms), now, live_jobs=1).slots == ()
        schedule = replace(schedule, next_ms=firing.next_ms, held=firing.held)
    assert made == [NINE, NINE + DAY_MS, NINE + 2 * DAY_MS]
    assert schedule.next_ms == NINE + 3 * DAY_MS


def test_jitter_delays_a_job_by_the_same_time_in_every_process():
    delays = {fire(daily(jitter_ms=60_000, id=f"s{i}"), NINE).slots[0].run_at_ms - NINE for i in range(50)}
    assert len(delays) > 30
    assert all(0 <= delay <= 60_000 for delay in delays)
    assert fire(daily(jitter_ms=60_000), NINE) == fire(daily(jitter_ms=60_000), NINE)
    assert fire(daily(), NINE).slots[0].run_at_ms == NINE


def test_an_interval_is_counted_from_the_start_or_from_when_the_schedule_was_made():
    made = Schedule(id="a", topic="a", every_ms=90_000, created_ms=NINE)
    assert made.next_runs(NINE, 2) == [NINE + 90_000, NINE + 180_000]
    started = replace(made, start_ms=NINE + 10)
    assert started.next_runs(0, 2) == [NINE + 10, NINE + 90_010]
    assert started.next_after(NINE + 90_010) == NINE + 180_010


def test_a_schedule_keeps_to_its_start_and_its_end():
    schedule = daily(start_ms=NINE, end_ms=NINE + DAY_MS)
    assert schedule.next_runs(0) == [NINE, NINE + DAY_MS]
    assert fire(replace(schedule, next_ms=NINE + DAY_MS), NINE + DAY_MS).next_ms is None


def test_five_runs_are_shown():
    assert daily().next_runs(NINE) == [NINE + day * DAY_MS for day in range(1, 6)]


def test_placeholders_are_filled_in_at_every_place():
    schedule = daily(
        payload={
            "until": "{{scheduledAt}}",
            "list": [{"since": "from {{ previousAt }}"}],
            "by": "{{scheduleId}}",
            "n": 1,
        }
    )
    assert rendered_payload(schedule, slot(schedule, NINE, NINE - DAY_MS)) == {
        "until": "2026-03-02T09:00:00.000Z",
        "list": [{"since": "from 2026-03-01T09:00:00.000Z"}],
        "by": "report",
        "n": 1,
    }


def test_the_first_run_knows_the_slot_that_would_have_been_before_it():
    assert fire(daily(), NINE).slots[0].previous_ms == NINE - DAY_MS
    assert fire(daily(last_ms=NINE - 5), NINE).slots[0].previous_ms == NINE - 5
    every = Schedule(id="a", topic="a", every_ms=90_000, created_ms=NINE - 90_000, next_ms=NINE)
    assert fire(every, NINE).slots[0].previous_ms == NINE - 90_000


@pytest.mark.parametrize("payload", [{"a": "{{now}}"}, {"a": [{"b": "x {{scheduledat}}"}]}, {"a": "{{}}"}])
def test_an_unknown_placeholder_is_refused(payload):
    with pytest.raises(InvalidPayload, match="placeholder"):
        daily(payload=payload)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": None}, "cron"),
        ({"every_ms": 5000}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"cron": None, "every_ms": 999}, "every"),
        ({"missed": "some"}, "missed"),
        ({"overlap": "perhaps"}, "overlap"),
        ({"jitter_ms": -1}, "jitterSeconds"),
        ({"jitter_ms": DAY_MS + 1}, "jitterSeconds"),
        ({"start_ms": 5, "end_ms": 5}, "endAt"),
        ({"topic": "../x"}, "topic"),
        ({"id": "a b"}, "id"),
        ({"id": "x" * 101}, "id"),
        ({"scope": "x" * 256}, "scope"),
    ],
)
def test_what_is_wrong_is_named(changes, field):
    with pytest.raises(InvalidInput) as caught:
        daily(**changes)
    assert caught.value.data["field"] == field


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 9 * * *", "Every day at 09:00"),
        ("@daily", "Every day at 00:00"),
        ("0 30 2 * * *", "Every day at 02:30"),
        ("0 9,13 * * *", "Every day at 09:00 and 13:00"),
        ("* * * * *", "Every minute"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("0 * * * *", "Every hour"),
        ("0 */6 * * *", "Every 6 hours"),
        ("15 */4 * * *", "Every 4 hours at :15"),
        ("0 14 * * 5", "Fridays at 14:00"),
        ("0 14 * * FRI,MON", "Mondays and Fridays at 14:00"),
        ("0 9 * * 1-5", "Weekdays at 09:00"),
        ("0 9 * * SAT,SUN", "Weekends at 09:00"),
        ("0 6 1 * *", "On the 1st of the month at 06:00"),
        ("0 6 22 * *", "On the 22nd of the month at 06:00"),
        ("0 0 1 1 *", "On 1 January at 00:00"),
        ("0 6 L * *", "At 06:00 on the last day of every month"),
        ("*/61 * * * *", "Every hour"),
        ("*/60 9 * * *", "Every day at 09:00"),
        ("0 */24 * * *", "Every day at 00:00"),
        ("0 0 */40 * *", "On the 1st of the month at 00:00"),
        ("0 0 * * */8", "Sundays at 00:00"),
        ("*/61 * * * * *", "Every minute"),
        ("*/22 * * * *", "Every 22nd minute of every hour"),
        ("*/7 * * * *", "Every seventh minute of every hour"),
    ],
)
def test_a_schedule_says_in_words_when_it_fires(cron, words):
    assert daily(cron=cron, timezone="Asia/Taipei").description == f"{words} (Asia/Taipei)"


def test_an_interval_needs_no_time_zone():
    assert daily(cron=None, every_ms=90_000).description == "Every 90 seconds"
    assert daily(cron=None, every_ms=DAY_MS).description == "Every day"
    assert daily(cron=None, every_ms=1500).description == "Every 1500 milliseconds"


def test_times_are_datetimes_for_people():
    schedule = daily(last_ms=NINE, start_ms=1, end_ms=None)
    assert (schedule.next_run_at, schedule.last_run_at) == (from_ms(NINE), from_ms(NINE))
    assert (schedule.start_at, schedule.end_at) == (from_ms(1), None)
