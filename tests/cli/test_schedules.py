"""`treadle schedules …`."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.http.test_schedules import FIELDS
from treadle import Queue
from treadle.queue.sync import SyncQueue


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    """The same database, seen from Python."""
    with Queue(treadle.database).sync as queue:
        yield queue


@pytest.mark.every_store
def test_a_schedule_is_made_shown_changed_and_deleted(treadle: Command, queue: SyncQueue) -> None:
    words = ("--cron", "0 9 * * *", "--timezone", "Asia/Taipei", "--payload", '{"a": "{{scheduledAt}}"}')
    made = treadle("schedules", "create", "report", *words, "--id", "daily", "--missed", "all", "--json").done().json
    assert (made["id"], made["description"], made["missed"]) == ("daily", "Every day at 09:00 (Asia/Taipei)", "all")
    assert queue.schedules.get("daily").payload == {"a": "{{scheduledAt}}"}
    text = treadle("schedules", "show", "daily").done().out
    assert "Every day at 09:00 (Asia/Taipei)" in text
    assert "09:00:00 +0800" in text
    shown = treadle("schedules", "show", "daily", "--json").done().json
    assert set(shown) == FIELDS
    assert shown == treadle("schedules", "list", "--json").done().json["items"][0]
    edited = treadle("schedules", "edit", "daily", "--every", "90s", "--overlap", "skip", "--json").done().json
    assert (edited["every"], edited["cron"], edited["overlap"], edited["version"]) == ("90s", None, "skip", 2)
    assert treadle("schedules", "delete", "daily").done().out == "daily deleted\n"
    assert treadle("schedules", "list").done().out == "no schedules\n"
    assert treadle("schedules", "list", "--json").done().json == {"items": []}


@pytest.mark.every_store
def test_on_off_and_run(treadle: Command, queue: SyncQueue) -> None:
    queue.schedules.create("report", "0 9 * * *", id="daily")
    assert treadle("schedules", "disable", "daily", "--json").done().json["nextRunAt"] is None
    assert " off" in treadle("schedules", "list").done().out
    assert treadle("schedules", "enable", "daily", "--json").done().json["enabled"] is True
    job = treadle("schedules", "run", "daily", "--json").done().json
    assert (job["topic"], job["scheduleId"]) == ("report", "daily")
    assert treadle("schedules", "run", "daily").done().out.strip() == queue.list()[0].id


def test_every_option(treadle: Command, queue: SyncQueue) -> None:
    words = "--every 90s --scope user --scope-id u1 --missed skip --overlap queue --jitter 500ms --disabled".split()
    words += ["--start", "2030-01-01T00:00:00Z", "--end", "2030-02-01T00:00:00Z"]
    made = treadle("schedules", "create", "poll", *words, "--json").done().json
    expected = {
        "cron": None,
        "every": "90s",
        "scope": "user",
        "scopeId": "u1",
        "missed": "skip",
        "overlap": "queue",
        "jitterSeconds": 0.5,
        "enabled": False,
        "startAt": "2030-01-01T00:00:00.000Z",
        "endAt": "2030-02-01T00:00:00.000Z",
        "nextRunAt": None,
        "description": "Every 90 seconds",
    }
    assert expected.items() <= made.items()
    assert made == queue.schedules.get(made["id"]).as_json(queue.schedules.now())


@pytest.mark.every_store
def test_the_next_runs(treadle: Command, queue: SyncQueue) -> None:
    queue.schedules.create("report", "30 2 * * *", timezone="Asia/Taipei", id="nightly")
    lines = treadle("schedules", "next", "nightly", "--count", "3").done().out.splitlines()
    assert len(lines) == 3
    assert all(" 02:30:00 +0800" in line for line in lines)
    assert len(treadle("schedules", "next", "nightly", "--json").done().json["items"]) == 5


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["create", "report", "--cron", "61 * * * *"], 2, "is not a cron expression"),
        (["create", "report", "--cron", "@daily", "--timezone", "Mars/Base"], 2, "is not a known time zone"),
        (["create", "report", "--cron", "0 0 30 2 *"], 2, "is not a cron expression"),
        (["create", "report", "--cron", "*" * 10_240], 2, "cron: a text of at most 255 characters"),
        (["create", "report", "--cron", "@daily", "--payload", '{"a": "{{now}}"}'], 2, "has an unknown placeholder"),
        (["create", "by_hand", "--cron", "@daily"], 1, "the template of by_hand can't be scheduled"),
        (["create", "report"], 2, "give cron or every"),
        (["create", "report", "--cron", "@daily", "--payload", "{"], 2, "is not JSON"),
        (["create", "report", "--cron", "@daily", "--start", "2026-01-01"], 2, "has no time zone"),
        (["edit", "daily"], 2, "nothing to change"),
        (["edit", "unknown", "--cron", "@daily"], 1, "no schedule has the id"),
        (["show", "unknown"], 1, "no schedule has the id"),
        (["run", "unknown"], 1, "no schedule has the id"),
        (["delete", "unknown"], 1, "no schedule has the id"),
    ],
)
def test_what_is_wrong_is_one_line(
    treadle: Command, queue: SyncQueue, words: list[str], code: int, message: str
) -> None:
    by_hand = Queue(treadle.database)
    by_hand.register("by_hand", lambda: None, schedulable=False)
    with by_hand.sync as its_code:
        its_code.save_templates()
    assert message in treadle("schedules", *words).refused(code)
    assert queue.schedules.list() == []


@pytest.mark.parametrize("words", [["user", "create"], ["superuser", "upsert"]], ids=["user", "superuser"])
def test_the_schedules_of_a_deleted_account_are_disabled(treadle: Command, queue: SyncQueue, words: list[str]) -> None:
    treadle("superuser", "upsert", "root@example.com", "correct horse").done()  # the last one can't be deleted
    account = treadle(*words, "ann@example.com", "correct horse", "--json").done().json
    queue.schedules.create("report", "@daily", id="mine", created_by=account["id"])
    treadle(words[0], "delete", "ann@example.com").done()
    assert "the account ann@example.com was deleted" in treadle("schedules", "show", "mine").done().out
    shown = treadle("schedules", "show", "mine", "--json").done().json
    assert (shown["enabled"], shown["nextRunAt"]) == (False, None)
    assert "the account ann@example.com was deleted" in treadle("schedules", "list", "--json").done().out
