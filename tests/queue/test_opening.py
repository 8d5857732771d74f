"""Opening and closing, several event loops, several threads, several processes."""

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from asgiref.sync import async_to_sync

from tests.contract.relational import RelationalDatabase
from tests.queue.hands import Hands
from tests.waiting import give_way
from treadle import InvalidInput, Job, Queue, SchemaMismatch, Status, StoreUnavailable
from treadle.store.protocol import Store
from treadle.store.sql.migrate import migrations


@pytest.mark.empty_database
async def test_a_queue_opens_by_itself_at_the_first_use(url: str) -> None:
    queue = Queue(url)
    job = await queue.enqueue("mail")
    assert (await queue.get(job.id)).status is Status.PENDING
    await queue.close()


async def test_the_context_manager_opens_and_closes(url: str) -> None:
    async with Queue(url) as queue:
        store = queue.store
        await queue.enqueue("mail")
    with pytest.raises(StoreUnavailable, match="open"):
        await store.now()
    with pytest.raises(InvalidInput, match="not open here"):
        _ = queue.store


async def test_opening_twice_and_closing_twice_do_nothing_more(url: str) -> None:
    queue = Queue(url)
    assert await queue.open() is queue
    store = queue.store
    await asyncio.gather(*(queue.open() for _ in range(5)))
    assert queue.store is store
    await queue.close()
    await queue.close()


async def test_a_queue_that_was_closed_opens_again_at_the_next_use(url: str) -> None:
    queue = Queue(url)
    job = await queue.enqueue("mail")
    await queue.close()
    assert (await queue.get(job.id)).id == job.id
    await queue.close()


async def test_closing_waits_for_what_was_enqueued(url: str) -> None:
    async with Queue(url) as queue:
        waiting = [asyncio.create_task(queue.enqueue("mail", {"n": n})) for n in range(50)]
        await give_way()
        jobs = await asyncio.gather(*waiting)
    async with Queue(url) as queue:
        assert await queue.count() == len(jobs) == 50


async def test_what_is_under_way_when_the_queue_closes_is_told(url: str) -> None:
    queue = await Queue(url).open()
    waiting = [asyncio.create_task(queue.enqueue("mail", {"n": n})) for n in range(200)]
    await give_way()
    await queue.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    made = {answer.id for answer in answers if isinstance(answer, Job)}
    assert all(isinstance(answer, Job | StoreUnavailable) for answer in answers)
    async with Queue(url) as queue:
        stored = {job.id for job in await queue.list(limit=1000)}
    assert made <= stored
    await queue.close()


@pytest.mark.parametrize("url", ["", "jobs.db", "mysql://localhost/x", "sqlite://jobs.db", "sqlite:///", "nonsense"])
def test_a_bad_url_is_refused_immediately(url: str) -> None:
    with pytest.raises(InvalidInput):
        Queue(url)


def test_a_database_in_memory_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidInput, match="a file in a temporary folder, or the fixture treadle_queue"):
        Queue("sqlite:///:memory:")


def test_a_bad_setting_is_refused_immediately() -> None:
    with pytest.raises(InvalidInput, match="'slot' is not a setting"):
        Queue("sqlite:///jobs.db", slot=5)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.write_text("this is not a database" * 100)
    with pytest.raises(InvalidInput, match="is not a SQLite database"):
        await Queue(f"sqlite:///{file}").open()


async def test_a_database_that_can_not_be_reached_is_said_and_can_be_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(url)
    reachable = queue.new_store
    monkeypatch.setattr(queue, "new_store", Queue("postgresql://nobody@127.0.0.1:1/none").new_store)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
            await queue.enqueue("mail")
    monkeypatch.setattr(queue, "new_store", reachable)
    assert (await queue.enqueue("mail")).status is Status.PENDING
    await queue.close()


@pytest.mark.empty_database
async def test_without_migrating_an_empty_database_is_refused(url: str) -> None:
    with pytest.raises(SchemaMismatch, match="run treadle migrate"):
        await Queue(url, migrate=False).open()


@pytest.mark.empty_database
async def test_migrate_says_what_it_applied(url: str) -> None:
    queue = Queue(url, migrate=False)
    assert await queue.migrate() == [one.name for one in migrations("sqlite")]
    assert await queue.migrate() == []
    async with queue:
        await queue.enqueue("mail")


async def test_a_database_newer_than_the_code_is_refused(url: str) -> None:
    queue = Queue(url)
    await queue.migrate()
    await RelationalDatabase(url).execute("INSERT INTO {migrations} VALUES (9999, 'from_the_future', '2100-01-01')")
    for call in (queue.open, queue.migrate):
        with pytest.raises(SchemaMismatch, match="the database has migration 9999"):
            await call()


async def test_another_database_may_be_chosen_before_the_first_use(tmp_path: Path, url: str) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/other.db")
    queue.use(url)
    async with queue:
        await queue.enqueue("mail")
        with pytest.raises(InvalidInput, match="open already"):
            queue.use(url)
    async with Queue(url) as same:
        assert await same.count() == 1


# -- event loops and threads -------------------------------------------------------------------------------------


def test_one_queue_in_several_event_loops_one_after_the_other(url: str) -> None:
    queue = Queue(url)

    async def one(n: int) -> str:
        try:
            return (await queue.enqueue("mail", {"n": n})).id
        finally:
            await queue.close()

    ids = [asyncio.run(one(n)) for n in range(4)]

    async def look() -> list[str]:
        async with queue:
            return [job.id for job in await queue.list()]

    assert asyncio.run(look()) == ids[::-1]


def test_asyncio_run_again_and_again_on_one_queue(url: str) -> None:
    queue = Queue(url)
    ids = [asyncio.run(queue.enqueue("mail", {"n": n})).id for n in range(6)]
    assert [job.id for job in asyncio.run(queue.list())] == ids[::-1]


def test_a_blocking_web_view_that_calls_async_code(url: str) -> None:
    """As Flask and Django do it: a loop for each request."""
    queue = Queue(url)
    ids = [async_to_sync(queue.enqueue)("mail", {"n": n}).id for n in range(4)]
    assert [job.id for job in async_to_sync(queue.list)()] == ids[::-1]


def test_a_notebook_with_a_loop_that_goes_on_between_cells(url: str) -> None:
    queue = Queue(url)
    with asyncio.Runner() as notebook:
        ids = [notebook.run(queue.enqueue("mail")).id]
        store = notebook.run(store_of(queue))
        ids.append(notebook.run(queue.enqueue("mail")).id)
        ids.append(queue.sync.enqueue("mail").id)
        with ThreadPoolExecutor(1) as thread:
            ids.append(thread.submit(lambda: asyncio.run(queue.enqueue("mail"))).result().id)
        ids.append(notebook.run(queue.enqueue("mail")).id)
        assert notebook.run(store_of(queue)) is store
        assert [job.id for job in notebook.run(queue.list())] == ids[::-1]
    queue.sync.close()


async def store_of(queue: Queue) -> Store:
    return queue.store


def test_what_is_open_on_a_loop_is_closed_when_the_loop_ends(url: str) -> None:
    queue = Queue(marked(url))

    async def forget_to_close() -> None:
        await queue.enqueue("mail")
        await queue.count()

    for _ in range(3):
        asyncio.run(forget_to_close())
        assert open_things(url) == 0
    asyncio.run(queue.close())
    assert open_things(url) == 0


def test_a_loop_that_ends_without_closing_anything_is_tidied_up_after_by_the_next(sqlite_url: str) -> None:
    queue = Queue(sqlite_url)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(queue.enqueue("mail"))
        loop.close()
        assert sum(thread.name == "treadle-write" for thread in threading.enumerate()) == 1
    asyncio.run(queue.close())
    assert open_things(sqlite_url) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_queue_outlives_loops_that_end_without_closing_anything(url: str) -> None:
    queue = Queue(url)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(queue.enqueue("mail"))
        loop.close()
    assert asyncio.run(queue.count()) == 3
    gc.collect()


def marked(url: str) -> str:
    return url if url.startswith("sqlite") else f"{url}?application_name=marked"


def open_things(url: str) -> int:
    """Threads on SQLite, connections on PostgreSQL."""
    if url.startswith("sqlite"):
        return sum(thread.name.startswith("treadle") for thread in threading.enumerate())
    with psycopg.connect(url) as connection:
        return len(connection.execute("SELECT FROM pg_stat_activity WHERE application_name = 'marked'").fetchall())


def test_a_script_that_enqueues_and_ends_still_wakes_the_workers(postgres_url: str) -> None:
    queue = Queue(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute("LISTEN treadle")
        asyncio.run(queue.enqueue("mail"))
        assert "ready" in next(listener.notifies(timeout=10)).payload


def test_loops_that_come_and_go_in_several_threads(url: str) -> None:
    queue = Queue(url)

    def scripts(n: int) -> list[str]:
        return [asyncio.run(queue.enqueue("mail", {"n": n})).id for _ in range(4)]

    with ThreadPoolExecutor(4) as threads:
        ids = [id for some in threads.map(scripts, range(6)) for id in some]
    assert len(set(ids)) == asyncio.run(queue.count()) == 24


def test_one_queue_in_several_threads_each_with_its_loop(url: str) -> None:
    queue = Queue(url)

    async def many(n: int) -> list[str]:
        try:
            return [job.id for job in await asyncio.gather(*(queue.enqueue("mail", {"n": n}) for _ in range(25)))]
        finally:
            await queue.close()

    with ThreadPoolExecutor(4) as threads:
        ids = [id for some in threads.map(lambda n: asyncio.run(many(n)), range(8)) for id in some]
    assert len(set(ids)) == 200

    async def look() -> int:
        async with queue:
            return await queue.count()

    assert asyncio.run(look()) == 200


async def test_a_job_made_in_another_thread_wakes_a_waiting_result_here(url: str) -> None:
    async with Queue(url) as queue:
        job = await queue.enqueue("mail")
        waiting = asyncio.create_task(job.result(timeout="60s"))

        async def elsewhere() -> None:
            async with queue:
                await Hands(queue).do(await queue.get(job.id), "done elsewhere")

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await waiting == "done elsewhere"


# -- processes ---------------------------------------------------------------------------------------------------

ENQUEUE = """
import asyncio, sys
from treadle import Queue

async def main():
    async with Queue(sys.argv[1]) as queue:
        await asyncio.gather(*(queue.enqueue("mail", {"n": n}) for n in range(25)))

asyncio.run(main())
"""


async def test_processes_that_start_together_on_an_empty_database_all_work(url: str) -> None:
    command = [sys.executable, "-c", ENQUEUE, url]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    async with Queue(url) as queue:
        assert await queue.count() == 100
        assert len(await Hands(queue).claim("mail", limit=200)) == 100


FORK = """
import os, sys, warnings
from treadle import Queue

warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads: that is what happens here
queue = Queue(sys.argv[1])
queue.sync.enqueue("mail", {"who": "parent"})
child = os.fork()
queue.sync.enqueue("mail", {"who": "parent again" if child else "child"})
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.sync.close()
os._exit(0)
"""


async def test_a_fork_after_the_first_use_opens_its_own(url: str) -> None:
    command = [sys.executable, "-c", FORK, url]
    done = await asyncio.to_thread(subprocess.run, command, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    async with Queue(url) as queue:
        who = sorted(job.payload["who"] for job in await queue.list())
    assert who == ["child", "parent", "parent again"]


async def test_a_user_who_may_not_make_tables_is_told_what_is_missing(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE visitor_without_rights LOGIN")
    try:
        with pytest.raises(InvalidInput, match="permission denied.* CREATE on the database .*treadle migrate"):
            await Queue(postgres_url.replace("postgres@", "visitor_without_rights@")).open()
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("DROP ROLE visitor_without_rights")
