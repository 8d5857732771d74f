"""External workers: claim jobs, report on them, lose them."""

import asyncio
from base64 import urlsafe_b64decode
from datetime import datetime
from typing import Any

import pytest

from tests.faulty import faulty
from tests.http.api import Api, failure, opened
from tests.queue.hands import eventually
from tests.waiting import until
from treadle.queue.audit import AuditLog
from treadle.store.values import Moved
from treadle.testing.workbench import LEASES_ONLY

CLAIM = {"workerId": "rust-1", "topics": ["mail"]}


async def claim(api: Api, **more: Any) -> list[dict[str, Any]]:
    answer = await api.post("/api/workers/claim", {**CLAIM, **more})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def report(api: Api, job: dict[str, Any], verb: str, **body: Any) -> Any:
    return await api.post(f"/api/workers/jobs/{job['id']}/{verb}", {"token": job["token"], **body})


async def test_a_claimed_job_is_leased_to_its_worker(api: Api) -> None:
    made = await api.enqueue(payload={"a": 1})
    (job,) = await claim(api)
    assert (job["id"], job["status"], job["lockedBy"], job["attempt"]) == (made["id"], "processing", "rust-1", 1)
    assert job["payload"] == {"a": 1}
    assert isinstance(job["token"], str)
    assert job["startedAt"] is not None
    assert await claim(api) == []


async def test_a_token_is_128_random_bits_of_its_claim(api: Api) -> None:
    for _ in range(20):
        await api.enqueue()
    jobs = await claim(api, limit=20)
    tokens = [job["token"] for job in jobs]
    assert len({*tokens}) == 20
    assert all(len(urlsafe_b64decode(token + "==")) == 16 for token in tokens)
    numbers = [(await api.queue.get(job["id"])).token for job in jobs]
    for job, number in zip(jobs, numbers, strict=True):
        for guess in (str(number), *tokens):
            if guess != job["token"]:
                answer = await report(api, {**job, "token": guess}, "complete")
                assert failure(answer) == (409, "lease_lost")
    assert await api.queue.count(status="processing") == 20


async def test_a_claim_is_known_to_every_server_and_after_a_restart(url: str) -> None:
    async with opened(url) as api:
        await api.enqueue()
        (job,) = await claim(api)
        async with opened(url) as other:
            assert (await report(other, job, "heartbeat")).status_code == 200
    async with opened(url) as api:
        assert (await report(api, job, "complete")).json()["status"] == "completed"


async def test_complete(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api)
    done = await report(api, job, "complete", result={"size": 3})
    assert (done.status_code, done.json()["status"], done.json()["result"]) == (200, "completed", {"size": 3})
    assert done.json()["progress"] == 100
    assert failure(await report(api, job, "fail", error="late")) == (409, "lease_lost")


async def test_a_completion_that_is_said_twice_is_done(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api)
    done = (await report(api, job, "complete", result={"size": 3})).json()
    again = await report(api, job, "complete", result={"size": 3})
    assert (again.status_code, again.json()) == (200, done)
    other = {**job, "token": job["token"][::-1]}
    assert failure(await report(api, other, "complete")) == (409, "lease_lost")
    await api.post(f"/api/jobs/{job['id']}/requeue?force=true")
    assert failure(await report(api, job, "complete")) == (409, "lease_lost")
    lines = (await api.get("/metrics")).text.splitlines()
    assert 'treadle_jobs_ended_total{status="completed",topic="mail"} 1.0' in lines


async def test_of_two_different_endings_the_first_counts_and_the_other_is_told(api: Api) -> None:
    for _ in range(10):
        await api.enqueue()
        (job,) = await claim(api)
        await api.post(f"/api/jobs/{job['id']}/cancel")
        done, cancelled = await asyncio.gather(report(api, job, "complete"), report(api, job, "ack-cancel"))
        assert sorted([done.status_code, cancelled.status_code]) == [200, 409], (done.text, cancelled.text)
        ended = (await api.get(f"/api/jobs/{job['id']}")).json()["status"]
        assert ended == ("completed" if done.status_code == 200 else "cancelled")


async def test_a_worker_with_many_jobs_is_one_worker(api: Api) -> None:
    for topic in ("mail", "mail", "video"):
        await api.enqueue(topic)
    await claim(api, limit=2)
    await claim(api, topics=["video"], capabilities=["gpu"])
    await api.enqueue()
    await claim(api, workerId="go-1")
    await api.hands.arrive("mail")
    workers = (await api.get("/api/workers")).json()["items"]
    assert [(one["name"], one["running"]) for one in workers] == [("go-1", 1), ("hands", 0), ("rust-1", 3)]
    assert sorted(workers[2]["topics"]) == ["mail", "video"]
    assert workers[2]["capabilities"] == ["gpu"]


async def test_fail_tries_again_and_fatal_does_not(api: Api) -> None:
    await api.enqueue(priority=99)
    await api.enqueue()
    first, second = await claim(api, limit=2)
    failed = (await report(api, first, "fail", error="SMTP said no")).json()
    assert (failed["status"], failed["retries"], failed["lastError"]) == ("pending", 1, "SMTP said no")
    fatal = (await report(api, second, "fail", error="no such user", fatal=True)).json()
    assert (fatal["status"], fatal["errorType"]) == ("failed", "ExternalError")


@pytest.mark.every_store
async def test_their_endings_are_in_the_metrics(api: Api) -> None:
    for _ in range(3):
        await api.enqueue()
    one, two, three = await claim(api, limit=3)
    await report(api, one, "complete")
    await report(api, two, "fail", error="no such user", fatal=True)
    await report(api, three, "release")
    lines = (await api.get("/metrics")).text.splitlines()
    assert sorted(line for line in lines if line.startswith("treadle_jobs_ended_total")) == [
        'treadle_jobs_ended_total{status="completed",topic="mail"} 1.0',
        'treadle_jobs_ended_total{status="failed",topic="mail"} 1.0',
    ]


@pytest.mark.every_store
async def test_progress_and_heartbeat(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api)
    answer = (await report(api, job, "progress", percent=40.6, message="frame 4")).json()
    assert answer["cancelRequested"] is False
    seen = (await api.get(f"/api/jobs/{job['id']}")).json()
    assert (seen["progress"], seen["progressMessage"]) == (40, "frame 4")
    beat = (await report(api, job, "heartbeat")).json()
    assert datetime.fromisoformat(beat["lockedUntil"]) >= datetime.fromisoformat(job["lockedUntil"])


@pytest.mark.every_store
async def test_cancel_is_told_and_acknowledged(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api)
    assert failure(await report(api, job, "ack-cancel")) == (409, "wrong_state")
    await api.post(f"/api/jobs/{job['id']}/cancel", {"reason": "enough"})
    assert (await report(api, job, "heartbeat")).json()["cancelRequested"] is True
    assert (await report(api, job, "ack-cancel")).json()["status"] == "cancelled"


async def test_release_gives_the_attempt_back(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api)
    released = (await report(api, job, "release", reason="shutting down")).json()
    assert (released["status"], released["attempt"]) == ("pending", 0)
    (again,) = await claim(api)
    assert again["token"] != job["token"]
    assert failure(await report(api, job, "complete")) == (409, "lease_lost")
    assert (await report(api, again, "complete")).status_code == 200
    events = (await api.get(f"/api/jobs/{job['id']}/events")).json()["items"]
    told = [event["type"].removeprefix("job:") for event in events]
    assert told == ["enqueued", "started", "released", "started", "completed"]
    assert events[2]["metadata"]["startedAt"] == events[1]["createdAt"] == job["startedAt"]


@pytest.mark.parametrize("verb", ["heartbeat", "progress", "complete", "fail", "release", "ack-cancel"])
async def test_a_stale_token_changes_nothing(api: Api, verb: str) -> None:
    await api.enqueue()
    (job,) = await claim(api)
    bodies: dict[str, dict[str, Any]] = {"progress": {"percent": 1}, "fail": {"error": "x"}}
    more = bodies.get(verb, {})
    stale = {**job, "token": job["token"][::-1]}
    assert failure(await report(api, stale, verb, **more)) == (409, "lease_lost")
    assert (await api.queue.get(job["id"])).status == "processing"
    nobody = {**job, "id": "01890000-0000-7000-8000-000000000000"}
    assert failure(await report(api, nobody, verb, **more)) == (404, "not_found")
    for token in (1, 4, "1", "4", "x", str((await api.queue.get(job["id"])).token)):
        answer = await report(api, {**job, "token": token}, verb, **more)
        assert failure(answer) == (409, "lease_lost"), token
    malformed: list[Any] = [None, "", 1.5, [], "x" * 256]
    for token in malformed:
        answer = await report(api, {**job, "token": token}, verb, **more)
        assert answer.status_code == 400, (token, answer.text)


async def _reaped(api: Api) -> list[Moved]:
    return (await api.queue.store.reap(LEASES_ONLY)).moved


async def test_a_lease_that_ran_out_is_lost(url: str) -> None:
    async with opened(url, lease="50ms") as api:
        await api.enqueue()
        (job,) = await claim(api)
        await until(lambda: _reaped(api))
        assert failure(await report(api, job, "complete")) == (409, "lease_lost")
        assert (await api.queue.get(job["id"])).status == "pending"


async def test_the_heartbeat_of_one_job_keeps_no_other(url: str) -> None:
    async with opened(url, lease="300ms") as api:
        await api.enqueue()
        await api.enqueue()
        kept, lost = await claim(api, limit=2)

        async def reaped() -> list[Moved]:
            assert (await report(api, kept, "heartbeat")).status_code == 200
            return await _reaped(api)

        moved = await until(reaped)
        assert [one.id for one in moved] == [lost["id"]]


def held_s(moment: datetime, until: str) -> float:
    return (datetime.fromisoformat(until) - moment).total_seconds()


async def test_a_worker_says_how_long_its_lease_is(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api, lease="30s")
    claimed = datetime.fromisoformat(job["claimedAt"])
    assert 30 <= held_s(claimed, job["lockedUntil"]) < 40
    assert 30 <= held_s(claimed, (await report(api, job, "heartbeat")).json()["lockedUntil"]) < 60, "as long again"
    longer = (await report(api, job, "heartbeat", lease="1h")).json()["lockedUntil"]
    assert 3600 <= held_s(claimed, longer) < 3660
    assert (await api.get(f"/api/jobs/{job['id']}")).json()["lockedUntil"] == longer
    kept = (await report(api, job, "progress", percent=5)).json()["lockedUntil"]
    assert 3600 <= held_s(claimed, kept) < 3660, "progress keeps the length too"
    shorter = (await report(api, job, "heartbeat", lease=5)).json()["lockedUntil"]
    assert 5 <= held_s(claimed, shorter) < 60


async def test_without_a_lease_the_servers_counts(api: Api) -> None:
    await api.enqueue()
    (job,) = await claim(api, lease=None)
    assert 300 <= held_s(datetime.fromisoformat(job["claimedAt"]), job["lockedUntil"]) < 310


@pytest.mark.parametrize("lease", ["4999ms", "3601s", 0, -5, "soon", 1e300, True])
async def test_a_lease_is_between_five_seconds_and_an_hour(sqlite_api: Api, lease: Any) -> None:
    await sqlite_api.enqueue()
    (job,) = await claim(sqlite_api)
    for answer in (
        await sqlite_api.post("/api/workers/claim", {**CLAIM, "lease": lease}),
        await report(sqlite_api, job, "heartbeat", lease=lease),
    ):
        assert answer.status_code == 400, answer.text
        assert "lease" in answer.json()["data"]


async def test_a_claim_waits_for_a_job(api: Api) -> None:
    waiting = asyncio.create_task(claim(api, wait="30s"))
    store: Any = api.queue.store
    await eventually(lambda: store.hub._waiting)
    made = await api.enqueue()
    (job,) = await asyncio.wait_for(waiting, 60)
    assert job["id"] == made["id"]


async def test_a_claim_waits_for_a_delayed_job(api: Api) -> None:
    made = await api.enqueue(delay="100ms")
    (job,) = await claim(api, wait="30s")
    assert job["id"] == made["id"]


async def test_a_claim_without_luck_ends_and_leaves_no_worker_behind(api: Api) -> None:
    assert await claim(api, wait="30ms") == []
    assert await api.queue.store.workers() == []


async def test_only_its_topics_and_capabilities(api: Api) -> None:
    await api.enqueue("other")
    await api.enqueue(capability="gpu")
    assert await claim(api) == []
    (job,) = await claim(api, capabilities=["gpu"])
    assert job["capability"] == "gpu"


async def test_who_works(api: Api) -> None:
    await api.enqueue()
    await claim(api, capabilities=["gpu"])
    (worker,) = (await api.get("/api/workers")).json()["items"]
    assert (worker["name"], worker["topics"], worker["capabilities"], worker["running"]) == (
        "rust-1",
        ["mail"],
        ["gpu"],
        1,
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"workerId": "w"},
        {"workerId": "w", "topics": []},
        {"workerId": "", "topics": ["mail"]},
        {"workerId": "w", "topics": ["../x"]},
        {"workerId": "w", "topics": ["mail"], "wait": "-1s"},
        {"workerId": "w", "topics": ["mail"], "wait": "soon"},
        {"workerId": "w\u0007", "topics": ["mail"]},
        {"workerId": "w", "topics": ["mail"], "extra": 1},
    ],
)
async def test_a_claim_that_makes_no_sense(sqlite_api: Api, body: dict[str, Any]) -> None:
    answer = await sqlite_api.post("/api/workers/claim", body)
    assert failure(answer)[0] == 400
    assert answer.json()["data"]


async def test_who_waits_for_a_job_is_a_live_worker(api: Api) -> None:
    job = await api.enqueue(delay="1h")
    reasons = (await api.get(f"/api/jobs/{job['id']}/why")).json()["reasons"]
    assert any("no live worker" in reason for reason in reasons)
    waiting = asyncio.create_task(claim(api, wait="20s"))
    await eventually(lambda: live(api))
    reasons = (await api.get(f"/api/jobs/{job['id']}/why")).json()["reasons"]
    assert not any("no live worker" in reason for reason in reasons)
    await api.patch(f"/api/jobs/{job['id']}", {"runAt": job["createdAt"]})
    (claimed,) = await waiting
    assert claimed["id"] == job["id"]
    left = datetime.fromisoformat(claimed["lockedUntil"]) - datetime.fromisoformat(claimed["claimedAt"])
    assert abs(left.total_seconds() - 300) < 5
    await report(api, claimed, "complete")
    assert await claim(api) == []
    assert not await live(api)


async def live(api: Api) -> bool:
    return bool((await api.get("/api/workers")).json()["items"])


async def test_a_lease_that_ends_while_its_worker_waits(api: Api) -> None:
    """The database's clock was set, or this machine slept: the worker need not know."""
    waiting = asyncio.create_task(claim(api, wait="20s"))
    await eventually(lambda: live(api))
    for number in range(1, 50):
        await api.queue.store.close_lease(number)
    job = await api.enqueue()
    assert [one["id"] for one in await waiting] == [job["id"]]


@pytest.mark.parametrize("verb", ["touch", "get"])
async def test_a_claim_that_breaks_off_gives_its_jobs_back(api: Api, verb: str) -> None:
    await api.enqueue()
    faults = faulty(api.queue)
    faults.fail(verb)
    assert failure(await api.post("/api/workers/claim", CLAIM))[0] == 503
    faults.heal()
    assert not await live(api)


@pytest.mark.every_store
async def test_a_worker_is_asked_to_drain(api: Api) -> None:
    serves = {"topics": ["mail"], "capabilities": [], "slots": 3}
    await api.queue.store.open_lease("host:1/a", 60_000, serves)
    assert [one["draining"] for one in (await api.get("/api/workers")).json()["items"]] == [False]
    assert (await api.post("/api/workers/host:1%2Fa/drain")).status_code == 204
    assert [one["draining"] for one in (await api.get("/api/workers")).json()["items"]] == [True]
    assert (await api.post("/api/workers/host:1%2Fa/undrain")).status_code == 204
    assert [one["draining"] for one in (await api.get("/api/workers")).json()["items"]] == [False]
    assert failure(await api.post("/api/workers/nobody/undrain")) == (404, "not_found")
    assert failure(await api.post("/api/workers/host:1%2Fa/undrain", as_="ann")) == (403, "forbidden")
    logged = [(one.action, one.target) for one in await AuditLog(api.queue).newest()]
    assert logged == [("undrain", "host:1/a"), ("drain", "host:1/a")]
    assert failure(await api.post("/api/workers/nobody/drain")) == (404, "not_found")
    assert failure(await api.post("/api/workers/nobody/drain", {"now": True})) == (400, "unknown_parameter")
    assert failure(await api.post("/api/workers/host:1%2Fa/drain", as_="ann")) == (403, "forbidden")
    assert failure(await api.post("/api/workers/host:1%2Fa/drain", as_=None)) == (401, "unauthorized")
