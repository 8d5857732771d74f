"""Values: how they compare, what they look like as text, what is a date."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.policy.rules.binding import macro
from treadle.policy.rules.values import (
    canonical_date,
    canonical_pattern,
    contains,
    ends_in_escape,
    equal,
    has_wildcard,
    in_order,
    like,
    scalar,
    without_escapes,
    written,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (5.0, "5"),
        (2.5, "2.5"),
        (-0.5, "-0.5"),
        (0.1 + 0.2, "0.30000000000000004"),
        (True, "1"),
        (False, "0"),
        (None, None),
        ("", ""),
        ("x", "x"),
        ({"b": 1, "a": [1, 2]}, '{"b":1,"a":[1,2]}'),
        ([], "[]"),
    ],
)
def test_a_value_as_text(value: object, text: str | None) -> None:
    assert written(scalar(value)) == text


def test_null_and_the_empty_text_are_the_same_unless_json_says() -> None:
    assert equal(None, "", strict=False)
    assert not equal(None, "", strict=True)
    assert equal(None, None, strict=True)
    assert equal("", "", strict=True)


@pytest.mark.parametrize("strict", [False, True])
def test_empty_equals_nothing_else_and_a_number_no_text(strict: bool) -> None:
    assert not equal(None, 0, strict=strict)
    assert not equal("", 0, strict=strict)
    assert not equal(1, "1", strict=strict)
    assert equal(1, 1.0, strict=strict)
    assert not equal("a", "A", strict=strict)


def test_order() -> None:
    assert in_order(2, "<", 10)
    assert in_order("10", "<", "9")
    assert in_order("Z", "<", "a")
    assert in_order("z", "<", "ä")
    assert in_order("", "<", "a")
    assert in_order("a", ">=", "a")
    for sign in "> >= < <=".split():
        assert not in_order(None, sign, 1)
        assert not in_order("a", sign, None)
        assert not in_order(1, sign, "a")
        assert not in_order("a", sign, 1)


def test_only_ascii_letters_have_two_cases() -> None:
    assert contains("SMTP Error", "smtp e")
    assert not contains("ÄRGER", "ärger")
    assert contains("Ärger", "ÄRGER")


@pytest.mark.parametrize(
    ("pattern", "wild"),
    [("%", True), ("a%", True), (r"\%", False), (r"\\%", True), (r"\\\%", False), ("a_b", False), ("", False)],
)
def test_whether_a_pattern_has_a_wildcard(pattern: str, wild: bool) -> None:
    assert has_wildcard(pattern) is wild


def test_without_wildcards_escapes_are_taken_away() -> None:
    assert without_escapes(r"100\% a\_b \\ \x \\%"[:-1]) == r"100% a_b \ \x " + "\\"


@pytest.mark.parametrize(
    ("value", "pattern", "answer"),
    [
        ("hello", "h%", True),
        ("hello", "%o", True),
        ("hello", "%ll%", True),
        ("hello", "h_llo%", True),
        ("hello", "H%O", True),
        ("hello", "e%", False),
        ("hello", "%", True),
        ("", "%", True),
        ("", "_%", False),
        ("hello", "%l%l%o", True),
        ("helo", "%l%l%o", False),
        ("50% off", r"50\% %", True),
        ("50x off", r"50\% %", False),
        ("a\\b", r"a\\%", True),
        ("ab", r"a\b%", True),
        ("aXbXc", "a%b%c", True),
        ("abab", "%ab", True),
        ("aab", "a%ab", True),
        ("ab", "ab%ab", False),
        ("ünï", "_n_%", True),
        ("a\nb", "a%b", True),
        ("end\\", r"%end\\", True),
    ],
)
def test_like(value: str, pattern: str, answer: bool) -> None:
    assert like(value, canonical_pattern(pattern)) is answer


@given(st.text("aB%_\\", max_size=8), st.text("ab%_\\", max_size=8))
def test_like_is_what_a_regular_expression_says(value: str, pattern: str) -> None:
    if ends_in_escape(pattern):
        pattern += "\\"
    canonical = canonical_pattern(pattern)
    wanted, escaped = "", False
    for character in canonical:
        if escaped:
            wanted, escaped = wanted + re.escape(character), False
        elif character == "\\":
            escaped = True
        else:
            wanted += {"%": ".*", "_": "."}.get(character, re.escape(character))
    assert not escaped
    assert like(value, canonical) is bool(re.fullmatch(wanted, value, re.I | re.S))


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2026", "2026-01-01T00:00:00.000Z"),
        ("2026-02", "2026-02-01T00:00:00.000Z"),
        ("2026-02-03", "2026-02-03T00:00:00.000Z"),
        ("2026-02-03 04:05", "2026-02-03T04:05:00.000Z"),
        ("2026-02-03 04:05:06", "2026-02-03T04:05:06.000Z"),
        ("2026-02-03T04:05:06.7Z", "2026-02-03T04:05:06.700Z"),
        ("2026-02-03 04:05:06.123456789Z", "2026-02-03T04:05:06.123Z"),
        ("2026-02-03T04:05:06+02:00", "2026-02-03T02:05:06.000Z"),
        ("2026-02-30", None),
        ("2026-13-01", None),
        ("26-01-01", None),
        ("2026-01-01T25:00", None),
        ("0001-01-01T00:00:00+01:00", None),
        ("abc", None),
        ("", None),
        ("２０２６", None),
    ],
)
def test_dates(text: str, date: str | None) -> None:
    assert canonical_date(text) == date


def test_macros() -> None:
    now = datetime(2024, 2, 29, 13, 14, 15, 678_901, tzinfo=UTC)  # a Thursday
    assert {name: macro(name, now) for name in ("@now", "@yesterday", "@tomorrow", "@todayStart", "@todayEnd")} == {
        "@now": "2024-02-29T13:14:15.678Z",
        "@yesterday": "2024-02-28T13:14:15.678Z",
        "@tomorrow": "2024-03-01T13:14:15.678Z",
        "@todayStart": "2024-02-29T00:00:00.000Z",
        "@todayEnd": "2024-02-29T23:59:59.999Z",
    }
    assert {name: macro(name, now) for name in ("@monthStart", "@monthEnd", "@yearStart", "@yearEnd")} == {
        "@monthStart": "2024-02-01T00:00:00.000Z",
        "@monthEnd": "2024-02-29T23:59:59.999Z",
        "@yearStart": "2024-01-01T00:00:00.000Z",
        "@yearEnd": "2024-12-31T23:59:59.999Z",
    }
    numbers = "@second @minute @hour @day @month @weekday @year".split()
    assert [macro(name, now) for name in numbers] == [15, 14, 13, 29, 2, 4, 2024]
    assert macro("@weekday", datetime(2024, 3, 3, tzinfo=UTC)) == 0
