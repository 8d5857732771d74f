"""Every way in which a job ends: when it ended, who had it, and what went wrong, as an API user sees it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.http.api import Api
from tests.queue.hands import HOUR_MS
from treadle.model.job import to_ms
from treadle.model.status import ENDED as ENDED_STATUSES
from treadle.model.status import Status
from treadle.policy.lifecycle import CancelAcknowledged, RowState, decide
from treadle.store.values import Graces, Settlement

ERROR = "Traceback: here\nBoom: no more"


async def completed(api: Api, id: str) -> None:
    await api.hands.complete(await api.hands.claim_one("mail"))


async def failed(api: Api, id: str) -> None:
    await api.hands.fail(await api.hands.claim_one("mail"), ERROR)


async def cancelled_while_it_waits(api: Api, id: str) -> None:
    await api.queue.cancel(id)


async def cancelled_while_it_waits_for_a_retry(api: Api, id: str) -> None:
    await api.hands.fail(await api.hands.claim_one("mail"), ERROR, retry_in_ms=HOUR_MS)
    await api.queue.cancel(id)


async def cancelled_while_it_runs(api: Api, id: str) -> None:
    job = await api.hands.claim_one("mail")
    await api.queue.cancel(id)
    state = RowState(Status.CANCELLING, job.attempt, job.max_attempts)
    assert not await api.queue.store.settle([Settlement(job, decide(state, CancelAcknowledged("stopped")), 1)])


async def failed_after_a_cancel(api: Api, id: str) -> None:
    job = await api.hands.claim_one("mail")
    await api.queue.cancel(id)
    await api.hands.fail(job, ERROR)


async def cancelled_after_the_grace(api: Api, id: str) -> None:
    await api.hands.claim_one("mail")
    await api.queue.cancel(id)
    assert (await api.queue.store.reap(Graces(0))).moved


async def expired_by_its_deadline(api: Api, id: str) -> None:
    await api.queue.store.advance()


async def expired_with_its_worker(api: Api, id: str) -> None:
    job = await api.hands.claim_one("mail")
    await api.queue.store.close_lease(job.lease)
    assert (await api.queue.store.reap(Graces(HOUR_MS))).moved


End = Callable[[Api, str], Awaitable[None]]
BOOM = ("Boom", ERROR)
ENDINGS: list[tuple[End, str, bool, tuple[str, str] | None]] = [
    # how, status, whether a worker had it, the error of its last attempt
    (completed, "completed", True, None),
    (failed, "failed", True, BOOM),
    (cancelled_while_it_waits, "cancelled", False, None),
    (cancelled_while_it_waits_for_a_retry, "cancelled", True, BOOM),
    (cancelled_while_it_runs, "cancelled", True, None),
    (failed_after_a_cancel, "cancelled", True, BOOM),
    (cancelled_after_the_grace, "cancelled", True, None),
    (expired_by_its_deadline, "expired", False, None),
    (expired_with_its_worker, "expired", True, ("WorkerLost", "worker lost")),
]


async def ended_job(api: Api, end: End) -> dict[str, Any]:
    expires = 0.001 if end is expired_by_its_deadline else None
    attempts = 1 if end is expired_with_its_worker else 2
    job = await api.queue.enqueue("mail", max_attempts=attempts, expires=expires)
    if job.expires_at:
        while await api.queue.store.now() <= to_ms(job.expires_at):
            pass
    await end(api, job.id)
    found: dict[str, Any] = (await api.get(f"/api/jobs/{job.id}")).json()
    return found


@pytest.mark.parametrize(("end", "status", "worker", "error"), ENDINGS)
async def test_every_ended_job_has_its_time(api: Api, end: End, status: str, worker: bool, error: Any) -> None:
    waiting = await api.enqueue("other")
    assert waiting["endedAt"] is None
    job = await ended_job(api, end)
    assert job["status"] == status
    assert job["endedAt"] is not None
    assert job["createdAt"] <= job["endedAt"] <= job["updatedAt"]
    own = {"completed": "completedAt", "failed": "failedAt", "cancelled": "cancelledAt"}
    for name, field in own.items():
        assert job[field] == (job["endedAt"] if status == name else None), field
    for query in ("filter=endedAt!=''", f"filter=endedAt='{job['endedAt']}'"):
        items = (await api.get(f"/api/jobs?{query}")).json()["items"]
        assert [(one["id"], one["endedAt"]) for one in items] == [(job["id"], job["endedAt"])], query
    last = (await api.get(f"/api/jobs/{job['id']}/events")).json()["items"][-1]
    assert (last["to"], last["createdAt"]) == (status, job["endedAt"])
    again = (await api.post(f"/api/jobs/{job['id']}/requeue?force=true")).json()
    assert (again["status"], again["endedAt"]) == ("pending", None)


@pytest.mark.parametrize(("end", "status", "worker", "error"), ENDINGS)
async def test_every_attempt_names_its_worker_and_its_error(
    api: Api, end: End, status: str, worker: bool, error: tuple[str, str] | None
) -> None:
    job = await ended_job(api, end)
    assert (job["lastWorker"], job["lockedBy"]) == ("hands" if worker else None, None)
    events = (await api.get(f"/api/jobs/{job['id']}/events")).json()["items"]
    of_attempts = [one for one in events if one["type"] not in ("job:enqueued", "job:cancelling")]
    if not worker or end is cancelled_while_it_waits_for_a_retry:
        of_attempts = of_attempts[:-1]  # no worker had it
    assert bool(of_attempts) == worker
    assert {one["metadata"].get("worker") for one in of_attempts} <= {"hands"}, events
    errors = [(one["metadata"]["errorType"], one["metadata"]["error"]) for one in events if "error" in one["metadata"]]
    assert errors == ([error] if error else [])


def test_every_status_that_ends_a_job_is_reached() -> None:
    assert {status for _, status, _, _ in ENDINGS} == {str(one) for one in ENDED_STATUSES}
