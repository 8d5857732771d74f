"""`treadle retention`."""

import asyncio

import pytest

from tests.cli.command import Command
from treadle import Queue
from treadle.queue.handlers.retention_hooks import Registration, register

pytestmark = pytest.mark.every_store


def do(treadle: Command, *what: str) -> None:
    async def cancel() -> None:
        async with Queue(treadle.database) as queue:
            for topic in what:
                await queue.cancel((await queue.enqueue(topic)).id)
            await register(queue.store, [Registration("on_delete", "mail"), Registration("on_stale", "*")])

    asyncio.run(cancel())


def test_ages_are_shown_counted_and_changed(treadle: Command) -> None:
    do(treadle, "mail", "log")
    shown = treadle("retention", "show").done().out
    assert shown.splitlines()[0].split("  ")[0] == "JOBS"
    assert "hook: on_delete of mail\nhook: on_stale of every topic\n" in shown
    now = ("--stale-after", "0s", "--delete-after", "0s", "--topic", "mail")
    counted = treadle("retention", "set", *now, "--dry-run").done().out
    assert counted == "as it stands, 0 jobs would be stale and 1 deleted; nothing was saved\n"
    assert treadle("retention", "show", "--json").done().json["by_topic"] == {}
    assert "topic:mail" in treadle("retention", "set", *now).done().out
    treadle("retention", "set", "--status", "failed", "--stale-after", "30d").done()
    treadle("retention", "set", "--delete-after", "2d").done()
    assert treadle("retention", "show", "--json").done().json == {
        "stale_after": "7d",
        "delete_after": "2d",
        "by_status": {"failed": {"stale_after": "30d", "delete_after": None}},
        "by_topic": {"mail": {"stale_after": "0ms", "delete_after": "0ms"}},
        "templates": {},
        "hooks": [{"hook": "on_delete", "topic": "mail"}, {"hook": "on_stale", "topic": "*"}],
    }
    treadle("retention", "set", "--topic", "mail", "--stale-after", "default", "--delete-after", "default").done()
    assert treadle("retention", "set", "--delete-after", "default", "--json").done().json["by_topic"] == {}


def test_a_hook_is_forgotten(treadle: Command) -> None:
    do(treadle)
    assert treadle("retention", "forget-hook", "on_delete", "mail").done().out == "forgot on_delete of mail\n"
    assert treadle("retention", "forget-hook", "on_stale").done().out == "forgot on_stale of every topic\n"
    assert "no on_stale of every topic is registered" in treadle("retention", "forget-hook", "on_stale").refused(1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "give --stale-after, --delete-after or both"),
        (("--stale-after", "-1d"), "stale_after"),
        (("--stale-after", "1d", "--topic", "a", "--status", "failed"), "not both"),
        (("--stale-after", "1d", "--status", "pending"), "'pending' is not one of"),
        (("--stale-after", "1d", "--topic", "No Topic"), "topic"),
    ],
)
def test_nonsense_is_wrong_usage(treadle: Command, given: tuple[str, ...], told: str) -> None:
    do(treadle)
    assert told in treadle("retention", "set", *given).refused(2)
