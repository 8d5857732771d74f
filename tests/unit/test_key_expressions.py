"""Key expressions: what they may look like, and what they name."""

from typing import Any

import pytest

from treadle.model.errors import InvalidInput
from treadle.model.keys import checked_expression, evaluate_key


@pytest.mark.parametrize("expression", ["a", "input.payment_id", "payload.a.b.c", "scope", "scopeId", "_x", "über.x1"])
def test_an_expression_is_a_path_of_names(expression: str) -> None:
    assert checked_expression(expression) == expression


@pytest.mark.parametrize("expression", ["", ".", "a.", ".a", "a..b", "a b", "a[0]", "a-b", "1a", "a()", None, 5, ["a"]])
def test_anything_else_is_no_expression(expression: Any) -> None:
    with pytest.raises(InvalidInput, match="is not an expression"):
        checked_expression(expression)


PAYLOAD = {"user": {"id": 7, "tags": ["a"]}, "payment_id": "p1", "input": "raw", "none": None, "no": False}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("payment_id", "p1"),
        ("input.payment_id", "p1"),
        ("payload.payment_id", "p1"),
        ("user.id", 7),
        ("input.user.id", 7),
        ("payload.user.tags", ["a"]),
        ("input", "raw"),
        ("none", None),
        ("no", False),
        ("scope", "user"),
        ("scope_id", "42"),
        ("scopeId", "42"),
    ],
)
def test_an_expression_names_a_value_of_the_payload_or_the_scope(expression: str, value: Any) -> None:
    assert evaluate_key(expression, PAYLOAD, "user", "42") == value


def test_a_job_without_a_scope_has_none() -> None:
    assert evaluate_key("scope", {}, None, None) is None
    assert evaluate_key("scope_id", {}, None, None) is None


def test_a_payload_field_called_scope_comes_first() -> None:
    assert evaluate_key("scope", {"scope": "own"}, "user", "42") == "own"
    assert evaluate_key("scope_id", {"scope_id": "own"}, "user", "42") == "own"


@pytest.mark.parametrize("expression", ["missing", "input.missing", "user.missing", "payment_id.deeper", "user.tags.x"])
def test_a_payload_without_the_value_that_a_key_needs_is_refused(expression: str) -> None:
    path = expression.removeprefix("input.")
    with pytest.raises(InvalidInput, match=f"the payload has no {path}, which its key needs") as refusal:
        evaluate_key(expression, PAYLOAD, None, None)
    assert refusal.value.data == {"field": "payload"}
