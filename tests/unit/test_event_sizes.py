"""Events stay small: 16 KiB in all, no results of steps, and no event for each of thousands of runs."""

from typing import Any

from pydantic_core import to_json

from treadle.events.job_after import job_after
from treadle.events.pace import PAUSE_S, Pace
from treadle.events.ring import Ring
from treadle.model.events import PROGRESS, STEP_COMPLETED
from treadle.model.job import Job, from_ms
from treadle.model.status import Status
from treadle.store.views import Change

START = 1_700_000_000_000


def a_job(**values: Any) -> Job[Any]:
    when = from_ms(START)
    assert when
    given: dict[str, Any] = {
        "id": "01890000-0000-7000-8000-000000000001",
        "topic": "mail",
        "status": Status.PROCESSING,
        "payload": {},
        "run_at": when,
        "created_at": when,
        "updated_at": when,
    }
    return Job(**given | values)


def a_step(name: str, **values: Any) -> dict[str, Any]:
    step = {"id": name, "name": name, "status": "pending", "progress": 0, "message": None, "completedAt": None}
    return {**step, "error": None, "result": None, "resultSize": None, "items": None, **values}


def sent(job: Job[Any]) -> tuple[dict[str, Any], int]:
    ring = Ring()
    ring.add("job:progress", {"event": "job:progress", "at": "", "job": job.as_json()}, {})
    told = ring.get(ring.first)
    assert told.data == to_json(told.payload)
    return dict(told.payload), len(told.data)


def test_step_results_stay_out_of_events_however_small() -> None:
    job = a_job(steps=[a_step("one", status="completed", result={"a": 1}, resultSize=7)], result_value=5)
    payload, _ = sent(job)
    assert payload["job"]["steps"][0] == a_step("one", status="completed", resultSize=7)
    assert "truncated" not in payload
    assert job.steps[0]["result"] == {"a": 1}, "the job itself is as it was"


def test_the_bound_holds_for_the_whole_event() -> None:
    many = [a_step(f"step-{i}", error="e" * 500, message="m" * 200) for i in range(200)]
    longest = [a_step(f"{'s' * 95}{i}", status="s" * 200) for i in range(200)]
    for values in (
        {"payload": {"a": "x" * 20_000}},
        {"result_value": "x" * 20_000},
        {"last_error": "x" * 32_000},
        {"steps": many},
        {"steps": longest, "last_error": "x" * 32_000, "payload": {"a": "x" * 900_000}},
    ):
        payload, size = sent(a_job(**values))
        assert size <= 16 * 1024, values.keys()
        assert payload["truncated"] is True
        assert payload["job"]["truncated"] is True
        assert payload["job"]["id"]


def test_a_small_event_is_whole() -> None:
    payload, _ = sent(a_job(payload={"a": "x" * 10_000}, last_error="ValueError: x"))
    assert payload["job"]["payload"] == {"a": "x" * 10_000}
    assert "truncated" not in payload


def test_runs_of_a_step_with_keys_are_told_four_times_a_second() -> None:
    pace, job = Pace(), a_job()
    run = Change(STEP_COMPLETED, START, job, keyed=True)
    told = [i for i in range(1_000) if pace.admit(run, now=i / 1_000)]
    assert len(told) == 4
    assert pace.due(now=2.0) == [run], "the last one is told"


def test_steps_without_keys_and_ends_are_all_told() -> None:
    pace, job = Pace(), a_job()
    assert all(pace.admit(Change(STEP_COMPLETED, START, job), now=0.0) for _ in range(5))
    assert pace.admit(Change(STEP_COMPLETED, START, job, keyed=True), now=0.0)
    assert not pace.admit(Change(STEP_COMPLETED, START, job, keyed=True), now=PAUSE_S / 2)
    assert pace.admit(Change(PROGRESS, START, job), now=PAUSE_S / 2), "each kind has a pace of its own"
    assert pace.admit(Change("job:completed", START, job), now=PAUSE_S / 2)
    assert pace.due(now=9.0) == [], "the end has told it"


def test_progress_of_a_job_with_steps_never_jumps_back_when_it_goes_on() -> None:
    early, late = "2023-11-14T22:13:19.000Z", "2023-11-14T22:13:21.000Z"
    steps = [a_step("one", completedAt=early), a_step("two", completedAt=late)]
    ended = a_job(status=Status.COMPLETED, progress=100, attempt=2, steps=steps)
    half = a_job(status=Status.PROCESSING, progress=50, attempt=2, steps=[steps[0], a_step("two")])
    for to in (Status.WAITING, Status.PENDING, Status.PROCESSING):
        assert job_after(Change("job:x", START, half, to, 1))["progress"] == 50
        assert job_after(Change("job:x", START, ended, to, 1))["progress"] == 50


def test_a_plain_job_that_is_tried_again_begins_at_0() -> None:
    job = a_job(status=Status.PROCESSING, progress=60, attempt=2)
    assert job_after(Change("job:retrying", START, job, Status.PENDING, 1))["progress"] == 0
