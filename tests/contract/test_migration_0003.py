"""A database of the version before lanes without priority and limits of running jobs: the new code goes on with it."""

import json
from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from treadle import Queue
from treadle.insights.templates import definitions, saved_templates
from treadle.model.status import Status
from treadle.model.template import Template
from treadle.policy.admission import QUEUE, Limit
from treadle.policy.lifecycle import Completed
from treadle.queue import steering
from treadle.store.sql import migrate as migrating
from treadle.store.sql.migrate import migrations
from treadle.store.values import Inserted
from treadle.testing.workbench import HOUR, Workbench, new_job

pytestmark = pytest.mark.empty_database
ID = "01890000-0000-7000-8000-%012d"
# n: topic, lane, place. Two priorities of one topic and a capability; five jobs of a key that allows two.
JOBS = {
    1: ("mail", 1, "ready"),
    2: ("mail", 2, "ready"),
    3: ("mail", 3, "ready"),
    4: ("other", 4, "later"),
    5: ("mail", 1, "running"),
    6: ("mail", 1, "outcomes"),
    7: ("sync", 5, "running"),
    8: ("sync", 5, "ready"),
    9: ("sync", 5, "held"),
    10: ("sync", 6, "held"),
    11: ("sync", 5, "outcomes"),
}
LANES = {1: ("mail", "", 50), 2: ("mail", "", 90), 3: ("mail", "gpu", 50), 4: ("other", "", 10), 5: ("sync", "", 50),
         6: ("sync", "", 75)}  # fmt: skip
TOPICS = ["mail", "other", "sync"]
# As the code before wrote it: without `schedulable` and `resultSchema`.
DEFINITION = {
    name: value
    for name, value in Template("mail", name="It's mail", timeout="1m").as_json().items()
    if name not in ("schedulable", "resultSchema")
}


@pytest.fixture
def database(url: str) -> RelationalDatabase:
    return RelationalDatabase(url)


def quoted(value: Any) -> str:
    """JSON inside an SQL text inside a format string."""
    return json.dumps(value).replace("'", "''").replace("{", "{{").replace("}", "}}")


def old_rows(now: int, name: Any) -> list[str]:
    """What the code before wrote."""
    rows = [f"INSERT INTO {name('lanes')} (lane, topic, capability, priority) VALUES " + ", ".join(
        f"({lane}, '{topic}', '{capability}', {priority})" for lane, (topic, capability, priority) in LANES.items()
    )]  # fmt: skip
    for n, (topic, lane, place) in JOBS.items():
        key = "'g'" if topic == "sync" else "NULL"
        idempotency = "'k'" if n == 1 else "NULL"
        flags = 2 if topic == "sync" else 0
        rows.append(
            f"INSERT INTO {name('jobs')} (n, id, lane, topic, run_at, created_at, max_attempts, flags, gate, "
            f"idempotency_key, payload) VALUES ({n}, '{ID % n}', {lane}, '{topic}', {now + n}, {now}, 3, "
            f"{flags}, {key}, {idempotency}, '{{{{}}}}')"
        )
        at = f"{n}, {lane}, {now + n}"
        rows.append(
            {
                "ready": f"INSERT INTO {name('ready')} (n, lane, run_at, attempt, max_attempts, flags) "
                f"VALUES ({at}, 0, 3, {flags})",
                "later": f"INSERT INTO {name('later')} (n, lane, run_at, attempt) VALUES ({at}, 0)",
                "held": f"INSERT INTO {name('held')} (n, lane, gate, priority, attempt) "
                f"VALUES ({n}, {lane}, 'g', {LANES[lane][2]}, 0)",
                "running": f"INSERT INTO {name('running')} (n, token, lease, attempt, claimed_at) "
                f"VALUES ({n}, 1, 1, 1, {now})",
                "outcomes": f"INSERT INTO {name('outcomes')} (n, token, topic, status, attempt, ended_at) "
                f"VALUES ({n}, 1, '{topic}', 'failed', 1, {now})",
            }[place]
        )
        if place == "outcomes":
            rows.append(
                f"INSERT INTO {name('tally')} (minute, writer, topic, status, count, run_ms) "
                f"VALUES ({now // 60_000}, 0, '{topic}', 'failed', 1, 0)"
            )
        elif topic == "sync":
            rows.append(f"INSERT INTO {name('members')} (gate, n) VALUES ('g', {n})")
    return [
        *rows,
        f"INSERT INTO {name('templates')} (topic, version, definition, updated_at) VALUES "
        f"('mail', 4, '{quoted(DEFINITION)}', {now}), "
        f"('empty', 0, 'null', {now})",
        f"INSERT INTO {name('gates')} (gate, used, max) VALUES ('g', 2, 2)",
        f"INSERT INTO {name('leases')} (id, worker, until, renewed_at, serves) "
        f"VALUES (1, 'old', {now + HOUR}, {now}, '{{{{}}}}')",
        f"INSERT INTO {name('keys')} (kind, key, n, hash) VALUES ('idempotency', '[\"mail\",null,null,\"k\"]', 1, "
        "'44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a')",
    ]


@pytest.fixture
async def bench(database: RelationalDatabase, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opened by the new code after the old one was there."""
    with monkeypatch.context() as patch:
        patch.setattr(migrating, "migrations", lambda dialect: migrations(dialect)[:2])
        store = database.make_store()
        await store.open()
        now = await store.now()
        await store.close()
    sequences = (
        [f"SELECT setval(pg_get_serial_sequence('treadle.{table}', '{column}'), 100)"
         for table, column in (("jobs", "n"), ("lanes", "lane"), ("leases", "id"))]
        + ["SELECT setval('treadle.token', 100)"]
        if database.dialect == "postgres"
        else ["UPDATE treadle_token SET value = 100"]
    )  # fmt: skip
    await database.execute(*old_rows(now - HOUR, database._name), *sequences)
    bench = Workbench(database)
    await bench.open()
    yield bench
    await bench.close()


async def test_everything_is_where_it_was_and_drains(bench: Workbench, database: RelationalDatabase) -> None:
    assert await database.problems() == []
    jobs = {n: await bench.job(ID % n) for n in JOBS}
    assert {n: job.priority for n, job in jobs.items()} == {n: LANES[lane][2] for n, (_, lane, _) in JOBS.items()}
    assert [jobs[n].status for n in (5, 6, 7)] == [Status.PROCESSING, Status.FAILED, Status.PROCESSING]
    assert (await bench.store.advance()).promoted == 1
    lease, order = await bench.lease(), []
    claimed = await bench.claim(20, topics=TOPICS, capabilities=["gpu"], lease=lease)
    order += [int(job.id[-4:]) for job in claimed]
    assert order == [2, 10, 1, 3, 4], "by priority, then by time; of the key one runs already and one more may"
    for job in claimed:
        assert await bench.settle(job, Completed())
    while claimed := await bench.claim(1, topics=TOPICS, capabilities=["gpu"], lease=lease):
        order += [int(job.id[-4:]) for job in claimed]
        assert await bench.settle(claimed[0], Completed())
    assert order[5:] == [8, 9]
    assert await database.problems() == []


async def test_keys_and_limits_of_the_old_jobs_still_hold(bench: Workbench, database: RelationalDatabase) -> None:
    (answer,) = await bench.store.insert([new_job(payload="{}", idempotency_key="k")])
    assert isinstance(answer, Inserted)
    assert answer.existing_id == ID % 1
    await steering.requeue(bench.store, [ID % 11])
    await bench.enqueue_one(topic="sync", limit=Limit("g", QUEUE, 2))
    assert len(await bench.claim(20, topics=["sync"])) == 1, "one of two runs already"
    assert await database.problems() == []


async def test_templates_are_records_afterwards_and_keep_their_numbers(
    bench: Workbench, database: RelationalDatabase
) -> None:
    found = await saved_templates(bench.store)
    assert list(found) == ["mail"]
    mail = found["mail"]
    assert (mail.version, mail.enabled, mail.rolled_back) == (4, True, False)
    assert mail.template.as_json() == Template("mail", name="It's mail", timeout="1m").as_json()
    assert (await definitions(bench.store, found))["mail"] == {4: DEFINITION}
    async with Queue(database.url) as queue:
        queue.register("mail", lambda: None, title="It's mail", timeout="1m")
        await queue.save_templates()
        assert [one["version"] for one in await queue.templates.versions("mail")] == [4]
