"""A requeue with another payload: its keys are the new payload's, and it is admitted like a new job."""

import asyncio
from typing import Any

import pytest

from tests.waiting import ended, in_status, until
from tests.worker.conftest import Start, start
from treadle import Concurrency, Queue
from treadle.model.errors import ConcurrencyRejected, KeyReused, NotRepeatable, WrongState

__all__ = ["start"]


async def _cancelled(queue: Queue, topic: str, payload: dict[str, Any], **options: Any) -> str:
    job = await queue.enqueue(topic, payload, **options)
    await queue.cancel(job.id)
    return job.id


def _register(queue: Queue, **options: Any) -> None:
    queue.handlers.pop("mail", None)

    async def mail(payload: dict[str, Any]) -> None: ...

    queue.register("mail", mail, **options)


ADA, BOB, EVE = {"user": "ada"}, {"user": "bob"}, {"user": "eve"}


async def test_it_has_the_dedupe_key_of_the_new_payload(queue: Queue) -> None:
    _register(queue, dedupe_keys=["user"])
    id = await _cancelled(queue, "mail", ADA)
    await queue.requeue(id, payload=BOB)
    ada = await queue.enqueue("mail", ADA)
    assert not ada.deduplicated, "another user's job must not be dropped"
    bob = await queue.enqueue("mail", BOB)
    assert (bob.id, bob.deduplicated) == (id, True)
    await queue.cancel(id)
    assert not (await queue.enqueue("mail", BOB)).deduplicated, "its key is free when it ends"


async def test_it_is_refused_while_another_job_with_the_new_dedupe_key_lives(queue: Queue) -> None:
    _register(queue, dedupe_keys=["user"])
    id = await _cancelled(queue, "mail", ADA)
    await queue.enqueue("mail", BOB)
    with pytest.raises(WrongState, match="dedupe"):
        await queue.requeue(id, payload=BOB)
    with pytest.raises(WrongState, match="dedupe"):
        await queue.requeue_plan(id, payload=BOB)
    job = await queue.get(id)
    assert (job.status, job.payload) == ("cancelled", ADA)
    assert (await queue.requeue(id)).status == "pending", "its own key is as before"
    assert (await queue.enqueue("mail", ADA)).id == id


async def test_it_may_take_over_the_key_that_its_own_payload_had(queue: Queue) -> None:
    _register(queue, dedupe_keys=["user"], idempotency_key="user")
    id = await _cancelled(queue, "mail", {**ADA, "n": 1})
    await queue.requeue(id, payload={**ADA, "n": 2})
    assert (await queue.enqueue("mail", {**ADA, "n": 2})).id == id
    with pytest.raises(KeyReused):
        await queue.enqueue("mail", {**ADA, "n": 1})


async def test_it_has_the_idempotency_key_of_the_new_payload(queue: Queue) -> None:
    _register(queue, idempotency_key="user")
    id = await _cancelled(queue, "mail", ADA)
    job = await queue.requeue(id, payload=BOB)
    assert job.idempotency_key == "bob"
    assert (await queue.enqueue("mail", BOB)).id == id
    ada = await queue.enqueue("mail", ADA)
    assert ada.id != id
    assert ada.idempotency_key == "ada"
    await queue.cancel(id)
    await queue.delete(id)
    assert (await queue.enqueue("mail", BOB)).id != id


async def test_a_key_that_another_job_holds_is_refused(queue: Queue) -> None:
    _register(queue, idempotency_key="user")
    id = await _cancelled(queue, "mail", ADA)
    await queue.enqueue("mail", {**BOB, "n": 1})
    with pytest.raises(KeyReused):
        await queue.requeue(id, payload={**BOB, "n": 2})
    with pytest.raises(WrongState, match="idempotency"):
        await queue.requeue(id, payload={**BOB, "n": 1})
    assert (await queue.enqueue("mail", ADA)).id == id, "it has kept its own"


@pytest.mark.parametrize("owner", [None, "u1", ""])
async def test_a_key_that_its_caller_chose_stays_for_the_new_payload(queue: Queue, owner: str | None) -> None:
    _register(queue)
    chosen: dict[str, Any] = {"idempotency_key": "k", "key_owner": owner, "created_by": owner or None}
    id = await _cancelled(queue, "mail", ADA, **chosen)
    assert (await queue.requeue(id, payload=BOB)).idempotency_key == "k"
    assert (await queue.enqueue("mail", BOB, **chosen)).id == id
    with pytest.raises(KeyReused):
        await queue.enqueue("mail", ADA, **chosen)
    assert (await queue.enqueue("mail", ADA, idempotency_key="k", key_owner="other")).id != id


@pytest.mark.parametrize("owner", [None, "u1", ""])
async def test_an_owner_of_a_key_stays_its_owner(queue: Queue, owner: str | None) -> None:
    _register(queue, idempotency_key="user")
    made_by: dict[str, Any] = {"key_owner": owner, "created_by": owner or None}
    id = await _cancelled(queue, "mail", ADA, **made_by)
    await queue.requeue(id, payload=BOB)
    assert (await queue.enqueue("mail", BOB, **made_by)).id == id
    assert (await queue.enqueue("mail", BOB, key_owner="other")).id != id


async def test_a_job_that_must_not_be_repeated_follows_its_new_key(queue: Queue, start: Start) -> None:
    _register(queue, dedupe_keys=["user"], repeatable=False)
    await start(queue)
    ada, bob = await queue.enqueue("mail", ADA), await queue.enqueue("mail", BOB)
    await ended(queue, ada)
    await ended(queue, bob)
    with pytest.raises(NotRepeatable):
        await queue.requeue(ada.id, force=True, payload=BOB)
    await queue.requeue(ada.id, force=True, payload=EVE)
    await in_status(queue, ada, "completed")
    with pytest.raises(NotRepeatable):
        await queue.enqueue("mail", EVE)


async def test_the_limit_is_that_of_the_new_payload(queue: Queue, start: Start) -> None:

    let_go, running = asyncio.Event(), list[str]()

    async def mail(payload: dict[str, Any]) -> None:
        running.append(payload["user"])
        await let_go.wait()

    queue.register("mail", mail, concurrency=Concurrency("queue_same_scope", keys=["user"]))
    id = await _cancelled(queue, "mail", ADA)
    await start(queue, slots=5)
    first = await queue.enqueue("mail", BOB)
    await until(lambda: running == ["bob"])
    await queue.requeue(id, payload=BOB)
    other = await queue.enqueue("mail", ADA)
    await until(lambda: "ada" in running)
    assert running == ["bob", "ada"], "one of a key at a time"
    let_go.set()
    for one in (first.id, other.id, id):
        assert (await ended(queue, await queue.get(one))).status == "completed"
    assert running == ["bob", "ada", "bob"]


async def test_a_limit_that_rejects_is_asked_again(queue: Queue) -> None:
    _register(queue, concurrency=Concurrency("reject_same_scope", keys=["user"]))
    id = await _cancelled(queue, "mail", ADA)
    await queue.enqueue("mail", BOB)
    with pytest.raises(ConcurrencyRejected):
        await queue.requeue(id, payload=BOB)
    await queue.requeue(id, payload=EVE)
    with pytest.raises(ConcurrencyRejected):
        await queue.enqueue("mail", EVE)
    await queue.enqueue("mail", ADA)


async def test_a_limit_that_replaces_replaces_under_the_new_key(queue: Queue) -> None:
    _register(queue, concurrency=Concurrency("replace_same_scope", keys=["user"]))
    id = await _cancelled(queue, "mail", ADA)
    bob = await queue.enqueue("mail", BOB)
    ada = await queue.enqueue("mail", ADA)
    await queue.requeue(id, payload=BOB)
    assert (await bob.refresh()).status == "cancelled"
    assert (await ada.refresh()).status == "pending"


async def test_keys_that_a_template_got_later_come_with_a_new_payload(queue: Queue) -> None:
    _register(queue)
    id = await _cancelled(queue, "mail", ADA)
    _register(queue, dedupe_keys=["user"], concurrency=Concurrency("reject_same_scope", keys=["user"]))
    await queue.requeue(id, payload=BOB)
    assert (await queue.enqueue("mail", BOB)).id == id


async def test_keys_that_a_template_lost_go_with_a_new_payload(queue: Queue) -> None:
    _register(queue, dedupe_keys=["user"], concurrency=Concurrency("reject_same_scope", keys=["user"]))
    id = await _cancelled(queue, "mail", ADA)
    _register(queue)
    await queue.requeue(id, payload=ADA)
    assert not (await queue.enqueue("mail", ADA)).deduplicated
    assert (await queue.get(id)).status == "pending"
