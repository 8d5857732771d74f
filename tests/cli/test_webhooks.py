"""`treadle webhooks …`."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.http.test_webhooks import FIELDS
from treadle import Queue
from treadle.queue.sync import SyncQueue

URL = "https://example.com/hook"


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    """The same database, seen from Python."""
    with Queue(treadle.database).sync as queue:
        yield queue


@pytest.mark.every_store
def test_an_endpoint_is_made_shown_changed_and_deleted(treadle: Command, queue: SyncQueue) -> None:
    words = ("--events", "job:failed,job:expired", "--topics", "mail", "--description", "On call", "--id", "ops")
    made = treadle("webhooks", "create", URL, *words, "--json").done().json
    assert set(made) == FIELDS | {"secret"}
    assert (made["events"], made["topics"]) == (["job:failed", "job:expired"], ["mail"])
    assert queue.webhooks.get("ops").endpoint.secret == made["secret"]
    assert treadle("webhooks", "list", "--json").done().json["items"][0]["id"] == "ops"
    assert "failed, expired" in treadle("webhooks", "list").done().out
    edited = treadle("webhooks", "edit", "ops", "--topics", "", "--events", "job:failed", "--json").done().json
    assert (edited["topics"], edited["events"], edited["version"]) == ([], ["job:failed"], 2)
    assert not treadle("webhooks", "disable", "ops", "--json").done().json["enabled"]
    assert " off" in treadle("webhooks", "list").done().out
    assert treadle("webhooks", "enable", "ops", "--json").done().json["enabled"]
    rotated = treadle("webhooks", "rotate", "ops", "--json").done().json
    assert rotated["secret"] != made["secret"]
    assert rotated["secret"] not in treadle("webhooks", "show", "ops").done().out
    assert treadle("webhooks", "delete", "ops").done().out == "ops deleted\n"
    assert treadle("webhooks", "list").done().out == "no webhooks\n"


def test_the_secret_is_shown_once_with_a_hint(treadle: Command, queue: SyncQueue) -> None:
    text = treadle("webhooks", "create", URL, "--topics", "unheard_of").done().out
    assert "whsec_" in text
    assert "hint: no job of topic unheard_of is known" in text
    polled = treadle("webhooks", "create", "--json").done().json
    assert (polled["url"], polled["key"][:4]) == (None, "whk_")


@pytest.mark.every_store
def test_a_test_is_listed_and_sent_again(treadle: Command, queue: SyncQueue) -> None:
    queue.webhooks.create(URL, id="ops")
    sent = treadle("webhooks", "test", "ops", "--wait", "0s", "--json").done().json
    assert (sent["event"], sent["status"], sent["jobId"]) == ("webhook:test", "pending", None)
    (listed,) = treadle("webhooks", "deliveries", "ops", "--status", "pending", "--json").done().json["items"]
    assert listed == sent
    assert "webhook:test" in treadle("webhooks", "deliveries", "ops").done().out
    assert treadle("webhooks", "redeliver", "ops", sent["id"], "--json").done().json["webhookId"] == sent["webhookId"]
    assert treadle("webhooks", "redeliver", "ops", "--since", "1h").done().out == "0 sent again\n"


def test_an_enqueue_names_a_url(treadle: Command, queue: SyncQueue) -> None:
    job = treadle("enqueue", "mail", "--webhook-url", URL, "--json").done().json
    assert job["webhookUrl"] == URL


BAD = [
    (["create", "http://example.com"], "use https"),
    (["create", "https://10.0.0.7/"], "not a public address"),
    (["create", URL, "--events", "job:started"], "no event of a webhook"),
    (["create", URL, "--secret", "whsec_x"], "secret"),
    (["edit", "ops"], "nothing to change"),
    (["show", "nope"], "no webhook endpoint"),
    (["deliveries", "nope"], "no webhook endpoint"),
    (["deliveries", "ops", "--status", "done"], "status"),
    (["redeliver", "ops"], "name a delivery, or give --since"),
    (["redeliver", "ops", "999"], "no delivery"),
]


@pytest.mark.parametrize(("words", "problem"), BAD)
def test_bad_input_is_one_line(treadle: Command, queue: SyncQueue, words: list[str], problem: str) -> None:
    queue.webhooks.create(URL, id="ops")
    ran = treadle("webhooks", *words)
    assert ran.code in (1, 2)
    assert problem in ran.refused(ran.code)
