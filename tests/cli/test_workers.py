"""`treadle workers`."""

import asyncio

import pytest

from tests.cli.command import Command
from treadle import Queue


def lease(treadle: Command, name: str = "host:7/b") -> None:
    async def open_it() -> None:
        serves = {"topics": ["mail", "video"], "capabilities": ["gpu"], "slots": 4, "host": "h", "version": "1.0"}
        async with Queue(treadle.database) as queue:
            await queue.store.open_lease(name, 3_600_000, serves)

    asyncio.run(open_it())


def test_workers_are_listed(treadle: Command) -> None:
    assert treadle("workers", "list").done().out == "no workers\n"
    lease(treadle)
    head, line = treadle("workers", "list").done().out.splitlines()
    assert head.split() == ["NAME", "STATE", "RUNNING", "SLOTS", "TOPICS", "VERSION"]
    assert line.split() == ["host:7/b", "idle", "0", "4", "mail,", "video", "1.0"]
    [listed] = treadle("workers", "list", "--json").done().json["items"]
    assert listed == {
        "name": "host:7/b",
        "topics": ["mail", "video"],
        "capabilities": ["gpu"],
        "slots": 4,
        "running": 0,
        "draining": False,
        "host": "h",
        "version": "1.0",
    }


@pytest.mark.every_store
def test_a_worker_is_drained_and_goes_on(treadle: Command) -> None:
    lease(treadle)
    assert treadle("workers", "drain", "host:7/b").done().out == "asked host:7/b to drain\n"
    assert "draining" in treadle("workers", "list").done().out
    answer = treadle("workers", "undrain", "host:7/b", "--json").done().json
    assert answer == {"name": "host:7/b", "draining": False}
    assert "draining" not in treadle("workers", "list").done().out


def test_a_name_without_a_live_worker_is_a_failure(treadle: Command) -> None:
    lease(treadle)
    for verb in ("drain", "undrain"):
        assert "no live worker has the name nobody" in treadle("workers", verb, "nobody").refused(1)


def test_a_group_of_topics_is_paused_and_resumed(app: Command) -> None:
    app("enqueue", "greet", '{"name": "Ada"}').done()
    assert app("topics", "pause", "gr*").done().out == "gr* is paused until it is resumed\n"
    assert "paused" in app("topics", "list").done().out
    assert app("topics", "resume", "gr*").done().out == "gr* is running again\n"
    listed = app("topics", "list", "--json").done().json["items"]
    assert [one["topic"] for one in listed if one["paused"] or "*" in one["topic"]] == []
