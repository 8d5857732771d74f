"""What an operator does, each by a form, without JavaScript: and what the audit log says about it."""

import html
import re
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from tests.dashboard.visitor import Visitor, flash, form_of, visiting, words
from tests.queue.hands import eventually
from treadle.model.status import Status


async def audited(visitor: Visitor) -> str:
    page = (await visitor.get("/_/system")).text
    return words(page[page.index('id="audit"') :])


async def test_requeue_puts_a_failed_job_back_with_all_its_attempts(visitor: Visitor) -> None:
    job = await visitor.failed_job(max_attempts=1)
    assert "attempts back to 0 of 1" in await visitor.text(f"/_/jobs/{job.id}/requeue")
    answer = await visitor.confirm(f"/_/jobs/{job.id}/requeue")
    assert answer.status_code == 303
    found = await visitor.queue.get(job.id)
    assert (found.status, found.retries) == (Status.PENDING, 0)
    assert "requeued" in flash(answer)
    log = await audited(visitor)
    assert "root@example.com" in log
    assert f"Requeued job …{job.id[-8:]}" in log


async def test_cancel_takes_a_reason(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail")
    await visitor.confirm(f"/_/jobs/{job.id}/cancel", reason="wrong address")
    found = await visitor.queue.get(job.id)
    assert (found.status, found.cancel_reason) == (Status.CANCELLED, "wrong address")
    assert "wrong address" in await audited(visitor)


async def test_delete_of_a_completed_job_sends_force(visitor: Visitor) -> None:
    job = await visitor.completed_job()
    answer = await visitor.confirm(f"/_/jobs/{job.id}/delete")
    assert answer.headers["location"] == "/_/jobs"
    assert (await visitor.get(f"/_/jobs/{job.id}")).status_code == 404


async def test_a_running_job_can_be_released(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail")
    await visitor.hands.claim("mail", limit=1)
    await visitor.confirm(f"/_/jobs/{job.id}/release")
    assert (await visitor.queue.get(job.id)).status is Status.PENDING


async def test_a_pending_job_is_edited(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail")
    answer = await visitor.confirm(f"/_/jobs/{job.id}/edit", runAt="15m", priority="high", maxAttempts="7")
    assert answer.status_code == 303, answer.text[-800:]
    found = await visitor.queue.get(job.id)
    assert (found.priority, found.max_attempts) == (75, 7)
    assert found.run_at > datetime.now(UTC) + timedelta(minutes=14)
    refused = await visitor.confirm(f"/_/jobs/{job.id}/edit", priority="urgent")
    assert refused.status_code == 400
    assert "Nothing was changed" in refused.text


async def test_what_is_not_possible_any_more_is_said(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail")
    await visitor.queue.cancel(job.id)
    page = await visitor.text(f"/_/jobs/{job.id}/edit")
    assert "It is cancelled now" in page
    answer = await visitor.post(f"/_/jobs/{job.id}/edit", priority="1")
    assert answer.status_code == 409


async def test_a_job_is_run_again_with_edited_input(visitor: Visitor) -> None:
    job = await visitor.failed_job("mail", payload={"threadId": 1970670598291982290}, max_attempts=1)
    form = (await visitor.get(f"/_/jobs/new?from={job.id}")).text
    assert "1970670598291982290" in form
    answer = await visitor.post("/_/jobs/new", topic="mail", payload='{"threadId": 1970670598291982291}')
    assert answer.status_code == 303
    made = await visitor.queue.get(answer.headers["location"].rpartition("/")[2])
    assert made.payload == {"threadId": 1970670598291982291}
    for payload in ("[1]", "{", '{"a": NaN}'):
        refused = await visitor.post("/_/jobs/new", topic="mail", payload=payload)
        assert refused.status_code == 400
        assert "Not enqueued" in refused.text


async def test_a_job_runs_again_as_itself_with_edited_input(visitor: Visitor) -> None:
    job = await visitor.failed_job("mail", payload={"threadId": 1970670598291982290, "to": "ann"}, max_attempts=1)
    path = f"/_/jobs/{job.id}/run-again"
    assert "1970670598291982290" in (await visitor.get(path)).text
    edited = '{"threadId": 1970670598291982291, "to": "ann", "cc": {"a": 1}}'
    checked = await visitor.post(path, payload=edited, way="same", check="1")
    text = words(checked.text)
    assert "Nothing was stored yet" in text
    assert "2 values" in text
    assert "threadId 1970670598291982290 1970670598291982291" in text
    assert "cc.a" in text
    assert (await visitor.queue.get(job.id)).status is Status.FAILED
    answer = await visitor.post(path, payload=edited, way="same")
    assert answer.headers["location"] == f"/_/jobs/{job.id}"
    found = await visitor.queue.get(job.id)
    assert (found.status, found.payload["threadId"]) == (Status.PENDING, 1970670598291982291)
    assert "with edited input" in await audited(visitor)


async def test_a_job_that_goes_on_runs_again_as_a_new_one(visitor: Visitor) -> None:
    job = await visitor.queue.enqueue("mail", {"to": "ann"}, priority="high", scope="user", scope_id="u1")
    path = f"/_/jobs/{job.id}/run-again"
    assert "This job again" not in await visitor.text(path)
    assert "It reads well" in words((await visitor.post(path, payload='{"to": "bob"}', check="1")).text)
    answer = await visitor.post(path, payload='{"to": "bob"}', way="same", delay="1h")
    made = await visitor.queue.get(answer.headers["location"].rpartition("/")[2])
    assert (made.id != job.id, made.payload, made.priority, made.scope_id) == (True, {"to": "bob"}, 75, "u1")
    for bad, told in (('{"to":', "not JSON"), ("[]", "must be a JSON object")):
        refused = await visitor.post(path, payload=bad)
        assert refused.status_code == 400
        assert told in words(refused.text)
        assert bad in html.unescape(refused.text), "what was typed stays"


async def test_input_that_does_not_fit_the_template_is_refused_before_it_runs(visitor: Visitor) -> None:
    class Mail(BaseModel):
        to: str

    async def handler(payload: Mail) -> None: ...

    visitor.queue.register("mail", handler)
    await visitor.queue.save_templates()
    job = await visitor.failed_job("mail", payload={"to": "ann"}, max_attempts=1)
    for fields in ({"way": "same", "check": "1"}, {"way": "new", "check": "1"}, {"way": "same"}, {"way": "new"}):
        refused = await visitor.post(f"/_/jobs/{job.id}/run-again", payload='{"to": 5}', **fields)
        assert refused.status_code == 400, fields
        assert "Nothing was stored" in words(refused.text)
    assert (await visitor.queue.get(job.id)).status is Status.FAILED
    assert await visitor.queue.count() == 1


async def test_a_secret_that_is_not_shown_is_never_stored_as_stars(visitor: Visitor) -> None:
    visitor.queue.register("pay", lambda payload: None, secret=["token"])
    job = await visitor.failed_job("pay", payload={"user": "ann", "token": "s3cr3t"}, max_attempts=1)
    path = f"/_/jobs/{job.id}/run-again"
    shown = (await visitor.get(path)).text
    assert "s3cr3t" not in shown
    for way in ("same", "new"):
        refused = await visitor.post(path, payload='{"user": "bob", "token": "***"}', way=way)
        assert refused.status_code == 400
        assert "token is secret and not shown here" in words(refused.text)
    await visitor.post(path, payload='{"user": "ann", "token": "***"}', way="same")
    (claimed,) = await visitor.hands.claim("pay", limit=1)
    assert "s3cr3t" in str(claimed.payload)


async def test_a_topic_is_paused_until_a_time_and_resumed(visitor: Visitor) -> None:
    await visitor.queue.enqueue("mail.weekly")
    await visitor.confirm("/_/topics/mail.weekly/pause", span="1h", reason="ledger migration")
    (topic,) = await visitor.queue.topics()
    assert topic.paused_until is not None
    assert abs(topic.paused_until / 1000 - datetime.now(UTC).timestamp() - 3600) < 60
    assert "paused until" in await visitor.text("/_/topics")
    assert "ledger migration" in await audited(visitor)
    await visitor.post("/_/topics/mail.weekly/resume")
    (topic,) = await visitor.queue.topics()
    assert topic.paused_until is None


async def test_selected_jobs_are_changed_and_the_dry_run_says_what_happens(visitor: Visitor) -> None:
    failed = [await visitor.failed_job(f"t{i}", max_attempts=1) for i in range(3)]
    waiting = await visitor.queue.enqueue("other")
    ids = "&".join(f"id={job.id}" for job in [*failed, waiting])
    page = await visitor.text(f"/_/bulk?action=requeue&{ids}")
    assert "Requeue 3 jobs?" in page
    assert "1 skipped: pending" in page
    answer = await visitor.confirm(f"/_/bulk?action=requeue&{ids}")
    assert flash(answer) == "3 jobs requeued, 1 skipped."
    assert await visitor.queue.count(status="pending") == 4


async def test_everything_that_matches_is_changed_as_it_was_at_the_dry_run(visitor: Visitor) -> None:
    await visitor.queue.enqueue_many("mail", [{}] * 30)
    page = (await visitor.get("/_/bulk?action=cancel&all=1&topic=mail&status=pending")).text
    assert "Cancel 30 jobs?" in page
    later = await visitor.queue.enqueue("mail")

    action, fields = form_of(page)
    answer = await visitor.post(action, **fields)
    assert flash(answer) == "30 jobs cancelled."
    assert (await visitor.queue.get(later.id)).status is Status.PENDING
    assert "Cancelled 30 jobs: topic:mail status:pending" in await audited(visitor)


async def test_jobs_are_rescheduled_together(visitor: Visitor) -> None:
    await visitor.queue.enqueue_many("mail", [{}] * 1200)
    answer = await visitor.confirm("/_/bulk?action=patch&all=1&topic=mail", priority="high", typed="1,200")
    assert answer.status_code == 303, answer.text[-500:]
    if "/operations/" in answer.headers["location"]:
        await finished(visitor, answer.headers["location"])
    jobs = [job for offset in (0, 600) for job in await visitor.queue.list(topic="mail", limit=600, offset=offset)]
    assert [job.priority for job in jobs] == [75] * 1200
    assert "Rescheduled 1,200 jobs: topic:mail 1,200 changed" in await audited(visitor)


async def finished(visitor: Visitor, path: str, seconds: float = 120) -> None:

    async def done() -> bool:
        return "under way" not in await visitor.text(path)

    await eventually(done, seconds, every=0.05)


async def test_delete_and_more_than_a_thousand_want_the_number_typed(visitor: Visitor) -> None:
    await visitor.queue.enqueue_many("mail", [{}] * 3)
    asked = await visitor.get("/_/bulk?action=delete&all=1&topic=mail")
    assert "Type 3 to confirm" in asked.text
    refused = await visitor.confirm("/_/bulk?action=delete&all=1&topic=mail")
    assert refused.status_code == 400
    assert await visitor.queue.count() == 3
    answer = await visitor.confirm("/_/bulk?action=delete&all=1&topic=mail", typed="3")
    assert flash(answer) == "3 jobs deleted."
    assert await visitor.queue.count() == 0


async def test_a_worker_is_asked_to_drain(visitor: Visitor) -> None:
    lease = await visitor.queue.store.open_lease("host:7/b", 60_000, {"topics": ["mail"], "slots": 2})
    page = (await visitor.get("/_/workers")).text
    link = re.search(r'href="(/_/workers/drain[^"]+)"', page)
    assert link
    answer = await visitor.confirm(link[1], reason="a new version")
    assert flash(answer) == "host:7/b was asked to drain."
    renewed = await visitor.queue.store.renew(lease, 60_000)
    assert renewed
    assert renewed.draining
    assert "draining" in await visitor.text("/_/workers")
    assert "host:7/b" in (log := await audited(visitor))
    assert "a new version" in log
    assert (await visitor.get("/_/workers/drain?worker=nobody")).status_code == 404


async def test_a_drain_is_called_off(visitor: Visitor) -> None:
    lease = await visitor.queue.store.open_lease("host:7/b", 60_000, {"topics": ["mail"], "slots": 2})
    await visitor.queue.drain("host:7/b")
    page = (await visitor.get("/_/workers")).text
    assert "/_/workers/drain" not in page
    link = re.search(r'href="(/_/workers/undrain[^"]+)"', page)
    assert link
    answer = await visitor.confirm(link[1])
    assert flash(answer) == "host:7/b was asked to go on."
    renewed = await visitor.queue.store.renew(lease, 60_000)
    assert renewed
    assert not renewed.draining
    page = (await visitor.get("/_/workers")).text
    assert "/_/workers/undrain" not in page
    assert "/_/workers/drain" in page
    assert "Asked to go on: worker host:7/b" in await audited(visitor)
    assert (await visitor.get("/_/workers/undrain?worker=nobody")).status_code == 404
    assert (await visitor.post("/_/workers/undrain", worker="nobody")).status_code == 404


async def test_a_group_of_failures_is_requeued(visitor: Visitor) -> None:
    for i in range(3):
        await visitor.failed_job("mail", f"SmtpError: connection {i} refused", max_attempts=1)
    other = await visitor.failed_job("mail", "SmtpError: quota", max_attempts=1)
    page = (await visitor.get("/_/errors")).text
    assert "connection … refused" in page
    link = re.search(r'href="(/_/bulk\?[^"]+)"[^>]*aria-label="Requeue 3 jobs', page)
    assert link
    answer = await visitor.confirm(link[1].replace("&amp;", "&"))
    assert flash(answer) == "3 jobs requeued."
    assert (await visitor.queue.get(other.id)).status is Status.FAILED


async def test_read_only_shows_everything_and_changes_nothing(sqlite_url: str) -> None:
    async with visiting(sqlite_url, read_only=True) as visitor:
        job = await visitor.queue.enqueue("mail")
        page = await visitor.text(f"/_/jobs/{job.id}")
        assert "Read-only" in page
        for path in (
            f"/_/jobs/{job.id}/cancel",
            "/_/bulk",
            "/_/jobs/new",
            "/_/topics/mail/pause",
            "/_/system/retention",
        ):
            answer = await visitor.post(path, topic="mail", action="cancel", id=job.id)
            assert answer.status_code == 403, path
        saved = await visitor.post("/_/system/access", manage_rule="true", save="1")
        assert saved.status_code == 403
        assert (await visitor.queue.get(job.id)).status is Status.PENDING


async def test_read_only_holds_for_the_api_with_a_session_too(sqlite_url: str) -> None:
    async with visiting(sqlite_url, read_only=True) as visitor:
        job = await visitor.queue.enqueue("mail")
        for method, path in (
            ("POST", "/api/jobs/enqueue"),
            ("DELETE", f"/api/jobs/{job.id}"),
            ("PATCH", "/api/settings"),
        ):
            answer = await visitor.client.request(method, path, json={})
            assert (answer.status_code, answer.json()["code"]) == (403, "read_only"), path
        assert (await visitor.client.get(f"/api/jobs/{job.id}")).status_code == 200
        [root] = await visitor.accounts.list("_superusers")
        token = {"Authorization": await visitor.accounts.token(root)}
        assert (await visitor.client.request("DELETE", f"/api/jobs/{job.id}", headers=token)).status_code == 204
