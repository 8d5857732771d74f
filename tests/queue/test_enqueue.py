"""`queue.enqueue`: what each option does, and the error for a bad one."""

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic insists on it before Python 3.12

from tests.queue.hands import WITHOUT_ZONE, Hands
from treadle import InvalidInput, InvalidPayload, Job, JobNotFound, JobRequest, PayloadTooLarge, Queue, Status

SOON = datetime(2100, 1, 1, tzinfo=UTC)


def same_but_for_reading(job: Job) -> dict[str, Any]:
    """The answer to an enqueue must say what a later look says."""
    return {field.name: getattr(job, field.name) for field in dataclasses.fields(job) if field.name != "queue"}


# -- what an enqueue makes -------------------------------------------------------------------------------------


async def test_a_job_is_pending_and_has_a_unique_id(queue: Queue) -> None:
    first = await queue.enqueue("mail_digest", {"userId": "123"})
    second = await queue.enqueue("mail_digest", {"userId": "123"})
    assert first.status is Status.PENDING
    assert first.id != second.id
    assert UUID(first.id).version == 7


async def test_ids_rise_with_time(queue: Queue) -> None:
    ids = [(await queue.enqueue("mail")).id for _ in range(5)]
    assert ids == sorted(ids)


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "run_at": {"run_at": SOON},
    "delay": {"delay": "15m"},
    "priority by name": {"priority": "critical"},
    "priority by number": {"priority": -7},
    "max_attempts": {"max_attempts": 7},
    "max_retries": {"max_retries": 2},
    "idempotency_key": {"idempotency_key": "order-1"},
    "scope": {"scope": "user", "scope_id": "user_123"},
    "created_by": {"created_by": "ann"},
    "capability": {"capability": "media"},
    "expires_at": {"expires_at": SOON},
    "expires": {"expires": "2h"},
    "all": {
        "run_at": SOON,
        "priority": "high",
        "max_attempts": 9,
        "idempotency_key": "ключ",
        "scope": "account",
        "scope_id": "7",
        "created_by": "李",
        "capability": "gpu",
        "expires_at": SOON + timedelta(hours=1),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_the_answer_to_an_enqueue_is_the_stored_job(queue: Queue, name: str) -> None:
    job = await queue.enqueue("mail", {"to": "ann"}, **OPTIONS[name])
    assert same_but_for_reading(await queue.get(job.id)) == same_but_for_reading(job)


async def test_every_option_is_kept(queue: Queue) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    made = await queue.enqueue(
        "mail",
        {"to": "ann"},
        run_at=when,
        priority="high",
        max_attempts=9,
        idempotency_key="order-1",
        scope="user",
        scope_id="u1",
        created_by="ann",
        capability="media",
        expires_at=when + timedelta(hours=1),
    )
    job = await queue.get(made.id)
    assert (job.topic, job.payload, job.run_at, job.priority, job.max_attempts, job.max_retries) == (
        "mail",
        {"to": "ann"},
        when,
        75,
        9,
        9,
    )
    assert (job.idempotency_key, job.scope, job.scope_id, job.created_by) == ("order-1", "user", "u1", "ann")
    assert (job.capability, job.expires_at) == ("media", when + timedelta(hours=1))


async def test_a_delay_counts_from_the_databases_clock(queue: Queue) -> None:
    job = await queue.enqueue("mail", delay=timedelta(minutes=15))
    assert job.run_at - job.created_at == timedelta(minutes=15)


async def test_expires_counts_from_the_enqueue(queue: Queue) -> None:
    job = await queue.enqueue("mail", expires="90s")
    assert job.expires_at is not None
    assert job.expires_at - job.created_at == timedelta(seconds=90)


async def test_a_job_for_later_is_not_claimable_now(queue: Queue, hands: Hands) -> None:
    await queue.enqueue("mail", delay="1h")
    await queue.enqueue("mail", run_at=SOON)
    now = await queue.enqueue("mail")
    past = await queue.enqueue("mail", run_at=datetime.now(UTC) - timedelta(hours=1))
    assert await hands.claimable("mail") == [past.id, now.id]


async def test_a_zone_is_only_another_spelling_of_the_instant(queue: Queue) -> None:
    tokyo = SOON.astimezone(datetime.now().astimezone().tzinfo)
    assert (await queue.enqueue("mail", run_at=tokyo)).run_at == (await queue.enqueue("mail", run_at=SOON)).run_at


async def test_a_job_that_needs_a_capability_waits_for_a_worker_that_has_it(queue: Queue, hands: Hands) -> None:
    await queue.enqueue("transcode", capability="media")
    assert await hands.claim("transcode") == []
    assert len(await hands.claim("transcode", capabilities=("media",))) == 1


async def test_the_highest_priority_is_first_then_the_oldest(queue: Queue, hands: Hands) -> None:
    ids: dict[Any, list[str]] = {}
    for priority in ("low", "normal", "critical", "background", "high", 60, "normal"):
        ids.setdefault(priority, []).append((await queue.enqueue("mail", priority=priority)).id)
    expected = [*ids["critical"], *ids["high"], *ids[60], *ids["normal"], *ids["low"], *ids["background"]]
    assert await hands.claimable("mail") == expected


# -- payloads --------------------------------------------------------------------------------------------------


class Colours(TypedDict):
    red: int


@dataclasses.dataclass
class Point:
    x: int


class Model(BaseModel):
    to: str
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    alias: int = Field(default=1, alias="aliasName")


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (None, {}),
        ({}, {}),
        ({"a": [1, 2.5, None, True, {"b": "ü\n\u2028💡"}]}, {"a": [1, 2.5, None, True, {"b": "ü\n\u2028💡"}]}),
        ({"n": 2**63 - 1, "m": -(2**63)}, {"n": 2**63 - 1, "m": -(2**63)}),
        ({"t": (1, 2)}, {"t": [1, 2]}),
        (Point(3), {"x": 3}),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, {"when": "2026-01-01T00:00:00Z"}),
        ({"' OR 1=1--": "%s ?1 $1 :document {rows}"}, {"' OR 1=1--": "%s ?1 $1 :document {rows}"}),
    ],
)
async def test_a_payload_comes_back_as_plain_json(queue: Queue, payload: Any, stored: Any) -> None:
    job = await queue.enqueue("mail", payload)
    assert job.payload == stored
    assert (await queue.get(job.id)).payload == stored


async def test_a_model_is_stored_by_its_aliases(queue: Queue) -> None:
    @queue.job
    async def mail(payload: Model) -> None: ...

    job = await mail.enqueue(Model(to="ann", aliasName=5))
    assert job.payload == {"to": "ann", "at": "2026-01-01T00:00:00Z", "aliasName": 5}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ([1, 2], "payload must be a JSON object, not list"),
        ("text", "payload must be a JSON object, not str"),
        (5, "payload must be a JSON object, not int"),
        ({"a": math.nan}, "payload.a is nan"),
        ({"a": [1, math.inf]}, "payload.a[1] is inf"),
        ({"a": 2**63}, "payload.a is an integer of more than 64 bits"),
        ({"a": "nul\x00"}, "payload.a has a NUL character"),
        ({"nul\x00": 1}, "payload has a NUL character"),
        ({"a": "\ud800"}, "payload.a has a lone surrogate"),
        ({1: 2}, "a key that is not a string"),
        ({"a": object()}, "can't be written as JSON"),
        ({"a": lambda: 1}, "can't be written as JSON"),
    ],
)
async def test_a_payload_that_no_database_keeps_is_refused_with_its_path(
    queue: Queue, payload: Any, words: str
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        await queue.enqueue("mail", payload)
    assert words in str(refused.value)
    assert await queue.count() == 0


async def test_a_payload_nested_without_end_is_refused(queue: Queue) -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(InvalidPayload, match="nested more than 100 levels"):
        await queue.enqueue("mail", endless)


async def test_a_payload_of_one_mebibyte_fits_and_one_byte_more_does_not(queue: Queue) -> None:
    room = 1_048_576 - len('{"a":""}')
    job = await queue.enqueue("mail", {"a": "x" * room})
    assert len((await queue.get(job.id)).payload["a"]) == room
    with pytest.raises(PayloadTooLarge, match="1,048,577 bytes of JSON, the limit is 1,048,576"):
        await queue.enqueue("mail", {"a": "x" * (room + 1)})
    with pytest.raises(PayloadTooLarge):
        await queue.enqueue("mail", {"a": "ü" * (room // 2 + 1)})
    assert await queue.count() == 1


async def test_a_typed_handlers_payload_is_checked_at_the_enqueue(queue: Queue) -> None:
    class Mail(BaseModel):
        to: str
        size: int

    @queue.job
    async def mail(payload: Mail) -> None: ...

    with pytest.raises(InvalidPayload, match=r"mail: payload\.size: Input should be a valid integer"):
        await queue.enqueue("mail", {"to": "ann", "size": "big"})
    with pytest.raises(InvalidPayload, match=r"payload\.to: Field required \(and 1 more\)"):
        await mail.enqueue()
    assert (await queue.enqueue("mail", {"to": "ann", "size": "5"})).payload == {"to": "ann", "size": 5}


@pytest.mark.parametrize("kind", [Colours, Point, dict, dict[str, int], Model])
async def test_handlers_take_models_dataclasses_typed_dicts_and_dicts(queue: Queue, kind: Any) -> None:
    def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = kind
    queue.register("mail", handler)
    payloads: dict[Any, dict[str, Any]] = {Colours: {"red": 1}, Point: {"x": 1}, Model: {"to": "ann"}}
    wanted = payloads.get(kind, {"n": 1})
    assert (await queue.enqueue("mail", wanted)).payload.items() >= wanted.items()


# -- bad options: the message names the field, and nothing is stored ----------------------------------------------

BAD: list[tuple[str, dict[str, Any]]] = [
    ("run_at", {"run_at": WITHOUT_ZONE}),
    ("run_at", {"run_at": datetime(9999, 1, 1, tzinfo=UTC)}),
    ("run_at", {"run_at": datetime(1969, 12, 31, tzinfo=UTC)}),
    ("run_at", {"run_at": "tomorrow"}),
    ("run_at", {"run_at": 1_700_000_000}),
    ("run_at", {"run_at": SOON, "delay": "1m"}),
    ("delay", {"delay": "-5s"}),
    ("delay", {"delay": -5}),
    ("delay", {"delay": timedelta(seconds=-1)}),
    ("delay", {"delay": "soon"}),
    ("delay", {"delay": "5 minutes"}),
    ("delay", {"delay": math.nan}),
    ("delay", {"delay": math.inf}),
    ("delay", {"delay": "1000000d"}),
    ("delay", {"delay": True}),
    ("delay", {"delay": []}),
    ("priority", {"priority": "urgent"}),
    ("priority", {"priority": 2**31}),
    ("priority", {"priority": 1.5}),
    ("priority", {"priority": True}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": -1}),
    ("max_attempts", {"max_attempts": 10**9}),
    ("max_attempts", {"max_attempts": "three"}),
    ("max_attempts", {"max_attempts": True}),
    ("max_retries", {"max_retries": 0}),
    ("max_retries", {"max_retries": 2.5}),
    ("max_retries", {"max_attempts": 3, "max_retries": 4}),
    ("idempotency_key", {"idempotency_key": ""}),
    ("idempotency_key", {"idempotency_key": "k" * 256}),
    ("idempotency_key", {"idempotency_key": "a\nb"}),
    ("idempotency_key", {"idempotency_key": "a\x00b"}),
    ("idempotency_key", {"idempotency_key": 5}),
    ("scope", {"scope": ""}),
    ("scope", {"scope": "\x1b[31m"}),
    ("scope_id", {"scope_id": "s" * 256}),
    ("scope_id", {"scope_id": 7}),
    ("created_by", {"created_by": "a\tb"}),
    ("created_by", {"created_by": "\ud800"}),
    ("capability", {"capability": ""}),
    ("capability", {"capability": " media"}),
    ("capability", {"capability": "c" * 101}),
    ("capability", {"capability": 5}),
    ("expires_at", {"expires_at": WITHOUT_ZONE}),
    ("expires_at", {"expires_at": "never"}),
    ("expires_at", {"expires_at": SOON, "expires": "1m"}),
    ("expires", {"expires": "never"}),
    ("expires", {"expires": -1}),
]


@pytest.mark.parametrize(("field", "options"), BAD, ids=[f"{f}={str(o[f])[:20]!a}" for f, o in BAD])
async def test_a_bad_option_is_refused_by_name(sqlite_url: str, field: str, options: dict[str, Any]) -> None:
    async with Queue(sqlite_url) as queue:
        with pytest.raises(InvalidInput) as refused:
            await queue.enqueue("mail", {}, **options)
        assert refused.value.data["field"] == field
        assert field in str(refused.value)
        assert await queue.count() == 0


@pytest.mark.parametrize(
    "topic", ["", "../x", "Mail", "mail digest", "<b>", "mail.", ".mail", "a" * 101, "m\x00", "ü", 5, None, ["mail"]]
)
async def test_a_bad_topic_is_refused_by_name(sqlite_url: str, topic: Any) -> None:
    async with Queue(sqlite_url) as queue:
        for call in (queue.enqueue(topic), queue.pause(topic), queue.resume(topic)):
            with pytest.raises(InvalidInput, match="topic:") as refused:
                await call
            assert refused.value.data["field"] == "topic"


@pytest.mark.parametrize("topic", ["m", "mail_digest", "mail.digest.v2", "2fa", "a" * 100])
async def test_a_good_topic_is_taken(queue: Queue, topic: str) -> None:
    assert (await queue.enqueue(topic)).topic == topic


async def test_an_option_that_does_not_exist_is_an_error(queue: Queue) -> None:
    with pytest.raises(TypeError, match="run_on"):
        await queue.enqueue("mail", {}, run_on="sunday")  # type: ignore[call-overload]


async def test_numbers_that_look_like_others_are_kept_apart(queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        await queue.enqueue("mail", [Decimal(1)])
    assert (await queue.enqueue("mail", {"d": Decimal("1.10")})).payload == {"d": "1.10"}
    some = uuid4()
    assert (await queue.enqueue("mail", {"u": some})).payload == {"u": str(some)}


async def test_a_job_that_was_not_read_through_a_queue_says_so(queue: Queue) -> None:
    job = dataclasses.replace(await queue.enqueue("mail"), queue=None)
    with pytest.raises(InvalidInput, match=r"use queue\.get"):
        await job.refresh()


async def test_a_refusal_of_many_names_the_one(queue: Queue) -> None:
    nan = {"n": float("nan")}
    with pytest.raises(InvalidPayload, match=r"^payloads\[2\]: payload\.n "):
        await queue.enqueue_many("mail", iter([{"n": 1}, {"n": 2}, nan]))
    with pytest.raises(InvalidPayload, match=r"^jobs\[1\]: payload\.n "):
        await queue.enqueue_many([JobRequest("mail", {"n": 1}), JobRequest("mail", nan)])
    with pytest.raises(InvalidInput, match=r"^jobs\[1\]: .*priority"):
        await queue.enqueue_many([JobRequest("mail", {}), JobRequest("mail", {}, {"priority": "urgently"})])
    assert await queue.count() == 0


async def test_refresh_brings_the_job_itself_up_to_date(queue: Queue) -> None:
    first, second = await queue.enqueue_many("mail", [{"n": 1}, {"n": 2}])
    stopped = await queue.cancel(first.id, "enough")
    again = await first.refresh()
    assert first.as_json() == again.as_json() == stopped.as_json()
    assert second.status is Status.PENDING  # made from the same values, and not read again
    await queue.requeue(first.id)
    assert again.status is Status.CANCELLED
    await first.refresh()
    assert (first.status, first.cancel_reason) == (Status.PENDING, None)


async def test_refresh_keeps_what_only_the_enqueue_knows(queue: Queue) -> None:
    await queue.enqueue("mail", idempotency_key="a")
    job = await queue.enqueue("mail", idempotency_key="a")
    await job.refresh()
    assert job.deduplicated
    assert (await job.cancel()).status is Status.CANCELLED


async def test_a_job_knows_its_queue(queue: Queue) -> None:
    job = await queue.enqueue("mail")
    assert (await job.refresh()).id == job.id
    assert (await job.cancel("enough")).status is Status.CANCELLED
    await queue.delete(job.id)
    with pytest.raises(JobNotFound):
        await job.refresh()
