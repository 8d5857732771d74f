"""Schedules through the queue: made, changed, saved from code."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.queue.hands import WITHOUT_ZONE
from treadle import (
    CodeDefined,
    InvalidCron,
    InvalidInput,
    InvalidPayload,
    NotSchedulable,
    Queue,
    ScheduleNotFound,
    UnknownTimezone,
    VersionConflict,
)
from treadle.model.job import to_ms
from treadle.queue.schedules.api import Schedules
from treadle.queue.sync_parts import SyncSchedules

# -- making and changing -----------------------------------------------------------------------------


async def test_a_schedule_has_its_next_run_and_its_description(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", timezone="Asia/Taipei", payload={"a": 1})
    assert made == await queue.schedules.get(made.id)
    assert made.description == "Every day at 09:00 (Asia/Taipei)"
    assert made.next_run_at is not None
    assert made.next_run_at.astimezone(UTC).hour == 1
    assert datetime.now(UTC) < made.next_run_at <= datetime.now(UTC) + timedelta(days=1)
    assert (made.version, made.enabled, made.missed, made.overlap) == (1, True, "one", "allow")
    assert list(await queue.schedules.list()) == [made]
    assert list(await queue.schedules.list("report")) == [made]
    assert list(await queue.schedules.list("other")) == []


async def test_an_interval_and_every_option(queue: Queue) -> None:
    start = datetime.now(UTC) + timedelta(days=1)
    made = await queue.schedules.create(
        "poll",
        every="90s",
        id="poller",
        scope="user",
        scope_id="u1",
        created_by="ann",
        missed="all",
        overlap="skip",
        jitter="5s",
        start_at=start,
        end_at=start + timedelta(days=1),
        enabled=False,
    )
    assert (made.every_ms, made.jitter_ms, made.next_ms, made.id) == (90_000, 5_000, None, "poller")
    enabled = await queue.schedules.enable("poller")
    assert enabled.next_ms == to_ms(start)
    assert (await queue.schedules.disable("poller")).next_ms is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cron": "61 * * * *"}, InvalidCron),
        ({"cron": "0 0 30 2 *"}, InvalidCron),
        ({"cron": "* " * 5000}, InvalidCron),
        ({"cron": "0 9 * * *", "timezone": "Mars/Base"}, UnknownTimezone),
        ({"cron": "0 9 * * *", "payload": {"a": "{{today}}"}}, InvalidPayload),
        ({"cron": "0 9 * * *", "payload": [1]}, InvalidPayload),
        ({"cron": "0 9 * * *", "every": "5s"}, InvalidInput),
        ({}, InvalidInput),
        ({"every": "1ms"}, InvalidInput),
        ({"cron": "0 9 * * *", "colour": "red"}, InvalidInput),
        ({"cron": "0 9 * * *", "id": "../x"}, InvalidInput),
        ({"cron": "0 9 * * *", "start_at": WITHOUT_ZONE}, InvalidInput),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_bad_input_is_refused_and_nothing_is_stored(
    queue: Queue, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await queue.schedules.create("report", **options)
    assert list(await queue.schedules.list()) == []


async def test_an_id_is_given_once(queue: Queue) -> None:
    await queue.schedules.create("report", "@daily", id="a")
    with pytest.raises(VersionConflict):
        await queue.schedules.create("report", "@daily", id="a")


async def test_an_edit_of_an_older_version_is_refused(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    edited = await queue.schedules.update(made.id, version=1, cron="0 10 * * *", timezone="Europe/Berlin")
    assert (edited.version, edited.cron, edited.timezone) == (2, "0 10 * * *", "Europe/Berlin")
    with pytest.raises(VersionConflict):
        await queue.schedules.update(made.id, version=1, cron="0 11 * * *")
    assert (await queue.schedules.get(made.id)).cron == "0 10 * * *"
    assert (await queue.schedules.update(made.id, cron="0 10 * * *")).version == 2, "nothing changed"


async def test_a_run_in_between_does_not_refuse_an_edit(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    await queue.schedules.run(made.id)
    assert (await queue.schedules.update(made.id, version=1, missed="all")).missed == "all"


async def test_edits_at_the_same_time_lose_nothing(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    changes: list[dict[str, Any]] = [
        {"missed": "all"},
        {"overlap": "queue"},
        {"timezone": "Asia/Taipei"},
        {"jitter": "5s"},
        {"scope": "user"},
    ]
    await asyncio.gather(*(queue.schedules.update(made.id, **change) for change in changes))
    after = await queue.schedules.get(made.id)
    assert (after.missed, after.overlap, after.timezone, after.jitter_ms, after.scope) == (
        "all",
        "queue",
        "Asia/Taipei",
        5_000,
        "user",
    )
    assert after.version == 6


async def test_cron_and_every_replace_each_other(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    assert (await queue.schedules.update(made.id, every="90s")).cron is None
    again = await queue.schedules.update(made.id, cron="@daily")
    assert (again.cron, again.every_ms) == ("@daily", None)


async def test_what_is_deleted_is_not_there(queue: Queue) -> None:
    made = await queue.schedules.create("report", "@daily")
    await queue.schedules.delete(made.id)
    for ask in (queue.schedules.get, queue.schedules.delete, queue.schedules.run, queue.schedules.enable):
        with pytest.raises(ScheduleNotFound):
            await ask(made.id)
    with pytest.raises(ScheduleNotFound):
        await queue.schedules.get("x\x00" * 99)


async def test_a_template_may_refuse_schedules(queue: Queue) -> None:
    @queue.job(schedulable=False)
    async def by_hand() -> None: ...

    with pytest.raises(NotSchedulable):
        await queue.schedules.create("by_hand", "@daily")


async def test_a_payload_that_the_template_refuses_is_refused_when_the_schedule_is_made(queue: Queue) -> None:
    class Day(BaseModel):
        until: datetime

    async def report(day: Day) -> None: ...

    report.__annotations__["day"] = Day
    queue.register("report", report)

    with pytest.raises(InvalidPayload):
        await queue.schedules.create("report", "@daily", payload={"until": "tomorrow"})
    made = await queue.schedules.create("report", "@daily", payload={"until": "{{scheduledAt}}"})
    with pytest.raises(InvalidPayload):
        await queue.schedules.update(made.id, payload={})


# -- from code ---------------------------------------------------------------------------------------


class Pages(BaseModel):
    pages: int


def test_a_schedule_in_code_that_could_never_make_a_job_is_refused_where_it_is_written(tmp_path: Any) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")

    def report(pages: Pages) -> None: ...

    with pytest.raises(InvalidPayload, match=r"report: payload\.pages: Field required"):
        queue.register("report", report, schedule="@daily")
    with pytest.raises(InvalidInput, match="give schedule= or schedulable=False, not both"):
        queue.register("other", lambda: None, schedule="@daily", schedulable=False)
    assert queue.handlers == {}
    queue.register("report", report, schedule={"cron": "@daily", "payload": {"pages": 3}})


async def start(url: str, **options: Any) -> Queue:
    """A program with one job that has these options, started again."""
    queue = Queue(url)

    @queue.job(**options)
    async def report(payload: dict[str, Any]) -> None: ...

    return await queue.open()


async def test_schedules_in_code_are_saved_at_start(url: str) -> None:
    queue = await start(url, schedule="0 9 * * *", timezone="Asia/Taipei")
    [made] = await queue.schedules.list()
    assert (made.id, made.topic, made.cron, made.timezone) == ("report", "report", "0 9 * * *", "Asia/Taipei")
    assert made.source == "queue/test_schedules.py"
    await queue.close()


async def test_a_job_may_have_several_schedules(url: str) -> None:
    queue = await start(
        url,
        schedule=[
            "0 9 * * *",
            {"cron": "0 18 * * *", "payload": {"day": "{{scheduledAt}}"}},
            {"every": "1h", "id": "x"},
        ],
    )
    found = {one.id: one for one in await queue.schedules.list()}
    assert list(found) == ["report", "report.2", "x"]
    assert found["report.2"].payload == {"day": "{{scheduledAt}}"}
    await queue.close()


async def test_what_is_wrong_in_code_is_told_when_it_is_declared(queue: Queue) -> None:
    for options in (
        {"schedule": "61 * * * *"},
        {"schedule": "@daily", "timezone": "Mars/Base"},
        {"timezone": "UTC"},
        {"schedule": 7},
        {"schedule": {"cron": "@daily", "colour": "red"}},
    ):
        with pytest.raises(InvalidInput):
            queue.register("report", lambda: None, **options)


async def test_a_schedule_follows_its_code_and_an_operators_edit_stands_until_the_code_changes(url: str) -> None:
    first = await start(url, schedule="0 9 * * *")
    await first.schedules.update("report", cron="0 10 * * *")
    await first.close()

    same_code = await start(url, schedule="0 9 * * *")
    assert (await same_code.schedules.get("report")).cron == "0 10 * * *"
    await same_code.schedules.disable("report")
    await same_code.close()

    still = await start(url, schedule="0 9 * * *")
    assert not (await still.schedules.get("report")).enabled
    job = await still.schedules.run("report")
    await still.close()

    changed = await start(url, schedule="0 11 * * *")
    now = await changed.schedules.get("report")
    assert (now.cron, now.enabled, now.last_job_id) == ("0 11 * * *", True, job.id)
    await changed.close()


async def test_a_schedule_that_is_gone_from_code_is_disabled_and_kept(url: str) -> None:
    first = await start(url, schedule=["0 9 * * *", "0 18 * * *"])
    with pytest.raises(CodeDefined):
        await first.schedules.delete("report")
    with pytest.raises(CodeDefined):
        await first.schedules.update("report", topic="other")
    await first.close()

    second = await start(url, schedule="0 9 * * *")
    gone = await second.schedules.get("report.2")
    assert (gone.enabled, gone.problem) == (False, "gone from queue/test_schedules.py")
    assert (await second.schedules.get("report")).enabled
    await second.close()

    third = await start(url)
    assert not (await third.schedules.get("report")).enabled
    await third.schedules.delete("report.2")
    await third.close()

    back = await start(url, schedule="0 9 * * *")
    assert (await back.schedules.get("report")).enabled
    await back.close()


async def test_a_handler_that_is_gone_from_its_file_takes_its_schedules_along(url: str) -> None:
    first = await start(url, schedule="0 9 * * *")
    await first.close()
    second = Queue(url)
    second.register("other", _other)
    await second.open()
    assert not (await second.schedules.get("report")).enabled
    await second.close()


async def _other() -> None: ...


async def test_a_module_that_is_gone_takes_its_schedules_along(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nightly_jobs.py"
    file.write_text("async def nightly() -> None: ...")
    monkeypatch.syspath_prepend(tmp_path)
    nightly = importlib.import_module("nightly_jobs").nightly
    both = Queue(url)
    both.register("report", _other)
    both.register("nightly", nightly, schedule="0 2 * * *")
    await both.open()
    await both.close()
    del sys.modules["nightly_jobs"]

    leaves_it_out = await start(url)
    assert (await leaves_it_out.schedules.get("nightly")).enabled, "another process may still import it"
    await leaves_it_out.close()

    file.unlink()
    importlib.invalidate_caches()
    stranger = Queue(url)
    stranger.register("elsewhere", asyncio.sleep)
    await stranger.open()
    assert (await stranger.schedules.get("nightly")).enabled, "a program that never had it knows nothing of it"
    await stranger.close()

    without = await start(url)
    gone = await without.schedules.get("nightly")
    assert (gone.enabled, gone.problem) == (False, f"gone from {tmp_path.name}/nightly_jobs.py")
    await without.schedules.enable("nightly")
    await without.close()

    again = await start(url)
    assert (await again.schedules.get("nightly")).enabled, "an operator's edit stands"
    await again.close()


async def test_a_process_with_other_code_leaves_schedules_alone(url: str) -> None:
    first = await start(url, schedule="0 9 * * *")
    other = Queue(url)
    other.register("elsewhere", asyncio.sleep)
    await other.open()
    assert (await other.schedules.get("report")).enabled
    await other.close()
    await first.close()


async def test_many_processes_that_start_together_make_it_once(url: str) -> None:
    queues = await asyncio.gather(*(start(url, schedule="0 9 * * *") for _ in range(6)))
    [made] = await queues[0].schedules.list()
    assert made.version == 1
    for queue in queues:
        await queue.close()


async def test_the_schedules_of_a_deleted_account_are_disabled_with_the_reason(queue: Queue) -> None:
    mine = await queue.schedules.create("report", "@daily", created_by="ann")
    other = await queue.schedules.create("report", "@daily", created_by="bob")
    assert await queue.schedules.disable_created_by("ann", "its account was deleted") == 1
    after = await queue.schedules.get(mine.id)
    assert (after.enabled, after.problem, after.next_ms) == (False, "its account was deleted", None)
    assert (await queue.schedules.get(other.id)).enabled


def test_the_blocking_face_has_the_same_methods() -> None:
    inner = {"new_job"}
    for name, method in inspect.getmembers(Schedules, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in inner:
            blocking = inspect.signature(getattr(SyncSchedules, name))
            assert blocking.parameters == inspect.signature(method).parameters, name


def test_a_blocking_run_gives_a_blocking_job(url: str) -> None:
    with Queue(url).sync as queue:
        queue.schedules.create("report", "@daily", id="daily")
        assert queue.schedules.run("daily").refresh().schedule_id == "daily"
