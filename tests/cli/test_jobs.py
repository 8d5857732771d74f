"""`treadle jobs …`."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import Command
from treadle import Queue
from treadle.model.fields import JSON_NAMES
from treadle.queue.sync import SyncQueue

NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    """The same database, seen from Python."""
    with Queue(treadle.database).sync as queue:
        yield queue


# -- list ----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_newest_first_with_totals(treadle: Command, queue: SyncQueue) -> None:
    made = [job.id for job in queue.enqueue_many("mail", [{}] * 5)]
    page = treadle("jobs", "list", "--limit", "2", "--offset", "1", "--json").done().json
    assert [job["id"] for job in page["items"]] == [made[3], made[2]]
    assert {name: page[name] for name in page if name != "items"} == {
        "totalItems": 5,
        "totalCapped": False,
        "limit": 2,
        "offset": 1,
    }
    assert set(page["items"][0]) == JSON_NAMES
    assert treadle("jobs", "list", "--limit", "2").done().out.endswith("2 of 5 jobs; go on with --offset 2\n")
    assert treadle("jobs", "list").done().out.endswith("\n5 jobs\n")


def test_filters(treadle: Command, queue: SyncQueue) -> None:
    mail = queue.enqueue("mail", scope="user", scope_id="1")
    queue.enqueue("report", scope="user", scope_id="2")
    gone = queue.enqueue("mail")
    queue.cancel(gone.id)

    def ids(*words: str) -> list[str]:
        return [job["id"] for job in treadle("jobs", "list", *words, "--json").done().json["items"]]

    assert ids("--topic", "mail") == [gone.id, mail.id]
    assert ids("--topic", "mail", "--status", "pending") == [mail.id]
    assert ids("--status", "cancelled") == [gone.id]
    assert ids("--scope", "user", "--scope-id", "1") == [mail.id]
    assert ids("--status", "stale") == []


def test_no_jobs(treadle: Command, queue: SyncQueue) -> None:
    assert treadle("jobs", "list").done().out == "no jobs\n"
    assert treadle("jobs", "list", "--json").done().json["items"] == []


def test_limits_are_clamped(treadle: Command, queue: SyncQueue) -> None:
    queue.enqueue("mail")
    assert treadle("jobs", "list", "--limit", "-1", "--json").done().json["limit"] == 1
    assert treadle("jobs", "list", "--limit", "1000000000", "--json").done().json["limit"] == 1000
    page = treadle("jobs", "list", "--offset", "9" * 30, "--json").done().json
    assert page["items"] == []


@pytest.mark.parametrize("words", [["--status", "sleeping"], ["--topic", "Not A Topic"]])
def test_bad_filters(treadle: Command, queue: SyncQueue, words: list[str]) -> None:
    assert repr(words[1]) in treadle("jobs", "list", *words).refused(2)


def test_a_narrow_terminal_shows_the_same(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("mail_digest.weekly", delay="3h")
    wide = treadle("jobs", "list").done().out
    narrow = treadle("jobs", "list", COLUMNS="50").done().out
    for text in (wide, narrow):
        assert all(part in text for part in (job.id, "mail_digest.weekly", "pending", "0/3", "due in 3h"))
    assert max(map(len, narrow.splitlines())) <= 50
    assert "ID " in wide.splitlines()[0]


def test_what_jobs_say_cannot_steer_the_terminal(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("mail", {"text": "\x1b[2Jgone\x07"}, created_by="[red]ann[/red]")
    queue.cancel(job.id, "\x1b]0;title\x07 [bold]no")
    for words in (["jobs", "list"], ["jobs", "show", job.id]):
        text = treadle(*words, FORCE_COLOR="1", COLUMNS="200").done().out
        assert r"\x1b]0;title\x07 [bold]no" in text
        assert "\x1b]" not in text
        assert "\x07" not in text
    assert "[red]ann[/red]" in text
    shown = treadle("jobs", "show", job.id, "--json").done()
    assert shown.json["payload"] == {"text": "\x1b[2Jgone\x07"}
    assert "\x1b" not in shown.out


# -- show and why --------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_show_has_everything_and_the_history(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("mail", {"to": "Zoë"}, scope="user", scope_id="42", priority="high", idempotency_key="k")
    queue.cancel(job.id, "not needed")
    text = treadle("jobs", "show", job.id).done().out
    for part in (job.id, "cancelled", '{"to": "Zoë"}', "user 42", "high", "not needed", "0 of 3", "enqueued"):
        assert part in text
    shown = treadle("jobs", "show", job.id, "--json").done().json
    assert set(shown) == JSON_NAMES | {"events"}
    assert [event["type"] for event in shown["events"]] == ["job:enqueued", "job:cancelled"]
    queue.requeue(job.id)
    again = treadle("jobs", "show", job.id, "--json").done().json
    assert again["events"][-1]["metadata"]["outcome"]["endedAt"] == shown["cancelledAt"]


@pytest.mark.parametrize("words", [["show"], ["why"]])
@pytest.mark.parametrize("job_id", [NOBODY, "x", "'; DROP TABLE jobs; --", "\x1b[2J"])
def test_an_unknown_id(treadle: Command, queue: SyncQueue, words: list[str], job_id: str) -> None:
    line = treadle("jobs", *words, job_id).refused(1)
    assert line.startswith("no job has the id")
    assert treadle("jobs", *words, job_id, "--json").refused(1) == line


@pytest.mark.every_store
def test_why_a_job_is_not_running(treadle: Command, queue: SyncQueue) -> None:
    job = queue.enqueue("mail", delay="1h")
    queue.pause("mail")
    text = treadle("jobs", "why", job.id).done().out
    assert "it is due at" in text
    assert "topic mail is paused until it is resumed" in text
    assert "no live worker serves topic mail" in text
    answer = treadle("jobs", "why", job.id, "--json").done().json
    assert answer["id"] == job.id
    assert answer["status"] == "pending"
    assert len(answer["reasons"]) == 3
    queue.cancel(job.id)
    assert treadle("jobs", "why", job.id).done().out.startswith("it has ended: cancelled")


# -- steering ------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_cancel_requeue_and_delete_several_together(treadle: Command, queue: SyncQueue) -> None:
    ids = [job.id for job in queue.enqueue_many("mail", [{}] * 3)]

    def statuses() -> list[Any]:
        return [str(queue.get(job_id).status) for job_id in ids]

    assert treadle("jobs", "cancel", *ids).done().out.splitlines() == [f"{job_id} cancelled" for job_id in ids]
    assert statuses() == ["cancelled"] * 3
    assert treadle("jobs", "requeue", *ids, ids[0]).done().out.splitlines() == [f"{job_id} requeued" for job_id in ids]
    assert statuses() == ["pending"] * 3
    answer = treadle("jobs", "cancel", *ids, "--reason", "not needed", "--json").done().json
    assert [job["cancelReason"] for job in answer["items"]] == ["not needed"] * 3
    assert answer["errors"] == []
    answer = treadle("jobs", "delete", *ids, "--json").done().json
    assert answer == {"items": [{"id": job_id} for job_id in ids], "errors": []}
    assert queue.count() == 0


def test_one_that_refuses_does_not_keep_the_others(treadle: Command, queue: SyncQueue) -> None:
    job, other = queue.enqueue_many("mail", [{}] * 2)
    ran = treadle("jobs", "cancel", NOBODY, job.id, "x")
    assert ran.code == 1
    assert ran.out == f"{job.id} cancelled\n"
    assert [line.split(": ")[0] for line in ran.err.splitlines()] == ["treadle", "treadle"]
    assert NOBODY in ran.err
    ran = treadle("jobs", "requeue", job.id, other.id, "--json")
    assert ran.code == 1
    assert [item["id"] for item in ran.json["items"]] == [job.id]
    assert ran.json["errors"] == [
        {"id": other.id, "code": "wrong_state", "message": "the job is pending: requeue is not possible"}
    ]


def test_completed_jobs_need_force(app: Command) -> None:
    with app.worker():
        job = app("enqueue", "greet", '{"name": "Ada"}', "--wait", "--json").done().json
    for action in ("requeue", "delete"):
        assert job["id"] in app("jobs", action, job["id"]).refused(1)
    assert app("jobs", "requeue", job["id"], "--force").done().out == f"{job['id']} requeued\n"
    with app.worker():
        assert app("enqueue", "greet", '{"name": "Bob"}', "--wait").code == 0
    assert app("jobs", "delete", job["id"], "--force").done().out == f"{job['id']} deleted\n"
    assert app("jobs", "show", job["id"]).refused(1)
