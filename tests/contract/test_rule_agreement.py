"""Three judges, one answer: SQLite, PostgreSQL and Python agree on random conditions over random jobs."""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.relational import RelationalDatabase
from tests.fault.scale import ASKED, scaled
from tests.servers import PostgresServer
from treadle.model.errors import InvalidInput
from treadle.model.payload import dumps
from treadle.policy import rules
from treadle.policy.retention import Ages, Former, Rules
from treadle.store.protocol import Store
from treadle.store.values import NewJob
from treadle.store.views import Listing
from treadle.testing.workbench import DAY, ENDED, HOUR, STATES, Workbench, new_job

SEED = 20
PLAIN = 120

TEXTS = [
    "", "a", "A", "ab", "b", "ä", "Ä", "1", "1.0", "2.5", "true", "null", "%", "_", "a%", "a_b", "\\", "a\\%b", '"',
    "[]", '["a"]', "{}", "x'y", "ann", "user", "🎉", "2026-01-01", "2026-01-01T00:00:00.000Z", "line\nbreak", "\t",
]  # fmt: skip
NUMBERS: list[float] = [0, 1, -1, 2, 2.5, 5, 50, 75, 100, 1.0, -0.5, 0.1, 0.30000000000000004, 1e16, 1e-7, 123456789012]
KEYS = ["a", "b", "A", "0", "tags", "deep", "x_1"]


def random_json(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind < 3:
        return chance.choice(TEXTS)
    if kind < 5:
        return chance.choice(NUMBERS)
    if kind == 5:
        return chance.choice([None, True, False])
    if kind == 6:
        return [random_json(chance, depth + 1) for _ in range(chance.randrange(3))]
    return random_object(chance, depth + 1)


def random_object(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    return {key: random_json(chance, depth) for key in KEYS if chance.random() < 0.6}


def random_options(chance: random.Random) -> dict[str, Any]:
    return {
        "payload": dumps(random_object(chance)),
        "priority": chance.choice([0, 1, 50, 75, -1]),
        "scope": chance.choice([None, "", "user", "A", "a", "2026-01-01"]),
        "scope_id": chance.choice([None, "", "ann", "Ann", "1", "ä"]),
        "created_by": chance.choice([None, "", "ann", "a%", "true"]),
        "template_version": chance.choice([None, 1, 2, 50]),
    }


def random_job(chance: random.Random, number: int) -> NewJob:
    return new_job(
        **random_options(chance),
        topic=chance.choice(["a", "ab", "user", "mail_digest", "1"]),
        capability=chance.choice(["", "media"]),
        max_attempts=chance.choice([1, 3, 50]),
        delay_ms=chance.choice([0, HOUR]),
        expires_in_ms=chance.choice([None, DAY]),
        idempotency_key=chance.choice([None, f"key-{number}"]),
    )


class World(NamedTuple):
    """The same jobs in both stores, and as Python sees those of each."""

    runner: asyncio.Runner
    benches: dict[str, Workbench]
    jobs: dict[str, list[dict[str, Any]]]

    def __repr__(self) -> str:
        return "the same jobs in both stores"

    def found(self, name: str, condition: rules.Condition, **options: Any) -> list[str]:
        store: Store = self.benches[name].store
        listing = Listing(limit=1000, condition=condition, **options)
        return [job.id for job in self.runner.run(store.list(listing))]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[World]:
    with postgres_server.database() as name, asyncio.Runner() as runner:
        urls = {
            "sqlite": f"sqlite:///{tmp_path_factory.mktemp('agreement') / 'jobs.db'}",
            "postgres": postgres_server.url(name),
        }
        benches = {name: Workbench(RelationalDatabase(url)) for name, url in urls.items()}
        jobs = {name: runner.run(filled(bench)) for name, bench in benches.items()}
        yield World(runner, benches, jobs)
        for bench in benches.values():
            runner.run(bench.close())


async def filled(bench: Workbench) -> list[dict[str, Any]]:
    await bench.open()
    chance = random.Random(SEED)
    for age, states in ((8 * DAY, ENDED), (0, STATES)):
        for state in states:
            await bench.make(state, topic=f"t.{state}.{age}", **random_options(chance))
        await bench.pass_time(age)
    await bench.store.insert([random_job(chance, number) for number in range(PLAIN)])
    bench.store.retention = Rules(
        30 * DAY,
        by_status={"failed": Ages(DAY), "cancelled": Ages(9 * DAY)},
        by_topic={f"t.completed.{8 * DAY}": Ages(0), "t.expired.0": Ages(0), f"t.failed.{8 * DAY}": Ages(100 * DAY)},
        former=(Former(await bench.store.now(), Rules(7 * DAY, by_status={"completed": Ages(100 * DAY)})),),
    )
    return [job.as_json() for job in await bench.store.list(Listing(limit=1000))]


# -- random conditions -----------------------------------------------------------------------------


def sentence(*words: str) -> str:
    return " ".join(words)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


paths = st.lists(st.sampled_from([*KEYS, "1", "nope"]), max_size=3).map(lambda steps: ".".join(["payload", *steps]))
fields = st.sampled_from(sorted(rules.FIELDS)) | st.sampled_from(
    ["topic:lower", "scope:lower", "result", "result.sent", "steps", "steps.0.name"]
)
literals = (
    st.sampled_from(TEXTS).map(quoted)
    | st.text(max_size=5).filter(lambda text: "\0" not in text and text.isprintable()).map(quoted)
    | st.sampled_from([number for number in NUMBERS if "e" not in repr(number)]).map(repr)
    | st.integers(-(2**63), 2**63 - 1).map(str)
    | st.sampled_from(["true", "false", "null", "@now", "@yesterday", "@month", "@todayEnd", "@hour"])
    | st.sampled_from(
        ["'pending'", "'failed'", "'stale'", "'%ing'", "'t.%'", "'completed'", "'2026%'", "'media'", "'w1'", "'boom'"]
    )
)
operands = fields | paths | paths | literals
signs = st.sampled_from("= != > >= < <= ~ !~ ?= ?!=".split())
written = st.sampled_from("1 0 2.5 'true' '.0' '.' '1%' '%e%' '0.3' '[' 'A'".split())
comparisons = st.one_of(
    st.builds(sentence, fields | paths, signs, operands),
    st.builds(sentence, operands, signs, operands),
    st.builds(sentence, paths, st.sampled_from(["~", "!~"]), written),
)
expressions = st.recursive(
    comparisons,
    lambda inner: st.builds(
        lambda left, join, right: f"({left}) {join} ({right})", inner, st.sampled_from(["&&", "||"]), inner
    ),
    max_leaves=6,
)


def lasting(examples: int) -> settings:
    """The same examples in every short run, new ones at length."""
    everything = list(HealthCheck)
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=everything,
        derandomize=ASKED == "short",
        database=None,
    )


@lasting(scaled(300, 20_000))
@given(expressions)
def test_both_stores_find_what_matches(world: World, text: str) -> None:
    condition = rules.parse_filter(text)
    for name, jobs in world.jobs.items():
        assert world.found(name, condition) == [job["id"] for job in jobs if rules.matches(condition, job)], name


@lasting(scaled(60, 2_000))
@given(
    st.text('abA1%_-:" \\.ä', max_size=12)
    | st.sampled_from(["payload.a:1", "-payload.b:true", "status:stale", "error:BOOM"])
)
def test_both_stores_find_what_is_searched_for(world: World, text: str) -> None:
    try:
        condition = rules.parse_search(text)
    except InvalidInput:
        return
    for name, jobs in world.jobs.items():
        assert world.found(name, condition) == [job["id"] for job in jobs if rules.matches(condition, job)], name


def test_the_stores_hold_the_same_jobs(world: World) -> None:
    """Only then do two agreements with Python make one of all three."""
    untold = (
        "id",
        "runAt",
        "createdAt",
        "updatedAt",
        "expiresAt",
        "lastHeartbeatAt",
        "lockedUntil",
        "cancelRequestedAt",
    )
    told = {
        name: [
            {key: value for key, value in job.items() if key not in untold and not key.endswith("At")} for job in jobs
        ]
        for name, jobs in world.jobs.items()
    }
    assert json.dumps(told["sqlite"]) == json.dumps(told["postgres"])
