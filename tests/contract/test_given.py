"""What a job is given when it is made: kept by every way in, shown where it may be, and never where it may not."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.relational import RelationalDatabase
from treadle.model.errors import InvalidInput
from treadle.model.fields import GIVEN_FIELDS, JSON_NAMES, NOTHING_GIVEN, PLAIN, Given, camel
from treadle.model.job import from_ms
from treadle.policy import rules
from treadle.policy.rules import InvalidRule
from treadle.store.views import Listing
from treadle.testing.workbench import HOUR, Workbench, new_job

ALL = Given(
    template_version=3,
    scope="user",
    scope_id="u1",
    created_by="ann",
    release="a1b2c3",
    idempotency_key="k",
    schedule_id="nightly",
    scheduled_at=1_767_873_600_123,
    parent_id="01890000-0000-7000-8000-000000000001",
    parent_step="resize",
    parent_key="large",
    parent_generation=2,
    webhook_url="https://example.com/hook",
    track_hash="5f16",
)
HIDDEN = {"release", "parent_step", "parent_key", "parent_generation", "track_hash"}
FILTERS = [
    "parentId = '01890000-0000-7000-8000-000000000001'",
    "parentId != ''",
    "webhookUrl ~ 'example.com'",
    "webhookSent = null && scheduleId = 'nightly' && scheduledAt > '2026-01-01'",
]


def test_the_example_has_a_value_for_everything() -> None:
    assert None not in ALL


@pytest.fixture
async def bench(database: RelationalDatabase) -> AsyncIterator[Workbench]:
    bench = Workbench(database)
    await bench.open()
    yield bench
    await bench.close()


async def kept(database: RelationalDatabase, job_id: str) -> tuple[Any, ...]:
    (row,) = await database.execute(f"SELECT {', '.join(Given._fields)} FROM {{jobs}} WHERE id = '{job_id}'")
    return tuple(row)


@pytest.mark.parametrize("others", [0, 2])
async def test_each_is_kept(bench: Workbench, database: RelationalDatabase, others: int) -> None:
    """Alone and in a batch: all of them by the script, the ones that a plain job may have by the short way."""
    plain = Given._make((*ALL[:PLAIN], *NOTHING_GIVEN[PLAIN:]))
    whole, short = new_job(given=ALL), new_job(given=plain)
    assert (whole.plain, short.plain) == (False, True)
    for job in (whole, short):
        await bench.store.insert([job, *(new_job() for _ in range(others))])
    assert await kept(database, whole.id) == ALL
    assert await kept(database, short.id) == plain


@pytest.mark.parametrize("name", Given._fields[PLAIN:])
def test_a_job_with_any_of_the_others_is_not_plain(name: str) -> None:
    assert not new_job(**{name: getattr(ALL, name)}).plain


async def test_people_see_what_they_may(bench: Workbench) -> None:
    job = new_job(given=ALL)
    await bench.insert(job)
    seen = await bench.job(job.id)
    shown = {field.name: getattr(seen, field.name) for field in GIVEN_FIELDS}
    assert shown == {
        name: from_ms(value) if name == "scheduled_at" else value
        for name, value in ALL._asdict().items()
        if name not in HIDDEN
    }
    assert seen.webhook_sent is None
    assert not {camel(name) for name in HIDDEN} & seen.as_json().keys()
    assert "5f16" not in repr(seen)


@pytest.mark.parametrize("name", sorted(HIDDEN))
def test_what_is_hidden_is_no_field_anywhere(name: str) -> None:
    """Nor can it be guessed by filters, sorts or rules."""
    assert camel(name) not in JSON_NAMES
    with pytest.raises(InvalidRule):
        rules.parse_filter(f"{camel(name)} = 'x'")
    with pytest.raises(InvalidInput):
        rules.parse_sort(camel(name))


@pytest.mark.parametrize("text", FILTERS)
async def test_a_filter_finds_it(bench: Workbench, text: str) -> None:
    job = new_job(given=ALL)
    await bench.store.insert([new_job(), job, new_job(run_at=1, expires_in_ms=HOUR)])
    found = await bench.store.list(Listing(condition=rules.parse_filter(text)))
    assert [one.id for one in found] == [job.id]
    assert rules.matches(rules.parse_filter(text), found[0].as_json())


async def test_jobs_are_sorted_by_it(bench: Workbench) -> None:
    parents = ["b", "a", "c"]
    jobs = [new_job(parent_id=parent) for parent in parents]
    await bench.store.insert(jobs)
    found = await bench.store.list(Listing(sort=tuple(rules.parse_sort("parentId"))))
    assert [one.parent_id for one in found] == sorted(parents)


async def test_whether_the_address_was_told_is_true_or_false(bench: Workbench, database: RelationalDatabase) -> None:
    jobs = [new_job(webhook_url="https://example.com") for _ in range(3)]
    await bench.store.insert(jobs)
    for job, sent in zip(jobs, (1, 0), strict=False):
        await database.execute(f"UPDATE {{jobs}} SET webhook_sent = {sent} WHERE id = '{job.id}'")
    assert [(await bench.job(job.id)).webhook_sent for job in jobs] == [True, False, None]
    for text, place in (("webhookSent = true", 0), ("webhookSent = false", 1), ("webhookSent = null", 2)):
        (found,) = await bench.store.list(Listing(condition=rules.parse_filter(text)))
        assert found.id == jobs[place].id
