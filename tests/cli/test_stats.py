"""`treadle stats`."""

import pytest

from tests.cli.command import Command
from treadle import Queue


@pytest.mark.every_store
def test_counts_by_topic_and_status(treadle: Command) -> None:
    with Queue(treadle.database).sync as queue:
        queue.enqueue_many("mail", [{}] * 3)
        queue.cancel(queue.enqueue("report").id)
    found = treadle("stats", "--json").done().json
    assert (found["pending"], found["cancelled"], found["completed"]) == (3, 1, 0)
    assert found["topics"]["mail"]["pending"] == 3
    assert found["successRate"] is None
    assert treadle("stats", "--topic", "mail", "--json").done().json["cancelled"] == 0
    assert treadle("stats", "--since", "1h", "--json").done().json["cancelled"] == 1
    assert treadle("stats", "--since", "2999-01-01T00:00:00Z", "--json").done().json["cancelled"] == 0
    table = [line.split() for line in treadle("stats").done().out.splitlines()]
    assert table == [
        ["TOPIC", "PENDING", "COMPLETED", "FAILED", "CANCELLED"],
        ["mail", "3"],
        ["report", "1"],
        ["all", "3", "1"],
    ]
    narrow = treadle("stats", COLUMNS="30").done().out
    assert narrow.startswith("mail\n  pending  3\nreport\n  cancelled  1\n")


def test_success_rate_and_run_time(app: Command) -> None:
    with app.worker():
        app("enqueue", "greet", '{"name": "Ada"}', "--wait").done()
        assert app("enqueue", "refuse", "--wait").code == 1
    found = app("stats", "--json").done().json
    assert found["successRate"] == 0.5
    assert found["avgExecutionTime"] >= 0
    text = app("stats").done().out
    assert "success rate 50.0%" in text
    assert "average run time" in text


def test_no_jobs(treadle: Command) -> None:
    treadle("migrate").done()
    assert treadle("stats").done().out == "no jobs\n"
    assert treadle("stats", "--json").done().json["topics"] == {}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("yesterday", "is not a"),
        ("", "--since: '' is not a time"),
        ("2026-12-24", "has no time zone"),
        ("-1h", "is not a duration"),
        ("1990-01-01T00:00:00", "has no time zone"),
    ],
)
def test_a_bad_since(alone: Command, value: str, told: str) -> None:
    assert told in alone.bare("stats", f"--since={value}").refused(2)
