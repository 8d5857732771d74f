"""The search box and the order of lists."""

from typing import Any

import pytest

from treadle.model.errors import InvalidInput
from treadle.policy.rules import SortKey, always, matches, parse_search, parse_sort

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
