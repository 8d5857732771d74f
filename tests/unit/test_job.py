"""The job as users see it, and its ids, topics and times."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.model.errors import InvalidInput
from treadle.model.fields import JSON_NAMES
from treadle.model.job import FIELD_NAMES, LATEST, Job, checked_topic, from_ms, is_job_id, rfc3339, to_ms
from treadle.model.status import ENDED, Status

# Word for word from the design, §10.
DESIGN = (
    "id topic status staleAt priority payload result lastError errorType progress progressMessage step steps attempt "
    "maxAttempts retries maxRetries runAt expiresAt createdAt updatedAt scheduledAt claimedAt startedAt endedAt "
    "completedAt failedAt cancelledAt lastHeartbeatAt lastWorker lockedBy lockedUntil eventsCount cancelRequestedAt "
    "cancelReason errorGroup scope scopeId createdBy idempotencyKey capability templateVersion scheduleId parentId "
    "webhookUrl webhookSent"
).split()

AN_ID = "019b9d5e-7a10-7c3e-9f52-0b6a5d1e8c47"
NOON = datetime(2026, 1, 8, 12, 0, 0, 123_999, tzinfo=UTC)


def a_job(**changes: Any) -> Job:
    plain = {"id": AN_ID, "topic": "mail", "status": Status.PENDING, "payload": {}}
    return Job(**(plain | dict.fromkeys(["run_at", "created_at", "updated_at"], NOON) | changes))


# -- JSON --------------------------------------------------------------------------------------------


def test_a_job_in_json_has_exactly_the_fields_of_the_design() -> None:
    assert list(a_job().as_json()) == DESIGN
    assert set(DESIGN) == JSON_NAMES


def test_what_a_new_job_has_not_is_null_and_never_missing() -> None:
    job = a_job()
    assert job.as_json() == dict.fromkeys(DESIGN) | {
        "id": job.id,
        "topic": "mail",
        "status": "pending",
        "payload": {},
        "priority": 50,
        "progress": 0,
        "steps": [],
        "attempt": 0,
        "maxAttempts": 3,
        "maxRetries": 3,
        "retries": 0,
        "eventsCount": 0,
        "runAt": "2026-01-08T12:00:00.123Z",
        "createdAt": "2026-01-08T12:00:00.123Z",
        "updatedAt": "2026-01-08T12:00:00.123Z",
    }


TIMES = [name for name in sorted(FIELD_NAMES) if name.endswith("_at") or name == "locked_until"]


def test_every_time_is_rfc_3339_in_utc_with_milliseconds() -> None:
    json = a_job(**dict.fromkeys(TIMES, NOON.astimezone(timezone(timedelta(hours=5, minutes=30))))).as_json()
    times = {name: value for name, value in json.items() if name.endswith("At") or name == "lockedUntil"}
    assert len(times) == len(TIMES) == 15
    assert set(times.values()) == {"2026-01-08T12:00:00.123Z"}


def test_every_other_value_is_shown_unchanged() -> None:
    values: dict[str, Any] = {
        "result_value": {"sent": True},
        "last_error": "OSError: no route",
        "error_type": "OSError",
        "progress": 40,
        "progress_message": "half",
        "step": "prepare",
        "steps": [{"id": "prepare"}],
        "attempt": 2,
        "max_attempts": 5,
        "retries": 1,
        "priority": 75,
        "locked_by": "worker-1",
        "events_count": 4,
        "cancel_reason": "by hand",
        "scope": "user",
        "scope_id": "42",
        "created_by": "ann",
        "idempotency_key": "k",
        "capability": "media",
        "template_version": 3,
        "schedule_id": "s",
        "parent_id": "p",
        "webhook_url": "https://example.org",
        "webhook_sent": False,
        "payload": {"a": [1]},
        "status": Status.FAILED,
    }
    json = a_job(**values).as_json()
    assert json["result"] == {"sent": True}
    assert json["maxRetries"] == json["maxAttempts"] == 5
    for name, value in values.items():
        head, *rest = name.removesuffix("_value").split("_")
        assert json[head + "".join(map(str.capitalize, rest))] == value


def test_a_job_comes_back_from_its_json() -> None:
    job = a_job(**dict.fromkeys(TIMES, NOON.replace(microsecond=123_000)), result_value=[1], status=Status.FAILED)
    assert Job.from_json(job.as_json()) == job


# -- what a job can do -------------------------------------------------------------------------------


class Recorder:
    """A queue that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def get(self, job_id: str) -> Job:
        self.asked.append(("get", job_id))
        return a_job(id=job_id, status=Status.COMPLETED)

    async def cancel(self, job_id: str, reason: str = "") -> Job:
        self.asked.append(("cancel", job_id, reason))
        return a_job(id=job_id, status=Status.CANCELLED)

    async def result(self, job_id: str, timeout: Any = None) -> Any:
        self.asked.append(("result", job_id, timeout))
        return 42


async def test_a_job_asks_its_queue() -> None:
    queue = Recorder()
    job = a_job(queue=queue)
    assert (await job.refresh()).status is Status.COMPLETED
    assert (await job.cancel("by hand")).status is Status.CANCELLED
    assert await job.result("1m") == 42
    assert queue.asked == [("get", job.id), ("cancel", job.id, "by hand"), ("result", job.id, "1m")]


async def test_a_job_without_a_queue_says_how_to_get_one() -> None:
    with pytest.raises(InvalidInput, match="not read through a queue"):
        await a_job().refresh()


@pytest.mark.parametrize("status", Status)
def test_a_job_knows_whether_it_has_ended(status: Status) -> None:
    assert a_job(status=status).ended is (status in ENDED)


def test_two_reads_of_a_job_through_different_queues_are_equal() -> None:
    job = a_job(id="a")
    assert job == a_job(id="a", queue=Recorder())
    assert "queue" not in repr(job)


# -- topics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["mail", "mail_digest", "media.transcode", "a.b.c", "0", "_", "v2.x_1", "x" * 100])
def test_a_topic_is_lower_snake_with_dots(topic: str) -> None:
    assert checked_topic(topic) == topic


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "Mail",
        "mail digest",
        "mail-digest",
        "../x",
        "a/b",
        ".a",
        "a.",
        "a..b",
        "<b>mail</b>",
        "mail\n",
        "mail\x00",
        "größe",
        "ｍail",
        "x" * 101,
        pytest.param("x" * 10_240, id="10 KB"),
        None,
        5,
        b"mail",
        ["mail"],
    ],
)
def test_anything_else_is_no_topic(topic: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a topic") as refusal:
        checked_topic(topic)
    assert refusal.value.data == {"field": "topic"}
    assert len(refusal.value.message) < 300


# -- ids ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [AN_ID, "3f2b8c1a-5d4e-4f6a-8b9c-0d1e2f3a4b5c", "00000000-0000-0000-0000-000000000000"])
def test_a_job_id_is_a_uuid(id: str) -> None:
    assert is_job_id(id)


@pytest.mark.parametrize(
    "id",
    [
        "",
        "1",
        AN_ID.upper(),
        AN_ID.replace("-", ""),
        f"{{{AN_ID}}}",
        f"urn:uuid:{AN_ID}",
        f"{AN_ID}\n",
        f" {AN_ID}",
        "g" * 36,
        "x' OR 1=1--",
        None,
        5,
        UUID(AN_ID),
    ],
)
def test_any_other_text_is_the_id_of_no_job(id: Any) -> None:
    assert not is_job_id(id)


# -- times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), 1_000),
        (datetime(2026, 1, 8, 12, 0, 0, 123_999, tzinfo=UTC), 1_767_873_600_123),
        (LATEST - timedelta(milliseconds=1), 221_845_391_999_999),
    ],
)
def test_a_time_is_milliseconds_since_the_epoch(when: datetime, ms: int) -> None:
    assert to_ms(when) == ms


class Nowhere(tzinfo):
    """A zone that does not know its offset: as good as none."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    ("when", "complaint"),
    [
        (NOON.replace(tzinfo=None), "has no time zone"),
        (datetime(2026, 1, 8, tzinfo=Nowhere()), "has no time zone"),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "is out of range"),
        (datetime(1970, 1, 1, 1, 59, tzinfo=timezone(timedelta(hours=2))), "is out of range"),
        (LATEST, "is out of range"),
        (datetime(9999, 12, 31, tzinfo=UTC), "is out of range"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "is out of range"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), "is out of range"),
        ("2026-01-08T12:00:00Z", "str is not a datetime"),
        (1_767_873_600, "int is not a datetime"),
        (None, "NoneType is not a datetime"),
        (NOON.date(), "date is not a datetime"),
    ],
)
def test_a_time_that_is_none_or_means_nothing_is_refused(when: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint) as refusal:
        to_ms(when, "expires_at")
    assert refusal.value.data == {"field": "expires_at"}
    assert refusal.value.message.startswith("expires_at: ")


@given(st.integers(0, 221_845_391_999_999))
def test_milliseconds_come_back_the_same(ms: int) -> None:
    when = from_ms(ms)
    assert when is not None
    assert to_ms(when) == ms
    text = rfc3339(when)
    assert text is not None
    assert datetime.fromisoformat(text) == when
    assert len(text) == 24


def test_no_time_stays_none() -> None:
    assert from_ms(None) is None
    assert rfc3339(None) is None


def test_a_time_elsewhere_is_shown_in_utc() -> None:
    assert rfc3339(datetime(2026, 1, 8, 1, tzinfo=timezone(timedelta(hours=5)))) == "2026-01-07T20:00:00.000Z"
