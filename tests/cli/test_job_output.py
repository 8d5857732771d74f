"""`treadle jobs output`."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from treadle import Context, Queue, Worker
from treadle.queue.sync import SyncQueue


@pytest.fixture
def queue(treadle: Command) -> Iterator[SyncQueue]:
    """The same database, seen from Python."""
    with Queue(treadle.database).sync as queue:
        yield queue


def talk(ctx: Context) -> None:
    ctx.emit("Hello ", channel="tokens")
    ctx.emit("there\n", channel="tokens")
    ctx.emit({"left": 2}, channel="log")


@pytest.fixture
def job_id(treadle: Command) -> str:
    """A job that has ended."""
    queue = Queue(treadle.database)
    queue.register("talk", talk)
    with queue.sync as blocking:
        job = blocking.enqueue("talk")
    _drain(queue)
    return job.id


def _drain(queue: Queue) -> None:
    asyncio.run(Worker(queue, burst=True).run())


def test_texts_are_printed_as_they_are_and_other_values_as_json(treadle: Command, job_id: str) -> None:
    assert treadle("jobs", "output", job_id, "tokens").done().out == "Hello there\n"
    assert treadle("jobs", "output", job_id, "tokens", "--follow").done().out == "Hello there\n"
    assert treadle("jobs", "output", job_id, "tokens", "--after", "1").done().out == "there\n"
    assert treadle("jobs", "output", job_id, "log").done().out == '{"left": 2}\n'


def test_events_as_json_lines(treadle: Command, job_id: str) -> None:
    lines = treadle("jobs", "output", job_id, "tokens", "--json").done().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "value", "id": 1, "attempt": 1, "value": "Hello "},
        {"event": "value", "id": 2, "attempt": 1, "value": "there\n"},
        {"event": "end", "status": "completed"},
    ]


def test_without_a_channel_the_channels_are_listed(treadle: Command, job_id: str, queue: SyncQueue) -> None:
    listed = treadle("jobs", "output", job_id, "--json").done().json
    assert [(one["channel"], one["values"]) for one in listed["items"]] == [("log", 1), ("tokens", 2)]
    assert "tokens" in treadle("jobs", "output", job_id).done().out
    quiet = queue.enqueue("mail")
    assert treadle("jobs", "output", quiet.id).done().out == "the job has emitted nothing\n"
    assert treadle("jobs", "output", quiet.id, "tokens").done().out == ""


def test_an_unknown_job_and_a_bad_channel_are_one_line(treadle: Command, job_id: str) -> None:
    unknown = treadle("jobs", "output", job_id[:-4] + "0000", "tokens")
    assert unknown.code == 1
    assert "no job has the id" in unknown.err
    assert "is not a channel" in treadle("jobs", "output", job_id, "a/b").err


def test_control_characters_stay_visible(treadle: Command) -> None:
    queue = Queue(treadle.database)

    @queue.job
    def shout(ctx: Context) -> None:
        ctx.emit("\x1b[31mred", channel="tokens")

    with queue.sync as blocking:
        job = blocking.enqueue("shout")
    _drain(queue)
    assert treadle("jobs", "output", job.id, "tokens").done().out == "\\x1b[31mred"
