"""Enqueues that wait at the same time share one transaction."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.waiting import give_way
from treadle.model.errors import ConcurrencyRejected, Refused, StoreBusy, StoreUnavailable
from treadle.model.fields import Given
from treadle.queue.enqueueing.intake import MOST, Intake
from treadle.store import waiting_room
from treadle.store.protocol import Store
from treadle.store.values import Inserted, NewJob
from treadle.testing.workbench import eventually


class SlowStore:
    """Inserts when it is told to, and remembers how many came together."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.permits = asyncio.Semaphore(0)
        self.error: BaseException | None = None
        self.bad: set[str] = set()
        self.locked: set[str | None] = set()

    async def insert(
        self, jobs: Sequence[NewJob], *, atomic: bool = True, patient: bool = True
    ) -> list[Inserted | Refused]:
        assert not atomic, "one caller's refusal must not be another's"
        assert not patient, "nobody waits for a key of somebody else"
        self.groups.append([job.id for job in jobs])
        await self.permits.acquire()
        if self.error:
            raise self.error
        if self.bad & {job.id for job in jobs}:
            raise ValueError("this can't be stored")
        if self.locked & {job.given.idempotency_key for job in jobs}:
            raise StoreBusy("locked")
        return [ConcurrencyRejected("no") if job.topic == "refused" else Inserted(int(job.id)) for job in jobs]

    def let(self, groups: int = 100) -> None:
        """Let this many groups go."""
        for _ in range(groups):
            self.permits.release()


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def intake(store: SlowStore) -> Intake:
    return Intake(cast(Store, store))


def job(number: int, topic: str = "mail", key: str | None = None) -> NewJob:
    return NewJob(str(number), topic, "{}", given=Given(idempotency_key=key))


def add(intake: Intake, *jobs: NewJob) -> list[asyncio.Task[Inserted]]:
    return [asyncio.create_task(intake.add(one)) for one in jobs]


async def turns(count: int = 5) -> None:
    """Let every task run as far as it gets."""
    await give_way(count)


async def answers(tasks: Sequence[asyncio.Task[Inserted]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lone_caller_never_waits_for_company(intake: Intake, store: SlowStore) -> None:
    store.let()
    assert await intake.add(job(1)) == Inserted(1)
    assert await intake.add(job(2)) == Inserted(2)
    assert store.groups == [["1"], ["2"]]


async def test_callers_that_come_while_one_is_on_its_way_go_together(intake: Intake, store: SlowStore) -> None:
    tasks = add(intake, *map(job, range(100)))
    await turns()
    store.let()
    assert await answers(tasks) == [Inserted(n) for n in range(100)]
    assert [len(group) for group in store.groups] == [1, 99]


async def test_after_a_group_concurrent_callers_go_together(intake: Intake, store: SlowStore) -> None:
    async def came(count: int, groups: list[int]) -> None:
        store.groups.clear()
        tasks = add(intake, *map(job, range(count)))
        await turns()
        store.let(len(groups))
        assert await answers(tasks) == [Inserted(n) for n in range(count)]
        assert [len(group) for group in store.groups] == groups

    await came(10, [1, 9])
    await came(10, [10])
    await came(1, [1])
    await came(10, [1, 9])  # after a lone caller, the next one does not wait for others


async def test_a_group_has_its_limit(intake: Intake, store: SlowStore) -> None:
    tasks = add(intake, *map(job, range(MOST * 2 + 2)))
    await turns()
    store.let()
    assert await answers(tasks) == [Inserted(n) for n in range(MOST * 2 + 2)]
    assert [len(group) for group in store.groups] == [1, MOST, MOST, 1]


async def test_a_refusal_concerns_only_its_own_caller(intake: Intake, store: SlowStore) -> None:
    tasks = add(intake, job(1, "refused"), job(2), job(3, "refused"), job(4))
    await turns()
    store.let()
    refused, made, refused_too, made_too = await answers(tasks)
    assert isinstance(refused, ConcurrencyRejected)
    assert isinstance(refused_too, ConcurrencyRejected)
    assert (made, made_too) == (Inserted(2), Inserted(4))


async def test_an_error_reaches_everybody_in_its_group_and_the_next_can_come(intake: Intake, store: SlowStore) -> None:
    store.error = StoreUnavailable("away")
    tasks = add(intake, job(1), job(2), job(3))
    await turns()
    store.let()
    assert [type(answer) for answer in await answers(tasks)] == [StoreUnavailable] * 3
    store.error = None
    assert await intake.add(job(4)) == Inserted(4)


async def test_a_caller_who_gave_up_before_his_turn_enqueues_nothing(intake: Intake, store: SlowStore) -> None:
    first, second, third = add(intake, job(1), job(2), job(3))
    await turns()
    second.cancel()
    await turns()
    store.let()
    _, cancelled, answer = await answers([first, second, third])
    assert isinstance(cancelled, asyncio.CancelledError)
    assert answer == Inserted(3)
    assert store.groups == [["1"], ["3"]]


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
async def test_a_caller_that_gives_up_on_the_way_keeps_no_other_waiting(
    intake: Intake, store: SlowStore, error: BaseException | None
) -> None:
    first, second, third = add(intake, job(1), job(2), job(3))
    await turns()
    store.let(1)
    assert await first == Inserted(1)
    await turns()
    assert store.groups == [["1"], ["2", "3"]]
    second.cancel()
    await turns()
    store.error = error
    store.let()
    cancelled, answer = await answers([second, third])
    assert isinstance(cancelled, asyncio.CancelledError)
    assert answer == (error or Inserted(3))


async def test_the_first_caller_giving_up_lets_those_behind_go(intake: Intake, store: SlowStore) -> None:
    first, second = add(intake, job(1), job(2))
    await turns()
    first.cancel()
    await turns()
    store.let()
    assert await second == Inserted(2)
    assert await intake.add(job(3)) == Inserted(3)


async def test_a_job_that_cannot_be_stored_fails_alone(intake: Intake, store: SlowStore) -> None:
    store.bad = {"2"}
    tasks = add(intake, *map(job, range(5)))
    store.let()
    found = await answers(tasks)
    assert isinstance(found[2], ValueError)
    assert [found[i] for i in (0, 1, 3, 4)] == [Inserted(i) for i in (0, 1, 3, 4)]


@pytest.mark.parametrize("count", [1, 20], ids=["alone", "in a group"])
async def test_only_callers_that_need_a_locked_key_wait_for_it(intake: Intake, store: SlowStore, count: int) -> None:
    store.let(10_000)
    store.locked = {"k"}
    waiting = add(intake, *(job(n, key="k" if n == 0 else None) for n in range(count)))
    others = [await intake.add(job(n)) for n in range(100, 110)]
    assert others == [Inserted(n) for n in range(100, 110)]
    assert await answers(waiting[1:]) == [Inserted(n) for n in range(1, count)]
    assert not waiting[0].done()
    store.locked = set()
    assert await waiting[0] == Inserted(0)


async def test_one_caller_per_locked_key_is_on_its_way_at_a_time(intake: Intake, store: SlowStore) -> None:
    store.let(10_000)
    store.locked = {"k"}
    waiting = add(intake, *(job(n, key="k") for n in range(10)))
    await eventually(lambda: len(store.groups) > 2)
    tried = {one for group in store.groups[2:] for one in group}
    store.locked = set()
    assert await answers(waiting) == [Inserted(n) for n in range(10)]
    assert len(tried) == 1


async def test_a_key_that_stays_locked_is_store_unavailable_in_time(
    intake: Intake, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 0.2)
    store.let(10_000)
    store.locked = {"k"}
    found = await answers(add(intake, *(job(n, key="k") for n in range(3))))
    assert [type(one) for one in found] == [StoreUnavailable] * 3
    store.locked = set()
    assert await intake.add(job(7, key="k")) == Inserted(7)
    assert intake._waiting._turns == {}


async def test_jobs_without_keys_of_a_failed_group_are_stored_together(intake: Intake, store: SlowStore) -> None:
    store.locked = {"k"}
    first, *others = add(intake, job(0), job(1, key="k"), *(job(n) for n in range(2, 100)))
    await turns()
    store.let(3)
    assert await answers([first, *others[1:]]) == [Inserted(n) for n in (0, *range(2, 100))]
    assert [len(group) for group in store.groups[:3]] == [1, 99, 98]
    store.locked = set()
    store.let()
    assert await others[0] == Inserted(1)


async def test_one_locked_key_among_many_is_found_in_a_few_tries(intake: Intake, store: SlowStore) -> None:
    store.locked = {"k250"}
    tasks = add(intake, *(job(n, key=f"k{n}") for n in range(500)))
    await turns()
    store.let(10_000)
    del tasks[250]
    assert await answers(tasks) == [Inserted(n) for n in range(500) if n != 250]
    assert len(store.groups) < 40
    store.locked = set()


async def test_the_next_job_with_a_locked_key_fails_no_group(
    intake: Intake, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 0.2)
    store.let(100)
    store.locked = {"k"}
    assert [type(one) for one in await answers(add(intake, job(1, key="k")))] == [StoreUnavailable]
    store.groups.clear()
    store.permits = asyncio.Semaphore(0)
    tasks = add(intake, *(job(n, key="k" if n % 2 else f"k{n}") for n in range(10)))
    await turns()
    store.let(10_000)
    assert await answers(tasks[::2]) == [Inserted(n) for n in range(0, 10, 2)]
    assert {type(one) for one in await answers(tasks[1::2])} == {StoreUnavailable}
    shared = [group for group in store.groups if len(group) > 1]
    assert not {"1", "3", "5", "7", "9"} & {id for group in shared for id in group}


async def test_a_job_gives_up_in_time_however_many_others_wait(
    intake: Intake, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no turn: the only try under way never ends."""
    monkeypatch.setattr(waiting_room, "WAIT_SECONDS", 0.2)
    store.let(1)
    store.locked = {"k"}
    stuck = add(intake, job(1, key="k"))
    await eventually(lambda: len(store.groups) == 2)
    late = add(intake, *(job(n, key="k") for n in range(2, 5)))
    assert {type(one) for one in await answers(late)} == {StoreUnavailable}
    store.locked = set()
    store.let()
    assert await answers(stuck) == [Inserted(1)]
