"""The command line of an operator: topics, many jobs by a filter, short ids."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from treadle import Queue
from treadle.cli.jobs import _step_tree
from treadle.cli.many import _number
from treadle.queue.sync import SyncQueue


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    with Queue(treadle.database).sync as queue:
        yield queue


def test_topics_are_listed_paused_and_resumed(treadle: Command, queue: SyncQueue) -> None:
    queue.enqueue_many("mail", [{}] * 3)
    queue.enqueue("mail", delay="1h")
    [mail] = treadle("topics", "list", "--json").done().json["items"]
    assert (mail["topic"], mail["state"], mail["due"], mail["later"], mail["paused"]) == (
        "mail",
        "no worker",
        3,
        1,
        False,
    )
    assert treadle("topics", "pause", "mail").done().out == "mail is paused until it is resumed\n"
    assert "paused" in treadle("topics", "list").done().out
    paused = treadle("topics", "pause", "mail", "--until", "1h", "--json").done().json
    assert paused["paused"]
    [mail] = treadle("topics", "list", "--json").done().json["items"]
    assert mail["pausedUntil"] == paused["pausedUntil"]
    assert treadle("topics", "resume", "mail").done().out == "mail is running again\n"
    assert treadle("topics", "pause", "mailx").refused(1).startswith("no topic has the name mailx")


def test_a_filter_narrows_the_list(treadle: Command, queue: SyncQueue) -> None:
    queue.enqueue("mail", {"userId": 1})
    wanted = queue.enqueue("mail", {"userId": 2}, priority="high")
    found = treadle("jobs", "list", "--filter", "payload.userId = 2 && priority > 50", "--json").done().json
    assert [job["id"] for job in found["items"]] == [wanted.id]
    assert found["totalItems"] == 1
    assert [job.id for job in queue.list(filter="payload.userId = 2")] == [wanted.id]
    assert queue.count(filter="payload.userId = 2") == 1
    assert "filter:" in treadle("jobs", "list", "--filter", "nope =").refused(2)


def test_many_are_cancelled_after_a_dry_run_and_the_right_number(treadle: Command, queue: SyncQueue) -> None:
    queue.enqueue_many("mail", [{"n": n} for n in range(5)])
    kept = queue.enqueue("report")
    words = ("jobs", "cancel", "--filter", 'topic = "mail"')
    assert treadle(*words, "--dry-run").done().out.startswith("5 jobs would be cancelled")
    assert treadle(*words, "--dry-run", "--json").done().json == {"dryRun": True, "matched": 5, "skipped": {}}
    for more, told in (((), "add --confirm 5"), (("--confirm", "4"), "nothing was changed")):
        answer = treadle(*words, *more)
        assert answer.code == 2
        assert told in answer.err
    assert queue.stats().cancelled == 0
    assert treadle(*words, "--confirm", "5", "--reason", "sent twice").done().out.endswith("5 jobs cancelled\n")
    assert queue.stats().cancelled == 5
    assert queue.get(kept.id).status == "pending"
    assert treadle("jobs", "requeue", "--topic", "mail", "--confirm", "5").done().out.endswith("5 jobs requeued\n")
    answer = treadle("jobs", "delete", "--search", "topic:mail created:1h", "--confirm", "5", "--json").done().json
    assert answer == {"dryRun": False, "matched": 5, "changed": 5, "refused": 0}
    assert [job.id for job in queue.list()] == [kept.id]


def test_ids_or_a_filter_and_not_both(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("mail")
    assert "give ids, or choose jobs" in treadle("jobs", "cancel").refused(2)
    assert "but not both" in treadle("jobs", "cancel", job.id, "--topic", "mail").refused(2)


def test_the_beginning_or_the_end_of_an_id_is_enough(treadle: Command, queue: SyncQueue) -> None:
    job, other = queue.enqueue("mail"), queue.enqueue("mail")
    assert treadle("jobs", "show", f"…{job.id[-8:]}", "--json").done().json["id"] == job.id
    assert treadle("jobs", "cancel", job.id[-12:]).done().out == f"{job.id[-12:]} cancelled\n"
    begin = other.id[:6]
    assert f"several jobs begin with {begin}" in treadle("jobs", "why", begin).refused(2)
    assert treadle("jobs", "show", "0123456789").refused(1).endswith("begins or ends with 0123456789")


def test_the_help_of_every_command_shows_where_the_queue_stands(treadle: Command) -> None:
    for words in (("jobs", "list"), ("topics", "pause"), ("stats",), ("worker",)):
        assert "MODULE:QUEUE" in treadle(*words, "--help").done().out, words


def step(name: str, status: str = "completed") -> dict[str, object]:
    return {"id": name, "name": name, "status": status, "items": None, "startedAt": None, "completedAt": None}


def test_a_thousand_steps_are_folded_and_the_failed_ones_are_shown() -> None:
    steps = [step("prepare"), *(step(f"page-{n}", "failed" if n == 777 else "completed") for n in range(1_000))]
    lines = _step_tree([*steps, step("publish", "pending")])
    assert len(lines) == 14
    assert "├─ … 989 more like page-0: 989 completed" in lines
    assert any("page-777  failed" in line for line in lines)
    assert lines[-1] == "└─ publish  pending"


@pytest.mark.parametrize(("text", "number"), [("5213", 5213), ("5,213", 5213), ("5 213", 5213), ("five", None)])
def test_a_number_may_be_typed_as_it_is_shown(text: str, number: int | None) -> None:
    assert _number(text) == number
