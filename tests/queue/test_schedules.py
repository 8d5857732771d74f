"""Schedules through the queue: made, changed, run, saved from code; and the scheduler that makes their jobs."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from tests.faulty import FaultyQueue
from tests.queue.hands import Hands, eventually
from treadle import (
    CodeDefined,
    Concurrency,
    InvalidCron,
    InvalidInput,
    InvalidPayload,
    Job,
    NotSchedulable,
    Queue,
    Schedule,
    ScheduleNotFound,
    TemplateDisabled,
    UnknownTimezone,
    VersionConflict,
)
from treadle.maintenance import scheduler
from treadle.maintenance.scheduler import Scheduler
from treadle.model.job import to_ms
from treadle.queue.schedule_records import KIND, body_of, schedule_from
from treadle.queue.schedules import Schedules
from treadle.queue.sync_parts import SyncSchedules
from treadle.store.values import RecordWrite

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def jobs_of(queue: Queue) -> list[Job]:
    """Oldest first."""
    return (await queue.list(limit=1000))[::-1]


async def make_due(queue: Queue, schedule_id: str, ago_ms: int = 0) -> int:
    """As if its next slot had been so long ago; when that was."""
    [record] = await queue.store.get_records([(KIND, schedule_id)])
    assert record
    at = await queue.store.now() - ago_ms
    body = body_of(replace(schedule_from(record), next_ms=at))
    write = RecordWrite(KIND, schedule_id, schedule_id, body, at, record.version)
    assert await queue.store.write_records([write]) != [None]
    return at


async def fire(queue: Queue) -> int:
    return await Scheduler(queue).fire_due()


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
        ({"cron": "0 9 * * *", "start_at": datetime(2026, 1, 1)}, InvalidInput),  # noqa: DTZ001
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


async def test_editing_a_cron_makes_no_catch_up_run(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", missed="all")
    await make_due(queue, made.id, 5 * DAY_MS)
    now = await queue.store.now()
    edited = await queue.schedules.update(made.id, cron="0 10 * * *")
    assert edited.next_ms is not None
    assert edited.next_ms > now
    await fire(queue)
    assert await jobs_of(queue) == []


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


# -- running -----------------------------------------------------------------------------------------


async def test_running_now_keeps_the_next_run_and_ignores_overlap(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", overlap="skip", payload={"id": "{{scheduleId}}"})
    first, second = await queue.schedules.run(made.id), await queue.schedules.run(made.id)
    assert first.id != second.id
    assert first.payload == {"id": made.id}
    assert (first.schedule_id, first.created_at <= datetime.now(UTC)) == (made.id, True)
    assert first.scheduled_at is not None
    after = await queue.schedules.get(made.id)
    assert (after.next_ms, after.last_job_id) == (made.next_ms, second.id)


async def test_a_disabled_schedule_can_be_run_by_hand(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", enabled=False)
    assert (await queue.schedules.run(made.id)).schedule_id == made.id


async def test_many_runs_at_once_all_make_jobs(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    jobs = await asyncio.gather(*(queue.schedules.run(made.id) for _ in range(5)))
    assert len({job.id for job in jobs}) == len(await jobs_of(queue)) == 5


async def test_a_due_slot_makes_a_job(queue: Queue) -> None:
    made = await queue.schedules.create(
        "report", "0 9 * * *", payload={"until": "{{scheduledAt}}"}, scope="user", scope_id="u1", created_by="ann"
    )
    at = await make_due(queue, made.id)
    wait_ms = await fire(queue)
    assert 0 < wait_ms <= scheduler.LOOK_EVERY_MS
    [job] = await jobs_of(queue)
    assert job.scheduled_at is not None
    assert (job.topic, job.schedule_id, to_ms(job.scheduled_at)) == ("report", made.id, at)
    assert job.payload["until"] == job.as_json()["scheduledAt"]
    assert (job.scope, job.scope_id, job.created_by) == ("user", "u1", "ann")
    after = await queue.schedules.get(made.id)
    assert (after.last_ms, after.last_job_id, after.version) == (at, job.id, 1)
    assert after.next_ms == made.next_ms
    await fire(queue)
    assert len(await jobs_of(queue)) == 1


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("one", 1), ("all", 10)])
async def test_missed_slots_follow_the_policy(queue: Queue, missed: Any, count: int) -> None:
    made = await queue.schedules.create("report", every="24h", missed=missed)
    await make_due(queue, made.id, 9 * DAY_MS + HOUR_MS)
    # Slots of an interval are counted from when it was made; make that a multiple of a day ago.
    [record] = await queue.store.get_records([(KIND, made.id)])
    assert record
    schedule = schedule_from(record)
    body = body_of(replace(schedule, created_ms=(schedule.next_ms or 0) - DAY_MS))
    await queue.store.write_records([RecordWrite(KIND, made.id, made.id, body, record.due, record.version)])
    await fire(queue)
    assert len(await jobs_of(queue)) == count
    events = await queue.schedules.events(made.id)
    assert [event.type for event in events] == (["schedule:skipped"] if count < 10 else [])


async def test_overlap_skip_waits_for_the_end_of_the_job_before(queue: Queue, hands: Hands) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", overlap="skip")
    for _ in range(3):
        await make_due(queue, made.id)
        await fire(queue)
    [job] = await jobs_of(queue)
    assert len(await queue.schedules.events(made.id)) == 2
    await hands.do(job)
    await make_due(queue, made.id)
    await fire(queue)
    assert len(await jobs_of(queue)) == 2


async def test_overlap_queue_holds_the_slot_until_the_job_before_has_ended(queue: Queue, hands: Hands) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", overlap="queue")
    await make_due(queue, made.id)
    await fire(queue)
    at = await make_due(queue, made.id)
    await fire(queue)
    [job] = await jobs_of(queue)
    held = await queue.schedules.get(made.id)
    assert (held.held, held.next_ms) == (True, at)
    await hands.do(job)

    async def fired() -> bool:
        await fire(queue)
        return len(await jobs_of(queue)) == 2

    await eventually(fired)
    second = (await jobs_of(queue))[1]
    assert second.scheduled_at is not None
    assert to_ms(second.scheduled_at) == at
    assert not (await queue.schedules.get(made.id)).held


async def test_an_operator_who_switches_the_template_off_stops_its_slots_until_it_is_on_again(queue: Queue) -> None:
    queue.register("report", lambda: None)
    await queue.save_templates()
    made = await queue.schedules.create("report", "0 9 * * *")
    await queue.templates.disable("report")
    await make_due(queue, made.id)
    await fire(queue)
    after = await queue.schedules.get(made.id)
    assert await jobs_of(queue) == []
    assert after.problem == "the template of report is disabled"
    assert [one.type for one in after.events] == ["schedule:skipped"]
    await queue.templates.enable("report")
    await make_due(queue, made.id)
    await fire(queue)
    assert len(await jobs_of(queue)) == 1
    assert (await queue.schedules.get(made.id)).problem is None


async def test_a_template_that_is_no_longer_schedulable_skips_the_slot(url: str) -> None:
    async with Queue(url) as queue:
        made = await queue.schedules.create("report", "0 9 * * *")
        queue.register("report", lambda: None, schedulable=False)
        await queue.save_templates()
        await make_due(queue, made.id)
        await fire(queue)
        assert await jobs_of(queue) == []
        assert "can't be scheduled" in ((await queue.schedules.get(made.id)).problem or "")
        with pytest.raises(NotSchedulable):
            await queue.schedules.run(made.id)


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


async def test_a_disabled_template_skips_the_slot_with_an_event(queue: Queue) -> None:
    @queue.job(enabled=False)
    async def report() -> None: ...

    made = await queue.schedules.create("report", "0 9 * * *")
    await make_due(queue, made.id)
    await fire(queue)
    assert await jobs_of(queue) == []
    [event] = await queue.schedules.events(made.id)
    assert event.type == "schedule:skipped"
    assert "disabled" in event.message
    after = await queue.schedules.get(made.id)
    assert after.next_ms == made.next_ms
    assert after.problem == event.message
    with pytest.raises(TemplateDisabled):
        await queue.schedules.run(made.id)


async def test_a_job_that_a_policy_refuses_is_told_and_the_schedule_goes_on(queue: Queue) -> None:
    from treadle import Concurrency

    @queue.job(concurrency=Concurrency("reject_same_scope"))
    async def report() -> None: ...

    made = await queue.schedules.create("report", "0 9 * * *")
    other = await queue.schedules.create("free", "0 9 * * *")
    first = await report.enqueue()
    await make_due(queue, made.id)
    await make_due(queue, other.id)
    await fire(queue)
    assert [job.topic for job in await jobs_of(queue)] == ["report", "free"]
    after = await queue.schedules.get(made.id)
    assert (after.last_job_id, after.last_ms) == (None, None)
    assert first.id in (after.problem or "")
    assert after.next_ms == made.next_ms


async def test_jitter_delays_the_job_and_not_the_slot(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", jitter="1h", id="spread")
    at = await make_due(queue, made.id)
    await fire(queue)
    [job] = await jobs_of(queue)
    assert job.scheduled_at is not None
    assert to_ms(job.scheduled_at) == at
    assert 0 <= to_ms(job.run_at) - at <= HOUR_MS


async def test_one_schedule_that_was_changed_does_not_stop_the_others(queue: Queue) -> None:
    ids = [(await queue.schedules.create("report", "0 9 * * *")).id for _ in range(5)]
    for id_ in ids:
        await make_due(queue, id_)
    scheduler = Scheduler(queue)
    now = await queue.store.now()
    records = await queue.store.find_records(KIND, due_before=now + 1)
    await queue.schedules.update(ids[2], missed="all")
    await scheduler._fire(records, now)
    assert {job.schedule_id for job in await jobs_of(queue)} == set(ids) - {ids[2]}


async def test_four_schedulers_make_one_job_a_slot(url: str) -> None:
    async with Queue(url) as queue:
        ids = [(await queue.schedules.create("report", "0 9 * * *")).id for _ in range(20)]
        others = [Queue(url) for _ in range(4)]
        for _ in range(5):
            for id_ in ids:
                await make_due(queue, id_)
            await asyncio.gather(*(_fire_alone(other) for other in others))
        found = await jobs_of(queue)
        assert len(found) == 100
        assert len({(job.schedule_id, job.scheduled_at) for job in found}) == 100
        for other in others:
            await other.close()


async def _fire_alone(queue: Queue) -> None:
    await queue.open()
    await fire(queue)


async def test_a_hundred_and_fifty_due_at_once_are_all_fired(queue: Queue) -> None:
    now = await queue.store.now()
    for i in range(150):
        schedule = Schedule(id=f"s{i}", topic="report", cron="0 9 * * *", next_ms=now)
        await queue.store.write_records([RecordWrite(KIND, schedule.id, schedule.id, body_of(schedule), now)])
    await fire(queue)
    assert len(await jobs_of(queue)) == 150


async def test_a_known_schedule_needs_no_hint(queue: Queue) -> None:
    """The leader sleeps until it is due, not until its next look."""
    await queue.schedules.create("report", every="1d")
    assert await fire(queue) == scheduler.LOOK_EVERY_MS
    schedule = await queue.schedules.create("report", every="1d")
    await make_due(queue, schedule.id, -2_000)
    assert 0 < await fire(queue) <= 2_000
    assert await jobs_of(queue) == []


async def test_a_schedule_whose_hint_was_lost_is_found_at_the_next_look(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler: the leader hears nothing of what other processes do."""
    monkeypatch.setattr(scheduler, "LOOK_EVERY_MS", 200)
    caplog.set_level("INFO", "treadle.maintenance")
    leader = FaultyQueue(url)
    async with leader, Queue(url) as other:
        leader.faults.mute()
        working = asyncio.create_task(leader.work())
        await eventually(lambda: "leads the maintenance" in caplog.text)
        schedule = await other.schedules.create("report", every="1d")
        at = await make_due(other, schedule.id)
        await eventually(lambda: jobs_of(other))
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        [job] = await jobs_of(other)
        assert job.scheduled_at is not None
        assert to_ms(job.scheduled_at) == at


async def test_a_running_worker_fires_a_schedule_in_time(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Made while the leader sleeps: it is told."""
    done: list[Job] = []

    @queue.job
    async def tick(ctx: Any) -> None:
        done.append(await queue.get(ctx.job_id))

    caplog.set_level("INFO", "treadle.maintenance")
    working = asyncio.create_task(queue.work())
    await eventually(lambda: "leads the maintenance" in caplog.text)
    await queue.schedules.create("tick", every="1s")
    await eventually(lambda: len(done) >= 2)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    for job in done:
        assert job.scheduled_at is not None
        assert job.created_at - job.scheduled_at < timedelta(seconds=1)


# -- from code ---------------------------------------------------------------------------------------


async def start(url: str, **options: Any) -> Queue:
    """A program whose only job has these options, started anew."""
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


async def test_a_slot_with_a_locked_key_holds_up_no_other_schedule(postgres_url: str) -> None:
    async with Queue(postgres_url) as queue:
        limit = Concurrency("reject_same_scope", keys=["input.k"])

        @queue.job(concurrency=limit)
        async def rare(payload: dict[str, Any]) -> None: ...

        for name, key in (("locked", 1), ("free", 2)):
            await queue.schedules.create("rare", every="1h", id=name, payload={"k": key})
        at = await make_due(queue, "locked")
        await make_due(queue, "free")
        user = await asyncpg.connect(postgres_url)
        await user.execute("BEGIN")
        await queue.enqueue("rare", {"k": 1}, connection=user)
        async with asyncio.timeout(30):
            assert await fire(queue) <= 1000
        assert [job.payload for job in await jobs_of(queue)] == [{"k": 2}]
        await user.execute("ROLLBACK")
        await user.close()
        scheduler = asyncio.create_task(_keep_firing(queue))
        await eventually(lambda: _has_jobs(queue, 2))
        scheduler.cancel()
        newest = (await jobs_of(queue))[-1]
        assert newest.payload == {"k": 1}
        assert newest.scheduled_at is not None
        assert to_ms(newest.scheduled_at) == at, "the slot kept its time"


async def _keep_firing(queue: Queue) -> None:
    scheduler = Scheduler(queue)
    while True:
        await scheduler.step()


async def _has_jobs(queue: Queue, count: int) -> bool:
    return len(await jobs_of(queue)) == count
