"""New jobs: what is stored, where they wait, and the keys that make them unique."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from treadle.model.errors import InvalidInput, KeyReused, NotRepeatable
from treadle.model.job import from_ms
from treadle.model.status import Status
from treadle.policy.admission import QUEUE, REJECT, REPLACE, Limit
from treadle.policy.lifecycle import Completed, Failed
from treadle.queue import steering
from treadle.store.values import Inserted
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import ENDED, HOUR, MINUTE, TOPIC, Workbench, new_job

AGAIN: list[dict[str, Any]] = [
    {},
    {"delay_ms": HOUR},
    {"expires_in_ms": HOUR},
    {"idempotency_key": "k"},
    {"dedupe_key": "d"},
    {"limit": Limit("k", QUEUE, 1)},
    {"limit": Limit("k", REJECT, 1)},
    {"limit": Limit("k", REPLACE, 1)},
]


class InsertContract(ContractPart):
    async def test_a_job_comes_back_as_it_was_given(self, bench: Workbench) -> None:
        now = await bench.store.now()
        job = new_job(
            topic="video.transcode",
            payload='{"a":[1,2.5,null,true,"ü€😀"],"b":{"c":"\\u001f"}}',
            priority=77,
            capability="media",
            max_attempts=7,
            run_at=now + HOUR,
            expires_at=now + 2 * HOUR,
            scope="account",
            scope_id="a1",
            created_by="ann",
            idempotency_key="k1",
            template_version=4,
        )
        answer = await bench.insert(job)
        assert answer.existing_id is None
        assert abs(answer.at - now) < MINUTE
        seen = await bench.job(job.id)
        assert (seen.topic, seen.status, seen.priority, seen.capability) == ("video.transcode", "pending", 77, "media")
        assert seen.payload == {"a": [1, 2.5, None, True, "ü€😀"], "b": {"c": "\x1f"}}
        assert (seen.max_attempts, seen.attempt, seen.retries, seen.progress) == (7, 0, 0, 0)
        assert (seen.scope, seen.scope_id, seen.created_by) == ("account", "a1", "ann")
        assert (seen.idempotency_key, seen.template_version) == ("k1", 4)
        assert (seen.run_at, seen.expires_at) == (from_ms(now + HOUR), from_ms(now + 2 * HOUR))
        assert seen.created_at == seen.updated_at == from_ms(answer.at)

    async def test_a_plain_job_has_nothing_that_it_was_not_given(self, bench: Workbench) -> None:
        seen = await bench.job(await bench.enqueue_one())
        nothing = (
            "stale_at result_value last_error error_type progress_message expires_at claimed_at started_at "
            "completed_at "
            "failed_at cancelled_at last_heartbeat_at locked_by locked_until cancel_requested_at cancel_reason scope "
            "scope_id created_by idempotency_key capability template_version"
        ).split()
        assert {name: getattr(seen, name) for name in nothing} == dict.fromkeys(nothing)
        assert seen.run_at == seen.created_at
        assert seen.events_count == 1

    async def test_nothing_in_nothing_out(self, bench: Workbench) -> None:
        assert await bench.store.insert([]) == []
        assert await bench.store.insert([], atomic=False) == []

    async def test_a_batch_of_jobs_of_many_kinds(self, bench: Workbench) -> None:
        kinds: list[dict[str, Any]] = [
            {"topic": "a"},
            {"topic": "b", "priority": 100},
            {"topic": "a", "capability": "media"},
            {"topic": "a", "delay_ms": HOUR},
            {"topic": "c", "expires_in_ms": HOUR},
            {"topic": "c", "idempotency_key": "k"},
            {"topic": "a", "dedupe_key": "d"},
            {"topic": "a", "max_attempts": 1},
        ]
        jobs = [new_job(**kind) for kind in kinds]
        answers = await bench.store.insert(jobs)
        assert isinstance(answers[0], Inserted)
        assert answers == [Inserted(answers[0].at)] * len(jobs)
        seen = [await bench.job(job.id) for job in jobs]
        assert [job.topic for job in seen] == [job.topic for job in jobs]
        assert [job.priority for job in seen] == [job.priority for job in jobs]
        assert [job.capability for job in seen] == [job.capability or None for job in jobs]

    async def test_a_large_batch_is_stored_in_order(self, bench: Workbench) -> None:
        ids = await bench.enqueue(2000)
        assert await bench.claimable() == ids[:1000]
        assert await bench.store.count(Listing(topic=TOPIC)) == 2000

    async def test_a_large_payload(self, bench: Workbench) -> None:
        text = "x" * (1024 * 1024 - 10)
        id = await bench.enqueue_one(payload='{"a":"%s"}' % text)
        assert (await bench.claim_one()).payload == '{"a":"%s"}' % text
        assert (await bench.job(id)).payload == {"a": text}

    async def test_the_payload_reaches_the_worker_as_it_was_written(self, bench: Workbench) -> None:
        payload = '{"z":1,"a":1.0,"big":9007199254740993,"e":1e3,"s":"\\ud83d\\ude00"}'
        await bench.enqueue(1, payload=payload)
        assert (await bench.claim_one()).payload == payload

    async def test_a_delayed_job_waits(self, bench: Workbench) -> None:
        id = await bench.enqueue_one(delay_ms=HOUR)
        seen = await bench.job(id)
        assert seen.status is Status.PENDING
        assert seen.run_at - seen.created_at == timedelta(hours=1)
        assert await bench.claimable() == []

    async def test_a_time_in_the_past_is_due_now(self, bench: Workbench) -> None:
        past = await bench.store.now() - HOUR
        id = await bench.enqueue_one(run_at=past)
        assert await bench.claimable() == [id]
        assert (await bench.job(id)).run_at == from_ms(past)

    async def test_the_distant_future(self, bench: Workbench) -> None:
        at = 221_845_392_000_000  # the year 9000
        id = await bench.enqueue_one(run_at=at)
        assert (await bench.job(id)).run_at == from_ms(at)
        moved, _, wait = await bench.store.advance()
        assert moved == 0
        assert wait is not None
        assert abs(wait - (at - await bench.store.now())) < MINUTE

    async def test_extreme_numbers(self, bench: Workbench) -> None:
        low = await bench.enqueue_one(priority=-(2**31))
        high = await bench.enqueue_one(priority=2**31 - 1, max_attempts=1_000_000)
        assert await bench.claimable() == [high, low]

    async def test_a_deadline_counts_from_now(self, bench: Workbench) -> None:
        seen = await bench.job(await bench.enqueue_one(expires_in_ms=HOUR))
        assert seen.expires_at is not None
        assert seen.expires_at - seen.created_at == timedelta(hours=1)

    @pytest.mark.parametrize("kind", AGAIN)
    async def test_an_insert_that_is_sent_again_is_answered_as_the_first_time(
        self, bench: Workbench, kind: dict[str, Any]
    ) -> None:
        """Its answer was lost, perhaps after the commit. The job may have been claimed since."""
        job = new_job(**kind)
        made = await bench.store.insert([job])
        assert await bench.store.insert([job]) == made
        await bench.claimable()
        assert await bench.store.insert([job], atomic=False) == made
        assert await bench.store.count(Listing()) == 1

    async def test_of_a_batch_that_is_sent_again_only_missing_jobs_are_inserted(self, bench: Workbench) -> None:
        old = [new_job(), new_job(idempotency_key="k"), new_job(expires_in_ms=HOUR)]
        new = [new_job(topic="other"), new_job(idempotency_key="l")]
        first = [(await bench.store.insert([job]))[0] for job in old]
        mixed = [old[0], new[0], old[1], new[1], old[2]]
        answers = await bench.store.insert(mixed)
        assert [answers[0], answers[2], answers[4]] == first
        assert [isinstance(one, Inserted) and one.existing_id for one in (answers[1], answers[3])] == [None, None]
        assert await bench.store.insert(mixed) == answers
        assert await bench.store.count(Listing()) == 5

    async def test_the_id_of_another_job_is_refused(self, bench: Workbench) -> None:
        first = new_job()
        await bench.store.insert([first])
        for another in (first._replace(payload='{"another":1}'), first._replace(topic="another")):
            with pytest.raises(KeyReused, match=f"the id {first.id} belongs to a job with another topic or payload"):
                await bench.store.insert([new_job(), another])
            refused, stored = await bench.store.insert([another, new_job()], atomic=False)
            assert isinstance(refused, KeyReused)
            assert isinstance(stored, Inserted)
        seen = await bench.job(first.id)
        assert (seen.topic, seen.payload) == (TOPIC, {"to": "ann"})
        assert await bench.store.count(Listing()) == 3

    async def test_an_id_is_given_once_in_a_batch(self, bench: Workbench) -> None:
        job = new_job()
        with pytest.raises(InvalidInput, match="two jobs of one batch"):
            await bench.store.insert([job, job])
        assert await bench.store.count(Listing()) == 0

    async def test_all_or_nothing(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(idempotency_key="k", payload='{"a":1}')
        batch = [new_job(), new_job(idempotency_key="k", payload='{"a":2}'), new_job(dedupe_key="d")]
        with pytest.raises(KeyReused):
            await bench.store.insert(batch)
        assert [job.id for job in await bench.store.list(Listing())] == [first]
        await bench.enqueue(1, dedupe_key="d")  # the key was not kept

    async def test_one_refusal_does_not_hold_up_the_others(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(idempotency_key="k", payload='{"a":1}')
        batch = [new_job(), new_job(idempotency_key="k", payload='{"a":2}'), new_job()]
        answers = await bench.store.insert(batch, atomic=False)
        assert isinstance(answers[0], Inserted)
        assert isinstance(answers[1], KeyReused)
        assert isinstance(answers[2], Inserted)
        assert answers[1].data["jobId"] == first
        assert await bench.statuses([job.id for job in batch]) == [Status.PENDING, None, Status.PENDING]


class IdempotencyContract(ContractPart):
    """A key is unique per topic and scope until its job is deleted."""

    async def test_the_same_key_and_payload_find_the_first_job(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(idempotency_key="k")
        again = new_job(idempotency_key="k")
        answer = await bench.insert(again)
        assert answer.existing_id == first
        assert await bench.statuses([first, again.id]) == [Status.PENDING, None]

    async def test_the_keys_of_owners_are_their_own(self, bench: Workbench) -> None:
        owners = (None, "", "ann", "bob")
        first = {owner: await bench.enqueue_one(idempotency_key="k", key_owner=owner) for owner in owners}
        assert len(set(first.values())) == 4
        for owner in owners:
            answer = await bench.insert(new_job(idempotency_key="k", key_owner=owner))
            assert answer.existing_id == first[owner]

    @pytest.mark.parametrize("atomic", [True, False])
    async def test_another_payload_is_refused(self, bench: Workbench, atomic: bool) -> None:
        first = await bench.enqueue_one(idempotency_key="k", payload='{"a":1}')
        other = new_job(idempotency_key="k", payload='{"a":2}')
        if atomic:
            with pytest.raises(KeyReused) as caught:
                await bench.store.insert([other])
            refusal = caught.value
        else:
            (answer,) = await bench.store.insert([other], atomic=False)
            assert isinstance(answer, KeyReused)
            refusal = answer
        assert refusal.data["jobId"] == first
        assert (await bench.store.get([other.id])) == [None]

    async def test_twice_in_one_batch_is_one_job(self, bench: Workbench) -> None:
        jobs = [new_job(idempotency_key="k"), new_job(), new_job(idempotency_key="k")]
        answers = await bench.store.insert(jobs)
        assert [answer.existing_id for answer in answers if isinstance(answer, Inserted)] == [None, None, jobs[0].id]
        assert await bench.store.count(Listing()) == 2

    async def test_twice_in_one_batch_with_another_payload_is_refused(self, bench: Workbench) -> None:
        jobs = [new_job(idempotency_key="k"), new_job(idempotency_key="k", payload="{}")]
        with pytest.raises(KeyReused):
            await bench.store.insert(jobs)
        assert await bench.store.count(Listing()) == 0
        answers = await bench.store.insert(jobs, atomic=False)
        assert isinstance(answers[0], Inserted)
        assert isinstance(answers[1], KeyReused)
        assert answers[1].data["jobId"] == jobs[0].id

    async def test_twice_in_one_batch_of_a_key_that_is_taken(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(idempotency_key="k")
        answers = await bench.store.insert([new_job(idempotency_key="k"), new_job(idempotency_key="k")])
        assert [answer.existing_id for answer in answers if isinstance(answer, Inserted)] == [first, first]

    @pytest.mark.parametrize(
        "change",
        [
            {"topic": "other"},
            {"scope": "account"},
            {"scope_id": "2"},
            {"scope": None, "scope_id": None},
            {"idempotency_key": "K"},
        ],
        ids=str,
    )
    async def test_another_topic_scope_or_key_is_another_job(self, bench: Workbench, change: dict[str, Any]) -> None:
        job = new_job(scope="user", scope_id="1", idempotency_key="k")
        other = new_job(**{"scope": "user", "scope_id": "1", "idempotency_key": "k", **change})
        for one in (job, other):
            answer = await bench.insert(one)
            assert answer.existing_id is None

    async def test_parts_of_a_key_cannot_run_into_each_other(self, bench: Workbench) -> None:
        for scope, key in [("a", 'b","c'), ('a","b', "c"), ("a", "b"), ('a"', "b"), ("a\\", "b")]:
            answer = await bench.insert(new_job(scope=scope, scope_id="1", idempotency_key=key))
            assert answer.existing_id is None, (scope, key)

    @pytest.mark.parametrize("state", ENDED)
    async def test_the_key_outlives_the_end_of_its_job(self, bench: Workbench, state: str) -> None:
        first = await bench.make(state, idempotency_key="k")
        answer = await bench.insert(new_job(idempotency_key="k"))
        assert answer.existing_id == first

    async def test_a_deleted_job_frees_its_key(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(idempotency_key="k", payload='{"a":1}')
        await steering.delete(bench.store, [first])
        second = await bench.enqueue_one(idempotency_key="k", payload='{"a":2}')
        assert second != first

    async def test_a_pruned_job_frees_its_key(self, bench: Workbench) -> None:
        await bench.make("completed", idempotency_key="k")
        await bench.pass_time(HOUR)
        assert await bench.store.prune(MINUTE) == 1
        await bench.enqueue(1, idempotency_key="k")

    async def test_a_requeued_job_keeps_its_key(self, bench: Workbench) -> None:
        first = await bench.make("failed", idempotency_key="k")
        await steering.requeue(bench.store, [first])
        answer = await bench.insert(new_job(idempotency_key="k"))
        assert answer.existing_id == first

    async def test_a_long_key_of_any_characters(self, bench: Workbench) -> None:
        key = "ü'\"\\%_$1?1:x {}" * 15
        first = await bench.enqueue_one(idempotency_key=key)
        answer = await bench.insert(new_job(idempotency_key=key))
        assert answer.existing_id == first
        assert (await bench.job(first)).idempotency_key == key


class DedupeContract(ContractPart):
    """A dedupe key is unique while its job is alive. If it is not repeatable, it stays taken once the job has
    completed.
    """

    @pytest.mark.parametrize("state", ["pending", "delayed", "retrying", "processing", "cancelling"])
    async def test_a_live_job_stands_for_another_with_its_key(self, bench: Workbench, state: str) -> None:
        first = await bench.make(state, dedupe_key="d")
        answer = await bench.insert(new_job(dedupe_key="d", payload='{"another": "payload"}'))
        assert answer.existing_id == first

    @pytest.mark.parametrize("state", ENDED)
    async def test_the_end_frees_the_key(self, bench: Workbench, state: str) -> None:
        first = await bench.make(state, dedupe_key="d")
        second = await bench.enqueue_one(dedupe_key="d")
        assert second != first

    async def test_a_deleted_job_frees_the_key(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(dedupe_key="d")
        await steering.delete(bench.store, [first])
        await bench.enqueue(1, dedupe_key="d")

    async def test_twice_in_one_batch_is_one_job(self, bench: Workbench) -> None:
        jobs = [new_job(dedupe_key="d"), new_job(dedupe_key="d", payload="{}"), new_job(dedupe_key="e")]
        answers = await bench.store.insert(jobs)
        assert [answer.existing_id for answer in answers if isinstance(answer, Inserted)] == [None, jobs[0].id, None]

    async def test_the_end_frees_the_key_in_a_batch_of_endings(self, bench: Workbench) -> None:
        await bench.enqueue_one(dedupe_key="a")
        await bench.enqueue_one(dedupe_key="b")
        await bench.enqueue_one()
        for job in await bench.claim(3):
            assert await bench.settle(job, Completed())
        await bench.enqueue_one(dedupe_key="a")
        await bench.enqueue_one(dedupe_key="b")

    async def test_a_job_that_loses_one_key_does_not_keep_another(self, bench: Workbench) -> None:
        first = await bench.enqueue_one(dedupe_key="d")
        answer = await bench.insert(new_job(dedupe_key="d", idempotency_key="k"))
        assert answer.existing_id == first
        third = await bench.enqueue_one(idempotency_key="k", dedupe_key="e")
        assert third != first

    async def test_the_idempotency_key_is_asked_first(self, bench: Workbench) -> None:
        mine = await bench.enqueue_one(idempotency_key="k", dedupe_key="a")
        await bench.enqueue_one(dedupe_key="b")
        answer = await bench.insert(new_job(idempotency_key="k", dedupe_key="b"))
        assert answer.existing_id == mine

    async def test_not_repeatable_after_it_completed(self, bench: Workbench) -> None:
        first = await bench.make("completed", dedupe_key="d", repeatable=False)
        with pytest.raises(NotRepeatable) as refusal:
            await bench.store.insert([new_job(dedupe_key="d", repeatable=False)])
        assert refusal.value.data["jobId"] == first
        assert await bench.store.count(Listing()) == 1

    @pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
    async def test_repeatable_until_it_completed(self, bench: Workbench, state: str) -> None:
        await bench.make(state, dedupe_key="d", repeatable=False)
        await bench.enqueue(1, dedupe_key="d", repeatable=False)

    async def test_another_key_is_another_job(self, bench: Workbench) -> None:
        await bench.make("completed", dedupe_key="d", repeatable=False)
        await bench.enqueue(1, dedupe_key="e", repeatable=False)

    async def test_a_deleted_job_can_be_repeated(self, bench: Workbench) -> None:
        first = await bench.make("completed", dedupe_key="d", repeatable=False)
        await steering.delete(bench.store, [first], force=True)
        await bench.enqueue(1, dedupe_key="d", repeatable=False)

    async def test_requeue_takes_the_key_back(self, bench: Workbench) -> None:
        first = await bench.make("failed", dedupe_key="d")
        await steering.requeue(bench.store, [first])
        answer = await bench.insert(new_job(dedupe_key="d"))
        assert answer.existing_id == first

    async def test_requeue_of_the_once_completed_gives_it_another_chance(self, bench: Workbench) -> None:
        first = await bench.make("completed", dedupe_key="d", repeatable=False)
        await steering.requeue(bench.store, [first], force=True)
        answer = await bench.insert(new_job(dedupe_key="d", repeatable=False))
        assert answer.existing_id == first
        job = await bench.claim_one()
        await bench.settle(job, Failed("Boom", "Boom"))
        await bench.enqueue(1, dedupe_key="d", repeatable=False)

    async def test_no_requeue_while_another_job_has_the_key(self, bench: Workbench) -> None:
        first = await bench.make("failed", dedupe_key="d")
        await bench.enqueue(1, dedupe_key="d")
        (refusal,) = await steering.requeue(bench.store, [first])
        assert "dedupe" in str(getattr(refusal, "error", refusal))
        assert await bench.status(first) is Status.FAILED

    async def test_only_one_of_two_equals_is_requeued(self, bench: Workbench) -> None:
        first = await bench.make("failed", dedupe_key="d")
        second = await bench.make("failed", dedupe_key="d")
        await steering.requeue(bench.store, [first, second])
        assert set(await bench.statuses([first, second])) == {Status.FAILED, Status.PENDING}
