"""User story 7: the queue over HTTP. On each store, through the whole application."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from tests.http.api import PASSWORD, Api, failure, opened


@pytest.fixture
async def api(url: str) -> AsyncIterator[Api]:
    async with opened(url) as api:
        await api.rules(enqueue_rule="@request.auth.id != ''", manage_rule="@request.auth.id != ''")
        yield api


async def test_1_a_signed_in_user_enqueues_and_gets_id_and_status(api: Api) -> None:
    body = {"topic": "mail_digest", "payload": {"userId": "123"}}
    answer = await api.post("/api/jobs/enqueue", body, as_="ann")
    assert answer.status_code == 200
    assert (await api.queue.get(answer.json()["id"])).payload == {"userId": "123"}
    assert answer.json()["status"] == "pending"


async def test_2_a_job_is_answered_with_all_its_details(api: Api) -> None:
    job = await api.enqueue("mail_digest", {"userId": "123"}, delay="15m")
    found = (await api.get(f"/api/jobs/{job['id']}", as_="ann")).json()
    assert (found["status"], found["retries"], found["payload"]) == ("pending", 0, {"userId": "123"})
    assert datetime.fromisoformat(found["runAt"]) > datetime.fromisoformat(found["createdAt"])


async def test_3_jobs_are_listed_by_topic_and_status(api: Api) -> None:
    job = await api.enqueue("mail_digest")
    await api.enqueue("other")
    cancelled = await api.enqueue("mail_digest")
    await api.queue.cancel(cancelled["id"])
    found = (await api.get("/api/jobs?topic=mail_digest&status=pending", as_="ann")).json()
    assert ([one["id"] for one in found["items"]], found["totalItems"]) == ([job["id"]], 1)


async def test_4_a_failed_job_is_requeued(api: Api) -> None:
    job = await api.enqueue("mail_digest", maxRetries=1)
    await api.hands.fail(await api.hands.claim_one("mail_digest"))
    assert (await api.queue.get(job["id"])).status == "failed"
    requeued = (await api.post(f"/api/jobs/{job['id']}/requeue", as_="ann")).json()
    assert (requeued["status"], requeued["retries"]) == ("pending", 0)


async def test_5_a_job_is_deleted_if_it_is_pending_or_failed(api: Api) -> None:
    pending, running = await api.enqueue("a"), await api.enqueue("b")
    await api.hands.claim_one("b")
    assert (await api.delete(f"/api/jobs/{pending['id']}", as_="ann")).status_code == 204
    refused = await api.delete(f"/api/jobs/{running['id']}", as_="ann")
    assert failure(refused) == (409, "wrong_state")


async def test_6_an_anonymous_caller_gets_401(api: Api) -> None:
    job = await api.enqueue("mail_digest")
    calls = [
        await api.post("/api/jobs/enqueue", {"topic": "mail_digest"}, as_=None),
        await api.get("/api/jobs", as_=None),
        await api.get(f"/api/jobs/{job['id']}", as_=None),
        await api.get("/api/jobs/stats", as_=None),
        await api.post(f"/api/jobs/{job['id']}/requeue", as_=None),
        await api.delete(f"/api/jobs/{job['id']}", as_=None),
    ]
    assert [failure(answer) for answer in calls] == [(401, "unauthorized")] * 6


async def test_7_for_others_than_superusers_the_rule_decides(api: Api) -> None:
    await api.rules(enqueue_rule="@request.auth.team = 'red'", manage_rule="")
    body = {"topic": "mail_digest"}
    assert (await api.post("/api/jobs/enqueue", body, as_="ann")).status_code == 200
    assert failure(await api.post("/api/jobs/enqueue", body, as_="bob")) == (403, "forbidden")
    assert failure(await api.get("/api/jobs", as_="ann")) == (403, "forbidden")
    assert (await api.get("/api/jobs", as_="root")).status_code == 200


async def test_statistics_have_the_seeds_names(api: Api) -> None:
    await api.enqueue("mail_digest")
    found = (await api.get("/api/jobs/stats", as_="ann")).json()
    wanted = {"pending", "processing", "completed", "failed", "successRate", "avgExecutionTime"}
    assert wanted <= set(found)
    assert found["pending"] == 1


async def test_a_bearer_token_and_a_cookie_both_sign_in(api: Api) -> None:
    body = {"identity": "ann@example.com", "password": PASSWORD}
    answer = await api.post("/api/collections/users/auth-with-password?cookie=true", body, as_=None)
    bearer = {"Authorization": f"Bearer {answer.json()['token']}"}
    assert (await api.get("/api/jobs", as_=None)).status_code == 200  # the client kept the cookie
    api.client.cookies.clear()
    assert (await api.get("/api/jobs", as_=None)).status_code == 401
    assert (await api.get("/api/jobs", as_=None, headers=bearer)).status_code == 200
