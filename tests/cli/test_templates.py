"""`treadle templates …`."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from tests.cli.command import Command
from treadle import Queue, TemplateDisabled
from treadle.queue.sync import SyncQueue


def release(treadle: Command, **options: Any) -> SyncQueue:
    """The code of a release, started once."""
    queue = Queue(treadle.database)
    queue.register("report", lambda payload: None, **options)
    queue.sync.save_templates()
    return queue.sync


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    release(treadle, title="The report", timeout="1m").close()
    with release(treadle, title="The report", timeout="2m") as queue:
        yield queue


@pytest.mark.every_store
def test_templates_are_listed_and_shown(treadle: Command, queue: SyncQueue) -> None:
    text = treadle("templates", "list").done().out
    assert "report" in text
    assert "1 template" in text
    assert [one["topic"] for one in treadle("templates", "list", "--json").done().json["items"]] == ["report"]
    assert "The report" in treadle("templates", "show", "report").done().out
    assert treadle("templates", "show", "report", "--json").done().json["timeoutSeconds"] == 120


@pytest.mark.every_store
def test_the_versions_say_what_changed(treadle: Command, queue: SyncQueue) -> None:
    lines = treadle("templates", "versions", "report").done().out.splitlines()
    assert "timeoutSeconds" in lines[1]
    assert "first version" in lines[2]
    found = treadle("templates", "versions", "report", "--json").done().json["items"]
    assert [(one["version"], one["current"]) for one in found] == [(2, True), (1, False)]


@pytest.mark.every_store
def test_an_operator_rolls_back(treadle: Command, queue: SyncQueue) -> None:
    assert treadle("templates", "use", "report", "1", "--json").done().json["timeoutSeconds"] == 60
    assert "rolled back" in treadle("templates", "list").done().out
    with release(treadle, title="The report", timeout="2m") as again:
        assert again.enqueue("report").template_version == 1
    assert treadle("templates", "use", "report", "2", "--json").done().json["version"] == 2


@pytest.mark.every_store
def test_an_operator_switches_off_and_on(treadle: Command, queue: SyncQueue) -> None:
    assert treadle("templates", "disable", "report", "--json").done().json["enabled"] is False
    with release(treadle, timeout="3m") as deployed, pytest.raises(TemplateDisabled):
        deployed.enqueue("report")
    assert "no, set by an operator" in treadle("templates", "show", "report").done().out
    assert treadle("templates", "enable", "report", "--json").done().json["enabled"] is True


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "other"], 1, "no template is saved for the topic other"),
        (["use", "report", "9"], 2, "the template of report has no version 9; there are 1, 2"),
        (["disable", "../x"], 2, "topic"),
    ],
    ids=str,
)
def test_bad_words(treadle: Command, queue: SyncQueue, words: list[str], code: int, message: str) -> None:
    answer = treadle("templates", *words)
    assert answer.code == code
    assert message in answer.err


class Report(BaseModel):
    pages: int


def test_a_payload_is_checked(treadle: Command) -> None:
    """By the saved schema: the command has no handlers."""

    def sized(report: Report) -> None: ...

    queue = Queue(treadle.database)
    queue.register("sized", sized)
    queue.sync.save_templates()
    assert "sized: payload.pages: " in treadle("enqueue", "sized", '{"pages": "many"}').refused(2)
    assert "sized: payload.pages: is required" in treadle("enqueue", "sized", "{}").refused(2)
    words = ("--cron", "@daily", "--payload", '{"pages": "many"}')
    assert "sized: payload.pages: " in treadle("schedules", "create", "sized", *words).refused(2)
    assert queue.sync.count() == 0
    assert list(queue.sync.schedules.list()) == []
    queue.sync.close()


def test_an_empty_database_has_none(treadle: Command) -> None:
    treadle("migrate").done()
    assert treadle("templates", "list").done().out == "no templates\n"
