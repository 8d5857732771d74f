"""The scheduler: which jobs it makes, when, and why it makes none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.faulty import Around, FaultyQueue, faulty
from tests.queue.hands import Hands, eventually
from tests.queue.scheduling import DAY_MS, HOUR_MS, fire, jobs_of, make_due
from tests.worker import misbehaving as bad
from treadle import Concurrency, Job, NotSchedulable, Queue, Schedule, TemplateDisabled
from treadle.maintenance import scheduler
from treadle.maintenance.scheduler import Scheduler
from treadle.model.errors import InvalidPayload
from treadle.model.job import to_ms
from treadle.policy.schedule import KIND
from treadle.queue.schedules.options import CodeSchedule
from treadle.queue.schedules.records import body_of, schedule_from
from treadle.store.values import RecordWrite


async def test_running_now_keeps_the_next_run_and_ignores_overlap(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", overlap="skip", payload={"id": "{{scheduleId}}"})
    first, second = await queue.schedules.run(made.id), await queue.schedules.run(made.id)
    assert first.id != second.id
    assert first.payload == {"id": made.id}
    assert first.schedule_id == made.id
    assert first.scheduled_at is not None
    after = await queue.schedules.get(made.id)
    assert (after.next_ms, after.last_job_id) == (made.next_ms, second.id)


async def test_a_disabled_schedule_can_be_run_by_hand(queue: Queue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", enabled=False)
    assert (await queue.schedules.run(made.id)).schedule_id == made.id


async def test_many_concurrent_runs_all_make_jobs(queue: Queue) -> None:
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


async def test_a_firing_checks_a_schedule_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is read; what runs change is no part of what it is."""
    made = await queue.schedules.create("report", "0 9 * * *", missed="all")
    await fire(queue)
    await queue.schedules.run(made.id)
    await make_due(queue, made.id)
    checked: list[str] = []
    monkeypatch.setattr(Schedule, "__post_init__", lambda self: checked.append(self.id))
    await fire(queue)
    assert checked == [made.id]
    assert len(await jobs_of(queue)) == 2


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


async def test_at_most_a_hundred_missed_slots_are_made_up_for(queue: Queue) -> None:
    minute = 60_000
    now = await queue.store.now()
    first = now - 149 * minute
    schedule = Schedule(
        id="tick", topic="tick", every_ms=minute, missed="all", start_ms=first, created_ms=first, next_ms=first
    )
    await queue.store.write_records([RecordWrite(KIND, "tick", "tick", body_of(schedule), first)])
    await fire(queue)
    newest = first + 149 * minute
    assert _slots(await jobs_of(queue)) == list(range(newest - 99 * minute, newest + 1, minute))
    [event] = await queue.schedules.events("tick")
    assert event.message == "50 slots skipped: overlap is allow, missed is all"


async def test_a_weekly_schedule_fires_though_everything_restarts_daily(url: str) -> None:
    """The next run is stored, not counted from a start; saving the same code again changes nothing."""
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    mondays = 0
    for day in range(1, 23):
        queue = Queue(url)
        queue.register("weekly", lambda: None, schedule="0 9 * * MON")
        async with queue:
            noon = today + timedelta(days=day)
            mondays += noon.weekday() == 0
            _set_clock(queue, to_ms(noon))
            await fire(queue)
            slots = [job.scheduled_at for job in await jobs_of(queue)]
            assert len(slots) == mondays
    assert mondays >= 3
    assert all((one.weekday(), one.hour, one.minute) == (0, 9, 0) for one in slots if one)
    assert len(set(slots)) == mondays


def _set_clock(queue: Queue, ms: int) -> None:
    async def now(_: Around) -> int:
        return ms

    faulty(queue).around("now", now)


def _slots(jobs: list[Job]) -> list[int]:
    return sorted(to_ms(job.scheduled_at) for job in jobs if job.scheduled_at)


async def test_placeholders_name_the_slot_and_the_one_before_it(queue: Queue) -> None:
    payload = {"until": "{{scheduledAt}}", "since": ["{{previousAt}}"], "by": "{{scheduleId}}"}
    made = await queue.schedules.create("report", "0 9 * * *", timezone="Asia/Taipei", payload=payload)
    for _ in range(2):
        await make_due(queue, made.id)
        await fire(queue)
    first, second = [job.as_json() for job in await jobs_of(queue)]
    assert second["payload"] == {"until": second["scheduledAt"], "since": [first["scheduledAt"]], "by": made.id}
    before = datetime.fromisoformat(first["payload"]["since"][0])
    assert (before.hour, before.minute, before.utcoffset()) == (1, 0, timedelta(0)), "nine in Taipei, in UTC"
    assert before < datetime.fromisoformat(first["scheduledAt"])


async def test_a_schedule_runs_from_its_start_to_its_end_and_no_longer(queue: Queue) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    end = start + timedelta(hours=2)
    made = await queue.schedules.create("poll", every="1h", missed="all", start_at=start, end_at=end)
    assert made.next_run_at == start
    for hours in (-1, 0, 1, 2, 3, 4):
        _set_clock(queue, to_ms(start) + hours * HOUR_MS)
        await fire(queue)
    assert _slots(await jobs_of(queue)) == [to_ms(start) + hours * HOUR_MS for hours in (0, 1, 2)]
    ended = await queue.schedules.get(made.id)
    assert (ended.next_run_at, ended.enabled, ended.next_runs(await queue.store.now())) == (None, True, [])


@pytest.mark.parametrize(
    "change",
    [{"payload": {"a": 1}}, {"missed": "all"}, {"overlap": "skip"}, {"jitter": "1s"}, {"scope": "user"}],
    ids=str,
)
async def test_an_edit_in_the_due_second_does_not_lose_the_slot(queue: Queue, change: Any) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    at = await make_due(queue, made.id)
    await queue.schedules.update(made.id, **change)
    await fire(queue)
    assert _slots(await jobs_of(queue)) == [at]


async def test_a_deploy_in_the_due_second_does_not_lose_the_slot(url: str) -> None:
    """And one that changes the times makes no catch-up run."""
    made = []
    releases: list[CodeSchedule] = [
        {"cron": "0 9 * * *"},
        {"cron": "0 9 * * *", "payload": {"a": 1}},
        {"cron": "0 10 * * *", "payload": {"a": 1}},
    ]
    for schedule in releases:
        queue = Queue(url)
        queue.register("report", lambda payload: None, schedule=schedule)
        async with queue:
            await fire(queue)
            made.append(len(await jobs_of(queue)))
            await make_due(queue, "report")
    assert made == [0, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "0 10 * * *"},
        {"every": "1h"},
        {"timezone": "Asia/Taipei"},
        {"start_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"enabled": False},
    ],
    ids=str,
)
async def test_a_change_of_its_times_makes_no_catch_up_run(queue: Queue, change: Any) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", missed="all")
    await make_due(queue, made.id, 5 * DAY_MS)
    await queue.schedules.update(made.id, **change)
    await queue.schedules.enable(made.id)
    await fire(queue)
    assert await jobs_of(queue) == []
    after = await queue.schedules.get(made.id)
    assert after.next_ms is not None
    assert after.next_ms > await queue.store.now()


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


async def test_overlap_counts_the_schedules_own_jobs_and_ones_that_wait_for_an_answer(queue: Queue) -> None:
    flow = queue.flow("approval")
    flow.external("approve")
    mine = await queue.schedules.create("approval", "0 9 * * *", overlap="skip")
    other = await queue.schedules.create("approval", "0 9 * * *", overlap="skip")
    await make_due(queue, mine.id)
    await fire(queue)
    await queue.run_until_empty()
    [job] = await jobs_of(queue)
    assert job.status == "waiting"
    for one in (mine, other):
        await make_due(queue, one.id)
    await fire(queue)
    assert [job.schedule_id for job in await jobs_of(queue)] == [mine.id, other.id]
    assert [event.type for event in await queue.schedules.events(mine.id)] == ["schedule:skipped"]


async def test_a_run_by_hand_leaves_a_held_slot_where_it_is(queue: Queue, hands: Hands) -> None:
    made = await queue.schedules.create("report", "0 9 * * *", overlap="queue")
    first = await queue.schedules.run(made.id)
    at = await make_due(queue, made.id)
    await fire(queue)
    assert (await queue.schedules.get(made.id)).held
    second = await queue.schedules.run(made.id)
    assert (await queue.schedules.get(made.id)).next_ms == at
    for job in (first, second):
        await hands.do(job)
    await eventually(lambda: _fires(queue, 3))
    assert _slots((await jobs_of(queue))[2:]) == [at]


async def _fires(queue: Queue, count: int) -> bool:
    await fire(queue)
    return await _has_jobs(queue, count)


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


async def test_a_hundred_and_fifty_due_together_are_all_fired(queue: Queue) -> None:
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


async def test_a_schedule_with_a_lost_hint_is_found_at_the_next_look(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler: the leader gets no hints from other processes."""
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


async def test_a_running_worker_fires_a_schedule_in_time(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made while the leader sleeps: it is told."""
    monkeypatch.setattr(scheduler, "LOOK_EVERY_MS", HOUR_MS)
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
        assert job.scheduled_at <= job.created_at


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


@pytest.mark.parametrize("error", bad.ERRORS)
async def test_a_payload_type_that_raises_anything_skips_its_own_slot_alone(queue: Queue, error: str) -> None:
    queue.register("report", bad.takes_checked)
    made = await queue.schedules.create("report", "0 9 * * *", payload={"error": "-"})
    other = await queue.schedules.create("free", "0 9 * * *")
    [record] = await queue.store.get_records([(KIND, made.id)])
    assert record
    body = body_of(replace(schedule_from(record), payload={"error": error}))
    write = RecordWrite(KIND, made.id, made.id, body, record.due, record.version)
    assert await queue.store.write_records([write]) != [None]
    for one in (made, other):
        await make_due(queue, one.id)
    await fire(queue)
    assert [job.topic for job in await jobs_of(queue)] == ["free"]
    [event] = await queue.schedules.events(made.id)
    after = await queue.schedules.get(made.id)
    assert (event.type, after.problem, after.next_ms) == ("schedule:skipped", event.message, made.next_ms)
    with pytest.raises(InvalidPayload, match="its type can't read it"):
        await queue.enqueue("report", {"error": error})


async def test_a_job_that_no_database_takes_skips_its_own_slot_alone(queue: FaultyQueue) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    other = await queue.schedules.create("free", "0 9 * * *")
    for one in (made, other):
        await make_due(queue, one.id)

    async def picky(call: Around, jobs: Any, **options: Any) -> Any:
        if any(job.topic == "report" for job in jobs):
            raise ValueError("not this one")
        return await call(jobs, **options)

    faulty(queue).around("insert", picky)
    await fire(queue)
    assert [job.topic for job in await jobs_of(queue)] == ["free"]
    after = await queue.schedules.get(made.id)
    assert (after.problem, after.next_ms) == ("the job could not be made: ValueError: not this one", made.next_ms)


async def test_a_key_that_cannot_be_made_skips_its_own_slot_alone(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await queue.schedules.create("report", "0 9 * * *")
    other = await queue.schedules.create("free", "0 9 * * *")
    for one in (made, other):
        await make_due(queue, one.id)
    new_job = queue.schedules.new_job

    async def broken(schedule: Schedule, slot: Any) -> Any:
        if schedule.topic == "report":
            raise RecursionError("too deep")
        return await new_job(schedule, slot)

    monkeypatch.setattr(queue.schedules, "new_job", broken)
    await fire(queue)
    assert [job.topic for job in await jobs_of(queue)] == ["free"]
    assert (await queue.schedules.get(made.id)).problem == "the job could not be made: RecursionError: too deep"
