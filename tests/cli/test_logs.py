"""Log lines: text for people, JSON for machines, and nothing in them can look like another line."""

import json
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.cli import logs
from treadle.telemetry import request_id, running_job

STAMP = "2023-11-14T22:13:20.123Z warning treadle.jobs.mail:"


class Running(NamedTuple):
    id: str = "0190-job"
    topic: str = "mail"
    attempt: int = 2


def record(message: str, name: str = "treadle.jobs.mail", **facts: object) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, message, (), None)
    made.created = 1_700_000_000.123
    made.__dict__.update(facts)
    return made


def failed(error: Exception) -> logging.LogRecord:
    made = record("failed")
    try:
        raise error
    except Exception as raised:
        made.exc_info = (type(raised), raised, raised.__traceback__)
    return made


def text(made: logging.LogRecord) -> str:
    return logs.TextLines().format(made)


def entry(made: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(logs.JsonLines().format(made))
    return found


@pytest.fixture
def in_a_job() -> Iterator[Running]:
    job = Running()
    token = running_job.set(job)
    yield job
    running_job.reset(token)


@pytest.fixture
def in_a_request() -> Iterator[str]:
    token = request_id.set("req-7")
    yield "req-7"
    request_id.reset(token)


def test_a_line_is_one_line_for_every_message() -> None:
    assert text(record("forged\nline \x1b[2J", job_id="0190")) == rf"{STAMP} forged\nline \x1b[2J [0190]"


def test_a_logger_can_have_any_name() -> None:
    assert "\n" not in text(record("hi", name="a\nb"))


def test_the_facts_of_the_job_that_a_caller_names() -> None:
    assert entry(record("hi\n", job_id="0190", topic="mail", attempt=2)) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "logger": "treadle.jobs.mail",
        "message": "hi\n",
        "jobId": "0190",
        "topic": "mail",
        "attempt": 2,
    }


def test_a_line_without_a_job_has_no_facts() -> None:
    assert text(record("hi")) == f"{STAMP} hi"
    assert set(entry(record("hi"))) == {"time", "level", "logger", "message"}


@pytest.mark.usefixtures("in_a_job", "in_a_request")
def test_what_is_running_here_is_known_without_being_named() -> None:
    assert text(record("hi")) == f"{STAMP} hi [0190-job] [request req-7]"
    found = entry(record("hi"))
    assert (found["jobId"], found["topic"], found["attempt"], found["requestId"]) == ("0190-job", "mail", 2, "req-7")


@pytest.mark.usefixtures("in_a_job")
def test_a_caller_that_speaks_of_another_job_is_believed() -> None:
    found = entry(record("hi", job_id="another"))
    assert found["jobId"] == "another"
    assert "attempt" not in found


def test_an_id_that_the_message_names_is_not_said_twice() -> None:
    assert text(record("job 0190 is stuck", job_id="0190")) == f"{STAMP} job 0190 is stuck"


def test_a_trace_goes_with_its_line() -> None:
    made = failed(ValueError("no \x1b[2J"))
    assert text(made).endswith(r"ValueError: no \x1b[2J")
    assert "ValueError: no" in entry(made)["error"]


def test_an_error_can_not_forge_a_line() -> None:
    first, *rest = text(failed(ValueError(f"no\n{STAMP} all is well"))).split("\n")
    assert first == f"{STAMP} failed"
    assert rest
    assert all(line.startswith("  ") for line in rest)


def test_a_stack_is_shown_like_a_trace() -> None:
    made = record("here")
    made.stack_info = "Stack (most recent call last):\n  somewhere"
    assert text(made).split("\n")[1:] == ["  Stack (most recent call last):", "    somewhere"]
    assert entry(made)["error"].startswith("Stack")


@given(st.text(), st.text())
def test_json_is_one_line_of_plain_characters(message: str, job: str) -> None:
    line = logs.JsonLines().format(record(message.replace("%", ""), job_id=job))
    assert all(" " <= character <= "~" for character in line)
    assert json.loads(line)["jobId"] == job


@given(st.text())
def test_text_is_one_line_without_control_characters(message: str) -> None:
    line = text(record(message, job_id=message))
    assert len(line.splitlines()) == 1
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in line if character != "\t")
