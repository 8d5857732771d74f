"""Payloads and results as JSON text that every store can keep."""

import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from treadle.model.errors import InvalidPayload, PayloadTooLarge
from treadle.model.payload import INT_MAX, INT_MIN, MAX_BYTES, MAX_DEPTH, dumps, dumps_object, loads


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 75


class Size(Enum):
    SMALL = "s"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Mail:
    to: str
    tries: int = 0


class Video(BaseModel):
    url: str
    seconds: float = 1.5


class Chart(BaseModel):
    title: str | None = None
    points: list[float | None] = [1.5, None]
    sizes: set[float] = {1.0}


class Text(str):
    __slots__ = ()


class Number(int):
    pass


def nested(depth: int, kind: type = list) -> Any:
    """`depth` levels around a 1."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if kind is dict else kind([value])
    return value


def counted() -> Iterator[int]:
    yield from (1, 2, 3)


# -- what is written ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (-1.5, "-1.5"),
        ("", '""'),
        ("héllo 🧵", '"héllo 🧵"'),
        ('"\\\n', '"\\"\\\\\\n"'),
        ([], "[]"),
        ((1, "a"), '[1,"a"]'),
        ({"b": 1, "a": [None, {}]}, '{"b":1,"a":[null,{}]}'),
        ({"ключ": "знач"}, '{"ключ":"знач"}'),
        (INT_MAX, "9223372036854775807"),
        (INT_MIN, "-9223372036854775808"),
        (5e-324, "5e-324"),
    ],
)
def test_plain_values_are_compact_json(value: Any, text: str) -> None:
    assert dumps(value) == text
    assert json.loads(text) == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 1, 8, 12, 30, tzinfo=UTC), '"2026-01-08T12:30:00Z"'),
        (date(2026, 1, 8), '"2026-01-08"'),
        (timedelta(minutes=5), '"PT5M"'),
        (UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (Decimal("1.10"), '"1.10"'),
        (Colour.RED, '"red"'),
        (Level.HIGH, "75"),
        (Size.SMALL, '"s"'),
        (Mail("ann"), '{"to":"ann","tries":0}'),
        (Video(url="u"), '{"url":"u","seconds":1.5}'),
        (Chart(), '{"title":null,"points":[1.5,null],"sizes":[1.0]}'),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(a=1), '{"a":1}'),
        (Text("a"), '"a"'),
        (Number(5), "5"),
        (frozenset([1]), "[1]"),
        (b"abc", '"abc"'),
    ],
)
def test_values_that_pydantic_knows_are_written_at_every_depth(value: Any, text: str) -> None:
    assert dumps(value) == text
    assert dumps({"a": [value]}) == f'{{"a":[{text}]}}'


def test_what_can_be_read_only_once_is_written_whole() -> None:
    assert dumps({"a": counted(), "b": (n * n for n in (1, 2))}) == '{"a":[1,2,3],"b":[1,4]}'


# -- what is refused ---------------------------------------------------------------------------------

NOT_JSON = [
    (math.nan, "payload.a is nan"),
    (math.inf, "payload.a is inf"),
    (-math.inf, "payload.a is -inf"),
    (INT_MAX + 1, "payload.a is an integer of more than 64 bits"),
    (INT_MIN - 1, "payload.a is an integer of more than 64 bits"),
    (2**64, "payload.a is an integer of more than 64 bits"),
    (Number(2**70), "payload.a is an integer of more than 64 bits"),
    ("a\x00b", "payload.a has a NUL character"),
    ("\ud800", "payload.a has a lone surrogate"),
    ("é\udfff", "payload.a has a lone surrogate"),
    ([1, [math.nan]], r"payload.a\[1\]\[0\] is nan"),
    ({"b": {"c": "\x00"}}, "payload.a.b.c has a NUL character"),
    ({1: 2}, "payload.a has a key that is not a string but int"),
    ({None: 2}, "payload.a has a key that is not a string but NoneType"),
    ({(1, 2): 3}, "payload.a has a key that is not a string but tuple"),
    ({"x\x00": 1}, "payload.a has a NUL character"),
    ({"\udc00": 1}, "payload.a has a lone surrogate"),
    ({math.nan: math.nan}, "payload.a has a key that is not a string but float"),
    (object(), "payload.a can't be written as JSON"),
    (len, "payload.a can't be written as JSON"),
    (b"\xff", "payload.a can't be written as JSON"),
    ({"\ud800"}, "payload.a can't be written as JSON"),
    ({"\x00"}, r"payload.a\[0\] has a NUL character"),
    (Mail("a\x00"), "payload.a.to has a NUL character"),
    (Video(url="u", seconds=math.nan), "payload.a has a nan"),
    (Chart(points=[None, math.inf]), "payload.a has a inf"),
    (OrderedDict(b=Chart(sizes={math.nan})), "payload.a has a nan"),
    (OrderedDict(b=math.inf), "payload.a.b is inf"),
]


@pytest.mark.parametrize(("value", "complaint"), NOT_JSON)
def test_what_is_not_json_is_refused_with_its_path(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidPayload, match=f"^{complaint}") as refusal:
        dumps({"ok": 1, "a": value})
    assert refusal.value.data["field"].startswith("payload")
    assert refusal.value.code == "invalid_payload"


def test_an_integer_too_long_to_print_is_refused_like_any_other() -> None:
    for value in (10**5_000, Number(10**5_000), {10**5_000: 1}):
        with pytest.raises(InvalidPayload):
            dumps({"a": value})


def test_the_name_of_what_is_checked_is_in_the_message() -> None:
    with pytest.raises(InvalidPayload, match=r"^result\[0\] is nan"):
        dumps([math.nan], "result")


def test_a_long_path_makes_no_long_message() -> None:
    with pytest.raises(InvalidPayload) as refusal:
        dumps({"k" * 100_000: math.nan})
    assert len(refusal.value.message) < 300
    assert len(refusal.value.data["field"]) <= 200


@pytest.mark.parametrize("kind", [list, dict, tuple])
def test_a_hundred_levels_are_deep_enough(kind: type) -> None:
    assert dumps(nested(MAX_DEPTH, kind))
    with pytest.raises(InvalidPayload, match="nested more than 100 levels deep"):
        dumps(nested(MAX_DEPTH + 1, kind))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1_000, 100_000])
def test_nesting_without_end_is_refused_inside_other_types_too(depth: int) -> None:
    for value in (nested(depth), OrderedDict(a=nested(depth)), Mail(nested(depth)), nested(min(depth, 1_000), tuple)):
        with pytest.raises(InvalidPayload):
            dumps(value)


def test_a_cycle_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    ring: dict[str, Any] = {"é": 1}
    ring["self"] = ring
    mail = Mail("a")
    mail.to = mail  # type: ignore[assignment]
    for value in (circle, ring, mail, {"a": mail}):
        with pytest.raises(InvalidPayload):
            dumps(value)


# -- size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["a", "é", "🧵"])
def test_a_mebibyte_is_allowed_and_not_one_byte_more(letter: str) -> None:
    size = len(letter.encode())
    room = MAX_BYTES - len('{"a":""}')
    exact = letter * (room // size) + "x" * (room % size)
    assert len(dumps({"a": exact}).encode()) == MAX_BYTES == 1_048_576
    with pytest.raises(PayloadTooLarge, match="1,048,577 bytes") as refusal:
        dumps({"a": exact + "x"})
    assert refusal.value.code == "payload_too_large"
    assert refusal.value.data == {"field": "payload"}


def test_the_limit_counts_compact_json_without_the_spaces_that_were_sent() -> None:
    assert loads('{"a":' + " " * MAX_BYTES + "1}") == {"a": 1}
    with pytest.raises(PayloadTooLarge):
        loads('{"a":"' + "x" * MAX_BYTES + '"}')


# -- objects -----------------------------------------------------------------------------------------


def test_no_payload_is_an_empty_object() -> None:
    assert dumps_object(None) == "{}"
    assert dumps_object({}) == "{}"


@pytest.mark.parametrize("value", [{"a": 1}, Mail("a"), Video(url="u"), OrderedDict(a=1)])
def test_a_payload_is_an_object(value: Any) -> None:
    assert dumps_object(value).startswith("{")


@pytest.mark.parametrize("value", [[], [{}], "{}", 1, True, Point(1, 2), {1, 2}, b"{}"])
def test_a_payload_that_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload, match=f"^payload must be a JSON object, not {type(value).__name__}$"):
        dumps_object(value)


# -- from outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        '{"a":1',
        '{"a":1}x',
        "{'a':1}",
        '{"a":1,}',
        "{} {}",
        "nul",
        pytest.param("[" * 100_000, id="100000 brackets"),
        pytest.param('{"a":' * 100_000, id="100000 braces"),
        pytest.param("[" * 150 + "]" * 150, id="150 levels"),
        "NaN",
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":-Infinity}',
        '{"a":1e400}',
        '{"a":-1e400}',
        '{"a":1e999999999}',
        pytest.param('{"a":' + "9" * 5_000 + "}", id="5000 digits"),
        pytest.param('{"a":' + "9" * 400 + ".5}", id="400 digits and a half"),
        '{"a":9223372036854775808}',
        '{"a":-9223372036854775809}',
        '{"a":"\\ud800"}',
        '{"a":"\\udc00\\ud800"}',
        '{"\\ud800":1}',
        '{"a":"\\u0000"}',
        '{"\\u0000":1}',
        '{"a":"\ud800"}',
        '{"a":"\x00"}',
        '{"a":"\n"}',
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08",
        "{}".encode("utf-16"),
    ],
)
def test_a_hostile_body_is_refused_and_nothing_else_happens(text: str | bytes) -> None:
    with pytest.raises(InvalidPayload) as refusal:
        loads(text)
    assert refusal.value.code == "invalid_payload"
    assert len(refusal.value.message) < 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        (' {"a" : [ 1 , 2.5 , null , "\\u00e9\\n" ] } ', {"a": [1, 2.5, None, "é\n"]}),
        ('"\\ud83e\\uddf5"', "🧵"),
        (b'{"a":"\xc3\xa9"}', {"a": "é"}),
        ("9223372036854775807", INT_MAX),
        ("-9223372036854775808", INT_MIN),
        ("1e308", 1e308),
        ('{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_json_from_outside_is_read(text: str | bytes, value: Any) -> None:
    assert loads(text) == value


# -- for every value ---------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(INT_MIN, INT_MAX) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(scalars | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.uuids(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(values)
def test_what_was_written_reads_back_the_same(value: Any) -> None:
    text = dumps(value)
    assert loads(text) == value
    assert json.loads(text) == value
    assert dumps(loads(text)) == text


@given(anything)
def test_every_input_becomes_json_that_a_store_can_keep_or_is_refused(value: Any) -> None:
    try:
        text = dumps(value)
    except InvalidPayload:
        return
    assert "\x00" not in text
    json.loads(text, parse_constant=pytest.fail)
    assert loads(text.encode()) == json.loads(text)


@given(st.text(st.characters()) | st.binary())
def test_every_text_from_outside_is_read_or_refused(text: str | bytes) -> None:
    try:
        dumps(loads(text))
    except InvalidPayload:
        pass
