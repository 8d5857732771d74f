"""The standard library's TypedDict as a payload type, also on Python 3.11."""

from typing import Annotated, Any, NotRequired, Optional, Required, TypedDict, get_type_hints

import pytest

from treadle import InvalidPayload
from treadle.model.handler import Handler
from treadle.model.template import Template
from treadle.queue.handlers.steps import answer_schema


class Line(TypedDict):
    item: str
    count: int


class Base(TypedDict):
    customer: int


class Order(Base, total=False):
    """What was bought."""

    number: Required[str]
    lines: list[Line]
    first: Line | None
    best: Optional[Line]  # noqa: UP045 - the older spelling
    by_name: dict[str, Annotated[Line, "checked"]]


class Note(TypedDict):
    text: str
    author: NotRequired[str]


def handler(function: Any) -> Handler:
    return Handler(function, Template("orders"))


def place(order: Order) -> None: ...
def several(lines: list[Line], urgent: bool = False) -> None: ...
def noted() -> Note: ...  # type: ignore[empty-body]


WHOLE = {
    "customer": 7,
    "number": "a1",
    "lines": [{"item": "ink", "count": 2}],
    "first": {"item": "ink", "count": 2},
    "best": None,
    "by_name": {"ink": {"item": "ink", "count": 2}},
}


def test_it_is_a_payload_with_everything_in_it_checked() -> None:
    one = handler(place)
    assert one.wants_payload
    assert one.payload(one.payload_text(WHOLE)) == WHOLE
    assert one.payload_text({"customer": "7", "number": "a1"}) == '{"customer":7,"number":"a1"}'


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"customer": 7}, "payload.number"),
        ({"number": "a1"}, "payload.customer"),
        ({**WHOLE, "lines": [{"item": "ink"}]}, "payload.lines.0.count"),
        ({**WHOLE, "first": {"item": "ink", "count": "two"}}, "payload.first.count"),
        ({**WHOLE, "best": {"count": 1}}, "payload.best.item"),
        ({**WHOLE, "by_name": {"ink": {}}}, "payload.by_name.ink.item"),
    ],
)
def test_a_member_that_is_missing_or_wrong_is_named(payload: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidPayload, match=f"orders: {path}"):
        handler(place).payload_text(payload)


def test_its_schema_names_what_is_required() -> None:
    schema = handler(place).schema()
    assert schema
    assert sorted(schema["required"]) == ["customer", "number"]
    assert set(schema["properties"]) == set(get_type_hints(Order))


def test_it_can_be_inside_an_argument() -> None:
    one = handler(several)
    assert one.takes_arguments
    payload = one.bind(([{"item": "ink", "count": 2}],), {"urgent": True})
    assert one.payload(one.payload_text(payload)) == payload
    with pytest.raises(InvalidPayload, match=r"orders: payload\.lines\.0\.count"):
        one.payload_text({"lines": [{"item": "ink"}]})


def test_it_is_a_result_type_and_an_answer_type() -> None:
    assert handler(noted).result_text({"text": "hello"}) == '{"text":"hello"}'
    schema = answer_schema(Note)
    assert schema
    assert schema["required"] == ["text"]
