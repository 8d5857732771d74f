"""`treadle enqueue`."""

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.command import Command
from treadle.model.fields import JSON_NAMES


def test_a_job_is_stored_when_the_command_has_returned(treadle: Command) -> None:
    said = treadle("enqueue", "mail", '{"to": "ada"}').done().out
    job_id = said.split()[-1]
    assert said == f"enqueued job {job_id}\n"
    job = treadle("jobs", "show", job_id, "--json").done().json
    assert (job["topic"], job["status"], job["payload"]) == ("mail", "pending", {"to": "ada"})


def test_json_is_the_whole_job(treadle: Command) -> None:
    job = treadle("enqueue", "mail", "--json").done().json
    assert set(job) == JSON_NAMES | {"deduplicated"}
    assert job["payload"] == {}
    assert job["deduplicated"] is False


@pytest.mark.every_store
def test_every_option_reaches_the_job(treadle: Command) -> None:
    words = "--delay 15m --priority critical --max-attempts 7 --key k1 --scope user --scope-id 42 --capability gpu"
    job = treadle("enqueue", "mail", "{}", *words.split(), "--json").done().json
    assert (job["priority"], job["maxAttempts"], job["idempotencyKey"]) == (100, 7, "k1")
    assert (job["scope"], job["scopeId"], job["capability"]) == ("user", "42", "gpu")
    due = datetime.fromisoformat(job["runAt"]) - datetime.fromisoformat(job["createdAt"])
    assert due == timedelta(minutes=15)


def test_a_time_to_run_at(treadle: Command) -> None:
    when = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    said = treadle("enqueue", "mail", "--run-at", when.isoformat()).done().out
    assert said.endswith(", due in 2d\n")
    job = treadle("jobs", "list", "--json").done().json["items"][0]
    assert datetime.fromisoformat(job["runAt"]) == when


def test_priority_may_be_a_number(treadle: Command) -> None:
    assert treadle("enqueue", "mail", "--priority=-7", "--json").done().json["priority"] == -7


def test_the_same_key_makes_no_second_job(treadle: Command) -> None:
    first = treadle("enqueue", "mail", "--key", "k", "--json").done().json
    again = treadle("enqueue", "mail", "--key", "k", "--json").done().json
    assert again["id"] == first["id"]
    assert again["deduplicated"] is True
    assert treadle("enqueue", "mail", "--key", "k").done().out == f"job {first['id']} is there already, pending\n"


def test_the_same_key_with_another_payload_is_refused(treadle: Command) -> None:
    treadle("enqueue", "mail", '{"a": 1}', "--key", "k").done()
    assert "key" in treadle("enqueue", "mail", '{"a": 2}', "--key", "k").refused(1)


def test_the_payload_can_come_from_stdin(treadle: Command) -> None:
    job = treadle("enqueue", "mail", "-", "--json", stdin='{"to": "Zoë"}').done().json
    assert job["payload"] == {"to": "Zoë"}


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("{", "payload is not JSON"),
        ("", "payload is not JSON"),
        ("ada", "payload is not JSON"),
        ("{'to': 'ada'}", "payload is not JSON"),
        ("[1]", "payload must be a JSON object"),
        ('"ada"', "payload must be a JSON object"),
        ('{"a": NaN}', "payload is not JSON"),
        ('{"a": 9223372036854775808}', "more than 64 bits"),
        ('{"a": "\\u0000"}', "NUL"),
        ('{"a": "\\ud800"}', "payload is not JSON"),
        ("[" * 10_000, "payload"),
    ],
)
def test_a_bad_payload_makes_no_job(alone: Command, payload: str, told: str) -> None:
    assert told in alone.bare("enqueue", "mail", payload).refused(2)
    with contextlib.suppress(FileNotFoundError), contextlib.closing(existing_file(alone)) as connection:
        assert connection.execute("SELECT count(*) FROM treadle_jobs").fetchone() == (0,)


def existing_file(alone: Command) -> sqlite3.Connection:
    path = alone.folder / "jobs.db"
    path.stat()
    return sqlite3.connect(path)


def test_a_bad_payload_from_stdin(alone: Command) -> None:
    assert "payload is not JSON" in alone.bare("enqueue", "mail", "-", stdin='{"a": ').refused(2)


def test_a_payload_over_the_limit(alone: Command) -> None:
    big = '{"a": "%s"}' % ("x" * 1_048_576)
    assert "the limit is 1,048,576" in alone.bare("enqueue", "mail", "-", stdin=big).refused(2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["Mail Digest"], "topic: 'Mail Digest' is not a topic"),
        (["../x"], "topic: '../x' is not a topic"),
        (["mail", "--delay", "soon"], "delay: 'soon' is not a duration"),
        (["mail", "--delay", "-5m"], "delay: '-5m' is not a duration"),
        (["mail", "--run-at", "tomorrow"], "--run-at: 'tomorrow' is not a time"),
        (["mail", "--run-at", "2026-12-24T18:00:00"], "has no time zone; write 2026-12-24T18:00:00Z for UTC"),
        (["mail", "--run-at", "9999-01-01T00:00:00Z"], "out of range"),
        (["mail", "--run-at", "2030-01-01T00:00:00Z", "--delay", "1m"], "run_at or delay, not both"),
        (["mail", "--priority", "urgent"], "priority: 'urgent' is not one of"),
        (["mail", "--priority", "99999999999"], "priority"),
        (["mail", "--max-attempts", "0"], "max_attempts: "),
        (["mail", "--key", "k" * 256], "idempotency_key"),
        (["mail", "--capability", ""], "capability"),
    ],
)
def test_a_bad_option_makes_no_job(alone: Command, words: list[str], told: str) -> None:
    assert told in alone.bare("enqueue", *words).refused(2)


def test_waiting_for_the_end(app: Command) -> None:
    with app.worker("--lease", "30s"):
        said = app("enqueue", "greet", '{"name": "Ada"}', "--wait").done().out.splitlines()
        assert said[1:] == ['completed: "Hello, Ada!"']
        job = app("enqueue", "greet", '{"name": "Bob"}', "--wait", "--json").done().json
        assert (job["status"], job["result"]) == ("completed", "Hello, Bob!")
        failed = app("enqueue", "refuse", "--wait")
        assert (failed.code, failed.err) == (1, "")
        assert failed.out.splitlines()[1].startswith("failed: ")
        assert r"\x1b[31m" in failed.out


def test_waiting_says_that_no_worker_serves_the_topic_and_ends(treadle: Command) -> None:
    waited = treadle("enqueue", "mail", "--wait", "--timeout", "300ms")
    assert waited.code == 1
    made, told = waited.out.splitlines()
    job_id = made.split()[-1]
    assert told == "no live worker serves topic mail; waiting for one"
    assert waited.err == f"treadle: job {job_id} has not ended within 0.3 s: no live worker serves topic mail\n"
    assert treadle("jobs", "show", job_id, "--json").done().json["status"] == "pending"


def test_why_names_the_missing_capability(treadle: Command) -> None:
    job = treadle("enqueue", "mail", "--capability", "gpu", "--json").done().json
    reasons = treadle("jobs", "why", job["id"], "--json").done().json["reasons"]
    assert reasons == ["no live worker serves topic mail, and the job needs one with the capability 'gpu'"]
