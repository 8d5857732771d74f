"""`treadle top`."""

import pytest

from tests.cli.command import SECONDS, Command
from treadle import Queue


def busy(treadle: Command) -> str:
    """Three jobs that wait and one that has failed; its id."""
    with Queue(treadle.database).sync as queue:

        @queue._queue.job(max_attempts=1)
        def import_orders() -> None:
            raise ValueError("no such file")

        job = import_orders.sync.enqueue()
        queue.run_until_empty()
        queue.enqueue_many("mail", [{}] * 3)
    return job.id


def test_without_a_terminal_it_prints_once(treadle: Command) -> None:
    job_id = busy(treadle)
    head, _, *lines = treadle("top").done().out.splitlines()
    assert head.endswith("  0 workers, 0 of 0 slots busy")
    table = [line.split() for line in lines]
    assert table[:4] == [
        ["TOPIC", "PENDING", "COMPLETED", "FAILED"],
        ["import_orders", "1"],
        ["mail", "3"],
        ["all", "3", "1"],
    ]
    assert lines[4] == ""
    assert table[5] == ["FAILED", "TOPIC", "AGE", "ERROR"]
    assert table[6][:2] == [job_id, "import_orders"]
    assert lines[6].endswith("ValueError: no such file")


@pytest.mark.every_store
def test_as_json(app: Command) -> None:
    job_id = busy(app)
    with app.worker("--slots", "3", "--topics", "greet"):
        found = app("top", "--json").done().json
    assert list(found) == ["database", "stats", "workers", "failures"]
    assert found["stats"]["topics"]["mail"]["pending"] == 3
    assert [(one["topics"], one["slots"]) for one in found["workers"]] == [(["greet"], 3)]
    assert [job["id"] for job in found["failures"]] == [job_id]


def test_at_a_terminal_it_follows_the_queue_until_ctrl_c(treadle: Command) -> None:
    busy(treadle)
    with treadle.at_terminal("top", "--interval", "100ms", "--db", str(treadle.database)) as terminal:
        terminal.until("import_orders")
        with Queue(treadle.database).sync as queue:
            queue.enqueue("report_that_is_new")
        terminal.until("report_that_is_new")
        terminal.type("\x03")
        terminal.read_all()
        assert terminal.process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [("10ms", "--interval: 10ms is too short; at least 100 ms is needed"), ("often", "--interval: 'often' is not a")],
)
def test_a_bad_interval(alone: Command, value: str, told: str) -> None:
    assert told in alone.bare("top", "--interval", value).refused(2)


def test_no_database_is_made(alone: Command) -> None:
    assert "does not exist" in alone.bare("top").refused(1)
    assert list(alone.folder.iterdir()) == []
