"""Children that a step waits for: made once, heard by the parent however they end, cancelled with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.model.errors import HasChildren, TooDeep, UnknownStep, WrongState
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.admission import REJECT, Limit
from treadle.policy.children import MAX_DEPTH
from treadle.policy.lifecycle import Completed, Failed, Parked
from treadle.queue import steering
from treadle.queue.steering import Again
from treadle.store.protocol import Store
from treadle.store.values import (
    Answer,
    Claimed,
    ClaimedStep,
    Effects,
    MadeChildren,
    NewChild,
    NewChildren,
    Refusal,
    StepKey,
)
from treadle.testing.contract.steps import error_of
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import DAY, HOUR, Workbench, new_job, settlement

CHILD = "resize"


def child(key: str = "", place: int = 0, **options: Any) -> NewChild:
    job = new_job(**{"topic": CHILD, "parent_step": CHILD, "parent_key": key, **options})
    return NewChild(key, job, place)


def wanted(job: Claimed, *children: NewChild, total: int | None = None, restart: bool = False) -> NewChildren:
    return NewChildren(job.n, job.token, 5, CHILD, 0, children or (child(),), total, restart)


async def made(bench: Workbench, job: Claimed, *children: NewChild, **options: Any) -> MadeChildren:
    answer = await bench.store.make_children(job.lease, wanted(job, *children, **options))
    assert answer is not None
    return answer


async def park(store: Store, job: Claimed, key: str = "") -> bool:
    """As a worker does that waits for the child of this step."""
    parked = settlement(job, Parked(CHILD))._replace(effects=Effects(awaits=(StepKey(CHILD, key),)))
    return not await store.settle([parked])


async def waiting(bench: Workbench, **options: Any) -> tuple[str, str]:
    """A parked parent, and its child."""
    parent = await bench.enqueue_one(**options)
    job = await bench.claim_one(topics=[options.get("topic", "mail")])
    [one] = (await made(bench, job)).children
    assert one.child
    assert await park(bench.store, job)
    assert await bench.status(parent) is Status.WAITING
    return parent, one.child


async def step_of(bench: Workbench, job: Claimed, key: str = "") -> ClaimedStep:
    steps = (await bench.store.claimed_steps([job.n]))[job.n].steps
    return next(one for one in steps if (one.name, one.key) == (CHILD, key))


def refused(answer: object) -> type[Exception]:
    assert isinstance(answer, Refusal)
    return type(answer.error)


async def heard(bench: Workbench) -> ClaimedStep:
    """What the parent knows of its child when it goes on."""
    return await step_of(bench, await bench.claim_one())


class ChildContract(ContractPart):
    async def test_a_child_is_made_with_its_step(self, bench: Workbench) -> None:
        parent, child_id = await waiting(bench)
        found = await bench.job(child_id)
        assert (found.parent_id, found.topic, found.status) == (parent, CHILD, Status.PENDING)

    async def test_a_child_is_made_once(self, bench: Workbench) -> None:
        await bench.enqueue_one()
        job = await bench.claim_one()
        first, again = await made(bench, job), await made(bench, job)
        assert first.children[0].child == again.children[0].child
        assert len(await bench.claimable([CHILD])) == 1

    async def test_nothing_is_made_for_a_job_that_is_lost(self, bench: Workbench) -> None:
        await bench.enqueue_one()
        job = await bench.claim_one()
        assert await bench.store.make_children(job.lease, wanted(job)._replace(token=job.token + 1)) is None
        assert await bench.store.make_children(job.lease + 1000, wanted(job)) is None
        assert await bench.claimable([CHILD]) == []

    async def test_a_completed_child_gives_its_result(self, bench: Workbench) -> None:
        parent, child_id = await waiting(bench)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed('{"sent":1}'))
        assert await bench.status(parent) is Status.PENDING
        step = await heard(bench)
        assert (step.state, step.result, step.child) == (StepState.COMPLETED, '{"sent":1}', child_id)

    async def test_a_large_result_is_kept_apart(self, bench: Workbench) -> None:
        await waiting(bench)
        text = '"' + "x" * 200_000 + '"'
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed(text))
        job = await bench.claim_one()
        assert (await step_of(bench, job)).result is None
        assert await bench.store.step_results(job.n, [StepKey(CHILD)]) == {StepKey(CHILD): text}

    @pytest.mark.parametrize(
        "end", ["failed", "cancelled", "stopped", "deleted", "expired", "lost", "past its deadline"]
    )
    async def test_the_parent_goes_on_however_its_child_ends(self, bench: Workbench, end: str) -> None:
        await bench.enqueue_one()
        options: dict[str, Any] = (
            {"max_attempts": 1} if end == "lost" else {"expires_in_ms": HOUR} if "deadline" in end else {}
        )
        job = await bench.claim_one()
        [one] = (await made(bench, job, child(**options))).children
        assert one.child
        assert await park(bench.store, job)
        await self.end(bench, one.child, end)
        step = await heard(bench)
        assert (step.state, step.error_type, step.child) == (StepState.FAILED, "ChildFailed", one.child)
        assert step.error
        assert one.child in step.error

    async def end(self, bench: Workbench, id: str, end: str) -> None:
        match end:
            case "failed":
                assert await bench.settle(await bench.claim_one(topics=[CHILD]), Failed("Boom: no", "Boom"))
            case "cancelled":
                await steering.cancel(bench.store, [id], "not wanted")
            case "stopped":
                await bench.claim_one(topics=[CHILD])
                await steering.cancel(bench.store, [id], "not wanted")
                await bench.reap(grace_ms=0)
            case "deleted":
                assert await steering.delete(bench.store, [id]) == [None]
            case "expired" | "lost":
                job = await bench.claim_one(topics=[CHILD])
                while (await bench.job(id)).status is Status.PROCESSING:
                    await bench.store.close_lease(job.lease)
                    await bench.reap()
                    if (await bench.job(id)).status is Status.PENDING:
                        job = await bench.claim_one(topics=[CHILD])
            case _:
                await bench.pass_time(2 * HOUR)
                await bench.store.advance()

    async def test_a_refused_child_is_heard_at_once(self, bench: Workbench) -> None:
        limit = Limit("one", REJECT, 1)
        await bench.enqueue_one(topic="other", limit=limit)
        await bench.enqueue_one()
        job = await bench.claim_one()
        [one] = (await made(bench, job, child(limit=limit))).children
        assert (one.state, one.child) == (StepState.FAILED, None)
        step = await step_of(bench, job)
        assert (step.state, step.error_type) == (StepState.FAILED, "ChildFailed")
        assert await bench.claimable([CHILD]) == []

    async def test_a_child_that_ends_before_its_parent_parks(self, bench: Workbench) -> None:
        parent = await bench.enqueue_one()
        job = await bench.claim_one()
        await made(bench, job)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed("1"))
        assert await bench.status(parent) is Status.PROCESSING
        assert await park(bench.store, job)
        assert await bench.status(parent) is Status.PENDING
        assert (await heard(bench)).result == "1"

    async def test_ends_race_parking(self, bench: Workbench) -> None:
        """The parent goes on once, whichever comes first."""
        other = await bench.another()
        for number in range(60):
            await bench.enqueue_one()
            job = await bench.claim_one()
            await made(bench, job)
            small = await bench.claim_one(topics=[CHILD])

            async def end(small: Claimed = small, number: int = number) -> None:
                await asyncio.sleep((number % 7) / 2000)  # before, while and after it parks
                assert await bench.settle(small, Completed(str(number)), store=other)

            await asyncio.gather(end(), park(bench.store, job))
            [again] = await bench.claim(2)
            assert (await step_of(bench, again)).result == str(number)
            assert await bench.settle(again, Completed())

    async def test_two_children_that_end_together_wake_once(self, bench: Workbench) -> None:
        other = await bench.another()
        for _ in range(20):
            await bench.enqueue_one()
            job = await bench.claim_one()
            for key in "ab":
                await made(bench, job, child(key))
            parked = settlement(job, Parked(CHILD))
            awaits = (StepKey(CHILD, "a"), StepKey(CHILD, "b"))
            assert not await bench.store.settle([parked._replace(effects=Effects(awaits=awaits))])
            one, two = await bench.claim(2, topics=[CHILD])
            await asyncio.gather(bench.settle(one, Completed("1")), bench.settle(two, Completed("2"), store=other))
            [again] = await bench.claim(2)
            assert {(await step_of(bench, again, key)).state for key in "ab"} == {StepState.COMPLETED}
            assert await bench.settle(again, Completed())

    async def test_a_signal_does_not_end_the_wait_for_a_child(self, bench: Workbench) -> None:
        parent, _ = await waiting(bench)
        [refusal] = await bench.store.answer([Answer(parent, CHILD, result="1", unannounced=True)])
        assert error_of(refusal) is UnknownStep
        assert await bench.status(parent) is Status.WAITING

    async def test_an_early_answer_does_not_end_it_either(self, bench: Workbench) -> None:
        parent = await bench.enqueue_one()
        assert await bench.store.answer([Answer(parent, CHILD, result="1", unannounced=True)]) == [None]
        job = await bench.claim_one()
        await made(bench, job)
        assert await park(bench.store, job)
        assert await bench.status(parent) is Status.WAITING

    async def test_a_cancelled_parent_cancels_its_child(self, bench: Workbench) -> None:
        parent, child_id = await waiting(bench)
        await steering.cancel(bench.store, [parent], "enough")
        assert await bench.statuses([parent, child_id]) == [Status.CANCELLED, Status.CANCELLED]
        assert (await bench.job(child_id)).cancel_reason == "its parent was cancelled"

    async def test_a_cancel_goes_down_the_whole_tree(self, bench: Workbench) -> None:
        top, middle = await waiting(bench)
        job = await bench.claim_one(topics=[CHILD])
        [low] = (await made(bench, job)).children
        assert low.child
        assert await park(bench.store, job)
        running = await bench.claim_one(topics=[CHILD])
        await steering.cancel(bench.store, [top])
        assert await bench.statuses([top, middle]) == [Status.CANCELLED] * 2
        assert await bench.status(low.child) is Status.CANCELLING
        assert running.id == low.child

    async def test_a_parent_that_a_worker_ends_cancels_its_child_with_the_next_advance(self, bench: Workbench) -> None:
        parent = await bench.enqueue_one()
        job = await bench.claim_one()
        [one] = (await made(bench, job)).children
        assert one.child
        await steering.cancel(bench.store, [parent])
        assert await bench.status(one.child) is Status.PENDING
        await bench.reap(grace_ms=0)
        await bench.store.advance()
        assert await bench.statuses([parent, one.child]) == [Status.CANCELLED] * 2

    async def test_a_parent_that_waits_is_not_deleted(self, bench: Workbench) -> None:
        parent = await bench.enqueue_one()
        job = await bench.claim_one()
        await made(bench, job)
        assert await bench.settle(job, Failed("Boom: no", "Boom"))
        [answer] = await steering.delete(bench.store, [parent])
        assert refused(answer) is HasChildren
        await bench.pass_time(30 * DAY)
        assert await bench.store.prune(DAY) == 0
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed())
        assert await steering.delete(bench.store, [parent]) == [None]

    async def test_a_parked_parent_is_refused_for_its_state(self, bench: Workbench) -> None:
        parent, _ = await waiting(bench)
        [answer] = await steering.delete(bench.store, [parent])
        assert refused(answer) is WrongState

    async def test_a_child_that_nobody_waits_for_keeps_nothing(self, bench: Workbench) -> None:
        parent = await bench.make("failed")
        await bench.enqueue_one(parent_id=parent)
        assert await steering.delete(bench.store, [parent]) == [None]

    async def test_depth_is_limited(self, bench: Workbench) -> None:
        await bench.enqueue_one(topic=CHILD)
        for _ in range(MAX_DEPTH):
            await made(bench, await bench.claim_one(topics=[CHILD]))
        job = await bench.claim_one(topics=[CHILD])
        with pytest.raises(TooDeep):
            await made(bench, job)
        assert await bench.claimable([CHILD]) == []

    async def test_a_job_that_enqueues_itself_again_is_not_deep(self, bench: Workbench) -> None:
        parent = await bench.enqueue_one()
        for _ in range(MAX_DEPTH + 2):
            job = await bench.claim_one()
            await bench.settle(job, Completed())
            parent = await bench.enqueue_one(parent_id=parent)
        await made(bench, await bench.claim_one())

    async def test_children_have_their_parents_priority(self, bench: Workbench) -> None:
        await bench.enqueue_one(priority=75)
        job = await bench.claim_one()
        [one] = (await made(bench, job, child()._replace(as_parent=True))).children
        assert one.child
        assert (await bench.job(one.child)).priority == 75


class ChildrenAgainContract(ContractPart):
    """Requeues and further attempts."""

    async def failed_parent(self, bench: Workbench) -> tuple[str, str]:
        """Its child lives."""
        parent = await bench.enqueue_one()
        job = await bench.claim_one()
        [one] = (await made(bench, job)).children
        assert one.child
        assert await bench.settle(job, Failed("Boom: no", "Boom"))
        return parent, one.child

    async def requeue(self, bench: Workbench, id: str, mode: str = "unfinished", step: str | None = None) -> Claimed:
        [answer] = await steering.requeue(bench.store, [id], again=Again(mode=mode, step=step))
        assert not isinstance(answer, Refusal), answer
        return await bench.claim_one()

    async def test_unfinished_keeps_a_live_child(self, bench: Workbench) -> None:
        parent, child_id = await self.failed_parent(bench)
        job = await self.requeue(bench, parent)
        assert (await step_of(bench, job)).state is StepState.WAITING
        assert (await made(bench, job)).children[0].child == child_id
        assert await park(bench.store, job)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed("1"))
        assert (await heard(bench)).result == "1"

    async def test_unfinished_keeps_a_child_that_has_completed_meanwhile(self, bench: Workbench) -> None:
        parent, _ = await self.failed_parent(bench)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed("1"))
        assert (await step_of(bench, await self.requeue(bench, parent))).result == "1"

    async def test_unfinished_replaces_a_failed_child(self, bench: Workbench) -> None:
        parent, child_id = await self.failed_parent(bench)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Failed("Boom: no", "Boom"))
        job = await self.requeue(bench, parent)
        [one] = (await made(bench, job)).children
        assert one.state is StepState.WAITING
        assert one.child != child_id

    async def test_unfinished_takes_a_child_that_was_requeued_and_completed(self, bench: Workbench) -> None:
        parent, child_id = await self.failed_parent(bench)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Failed("Boom: no", "Boom"))
        await steering.requeue(bench.store, [child_id])
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Completed("7"))
        assert await bench.status(parent) is Status.FAILED
        job = await self.requeue(bench, parent)
        [one] = (await made(bench, job)).children
        assert (one.state, one.child, one.result) == (StepState.COMPLETED, child_id, "7")

    @pytest.mark.parametrize("mode", ["all", "from"])
    async def test_all_and_from_make_another_child(self, bench: Workbench, mode: str) -> None:
        parent, child_id = await self.failed_parent(bench)
        job = await self.requeue(bench, parent, mode, CHILD if mode == "from" else None)
        [one] = (await made(bench, job)).children
        assert one.child
        assert one.child != child_id
        assert await park(bench.store, job)
        old, new = await bench.claim(2, topics=[CHILD])
        assert (old.id, new.id) == (child_id, one.child)
        assert await bench.settle(old, Completed("1"))
        assert await bench.status(parent) is Status.WAITING
        assert await bench.settle(new, Completed("2"))
        assert (await heard(bench)).result == "2"

    async def test_requeuing_a_child_never_touches_its_parent(self, bench: Workbench) -> None:
        parent, child_id = await waiting(bench)
        assert await bench.settle(await bench.claim_one(topics=[CHILD]), Failed("Boom: no", "Boom"))
        step = await heard(bench)
        await steering.requeue(bench.store, [child_id])
        job = await bench.claim_one(topics=[CHILD])
        assert await bench.settle(job, Completed("1"))
        assert await bench.status(parent) is Status.PROCESSING
        assert step.state is StepState.FAILED
        assert (await bench.job(parent)).steps[0]["status"] == "failed"

    async def test_a_cancelled_parent_that_is_requeued_gets_another_child(self, bench: Workbench) -> None:
        parent, child_id = await waiting(bench)
        await steering.cancel(bench.store, [parent])
        job = await self.requeue(bench, parent)
        [one] = (await made(bench, job)).children
        assert one.child != child_id


class FamilyContract(ContractPart):
    """Steps that wait for many children."""

    async def family(self, bench: Workbench, count: int = 3, total: int = 6) -> tuple[str, Claimed]:
        parent = await bench.enqueue_one()
        job = await bench.claim_one()
        answer = await made(bench, job, *[child(str(i), i) for i in range(count)], total=total)
        assert (answer.made, answer.left, answer.failed) == (count, count, 0)
        return parent, job

    async def test_the_parent_goes_on_when_the_last_has_ended(self, bench: Workbench) -> None:
        parent, job = await self.family(bench)
        assert await park(bench.store, job)
        small = await bench.claim(3, topics=[CHILD])
        assert await bench.settle(small[0], Completed("0"))
        assert await bench.settle(small[1], Failed("Boom: no", "Boom"))
        assert await bench.status(parent) is Status.WAITING
        assert await bench.settle(small[2], Completed("2"))
        again = await bench.claim_one()
        step = await step_of(bench, again)
        assert (step.state, step.made, step.left, step.failed) == (StepState.WAITING, 3, 0, 1)
        results = await bench.store.child_results(again.n, CHILD)
        assert [(one.key, one.result) for one in results] == [("0", "0"), ("1", None), ("2", "2")]
        assert [one.state for one in results] == [StepState.COMPLETED, StepState.FAILED, StepState.COMPLETED]
        assert (await bench.store.child_results(again.n, CHILD, after=1))[0].key == "2"

    async def test_children_that_end_together_are_all_counted(self, bench: Workbench) -> None:
        other = await bench.another()
        for _ in range(10):
            _, job = await self.family(bench, 8)
            small = await bench.claim(8, topics=[CHILD])
            ends = [
                bench.settle(one, Completed(str(i)), store=(bench.store, other)[i % 2]) for i, one in enumerate(small)
            ]
            await asyncio.gather(*ends, park(bench.store, job))
            [again] = await bench.claim(2)
            assert (await step_of(bench, again)).left == 0
            assert await bench.settle(again, Completed())

    async def test_told_again_nothing_is_counted_twice(self, bench: Workbench) -> None:
        _, job = await self.family(bench)
        answer = await made(bench, job, *[child(str(i), i) for i in range(3)], total=6)
        assert (answer.made, answer.left) == (3, 3)
        assert len(await bench.claimable([CHILD])) == 3

    async def test_a_second_window_adds_to_the_first(self, bench: Workbench) -> None:
        _, job = await self.family(bench)
        answer = await made(bench, job, child("3", 3), total=6)
        assert (answer.made, answer.left) == (4, 4)

    async def test_a_restart_makes_only_what_has_not_completed(self, bench: Workbench) -> None:
        _, job = await self.family(bench)
        small = await bench.claim(3, topics=[CHILD])
        assert await bench.settle(small[0], Completed("0"))
        assert await bench.settle(small[1], Failed("Boom: no", "Boom"))
        answer = await made(bench, job, *[child(str(i), i) for i in range(3)], total=6, restart=True)
        assert (answer.made, answer.left, answer.failed) == (3, 2, 0)
        assert [await bench.settle(one, Completed("9")) for one in await bench.claim(1, topics=[CHILD])] == [True]
        assert (await step_of(bench, job)).left == 1
        assert answer.children[0].state is StepState.COMPLETED
        assert answer.children[1].child not in (small[1].id, None)
        assert answer.children[2].child == small[2].id

    async def test_refused_children_fail_alone(self, bench: Workbench) -> None:
        limit = Limit("one", REJECT, 1)
        await bench.enqueue_one(topic="other", limit=limit)
        await bench.enqueue_one()
        job = await bench.claim_one()
        answer = await made(bench, job, child("0", 0), child("1", 1, limit=limit), total=2)
        assert (answer.made, answer.left, answer.failed) == (2, 1, 1)
        assert [one.state for one in answer.children] == [StepState.WAITING, StepState.FAILED]

    async def test_a_cancel_reaches_all_of_them(self, bench: Workbench) -> None:
        parent, job = await self.family(bench)
        assert await park(bench.store, job)
        await steering.cancel(bench.store, [parent])
        assert await bench.claimable([CHILD]) == []

    async def test_an_unfinished_requeue_goes_on_with_the_window(self, bench: Workbench) -> None:
        parent, job = await self.family(bench)
        assert await bench.settle(job, Failed("Boom: no", "Boom"))
        small = await bench.claim(3, topics=[CHILD])
        assert await bench.settle(small[0], Completed("0"))
        [answer] = await steering.delete(bench.store, [parent])
        assert refused(answer) is HasChildren
        await steering.requeue(bench.store, [parent])
        again = await bench.claim_one()
        step = await step_of(bench, again)
        assert (step.state, step.made, step.left) == (StepState.WAITING, 3, 2)

    async def test_a_requeue_of_all_begins_anew(self, bench: Workbench) -> None:
        parent, job = await self.family(bench)
        assert await bench.settle(job, Failed("Boom: no", "Boom"))
        await steering.requeue(bench.store, [parent], again=Again(mode="all"))
        again = await bench.claim_one()
        assert await bench.store.child_results(again.n, CHILD) == []
        answer = await made(bench, again, child("0", 0), total=1)
        assert (answer.made, answer.left) == (1, 1)
        assert len(await bench.claimable([CHILD])) == 4

    async def test_people_see_how_many_have_ended(self, bench: Workbench) -> None:
        parent, _ = await self.family(bench)
        small = await bench.claim(3, topics=[CHILD])
        assert await bench.settle(small[0], Completed("0"))
        assert await bench.settle(small[1], Failed("Boom: no", "Boom"))
        [step] = (await bench.job(parent)).steps
        assert step["items"] == {"total": 6, "done": 1, "failed": 1}
        assert step["progress"] == 16
        page = await bench.store.steps(parent, CHILD)
        assert page
        assert page.total == 3
        assert [(run["key"], run["status"]) for run in page.items] == [
            ("0", "completed"),
            ("1", "failed"),
            ("2", "waiting"),
        ]
        assert page.items[0]["result"] == 0

    async def test_nothing_is_left_of_a_deleted_parent(self, bench: Workbench) -> None:
        parent, job = await self.family(bench)
        assert await bench.settle(job, Failed("Boom: no", "Boom"))
        for one in await bench.claim(3, topics=[CHILD]):
            assert await bench.settle(one, Completed())
        assert await steering.delete(bench.store, [parent]) == [None]
