"""An error in one line: its type, and the first line of its message."""

import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from treadle.insights.error_text import read_error
from treadle.model.error_group import error_group
from treadle.model.error_line import error_line
from treadle.model.raised import one_line
from treadle.worker.errors import describe


class Video(BaseModel):
    path: str


def _invalid() -> None:
    Video.model_validate({})


def _many_lines() -> None:
    raise ValueError("the tool failed:\n\nTraceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'a'")


def _chained() -> None:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise LookupError("second\nwith more") from error


def _with_note() -> None:
    error = ValueError("bad")
    error.add_note("look at the manual")
    raise error


def _group() -> None:
    raise ExceptionGroup("two failed", [ValueError("one"), KeyError("two")])


def _syntax() -> None:
    compile("a b", "rule", "eval")


def _json() -> None:
    json.loads("{")


def _silent() -> None:
    raise ValueError


@pytest.mark.parametrize(
    ("fails", "line"),
    [
        (_invalid, "1 validation error for Video"),
        (_many_lines, "ValueError: the tool failed:"),
        (_chained, "LookupError: second"),
        (_with_note, "ValueError: bad"),
        (_group, "ExceptionGroup: two failed (2 sub-exceptions)"),
        (_syntax, "SyntaxError: invalid syntax"),
        (_json, "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (_silent, "ValueError"),
    ],
)
def test_it_is_the_type_and_the_first_line_of_the_message(fails: Callable[[], Any], line: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of every kind
        fails()
    raised = describe(caught.value)
    assert error_line(raised.text, raised.type).endswith(line)
    assert error_line(raised.text).endswith(line) or fails is _many_lines
    assert one_line(caught.value).endswith(line)
    shown = read_error(raised.text, raised.type)
    assert shown is not None
    assert shown.line.endswith(line)


def test_the_end_of_a_long_message_makes_no_group() -> None:
    """pydantic ends each message with an address; errors of different fields are different errors."""

    class Other(BaseModel):
        path: str
        width: int

    def text(model: type[BaseModel]) -> str:
        try:
            model.model_validate({})
        except ValidationError as error:
            return "".join(traceback.format_exception(error))
        return ""

    assert error_group("ValidationError", text(Video)) != error_group("ValidationError", text(Other))


@pytest.mark.parametrize(
    ("text", "type_", "line"),
    [
        ("", "", ""),
        ("\n \n", "ValueError", "ValueError"),
        ("worker lost", "WorkerLost", "worker lost"),
        ("first\nsecond", "", "first"),
        ("  indented", "", "indented"),
        ("Traceback (most recent call last):", "", "Traceback (most recent call last):"),
        (
            "Traceback (most recent call last):\n  File x\nOSError: a\n\nTimeoutError: too long",
            "TimeoutError",
            "TimeoutError: too long",
        ),
    ],
)
def test_of_any_other_text_it_is_the_first_line(text: str, type_: str, line: str) -> None:
    assert error_line(text, type_) == line
