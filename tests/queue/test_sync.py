"""`queue.sync`: the same methods, blocking, from any thread."""

import asyncio
import inspect
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.queue.hands import Hands
from treadle import (
    InvalidInput,
    InvalidPayload,
    Job,
    JobFailed,
    JobNotFound,
    JobRequest,
    Queue,
    ResultTimeout,
    Status,
    StoreUnavailable,
    WrongState,
)
from treadle.queue.sync import FORWARDED, SyncJob, SyncQueue
from treadle.store.sql.migrate import migrations

pytestmark = pytest.mark.every_store

NOT_FORWARDED = {"close"}  # ends the thread too, so it is written by hand


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    queue = Queue(url)
    yield queue
    queue.sync.close()


def work_one(queue: Queue, result: Any = None, fail: bool = False) -> str:
    """Claim the next job of `mail` and end it, on the loop of `queue.sync`."""

    async def work() -> str:
        hands = Hands(queue)
        claimed = await hands.claim_one("mail")
        await (hands.fail(claimed) if fail else hands.complete(claimed, result))
        return claimed.id

    return queue.sync._run(work())


# -- the same face -----------------------------------------------------------------------------------------------


def public_coroutines() -> set[str]:
    return {name for name, method in inspect.getmembers(Queue, inspect.iscoroutinefunction) if not name.startswith("_")}


def test_every_method_is_there() -> None:
    assert set(FORWARDED) | NOT_FORWARDED == public_coroutines()


@pytest.mark.parametrize("name", sorted(public_coroutines()))
def test_signatures_and_documentation_are_the_same(name: str) -> None:
    blocking, coroutine = getattr(SyncQueue, name), getattr(Queue, name)
    assert not inspect.iscoroutinefunction(blocking)
    expected, actual = inspect.signature(coroutine), inspect.signature(blocking)
    assert list(actual.parameters.values())[1:] == list(expected.parameters.values())[1:]
    assert actual.return_annotation == expected.return_annotation
    if name not in NOT_FORWARDED:
        assert blocking.__doc__ == coroutine.__doc__


# -- every method --------------------------------------------------------------------------------------------------


def test_enqueue_and_look(queue: Queue) -> None:
    job = queue.sync.enqueue("mail", {"n": 1}, priority="high", scope="user", scope_id="u")
    assert isinstance(job, Job)
    assert queue.sync.get(job.id).priority == 75
    many = queue.sync.enqueue_many("mail", [{"n": n} for n in range(3)])
    mixed = queue.sync.enqueue_many([JobRequest("mail"), JobRequest("report")])
    assert [one.topic for one in mixed] == ["mail", "report"]
    assert len(queue.sync.list()) == queue.sync.count() == 6
    assert [one.id for one in queue.sync.list(topic="mail", scope="user")] == [job.id]
    assert queue.sync.stats(topic="mail").pending == 5
    assert [event.type for event in queue.sync.events(job.id)] == ["job:enqueued"]
    assert queue.sync.why(many[0].id) == ["no live worker serves topic mail"]
    assert [topic.topic for topic in queue.sync.topics()] == ["mail", "report"]


def test_steer(queue: Queue) -> None:
    job = queue.sync.enqueue("mail")
    assert queue.sync.cancel(job.id, "enough").status is Status.CANCELLED
    assert queue.sync.requeue(job.id).status is Status.PENDING
    when = datetime.now(UTC) + timedelta(hours=1)
    assert queue.sync.reschedule(job.id, run_at=when, priority=1).priority == 1
    with pytest.raises(WrongState):
        queue.sync.release(job.id)
    queue.sync.pause("mail")
    queue.sync.resume("mail")
    queue.sync.delete(job.id)
    with pytest.raises(JobNotFound):
        queue.sync.get(job.id)


def test_results(queue: Queue) -> None:
    job = queue.sync.enqueue("mail")
    with pytest.raises(ResultTimeout):
        queue.sync.result(job.id, timeout="20ms")
    work_one(queue, {"sent": 1})
    assert queue.sync.result(job.id) == {"sent": 1}
    failed = queue.sync.enqueue("mail")
    work_one(queue, fail=True)
    with pytest.raises(JobFailed):
        queue.sync.result(failed.id)


@pytest.mark.empty_database
def test_migrate_open_and_save_templates(queue: Queue) -> None:
    assert queue.sync.migrate() == [one.name for one in migrations("sqlite")]
    assert queue.sync.open() is queue
    queue.register("mail", lambda: None)
    queue.sync.save_templates()
    assert [topic.topic for topic in queue.sync.topics()] == ["mail"]


def test_errors_are_the_same(queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        queue.sync.enqueue("mail", [1])
    with pytest.raises(InvalidInput, match="topic"):
        queue.sync.enqueue("No Topic")
    with pytest.raises(TypeError):
        queue.sync.enqueue()  # type: ignore[call-overload]


# -- threads, loops, closing -----------------------------------------------------------------------------------------


def test_any_number_of_threads(queue: Queue) -> None:
    def many(n: int) -> list[str]:
        return [queue.sync.enqueue("mail", {"n": n}).id for _ in range(10)]

    with ThreadPoolExecutor(16) as threads:
        ids = {id for some in threads.map(many, range(16)) for id in some}
    assert len(ids) == queue.sync.count() == 160


def test_one_thread_waits_while_others_work(queue: Queue) -> None:
    job = queue.sync.enqueue("mail")
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(queue.sync.result, job.id, "20s")
        work_one(queue, 5)
        assert waiting.result(timeout=60) == 5


def test_the_context_manager_and_use_after_closing(url: str) -> None:
    queue = Queue(url)
    with queue.sync as sync:
        job = sync.enqueue("mail")
    assert not [thread for thread in threading.enumerate() if thread.name == "treadle-sync"]
    assert queue.sync.get(job.id).id == job.id
    queue.sync.close()
    queue.sync.close()


def test_a_thread_that_waits_when_the_queue_closes_is_told(queue: Queue) -> None:
    job = queue.sync.enqueue("mail")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.sync.result, job.id)
        while queue.sync._run(tasks()) < 2:
            pass
        queue.sync.close()
        with pytest.raises(StoreUnavailable, match="closed during the call"):
            waiting.result(timeout=60)


def test_work_runs_a_worker_until_the_queue_is_closed(queue: Queue) -> None:
    queue.register("mail", lambda: "sent")
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(queue.sync.work, poll_interval="50ms")
        job = queue.sync.enqueue("mail")
        assert queue.sync.result(job.id, timeout="20s") == "sent"
        queue.sync.close()
        with pytest.raises(StoreUnavailable, match="closed during the call"):
            working.result(timeout=60)
    assert queue.sync.stats().processing == 0


async def tasks() -> int:
    return len(asyncio.all_tasks())


async def test_next_to_an_event_loop(url: str) -> None:
    """An async program may call blocking code that uses `queue.sync`: both faces, one queue."""
    async with Queue(url) as queue:
        first = await asyncio.to_thread(queue.sync.enqueue, "mail", {"n": 1})
        second = queue.sync.enqueue("mail", {"n": 2})
        assert [job.id for job in await queue.list()] == [second.id, first.id]
        assert (await queue.get(second.id)).payload == {"n": 2}
        queue.sync.close()


def test_not_on_its_own_loop(queue: Queue) -> None:
    async def inside() -> None:
        queue.sync.count()

    with pytest.raises(InvalidInput, match="can't be used on its own event loop"):
        queue.sync._run(inside())


# -- its jobs ------------------------------------------------------------------------------------------------------


def test_a_job_from_here_has_blocking_methods(queue: Queue) -> None:
    job = queue.sync.enqueue("mail", {"n": 1})
    assert isinstance(job, SyncJob)
    assert job.why() == ["no live worker serves topic mail"]
    assert job.cancel("enough").status is Status.CANCELLED
    assert job.refresh().cancel_reason == "enough"
    assert [event.type for event in job.events()] == ["job:enqueued", "job:cancelled"]
    assert job.requeue().status is Status.PENDING
    work_one(queue, {"sent": 1})
    assert job.result("60s") == {"sent": 1}
    job.delete(force=True)
    with pytest.raises(JobNotFound):
        job.refresh()


def test_every_job_from_here_is_one(queue: Queue) -> None:
    made = queue.sync.enqueue_many("mail", [{"n": n} for n in range(3)])
    found = [*made, *queue.sync.list(), queue.sync.get(made[0].id), queue.sync.cancel(made[0].id)]
    assert {type(job) for job in found} == {SyncJob}
    assert {type(job.refresh()) for job in found} == {SyncJob}
    assert made[2].payload == {"n": 2}


async def test_every_method_of_a_job_is_there() -> None:
    methods = {name for name, one in vars(Job).items() if inspect.iscoroutinefunction(one)} | {"watch"}
    assert methods <= set(vars(SyncJob))
    for name in methods:
        assert not inspect.iscoroutinefunction(getattr(SyncJob, name))
        expected, actual = (inspect.signature(getattr(kind, name)) for kind in (Job, SyncJob))
        assert list(actual.parameters.values()) == list(expected.parameters.values())


def test_a_job_is_watched_until_it_has_ended(queue: Queue) -> None:
    job = queue.sync.enqueue("mail")
    seen = job.watch()
    assert next(seen).status is Status.PENDING
    work_one(queue, 5)
    last = list(seen)[-1]
    assert (type(last), last.status, last.result_value) == (SyncJob, Status.COMPLETED, 5)


def test_events_are_streamed_until_the_reader_leaves(queue: Queue) -> None:
    queue.sync.enqueue("mail", {"n": 1})
    events = queue.sync.stream(snapshot=True)
    assert [job["payload"] for job in next(events)["jobs"]] == [{"n": 1}]
    queue.sync.enqueue("mail", {"n": 2})
    told = next(events)
    assert (told["event"], told["job"]["payload"]) == ("job:enqueued", {"n": 2})
    events.close()
    text = next(queue.sync.stream(format="sse", snapshot=True))
    assert b"event: snapshot\r\ndata: {" in text
    assert queue.sync._run(listeners(queue)) == 0


async def listeners(queue: Queue) -> int:
    return queue.feed._listeners


# -- enqueue in the caller's own thread ------------------------------------------------------------------------


def test_a_second_enqueue_on_sqlite_needs_no_other_thread(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(sqlite_url)

    @queue.job(dedupe_keys=["n"])
    def once(n: int) -> None: ...

    queue.sync.enqueue("mail", {"n": 1})
    writer = queue.sync._run(opened(queue)).engine
    while writer._in_use.locked():
        pass  # it answers a moment before it is free

    def refused(work: Any) -> None:
        work.close()
        raise AssertionError("handed over to the loop")

    with monkeypatch.context() as patch:
        patch.setattr(queue.sync, "_run", refused)
        job = queue.sync.enqueue("mail", {"n": 2}, delay="1h", priority="high")
        first = once.sync.enqueue(1)
        with pytest.raises(InvalidPayload):
            queue.sync.enqueue("mail", [1])
        with pytest.raises(InvalidInput, match="use delay="):
            queue.sync.enqueue("mail", countdown=5)  # type: ignore[call-overload]
    assert job.as_json() == queue.sync.get(job.id).as_json()
    assert (job.priority, queue.sync.stats().pending) == (75, 3)
    again = once.sync.enqueue(1)
    assert (again.id, again.deduplicated) == (first.id, True)
    queue.sync.close()


def test_while_others_write_an_enqueue_joins_their_commit(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(sqlite_url)
    queue.sync.enqueue("mail")
    writer, run = queue.sync._run(opened(queue)).engine, queue.sync._run
    handed_over = threading.Event()

    def noted(work: Any) -> Any:
        handed_over.set()
        return run(work)

    monkeypatch.setattr(queue.sync, "_run", noted)
    with ThreadPoolExecutor(1) as threads:
        with writer._in_use:
            waiting = threads.submit(queue.sync.enqueue, "mail")
            assert handed_over.wait(20)
        assert waiting.result(timeout=60).status is Status.PENDING
    assert queue.sync.count() == 2
    queue.sync.close()


def test_an_open_transaction_elsewhere_is_waited_for(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    queue.sync.enqueue("mail")
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(queue.sync.enqueue, "mail", {"n": n}) for n in range(4)]
        assert not any(one.done() for one in waiting)
        assert queue.sync.count() == 1, "reads go on"
        connection.execute("COMMIT")
        connection.close()
        assert len({one.result(timeout=60).id for one in waiting}) == 4
    assert queue.sync.count() == 5
    queue.sync.close()


async def opened(queue: Queue) -> Any:
    return queue.store


def test_a_worker_in_this_process_is_told_of_it(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    queue.register("mail", lambda: "sent")
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(queue.sync.work, poll_interval="1h")
        queue.sync.enqueue("mail").result("60s")
        for _ in range(3):
            assert queue.sync.enqueue("mail").result("60s") == "sent"
        queue.sync.close()
        with pytest.raises(StoreUnavailable):
            working.result(timeout=60)


FORKED = """
import os, sys, warnings
from treadle import Queue

warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads: that is what happens here
queue = Queue(sys.argv[1])
for n in range(3):
    queue.sync.enqueue("mail", {"who": "parent", "n": n})
direct = queue.sync._direct
child = os.fork()
for n in range(3):
    queue.sync.enqueue("mail", {"who": "parent again" if child else "child", "n": n})
if child:
    assert queue.sync._direct is direct
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.sync.close()
else:
    assert queue.sync._direct
    assert queue.sync._direct is not direct, "the child writes on the connection of its parent"
os._exit(0)
"""


def test_a_fork_writes_on_its_own_connection(sqlite_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, sqlite_url], timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with Queue(sqlite_url).sync as queue:
        made = Counter(job.payload["who"] for job in queue.list())
    assert made == {"parent": 3, "parent again": 3, "child": 3}


def test_many_threads_enqueue_and_each_job_is_stored_once(queue: Queue) -> None:
    queue.sync.enqueue("mail", {"n": -1})
    with ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(lambda n: queue.sync.enqueue("mail", {"n": n}), range(200), timeout=60))
    assert len({job.id for job in jobs}) == 200
    stored = {job.id: job.payload for job in queue.sync.list(limit=1000)}
    assert len(stored) == 201
    assert all(stored[job.id] == {"n": n} for n, job in enumerate(jobs))


async def test_a_blocking_enqueue_inside_another_event_loop(url: str) -> None:
    queue = Queue(url)
    jobs = [queue.sync.enqueue("mail", {"n": n}) for n in range(3)]
    assert {job.id for job in jobs} == {job.id for job in queue.sync.list()}
    queue.sync.close()


async def test_a_handler_in_a_thread_enqueues_by_the_blocking_queue(url: str) -> None:
    async with Queue(url) as queue:

        @queue.job
        def parent(n: int) -> list[str]:
            return [child.sync.enqueue(i).id for i in range(n)]

        @queue.job
        def child(i: int) -> int:
            return i

        job = await parent.enqueue(3)
        await queue.run_until_empty()
        assert [(await queue.get(one)).result_value for one in await job.result()] == [0, 1, 2]
        await asyncio.to_thread(queue.sync.close)


def test_after_closing_it_opens_again(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    for _ in range(2):
        for _ in range(3):
            queue.sync.enqueue("mail")
        queue.sync.close()
    assert queue.sync.count() == 6
    queue.sync.close()


# -- the caller's connection (every kind of driver is in test_transactions.py) ---------------------------------


def test_a_blocking_connection_is_used_in_the_callers_thread(sqlite_url: str) -> None:
    """sqlite3 objects may only be used in the thread that made them: the best proof of where it runs."""
    queue = Queue(sqlite_url)
    queue.sync.open()
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    job = queue.sync.enqueue("mail", {"n": 1}, connection=connection)
    many = queue.sync.enqueue_many("mail", [{"n": 2}, {"n": 3}], connection=connection)
    assert queue.sync.count() == 0
    connection.commit()
    connection.close()
    assert {one.id for one in queue.sync.list()} == {job.id, *(one.id for one in many)}
    queue.sync.close()


def test_policies_hold_there_too(sqlite_url: str) -> None:
    author = Queue(sqlite_url)
    author.register("mail", lambda: None, dedupe_keys=["user"], priority="high")
    author.sync.open()
    other = Queue(sqlite_url)
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    jobs = other.sync.enqueue_many(
        [JobRequest("mail", {"user": 1}), JobRequest("mail", {"user": 1})], connection=connection
    )
    again = other.sync.enqueue("mail", {"user": 1}, connection=connection)
    assert {job.id for job in [*jobs, again]} == {jobs[0].id}
    assert (jobs[0].priority, again.deduplicated) == (75, True)
    connection.commit()
    connection.close()
    assert other.sync.count() == 1
    author.sync.close()
    other.sync.close()


def test_a_job_made_there_belongs_to_the_queue(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    queue.sync.open()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        job = queue.sync.enqueue("mail", connection=connection)
    connection.close()
    assert job.refresh().id == job.id
    queue.sync.close()


def test_refresh_brings_a_blocking_job_up_to_date(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    job = queue.sync.enqueue("mail")
    queue.sync.cancel(job.id)
    assert job.refresh().status == "cancelled"
    assert job.status == "cancelled"
    assert job.requeue().status == "pending"  # still a blocking one
    queue.sync.close()
