"""What an ending carries with it, and endings that no database can store."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.model.errors import StoreUnavailable
from treadle.model.status import Status
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import Completed, Failed, Outcome, Released, Snoozed
from treadle.queue import steering
from treadle.store.values import Claimed, Effects, NewEvent, Settlement
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, Workbench, new_job, settlement

ENDINGS: list[Outcome] = [
    Completed('{"a": 1}'),
    Failed("Boom: no", "Boom"),
    Failed("Boom: again", "Boom", retry_in_ms=MINUTE),
    Snoozed(MINUTE, "not yet"),
    Released("shutdown"),
]
# With and without dependent rows: plain jobs are settled by a separate statement.
KINDS: list[dict[str, Any]] = [{}, {"dedupe_key": "d", "expires_in_ms": HOUR}]


class BadDataContract(ContractPart):
    """A value that can't be stored is refused, the job stays with its owner, and other jobs are not affected."""

    @pytest.mark.parametrize(
        "outcome",
        [Completed("\ud800"), Failed("\ud800", "Boom"), Failed("a\0b", "Boom"), Failed("Boom", "\ud800", 1)],
        ids=["result", "error", "nul", "type"],
    )
    async def test_an_ending_that_cannot_be_stored_leaves_the_job_with_its_owner(
        self, bench: Workbench, outcome: Outcome
    ) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        try:
            await bench.settle(job, outcome)
        except Exception as error:
            assert not isinstance(error, StoreUnavailable), "it would be tried for ever"
            assert await bench.status(id) is Status.PROCESSING
            assert await bench.settle(job, Failed("the ending could not be stored", "ResultNotStored"))
        assert await bench.status(id) is Status.FAILED

    async def test_one_bad_result_in_a_batch_ends_no_job_by_half(self, bench: Workbench) -> None:
        ids = await bench.enqueue(3)
        jobs = await bench.claim(3)
        endings = [settlement(job, Completed('"ok"')) for job in jobs]
        endings[1] = settlement(jobs[1], Completed("\ud800"))
        with pytest.raises(Exception):  # noqa: B017 - drivers name "this can't be stored" in many ways
            await bench.store.settle(endings)
        assert await bench.statuses(ids) == [Status.PROCESSING] * 3
        assert await bench.store.settle([endings[0], endings[2]]) == []
        assert await bench.settle(jobs[1], Failed("the result could not be stored", "ResultNotStored"))
        assert await bench.statuses(ids) == ["completed", "failed", "completed"]

    async def test_a_new_job_that_cannot_be_stored_is_refused_whole(self, bench: Workbench) -> None:
        batch = [new_job(), new_job(created_by="\ud800"), new_job()]
        with pytest.raises(Exception) as caught:
            await bench.store.insert(batch)
        assert not isinstance(caught.value, StoreUnavailable), "it would be tried for ever"
        assert await bench.statuses([job.id for job in batch]) == [None] * 3


class EffectsContract(ContractPart):
    """Follow-up jobs and events are stored with the outcome, or not at all."""

    @pytest.mark.parametrize("options", KINDS, ids=["plain", "keyed"])
    async def test_they_come_with_the_outcome(self, bench: Workbench, options: dict[str, Any]) -> None:
        (id,) = await bench.enqueue(1, **options)
        job = await bench.claim_one()
        follow_ups = (new_job(topic="next"), new_job(topic="next", delay_ms=HOUR))
        told = NewEvent("job:progress", "half way", {"frames": 7})
        assert await self.end(bench, job, Completed('"done"'), Effects(follow_ups, (told,)))
        assert (await bench.job(id)).result_value == "done"
        assert await bench.claimable(["next"]) == [follow_ups[0].id]
        assert await bench.statuses([new.id for new in follow_ups]) == [Status.PENDING] * 2
        (event,) = await bench.store.events(id) or ()
        assert (event.type, event.message, event.metadata) == ("job:progress", "half way", {"frames": 7})

    async def test_a_lost_outcome_brings_nothing(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.release(bench.store, [id])
        new = new_job(topic="next")
        assert not await self.end(bench, job, Completed(), Effects((new,)))
        assert await bench.store.get([new.id]) == [None]

    async def test_an_outcome_sent_again_brings_them_once(self, bench: Workbench) -> None:
        await bench.enqueue(1)
        job = await bench.claim_one()
        effects = Effects((new_job(topic="next"),), (NewEvent("job:progress"),))
        assert await self.end(bench, job, Completed(), effects)
        assert await self.end(bench, job, Completed(), effects)
        assert len(await bench.claimable(["next"])) == 1
        assert await bench.history(job.id) == ["progress"]

    async def test_a_refused_follow_up_makes_it_a_failure_and_brings_nothing(self, bench: Workbench) -> None:
        only_one = Limit("k", "reject_same_scope", 1)
        await bench.enqueue(1, topic="next", limit=only_one)
        ids = await bench.enqueue(3)
        jobs = await bench.claim(3)
        allowed, refused = new_job(topic="next"), new_job(topic="next", limit=only_one)
        endings = [
            settlement(jobs[0], Completed()),
            settlement(jobs[1], Completed())._replace(effects=Effects((allowed, refused))),
            settlement(jobs[2], Completed())._replace(effects=Effects((new_job(topic="other"),))),
        ]
        instead: list[Settlement] = []
        assert await bench.store.settle(endings, refused=instead) == []
        assert [(one.job.id, one.transition.to) for one in instead] == [(ids[1], Status.FAILED)]
        assert await bench.statuses(ids) == ["completed", "failed", "completed"]
        seen = await bench.job(ids[1])
        assert seen.error_type == "FollowUpRefused"
        assert "a follow-up job was refused" in (seen.last_error or "")
        assert await bench.store.get([allowed.id, refused.id]) == [None, None]
        assert len(await bench.claimable(["other"])) == 1

    async def test_a_cancel_that_the_owner_did_not_know_of_brings_nothing(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1)
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "stop")
        new = new_job(topic="next")
        assert await self.end(bench, job, Failed("Boom", "Boom"), Effects((new,)))
        assert await bench.status(id) is Status.CANCELLED
        assert await bench.store.get([new.id]) == [None]

    async def end(self, bench: Workbench, job: Claimed, outcome: Outcome, effects: Effects) -> bool:
        return not await bench.store.settle([settlement(job, outcome)._replace(effects=effects)])
