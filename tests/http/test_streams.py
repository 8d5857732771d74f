"""Server-sent events from a real server: order, resuming, snapshots, and how streams end."""

import asyncio
import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from pydantic_core import to_json
from sse_starlette import ServerSentEvent

from tests.contract.crew import crew
from tests.http.live import Event, LiveServer, Reader, reading, server_process
from tests.queue.hands import Hands
from tests.waiting import until
from treadle import Queue
from treadle.accounts import Accounts, Passwords
from treadle.events.frames import frame
from treadle.events.ring import Ring
from treadle.http.origin import COOKIE
from treadle.http.streams import following, sse
from treadle.model.fields import JSON_NAMES

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "correct horse"
STREAM = "/api/jobs/stream"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue(url) as queue:
        yield queue


@pytest.fixture
async def sqlite_queue(sqlite_url: str) -> AsyncIterator[Queue]:
    """For tests that do not depend on the store."""
    async with Queue(sqlite_url) as queue:
        yield queue


@contextlib.asynccontextmanager
async def calling(base_url: str, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {} if token is None else {"Authorization": token}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=30) as client:
        yield client


async def superuser_token(queue: Queue) -> str:
    accounts = Accounts(queue.store, passwords=Passwords(QUICK))
    return await accounts.token(await accounts.upsert_superuser("root@sse.example", PASSWORD))


@pytest.fixture
async def live(queue: Queue) -> AsyncIterator[LiveServer]:
    async with LiveServer(queue.url) as server:
        yield server


@pytest.fixture
async def client(live: LiveServer, queue: Queue) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(live.base_url, await superuser_token(queue)) as client:
        yield client


def stories(events: list[Event]) -> dict[str, list[str]]:
    told: dict[str, list[str]] = defaultdict(list)
    for event in events:
        told[event.job_id].append(event.name.removeprefix("job:"))
    return told


def rising(events: list[Event]) -> bool:
    ids = [event.id or 0 for event in events]
    return ids == sorted(set(ids)) and 0 not in ids


# -- events ----------------------------------------------------------------------------------------------------------


async def test_the_life_of_a_job(client: httpx.AsyncClient, queue: Queue) -> None:
    async with reading(client, STREAM) as reader:
        job = await queue.enqueue("mail", {"to": "ann"})
        (enqueued,) = await reader.take(1)
        assert (enqueued.name, enqueued.data["event"]) == ("job:enqueued", "job:enqueued")
        assert enqueued.data.keys() == {"event", "at", "job"}
        assert enqueued.data["job"].keys() == JSON_NAMES
        assert (enqueued.data["job"]["id"], enqueued.data["job"]["status"]) == (job.id, "pending")
        await Hands(queue).do(job, {"sent": 1})
        started, completed = await reader.take(2)
        assert (started.name, started.data["job"]["status"]) == ("job:started", "processing")
        assert (completed.name, completed.data["job"]["status"]) == ("job:completed", "completed")
        assert completed.data["job"]["result"] == {"sent": 1}
        assert rising([enqueued, started, completed])


async def test_the_answer_is_for_streams(client: httpx.AsyncClient) -> None:
    async with reading(client, STREAM) as reader:
        headers = reader.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"


async def test_every_event_is_sent_once_and_in_order(client: httpx.AsyncClient, queue: Queue) -> None:
    hands = Hands(queue)
    done: dict[str, list[str]] = defaultdict(list)

    async def work() -> None:
        for number in range(40):
            for job in await queue.enqueue_many("mail", [{"n": number}] * 3):
                done[job.id] += ["enqueued"]
            for claimed in await hands.claim("mail", limit=3):
                await (hands.complete(claimed) if number % 4 else hands.fail(claimed))
                done[claimed.id] += ["started", "completed" if number % 4 else "failed"]
                if number % 5 == 0:
                    await queue.requeue(claimed.id, force=True)
                    done[claimed.id] += ["requeued"]
            if number % 3 == 0:
                other = await queue.enqueue("other")
                await queue.cancel(other.id)
                done[other.id] += ["enqueued", "cancelled"]
        done[(await queue.enqueue("end")).id] += ["enqueued"]

    async def until_the_end(reader: Reader) -> list[Event]:
        found: list[Event] = []
        while not found or found[-1].data["job"]["topic"] != "end":
            found += await reader.take(1)
        return found + await reader.take(len([name for story in done.values() for name in story]) - len(found))

    async with reading(client, STREAM) as reader, reading(client, STREAM) as second:
        told, told_too, _ = await asyncio.gather(until_the_end(reader), until_the_end(second), work())
    assert stories(told) == done
    assert told == told_too
    assert rising(told)


async def test_events_leave_out_large_payloads_and_results(client: httpx.AsyncClient, queue: Queue) -> None:
    async with reading(client, STREAM) as reader:
        await queue.enqueue("post", {"text": ""})
        (empty,) = await reader.take(1)
        room = 16 * 1024 - len(to_json(empty.data))
        small = await queue.enqueue("mail", {"text": "x" * room})
        (whole,) = await reader.take(1)
        assert len(to_json(whole.data)) == 16 * 1024, "with all that it carries"
        assert whole.data["job"]["payload"] == small.payload
        assert "truncated" not in whole.data
        large = await queue.enqueue("mail", {"text": "x" * (room + 1)})
        (enqueued,) = await reader.take(1)
        assert enqueued.data.keys() == {"event", "at", "job", "truncated"}
        assert enqueued.data["job"].keys() == {*JSON_NAMES, "truncated"}
        assert (enqueued.data["job"]["payload"], enqueued.data["job"]["result"]) == (None, None)
        assert (enqueued.data["truncated"], enqueued.data["job"]["truncated"]) == (True, True)
        await Hands(queue).do(small, "y" * 10_000)
        _, completed = await reader.take(2)
        assert (completed.data["job"]["payload"], completed.data["job"]["result"]) == (None, None)
    answer = (await client.get(f"/api/jobs/{large.id}")).json()
    assert answer["payload"] == large.payload
    assert "truncated" not in answer


async def test_a_rule_sees_a_payload_that_its_event_leaves_out(client: httpx.AsyncClient, queue: Queue) -> None:
    await client.patch("/api/settings", json={"jobs": {"manage_rule": "payload.owner = 'ann'"}})
    async with calling(str(client.base_url)) as anybody, reading(anybody, STREAM) as reader:
        for owner in ("bob", "ann"):
            job = await queue.enqueue("mail", {"owner": owner, "text": "x" * 20_000})
        (heard,) = await reader.take(1)
        assert (heard.job_id, heard.data["truncated"]) == (job.id, True)


async def test_progress_is_told_at_most_four_times_a_second(client: httpx.AsyncClient, queue: Queue) -> None:
    await queue.enqueue("mail")
    body = {"workerId": "w", "topics": ["mail"]}
    (job,) = (await client.post("/api/workers/claim", json=body)).json()["items"]
    async with reading(client, f"/api/jobs/{job['id']}/stream") as reader:
        begun = time.monotonic()
        for percent in range(100):
            report = {"token": job["token"], "percent": percent}
            await client.post(f"/api/workers/jobs/{job['id']}/progress", json=report)
            await queue.enqueue("other")  # wakes the feed
        heard = [-1]
        while heard[-1] != 99:
            (event,) = await reader.take(1)
            heard.append(event.data["job"]["progress"])
        lasted = time.monotonic() - begun
    assert heard == sorted(set(heard))
    assert len(heard) - 1 <= lasted / 0.25 + 2


async def test_a_deleted_job(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    async with reading(client, STREAM) as reader:
        await queue.delete(job.id)
        (deleted,) = await reader.take(1)
        assert deleted.name == "job:deleted"
        assert deleted.data == {"event": "job:deleted", "at": deleted.data["at"], "deletedJobId": job.id}


async def test_what_another_process_does(client: httpx.AsyncClient, queue: Queue) -> None:
    async with reading(client, STREAM) as reader:
        made, done = await crew(queue.url, "produce", [20]), await crew(queue.url, "drain", ["w1", "w2"])
        told = await reader.take(20, "job:completed")
    assert sorted(done[0] + done[1]) == sorted(made[0])
    assert stories(told) == {id: ["enqueued", "started", "completed"] for id in made[0]}
    assert rising(told)


async def test_a_ping_keeps_the_line_alive(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_S", 0.05)
    async with reading(client, STREAM) as reader:
        for _ in range(3):
            event = await reader.next()
            assert event
            assert (event.name, event.id, list(event.data)) == ("ping", None, ["at"])


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["header", "parameter"])
async def test_a_reader_who_comes_back_misses_nothing_and_hears_nothing_twice(
    client: httpx.AsyncClient, queue: Queue, by: str
) -> None:
    told: list[Event] = []
    ids: list[str] = []
    for turn in range(4):
        last = str(told[-1].id) if told else ""
        path = f"{STREAM}?lastEventId={last}" if by == "parameter" else f"{STREAM}?snapshot={turn > 0}"
        headers = {"Last-Event-ID": last} if last and by == "header" else {}
        async with reading(client, path, **headers) as reader:
            ids += [(await queue.enqueue("mail")).id for _ in range(5)]
            told += await reader.take(3)
        ids += [(await queue.enqueue("mail")).id for _ in range(2)]
    async with reading(client, STREAM, **{"Last-Event-ID": str(told[-1].id)}) as reader:
        told += await reader.take(len(ids) - len(told))
    assert [event.job_id for event in told] == ids
    assert rising(told)


async def test_even_one_who_had_heard_nothing_yet(client: httpx.AsyncClient, queue: Queue) -> None:
    async with reading(client, STREAM) as reader:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.next()
        assert reader.first_id
    job = await queue.enqueue("mail")
    async with reading(client, STREAM, **{"Last-Event-ID": str(reader.first_id)}) as reader:
        assert [event.job_id for event in await reader.take(1)] == [job.id]


@pytest.mark.parametrize("last", ["0", "1", "12345678901234567", "99999999999999999999999", "-5", "abc", "1.5", "é"])
async def test_an_unknown_id_gets_a_resync_and_a_snapshot(client: httpx.AsyncClient, queue: Queue, last: str) -> None:
    job = await queue.enqueue("mail")
    async with client.stream("GET", STREAM, headers=[(b"Last-Event-ID", last.encode())]) as response:
        reader = Reader(response)
        resync, snapshot = await reader.take(2)
        assert (resync.name, list(resync.data)) == ("resync", ["event", "at"])
        assert snapshot.name == "snapshot"
        assert [one["id"] for one in snapshot.data["jobs"]] == [job.id]
        after = await queue.enqueue("mail")
        assert [event.job_id for event in await reader.take(1)] == [after.id]
    async with reading(client, STREAM, **{"Last-Event-ID": str(snapshot.id)}) as reader:
        assert [event.job_id for event in await reader.take(1)] == [after.id]


async def test_an_id_that_the_ring_no_longer_has(live: LiveServer, client: httpx.AsyncClient, queue: Queue) -> None:
    live.feed._ring = Ring(most=5)
    async with reading(client, STREAM) as reader:
        await queue.enqueue_many("mail", [{}] * 3)
        told = await reader.take(3)
        await queue.enqueue_many("mail", [{}] * 4)
        told += await reader.take(4)
    async with reading(client, STREAM, **{"Last-Event-ID": str(told[0].id)}) as reader:
        resync, snapshot = await reader.take(2)
        assert (resync.name, snapshot.name, len(snapshot.data["jobs"])) == ("resync", "snapshot", 7)
    async with reading(client, STREAM, **{"Last-Event-ID": str(told[1].id)}) as reader:
        assert [event.id for event in await reader.take(5)] == [event.id for event in told[2:]]


async def test_another_servers_id_is_unknown(client: httpx.AsyncClient, queue: Queue) -> None:
    async with LiveServer(queue.url) as other, calling(other.base_url, client.headers["authorization"]) as second:
        async with reading(client, STREAM) as here, reading(second, STREAM) as there:
            await queue.enqueue("mail")
            (mine,), (theirs,) = await here.take(1), await there.take(1)
        assert mine.data == theirs.data
        async with reading(client, STREAM, **{"Last-Event-ID": str(theirs.id)}) as reader:
            assert (await reader.take(1))[0].name == ("job:enqueued" if theirs.id == mine.id else "resync")


# -- snapshots ---------------------------------------------------------------------------------------------------------


async def test_a_snapshot_comes_first(client: httpx.AsyncClient, queue: Queue) -> None:
    jobs = [await queue.enqueue("mail", {"n": n}) for n in range(3)]
    await Hands(queue).do(jobs[0])
    async with reading(client, f"{STREAM}?snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert (snapshot.name, list(snapshot.data)) == ("snapshot", ["jobs"])
        assert {one["id"]: one["status"] for one in snapshot.data["jobs"]} == {
            jobs[0].id: "completed",
            jobs[1].id: "pending",
            jobs[2].id: "pending",
        }
        assert snapshot.data["jobs"][0].keys() == JSON_NAMES
        await queue.cancel(jobs[1].id)
        (event,) = await reader.take(1)
        assert (event.name, event.job_id) == ("job:cancelled", jobs[1].id)


async def test_a_snapshot_holds_the_newest_jobs_up_to_4_mib(client: httpx.AsyncClient, queue: Queue) -> None:
    jobs = [await queue.enqueue("mail", {"n": n, "text": "x" * 900_000}) for n in range(6)]
    async with reading(client, f"{STREAM}?snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert snapshot.data["truncated"] is True
        assert [one["id"] for one in snapshot.data["jobs"]] == [job.id for job in jobs[:-5:-1]]
        await queue.cancel(jobs[0].id)
        assert (await reader.take(1))[0].job_id == jobs[0].id


async def test_a_snapshot_holds_1000_jobs(client: httpx.AsyncClient, queue: Queue) -> None:
    jobs = await queue.enqueue_many("mail", [{}] * 1000)
    async with reading(client, f"{STREAM}?snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert (len(snapshot.data["jobs"]), "truncated" in snapshot.data) == (1000, False)
    newest = await queue.enqueue("mail")
    async with reading(client, f"{STREAM}?snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        found = {one["id"] for one in snapshot.data["jobs"]}
        assert (len(found), newest.id in found, snapshot.data["truncated"]) == (1000, True, True)
        assert jobs[0].id not in found


async def test_a_snapshot_and_its_events_add_up(client: httpx.AsyncClient, queue: Queue) -> None:
    """A reader that joins at any time sees events that lead to the end state: no gap, no duplicate."""
    hands = Hands(queue)

    async def work() -> None:
        for _ in range(30):
            await queue.enqueue_many("mail", [{}] * 2)
            for claimed in await hands.claim("mail", limit=2):
                await hands.complete(claimed)
        await queue.cancel((await queue.enqueue("end")).id)

    def over(jobs: Iterable[Mapping[str, Any]]) -> bool:
        return any(job["topic"] == "end" and job["status"] == "cancelled" for job in jobs)

    async def follow(pause: float) -> dict[str, str]:
        await asyncio.sleep(pause)  # each comes at another moment
        async with reading(client, f"{STREAM}?snapshot=true") as reader:
            (snapshot,) = await reader.take(1)
            known = {one["id"]: one["status"] for one in snapshot.data["jobs"]}
            told = snapshot.data["jobs"]
            while not over(told):
                (event,) = await reader.take(1)
                told = [event.data["job"]]
                new = event.data["job"]["status"]
                assert (event.name == "job:enqueued") == (event.job_id not in known)
                # A job may be claimed, which is processing, before it is started.
                assert known.get(event.job_id) != new or event.name == "job:started"
                known[event.job_id] = new
            return known

    *known, _ = await asyncio.gather(*(follow(pause) for pause in (0.0, 0.05, 0.1, 0.2)), work())
    expected = {job.id: str(job.status) for job in await queue.list(limit=1000)}
    assert known == [expected] * 4


# -- one job -----------------------------------------------------------------------------------------------------------


async def test_the_stream_of_one_job_ends_with_it(client: httpx.AsyncClient, queue: Queue) -> None:
    other, job = await queue.enqueue("mail"), await queue.enqueue("mail")
    hands = Hands(queue)
    async with reading(client, f"/api/jobs/{job.id}/stream?snapshot=true") as reader:
        (snapshot,) = await reader.take(1)
        assert [one["id"] for one in snapshot.data["jobs"]] == [job.id]
        await queue.cancel(other.id)
        await hands.do(job)
        told = await reader.rest()
    assert [event.name for event in told] == ["job:started", "job:completed"]
    assert {event.job_id for event in told} == {job.id}
    answer = await client.get(f"/api/jobs/{job.id}/stream", headers={"Last-Event-ID": str(told[-1].id)})
    assert (answer.status_code, answer.content) == (204, b""), "all was told: no need to come back"
    async with reading(client, f"/api/jobs/{job.id}/stream", **{"Last-Event-ID": str(told[0].id)}) as reader:
        assert await reader.rest() == told[1:]


@pytest.mark.parametrize("end", ["cancel", "fail", "delete"])
async def test_every_ending_ends_it(client: httpx.AsyncClient, queue: Queue, end: str) -> None:
    job = await queue.enqueue("mail")
    hands = Hands(queue)
    async with reading(client, f"/api/jobs/{job.id}/stream") as reader:
        if end == "fail":
            await hands.fail(await hands.claim_one("mail"))
        else:
            await (queue.cancel(job.id) if end == "cancel" else queue.delete(job.id))
        told = await reader.rest()
    assert told[-1].name == {"cancel": "job:cancelled", "fail": "job:failed", "delete": "job:deleted"}[end]


async def test_a_job_that_has_ended_already(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    await Hands(queue).do(job)
    async with reading(client, f"/api/jobs/{job.id}/stream?snapshot=true") as reader:
        (snapshot,) = await reader.rest()
        assert snapshot.data["jobs"][0]["status"] == "completed"
    async with reading(client, f"/api/jobs/{job.id}/stream") as reader:
        assert await reader.rest() == []
    async with reading(client, f"/api/jobs/{job.id}/stream", **{"Last-Event-ID": "5"}) as reader:
        assert [event.name for event in await reader.rest()] == ["resync", "snapshot"]


@pytest.mark.parametrize("id", ["0190aaaa-0000-7000-8000-000000000000", "nonsense", "x" * 500])
async def test_no_such_job(client: httpx.AsyncClient, id: str) -> None:
    answer = await client.get(f"/api/jobs/{id}/stream")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


# -- who may -----------------------------------------------------------------------------------------------------------


async def users(queue: Queue, client: httpx.AsyncClient, rule: str) -> tuple[Accounts, dict[str, str], dict[str, str]]:
    """Ann and Bob: accounts, tokens, ids; the manage rule set."""
    accounts = Accounts(queue.store, passwords=Passwords(QUICK))
    made = {name: await accounts.create_user(f"{name}@sse.example", PASSWORD) for name in ("ann", "bob")}
    answer = await client.patch("/api/settings", json={"jobs": {"manage_rule": rule}})
    assert answer.status_code == 200, answer.text
    tokens = {name: await accounts.token(account) for name, account in made.items()}
    return accounts, tokens, {name: account.id for name, account in made.items()}


async def test_without_a_rule_only_superusers(client: httpx.AsyncClient, live: LiveServer, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    _, tokens, _ = await users(queue, client, "")
    for path in (STREAM, f"/api/jobs/{job.id}/stream"):
        async with calling(live.base_url) as nobody:
            assert (await nobody.get(path)).status_code == 401
        async with calling(live.base_url, tokens["ann"]) as ann:
            assert (await ann.get(path)).status_code == 403
        async with calling(live.base_url, "bad token") as bad:
            assert (await bad.get(path)).status_code == 401


async def test_everybody_hears_of_their_own_jobs_only(
    client: httpx.AsyncClient, live: LiveServer, queue: Queue
) -> None:
    _, tokens, ids = await users(queue, client, "createdBy = @request.auth.id")
    old = await queue.enqueue("mail", created_by=ids["ann"])
    await queue.enqueue("mail", created_by=ids["bob"])
    async with calling(live.base_url, tokens["ann"]) as ann, calling(live.base_url, tokens["bob"]) as bob:
        assert (await bob.get(f"/api/jobs/{old.id}/stream")).status_code == 404
        async with reading(ann, f"{STREAM}?snapshot=true") as reader:
            (snapshot,) = await reader.take(1)
            assert [one["id"] for one in snapshot.data["jobs"]] == [old.id]
            theirs = await queue.enqueue("mail", created_by=ids["bob"])
            mine = await queue.enqueue("mail", created_by=ids["ann"])
            told = await reader.take(1)
            await queue.delete(theirs.id)
            await queue.delete(mine.id)
            told += await reader.take(1)
            assert [(event.name, event.job_id) for event in told] == [
                ("job:enqueued", mine.id),
                ("job:deleted", mine.id),
            ]


async def test_a_rule_over_unknown_fields_hides_a_deleted_job(
    client: httpx.AsyncClient, live: LiveServer, queue: Queue
) -> None:
    _, tokens, _ = await users(queue, client, "payload.secret != true || topic = 'open'")
    async with calling(live.base_url, tokens["ann"]) as ann, reading(ann, STREAM) as reader:
        await queue.delete((await queue.enqueue("mail", {"secret": True})).id)
        shown = await queue.enqueue("open", {"secret": True})
        told = await reader.take(1)
        await queue.delete(shown.id)
        told += await reader.take(1)
        assert [(event.name, event.job_id) for event in told] == [("job:enqueued", shown.id), ("job:deleted", shown.id)]


async def test_a_changed_password_ends_the_stream(
    client: httpx.AsyncClient, live: LiveServer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.1)
    accounts, tokens, ids = await users(queue, client, "@request.auth.id != ''")
    async with (
        calling(live.base_url, tokens["ann"]) as ann,
        calling(live.base_url, tokens["bob"]) as bob,
        reading(ann, STREAM) as reader,
        reading(bob, STREAM) as other,
    ):
        await queue.enqueue("mail")
        await reader.take(1)
        await accounts.update_user(ids["ann"], password="another horse")
        assert await reader.rest() == []
        await queue.enqueue("mail")
        assert len(await other.take(2)) == 2


async def test_a_changed_rule_is_obeyed(
    client: httpx.AsyncClient, live: LiveServer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.1)
    _, tokens, _ = await users(queue, client, "@request.auth.id != ''")
    async with calling(live.base_url, tokens["ann"]) as ann, reading(ann, STREAM) as reader:
        await queue.enqueue("mail")
        await reader.take(1)
        await client.patch("/api/settings", json={"jobs": {"manage_rule": ""}})
        assert await reader.rest() == []


async def test_another_origins_page_cannot_use_the_cookie(
    client: httpx.AsyncClient, live: LiveServer, queue: Queue
) -> None:
    cookie = {"Cookie": f"{COOKIE}={client.headers['authorization']}"}
    async with calling(live.base_url) as browser:
        answer = await browser.get(STREAM, headers={**cookie, "Origin": "http://evil.example"})
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin")
        async with reading(browser, STREAM, **cookie, Origin=live.base_url) as reader:
            await queue.enqueue("mail")
            assert len(await reader.take(1)) == 1


async def test_head_opens_no_stream(client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    for path in (STREAM, f"/api/jobs/{job.id}/stream"):
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


# -- readers and servers that are slow or gone -------------------------------------------------------------------------


async def test_a_reader_who_is_too_slow_is_told_to_look_again(
    live: LiveServer, client: httpx.AsyncClient, queue: Queue
) -> None:
    live.feed._ring = Ring(most=50)
    text = "x" * 15_000  # about as much as an event can carry, so that many fill the buffers between server and reader
    async with reading(client, STREAM) as slow, reading(client, STREAM) as quick:
        ids = []
        for _ in range(30):
            ids += [job.id for job in await queue.enqueue_many("mail", [{"text": text}] * 30)]
            await quick.take(30)
        ids.append((await queue.enqueue("end")).id)
        await quick.take(1)
        heard: list[str] = []
        while True:
            (event,) = await slow.take(1)
            if event.name == "resync":
                break
            heard.append(event.job_id)
        assert heard == ids[: len(heard)]
        assert len(heard) < len(ids)
        (snapshot,) = await slow.take(1)
        assert snapshot.name == "snapshot"
        newest = {job["id"] for job in snapshot.data["jobs"]}
        assert snapshot.data["truncated"], "the jobs have more than 4 MiB"
        assert newest == set(ids[-len(newest) :])
        after = await queue.enqueue("mail")
        assert [one.job_id for one in await slow.take(1)] == [after.id]


async def test_a_reader_who_is_gone_leaves_nothing_behind(
    live: LiveServer, client: httpx.AsyncClient, queue: Queue
) -> None:
    for _ in range(5):
        async with reading(client, STREAM) as reader:
            await queue.enqueue("mail")
            await reader.take(1)
    await until(lambda: not live.feed._listeners)


@pytest.mark.every_store
async def test_a_stop_of_the_feed_ends_every_stream(live: LiveServer, client: httpx.AsyncClient, queue: Queue) -> None:
    job = await queue.enqueue("mail")
    async with reading(client, STREAM) as all_jobs, reading(client, f"/api/jobs/{job.id}/stream") as one_job:
        await asyncio.to_thread(lambda: live.in_loop(live.feed.stop()))
        assert await all_jobs.rest() == await one_job.rest() == []


async def test_a_server_that_is_told_to_stop_ends_its_streams_and_goes(sqlite_queue: Queue) -> None:
    token = await superuser_token(sqlite_queue)
    async with (
        server_process(sqlite_queue.url) as (process, address),
        calling(address, token) as client,
        reading(client, STREAM) as first,
        reading(client, STREAM) as second,
    ):
        await sqlite_queue.enqueue("mail")
        assert len(await first.take(1)) == len(await second.take(1)) == 1
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(httpx.RemoteProtocolError):  # hung up in the middle of a chunked answer
            assert await first.rest() == []
        with contextlib.suppress(httpx.RemoteProtocolError):
            assert await second.rest() == []
        await asyncio.wait_for(process.wait(), 60)


def test_a_frame_is_what_the_library_writes() -> None:
    for id in (None, 17):
        theirs = ServerSentEvent('{"a": "ü\\n"}', event="job:completed", id=None if id is None else str(id)).encode()
        assert frame("job:completed", '{"a": "ü\\n"}'.encode(), id) == theirs


# -- what only a real server shows -----------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/health", "/api/jobs", "/api/jobs/nothing", "/api/jobs/stream", "/nowhere"])
async def test_head_is_get_without_its_body(client: httpx.AsyncClient, path: str) -> None:
    """On one connection: what follows a HEAD must not be taken for its body."""
    for _ in range(3):
        head = await client.head(path)
        assert head.content == b""
        if "stream" not in path:
            answer = await client.get(path)
            assert (head.status_code, head.headers["content-length"]) == (
                answer.status_code,
                answer.headers["content-length"],
            )


async def test_a_head_leaves_no_trace_in_the_log(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    assert (await client.head("/api/health")).status_code == 200
    assert (await client.get("/api/health")).status_code == 200
    assert not [one for one in caplog.records if one.levelname in ("ERROR", "CRITICAL")]
