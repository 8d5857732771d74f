"""The search box and the order of lists."""

from datetime import UTC, datetime
from typing import Any

import pytest

from treadle.model.errors import InvalidInput
from treadle.policy.rules import (
    SortKey,
    always,
    matches,
    nearest_qualifiers,
    parse_search,
    parse_sort,
    unknown_qualifier,
)

JOB: dict[str, Any] = {
    "id": "01890000-0000-7000-8000-00000000abcd",
    "topic": "mail_digest",
    "status": "failed",
    "staleAt": None,
    "priority": 75,
    "payload": {"userId": 123, "code": "123", "rate": 2.5, "vip": True, "tags": ["x"], "name": "Ann Lee"},
    "result": {"sent": 1},
    "lastError": 'SMTPError: 550 no such "user" http://mail',
    "idempotencyKey": "digest-7",
    "scope": "user",
    "scopeId": "ann",
    "createdBy": None,
}

FOUND = [
    "",
    "  ",
    "digest",
    "DIGEST",
    "abcd",
    "smtperror",
    "digest-7",
    "550 digest",
    '"no such"',
    '"550 no such"',
    'such "\\"user\\""',
    "http://mail",
    "SMTPError:",
    "topic:mail_digest",
    "status:failed",
    "status:FAILED",
    "id:01890000-0000-7000-8000-00000000abcd",
    "scope:user scopeId:ann",
    "priority:75",
    "priority:high",
    "error:smtp",
    'error:"550 NO"',
    "payload.userId:123",
    "payload.code:123",
    "payload.rate:2.5",
    "payload.vip:true",
    "payload.tags.0:x",
    'payload.name:"Ann Lee"',
    "result.sent:1",
    "-nothing",
    "-status:completed",
    "-topic:mail",
    "-payload.userId:124",
    "-payload.missing:1",
    "-status:stale",
    "topic:mail_digest -error:timeout 550",
    "  topic:mail_digest   550  ",
]

NOT_FOUND = [
    "nothing",
    "digest nothing",
    "topic:mail",
    "topic:MAIL_DIGEST",
    "status:completed",
    "status:stale",
    "id:abcd",
    "scope:use",
    "createdBy:ann",
    "priority:50",
    "error:timeout",
    "payload.userId:12",
    "payload.name:ann",
    "payload.missing:1",
    "-digest",
    "-priority:high",
    "-payload.userId:123",
    "-payload.code:123",
    '-"no such"',
    "%",
    "d_gest",
    "-",
][:-1]


@pytest.mark.parametrize("text", FOUND)
def test_what_is_found(text: str) -> None:
    assert matches(parse_search(text), JOB)


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_is_not_found(text: str) -> None:
    assert not matches(parse_search(text), JOB)


def test_a_lone_minus_is_a_word() -> None:
    assert matches(parse_search("-"), JOB)
    assert not matches(parse_search("-"), {"id": "x", "topic": "y"})


def test_stale_jobs() -> None:
    assert matches(parse_search("status:stale"), {**JOB, "staleAt": "2026-01-01T00:00:00.000Z"})


def test_nothing_asked_is_everything_found() -> None:
    assert parse_search("") is always


@pytest.mark.parametrize(
    "text",
    ['"open', 'topic:"open', "topic:", "payload..x:1", "priority:urgent", "a\0b", "\ud800", "x" * 501, "a " * 31],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="^q: ") as refused:
        parse_search(text)
    assert refused.value.data["field"] == "q"


def test_sort_keys() -> None:
    assert parse_sort("-priority,createdAt") == (SortKey("priority", True), SortKey("createdAt", False))
    assert parse_sort(" +topic , -id ") == (SortKey("topic", False), SortKey("id", True))
    assert parse_sort("") == ()


@pytest.mark.parametrize("text", ["nope", "--id", "id,", ",", "payload.x", "id desc", "id,id,id,id,id,id", "@random"])
def test_sorts_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="^sort: ") as refused:
        parse_sort(text)
    assert refused.value.data["field"] == "sort"


NOW = datetime(2026, 11, 18, 20, 47, 30, tzinfo=UTC)
TIMES = {
    **JOB,
    "createdAt": "2026-11-18T20:00:00.000Z",
    "runAt": "2026-11-18T20:00:00.000Z",
    "startedAt": "2026-11-18T20:00:02.000Z",
    "endedAt": "2026-11-18T20:00:08.000Z",
    "failedAt": "2026-11-18T20:00:08.000Z",
    "lastWorker": "worker-3",
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("created:1h", True),
        ("created:30m", False),
        ("created:>30m", True),
        ("created:>1h", False),
        ("created:2w", True),
        ("failed:>20:00", True),
        ("failed:>20:01", False),
        ("failed:<20:01", True),
        ("ended:>22:15", True),  # the clock showed that yesterday
        ("ended:2026-11-18", True),
        ("ended:2026-11-17", False),
        ("ended:2026-11-17..18", True),
        ("ended:2026-11-16..2026-11-17", False),
        ("ended:>2026-11-17", True),
        ("ended:>2026-11-18", False),
        ("ended:<2026-11-18", False),
        ("ended:>=2026-11-18", True),
        ("run:2026-11-18T19:59:59Z", True),
        ("-failed:>20:00", False),
        ("-created:30m", True),
        ("ran:>5s", True),
        ("ran:6s", True),
        ("ran:>7s", False),
        ("ran:<7s", True),
        ("-ran:>5s", False),
        ("waited:>1s", True),
        ("waited:<1s", False),
        ("worker:worker-3", True),
        ("worker:worker", False),
    ],
)
def test_times_and_lengths(text: str, found: bool) -> None:
    assert matches(parse_search(text, NOW), TIMES) == found


def test_a_job_that_never_failed_did_not_fail_before_noon() -> None:
    assert not matches(parse_search("failed:<12:00", NOW), {**TIMES, "failedAt": None})
    assert matches(parse_search("-failed:1h", NOW), {**TIMES, "failedAt": None})


@pytest.mark.parametrize("text", ["failed:>20", "created:soon", "ended:2026-13-01", "ran:long", "waited:20:10"])
def test_an_unfinished_time_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not finished; write a (time|length)"):
        parse_search(text, NOW)


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("colour:red", "colour"),
        ("-colour:red", "colour"),
        ("topic:mail", ""),
        ("payload.colour:red", ""),
        ("SmtpError:refused", ""),
        ("http://example.com", ""),
        ("12:30", ""),
        ("colour:", ""),
    ],
)
def test_an_unknown_qualifier_is_no_word(text: str, unknown: str) -> None:
    assert unknown_qualifier(text) == unknown


def test_the_nearest_qualifiers_are_offered() -> None:
    assert nearest_qualifiers("scop", "x") == ["scope:x", "payload.scop:x"]
    assert nearest_qualifiers("zzz", "1") == ["payload.zzz:1"]
