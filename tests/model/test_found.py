"""What the state machine found, each in the fewest steps, on each store."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle.model.errors import KeyReused, NotRepeatable
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed, Outcome, decide
from treadle.queue import steering
from treadle.store.connect import make_store
from treadle.store.protocol import Store
from treadle.store.values import Claimed, Inserted, NewJob, Refusal, Settlement, Touch, Wants
from treadle.testing.workbench import new_job

HOUR = 3_600_000
FIRST, SECOND, THIRD, FOURTH = (f"00000000-0000-7000-8000-{number:012x}" for number in range(1, 5))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = make_store(url, stale_after_ms=HOUR)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def lease(store: Store) -> int:
    return await store.open_lease("worker", HOUR)


def job(id: str, payload: str = '{"v":1}', **options: Any) -> NewJob:
    return new_job(id=id, topic="mail", payload=payload, **options)


def settled(claimed: Claimed, outcome: Outcome) -> Settlement:
    return Settlement(claimed, decide(claimed, outcome), 0)


async def claim(store: Store, lease: int, limit: int = 10, free: int = 10) -> list[Claimed]:
    return (await store.claim(lease, Wants(["mail"], [], limit, free))).jobs


async def read(store: Store, id: str) -> Job:
    found = (await store.get([id]))[0]
    assert found is not None
    return found


async def test_an_overdue_job_does_not_count_towards_the_limit_of_a_claim(store: Store, lease: int) -> None:
    await store.insert([job(FIRST, priority=75, expires_at=1), job(SECOND)])
    assert [one.id for one in await claim(store, lease, 1)] == [SECOND]


async def test_a_job_on_its_last_attempt_takes_no_slot_from_those_behind_it(store: Store, lease: int) -> None:
    await store.insert([job(FIRST, max_attempts=1, run_at=1), job(SECOND, run_at=2), job(THIRD, run_at=3)])
    assert [one.id for one in await claim(store, lease, limit=2, free=0)] == [SECOND]


async def test_a_job_that_was_requeued_after_its_deadline_can_be_claimed(store: Store, lease: int) -> None:
    await store.insert([job(FIRST, expires_at=1)])
    await store.advance()
    await steering.requeue(store, [FIRST])
    assert [one.id for one in await claim(store, lease)] == [FIRST]
    assert (await read(store, FIRST)).status is Status.PROCESSING


async def test_one_callers_bad_payload_does_not_refuse_the_next_caller_with_the_same_key(store: Store) -> None:
    """The intake puts independent callers into one batch."""
    await store.insert([job(FIRST, '{"v":1}', idempotency_key="k")])
    wrong, right = job(SECOND, '{"v":2}', idempotency_key="k"), job(THIRD, '{"v":1}', idempotency_key="k")
    answers = await store.insert([wrong, right], atomic=False)
    assert isinstance(answers[0], KeyReused)
    assert isinstance(answers[1], Inserted)
    assert answers[1].existing_id == FIRST


async def test_behind_a_rejected_job_of_its_batch_a_job_stands_for_itself(store: Store) -> None:
    gate = Limit("g", "reject_same_scope", 1)
    await store.insert([job(FIRST, limit=gate)])
    answers = await store.insert([job(SECOND, dedupe_key="d", limit=gate), job(THIRD, dedupe_key="d")], atomic=False)
    assert not isinstance(answers[0], Inserted)
    assert isinstance(answers[1], Inserted)
    assert answers[1].existing_id is None


@pytest.mark.parametrize("outcome", [Completed(), Failed("Fail: no", "Fail")])
async def test_a_lost_claim_and_a_newer_one_of_the_same_job_are_told_apart_in_one_batch(
    store: Store, lease: int, outcome: Outcome
) -> None:
    await store.insert([job(FIRST)])
    [lost] = await claim(store, lease)
    await steering.release(store, [FIRST])
    [newer] = await claim(store, lease)
    stale = settled(lost, Failed("Fail: stale", "Fail"))
    assert await store.settle([stale, settled(newer, outcome)]) == [stale]
    assert (await read(store, FIRST)).last_error != "Fail: stale"


@pytest.mark.parametrize("gate", [None, Limit("g", "queue_same_scope", 1)])
async def test_the_last_message_stays_when_a_job_completes(store: Store, lease: int, gate: Limit | None) -> None:
    await store.insert([job(FIRST, limit=gate)])
    [mine] = await claim(store, lease)
    await store.touch(lease, [Touch(mine.n, mine.token, 0, 99, "sent")])
    await store.settle([settled(mine, Completed())])
    assert (await read(store, FIRST)).progress_message == "sent"


async def test_a_requeued_job_shows_no_error_of_its_former_life(store: Store, lease: int) -> None:
    await store.insert([job(FIRST, max_attempts=2)])
    for error in ("first", "second"):
        [mine] = await claim(store, lease)
        await store.settle([settled(mine, Failed(error, "OSError", 0))])
        await steering.reschedule(store, [FIRST], run_at=1)
    assert (await read(store, FIRST)).last_error == "second"
    await steering.requeue(store, [FIRST])
    assert (await read(store, FIRST)).last_error is None


async def test_a_non_repeatable_job_is_not_requeued_after_its_twin_completed(store: Store, lease: int) -> None:
    once: dict[str, Any] = {"dedupe_key": "d", "repeatable": False}
    for id, outcome in ((FIRST, Failed("Fail: no", "Fail")), (SECOND, Completed())):
        await store.insert([job(id, **once)])
        [mine] = await claim(store, lease)
        await store.settle([settled(mine, outcome)])
    [answer] = await steering.requeue(store, [FIRST])
    assert isinstance(answer, Refusal)
    assert isinstance(answer.error, NotRepeatable)


@pytest.mark.parametrize("together", [False, True], ids=["owner_there_before", "owner_in_the_same_batch"])
async def test_a_dedupe_key_is_free_once_its_owner_was_replaced_in_the_batch(store: Store, together: bool) -> None:
    gate = Limit("g", "replace_same_scope", 1)
    owner, replacer = job(FIRST, dedupe_key="d", limit=gate), job(SECOND, limit=gate)
    heir, repeat = job(THIRD, dedupe_key="d"), job(FOURTH, dedupe_key="d")
    if together:
        answers = (await store.insert([owner, replacer, heir, repeat]))[1:]
    else:
        await store.insert([owner])
        answers = await store.insert([replacer, heir, repeat])
    assert [answer.existing_id for answer in answers if isinstance(answer, Inserted)] == [None, None, THIRD]
    assert (await read(store, FIRST)).status is Status.CANCELLED
    assert (await read(store, THIRD)).status is Status.PENDING
