"""The ring of recent events, and the job as an event left it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from treadle.events.job_after import job_after
from treadle.events.pace import Pace
from treadle.events.ring import Ring
from treadle.model.fields import JSON_NAMES
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.store.views import Change

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT = 1_767_225_600_500
AT_TEXT = "2026-01-01T00:00:00.500Z"


def filled(ring: Ring, count: int, size: int = 0) -> list[int]:
    ids = []
    for number in range(count):
        ring.add("job:started", {"n": number, "fill": "x" * size}, {})
        ids.append(ring.last_id)
    return ids


def test_ids_rise() -> None:
    ids = filled(Ring(), 10)
    assert ids == sorted(set(ids))


def test_ids_rise_over_restarts() -> None:
    first = filled(Ring(), 1)
    later = Ring()
    later.first = later.next = later.next + 1
    assert filled(later, 1) > first


def test_ids_are_numbers_that_javascript_can_keep() -> None:
    assert 0 < filled(Ring(), 1)[0] < 2**53


def test_a_place_behind_each_event_that_is_there() -> None:
    ring = Ring(most=3)
    before = ring.last_id
    ids = filled(ring, 5)
    assert ring.after(before) is None
    assert ring.after(ids[0]) is None
    assert [ring.after(id) for id in ids[1:]] == [ring.first, ring.first + 1, ring.first + 2, ring.next]
    assert ring.get(ring.first).payload["n"] == 2


def test_of_an_empty_ring_the_last_id_is_known() -> None:
    ring = Ring()
    assert ring.after(ring.last_id) == ring.next


def test_ids_of_another_ring_are_unknown() -> None:
    ring = Ring()
    (id,) = filled(ring, 1)
    for foreign in (id + 1, id - 1, -1, 0, 7, 2**70, id + Ring.MARKS):
        assert ring.after(foreign) is None


def test_after_something_was_missed_no_place_is_left() -> None:
    ring = Ring()
    ids = filled(ring, 3)
    ring.forget()
    assert [ring.after(id) for id in ids] == [None] * 3
    assert ring.after(ring.last_id) == ring.next
    assert filled(ring, 1)[0] > ids[-1]


def test_large_events_leave_sooner() -> None:
    ring = Ring(most=100, most_bytes=10_000)
    filled(ring, 50, size=1000)
    assert 5 <= ring.next - ring.first <= 10
    filled(ring, 1, size=20_000)
    assert ring.next - ring.first == 1, "the newest is kept, however large"


def job(status: Status, id: str = "j1", **fields: Any) -> Job:
    return Job(id, "mail", status, {"a": 1}, NOW, NOW, NOW, **fields)


def test_a_truncated_event_counts_with_all_that_it_holds() -> None:
    ring = Ring(most=100, most_bytes=100_000)
    large = {**job(Status.PENDING).as_json(), "payload": {"text": "x" * 30_000}}
    for _ in range(10):
        ring.add("job:enqueued", {"event": "job:enqueued", "job": large}, large)
    newest = ring.get(ring.next - 1)
    assert len(newest.data) < 2000
    assert newest.facts["payload"] == large["payload"], "rules see the whole job"
    assert ring.next - ring.first == 3


def told(pace: Pace, *changes: Change, now: float) -> list[int | None]:
    """The progress that is told at a reading with these changes."""
    return [one.progress for one in [*(c for c in changes if pace.admit(c, now)), *pace.due(now)]]


def progress(percent: int, id: str = "j1") -> Change:
    return Change("job:progress", AT, job(Status.PROCESSING, id), None, None, progress=percent)


def test_progress_is_told_four_times_a_second_and_the_newest_is_not_lost() -> None:
    pace = Pace()
    heard = [told(pace, progress(n), now=n * 0.05) for n in range(21)]
    assert [one for one in heard if one] == [[0], [5], [10], [15], [20]]
    assert told(pace, progress(21), now=1.1) == []
    assert told(pace, progress(22), now=1.2) == []
    assert told(pace, now=1.25) == [22]
    assert told(pace, now=9.0) == []


def test_progress_of_other_jobs_has_its_own_pace() -> None:
    pace = Pace()
    assert told(pace, progress(1), progress(2, "j2"), now=0.0) == [1, 2]
    assert told(pace, progress(3), progress(4, "j2"), now=0.1) == []
    assert sorted(told(pace, now=0.3), key=str) == [3, 4]


def step(id: str = "j1", keyed: bool = True) -> Change:
    return Change("job:step:completed", AT, job(Status.PROCESSING, id), None, 1, keyed=keyed)


def events_told(pace: Pace, *changes: Change, now: float) -> list[str]:
    return [one.event for one in [*(c for c in changes if pace.admit(c, now)), *pace.due(now)]]


def test_steps_with_keys_have_the_same_pace_and_a_held_one_is_told_at_last() -> None:
    pace = Pace()
    heard = [events_told(pace, step(), now=n * 0.05) for n in range(21)]
    assert sum(map(len, heard)) == 5
    assert events_told(pace, step(), now=1.1) == []
    assert events_told(pace, now=1.25) == ["job:step:completed"]
    assert events_told(pace, now=9.0) == []


def test_steps_without_keys_are_all_told() -> None:
    pace = Pace()
    assert [events_told(pace, step(keyed=False), now=n * 0.01) for n in range(5)] == [["job:step:completed"]] * 5


def test_progress_does_not_swallow_a_held_step() -> None:
    pace = Pace()
    assert events_told(pace, step(), now=0.0) == ["job:step:completed"]
    assert events_told(pace, step(), now=0.1) == []
    assert events_told(pace, progress(5), now=0.2) == ["job:progress"]
    assert events_told(pace, now=0.3) == ["job:step:completed"]


@pytest.mark.parametrize(
    "later",
    [
        Change("job:completed", AT, job(Status.COMPLETED), Status.COMPLETED, 1),
        Change("job:deleted", AT, None, None, None, gone={"id": "j1"}),
    ],
)
def test_progress_is_never_told_after_a_later_event(later: Change) -> None:
    pace = Pace()
    assert told(pace, progress(1), now=0.0) == [1]
    assert told(pace, progress(2), now=0.1) == []
    assert pace.admit(later, 0.2)
    assert pace.due(9.0) == []


def test_a_snapshot_is_not_followed_by_progress_that_it_contains() -> None:
    pace = Pace()
    assert told(pace, progress(1), now=0.0) == [1]
    assert told(pace, progress(2), now=0.1) == []
    assert [one.progress for one in pace.all(0.2)] == [2]
    assert told(pace, progress(3), now=0.3) == []
    assert told(pace, now=0.45) == [3]


COMPLETED = job(
    Status.COMPLETED,
    attempt=1,
    progress=100,
    result_value={"ok": True},
    started_at=NOW,
    completed_at=NOW,
    claimed_at=NOW,
)


def after(event: str, job: Job, to: Status | None, attempt: int | None = None, **news: Any) -> dict[str, Any]:
    document = job_after(Change(f"job:{event}", AT, job, to, attempt, **news))
    assert document.keys() == JSON_NAMES
    return document


def test_the_newest_event_shows_the_current_job() -> None:
    assert after("completed", COMPLETED, Status.COMPLETED) == COMPLETED.as_json()
    pending = job(Status.PENDING)
    assert after("enqueued", pending, Status.PENDING, 0) == pending.as_json()


def test_an_older_one_shows_it_as_it_was() -> None:
    enqueued = after("enqueued", COMPLETED, Status.PENDING, 0)
    assert (enqueued["status"], enqueued["attempt"], enqueued["progress"]) == ("pending", 0, 0)
    assert enqueued["updatedAt"] == AT_TEXT
    for name in ("result", "completedAt", "startedAt", "claimedAt", "lockedBy"):
        assert enqueued[name] is None
    started = after("started", COMPLETED, Status.PROCESSING, 1)
    assert (started["status"], started["attempt"], started["progress"]) == ("processing", 1, 0)
    assert (started["startedAt"], started["completedAt"], started["result"]) == ("2026-01-01T00:00:00.000Z", None, None)


def test_an_ending_that_was_undone() -> None:
    again = job(Status.PENDING)
    completed = after("completed", again, Status.COMPLETED, 1)
    assert (completed["status"], completed["completedAt"], completed["progress"]) == ("completed", AT_TEXT, 100)
    failed = after("failed", again, Status.FAILED, 3)
    assert (failed["status"], failed["failedAt"], failed["completedAt"], failed["retries"]) == (
        "failed",
        AT_TEXT,
        None,
        3,
    )


def test_progress_is_that_of_the_event() -> None:
    ahead = job(Status.PROCESSING, attempt=1, progress=80, progress_message="nearly")
    document = after("progress", ahead, None, 1, progress=20, message="begun")
    assert (document["progress"], document["progressMessage"], document["status"]) == (20, "begun", "processing")


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED])
def test_a_job_that_was_cancelled_or_expired_later(status: Status) -> None:
    ended = job(status, attempt=2, last_error="Boom", cancel_requested_at=NOW, cancel_reason="no", cancelled_at=NOW)
    retrying = after("retrying", ended, Status.PENDING, 1)
    assert (retrying["status"], retrying["attempt"], retrying["retries"]) == ("pending", 1, 1)
    assert (retrying["cancelledAt"], retrying["cancelReason"], retrying["cancelRequestedAt"]) == (None, None, None)
