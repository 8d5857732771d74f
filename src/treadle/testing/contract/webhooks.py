"""Webhooks: a delivery is stored with its event, taken by one sender at a time, and settled once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json, to_json

from treadle.model.status import Status
from treadle.model.template import Template
from treadle.model.webhooks import (
    QUEUE_ENDPOINT,
    TEST,
    ClaimedDelivery,
    Delivered,
    Delivery,
    DeliveryQuery,
    DeliveryStatus,
    DisableEndpoint,
    Endpoint,
    GaveUp,
    SettledDelivery,
    Try,
    TryAgain,
    Verdict,
)
from treadle.policy.admission import REJECT, REPLACE, Limit
from treadle.policy.lifecycle import Completed, Failed, Released, Snoozed
from treadle.policy.retention import Rules
from treadle.policy.saved_endpoint import CIRCUIT_KIND, KIND, STATE_KIND, body_of, endpoint_from, state_from
from treadle.policy.saved_template import KIND as TEMPLATE_KIND
from treadle.policy.saved_template import first_saved
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import FIRST_ENDED, Effects, RecordWrite, StaleJob
from treadle.store.views import FOREVER
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import DAY, HOUR, MINUTE, SECOND, TOPIC, Workbench, new_job, settlement

URL = "https://example.com/hook"
OK, BROKEN = Try(200, None, 12, "thanks"), Try(500, None, 30, "oh no")
PENDING, DELIVERED, FAILED = DeliveryStatus.PENDING, DeliveryStatus.DELIVERED, DeliveryStatus.FAILED


async def endpoint(bench: Workbench, id: str = "ops", url: str | None = URL, **options: Any) -> None:
    """One that counts."""
    body = body_of(Endpoint(id, url, **options))
    (made,) = await bench.store.write_records([RecordWrite(KIND, id, id, body)])
    assert made
    await bench.pass_time(6 * SECOND)


async def stored(bench: Workbench, id: str = "ops") -> Endpoint:
    (one,) = await bench.store.get_records([(KIND, id)])
    assert one
    return endpoint_from(id, one.body, one.version, one.created_at, one.updated_at)


async def deliveries(bench: Workbench, id: str) -> list[Delivery]:
    """Of a job, oldest first."""
    return list(await bench.store.deliveries(DeliveryQuery(job_id=id)))[::-1]


async def body_sent(bench: Workbench, id: str) -> str:
    """Of a job's first delivery."""
    (found,) = await bench.store.deliveries(DeliveryQuery(id=(await deliveries(bench, id))[0].id))
    assert found.body is not None
    return found.body


async def told(bench: Workbench, id: str) -> list[tuple[str | None, str]]:
    """To whom of what."""
    return [(one.endpoint, one.event.removeprefix("job:")) for one in await deliveries(bench, id)]


async def claimed(
    bench: Workbench, limit: int = 64, store: Store | None = None, **options: Any
) -> list[ClaimedDelivery]:
    found = await (store or bench.store).claim_deliveries("sender", MINUTE, limit, **options)
    return list(found.deliveries)


async def settle(bench: Workbench, one: ClaimedDelivery, verdict: Verdict, answer: Try = OK) -> bool:
    """Whether it was accepted."""
    return not await bench.store.settle_deliveries([SettledDelivery(one, answer, verdict)])


async def ended(bench: Workbench, **options: Any) -> str:
    """A job that has completed."""
    id = await bench.enqueue_one(**options)
    job = await bench.claim_one(topics=[options.get("topic", TOPIC)])
    assert await bench.settle(job, Completed('{"sent": 1}'))
    return id


def hooked(url: str = URL) -> dict[str, Any]:
    return {"webhook_url": url}


class OutboxContract(ContractPart):
    async def test_without_webhooks_nothing_is_written(self, bench: Workbench) -> None:
        id = await ended(bench)
        assert await deliveries(bench, id) == []
        assert (await bench.job(id)).webhook_sent is None
        claim = await bench.store.claim_deliveries("s", MINUTE)
        assert (claim.deliveries, claim.next_in_ms) == ([], None)

    async def test_an_ending_is_told_with_its_job(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await ended(bench, payload='{"a": 1}')
        (one,) = await deliveries(bench, id)
        assert (one.endpoint, one.event, one.job_id, one.topic) == ("ops", "job:completed", id, TOPIC)
        assert (one.status, one.tries, one.finished_at) == (PENDING, [], None)
        body = from_json(await body_sent(bench, id))
        assert body.keys() == {"type", "timestamp", "data"}
        assert body["type"] == body["data"]["event"] == "job:completed"
        assert body["timestamp"] == body["data"]["at"] == body["data"]["job"]["endedAt"]
        assert body["data"].keys() == {"event", "at", "job"}
        assert body["data"]["job"]["payload"] == {"a": 1}
        assert body["data"]["job"]["result"] == {"sent": 1}
        assert body["data"]["job"]["status"] == "completed"
        assert (await bench.job(id)).webhook_sent is False

    async def test_every_ending_and_retry_is_told(self, bench: Workbench) -> None:
        await endpoint(bench)
        retried = await bench.make("retrying")
        failed = await bench.make("failed")
        cancelled = await bench.make("cancelled")
        expired = await bench.make("expired")
        stopped = await bench.make("cancelling")
        assert await bench.reap(0)
        assert [(await told(bench, id))[-1][1] for id in (retried, failed, cancelled, expired, stopped)] == [
            *("retrying", "failed", "cancelled", "expired", "cancelled")
        ]

    async def test_a_stale_job_is_told_once(self, bench: Workbench) -> None:
        bench.store.retention = Rules(HOUR)
        await endpoint(bench, events=("job:stale",))
        id, own = await ended(bench), await ended(bench, **hooked())
        await bench.pass_time(2 * HOUR)
        jobs = await bench.store.ended_jobs(FIRST_ENDED, FOREVER, 10)
        stale = [StaleJob(job, job.ended_at + HOUR) for job in jobs]
        assert [await bench.store.mark_stale(stale) for _ in range(2)] == [2, 0]
        assert await told(bench, id) == [("ops", "stale")]
        assert await told(bench, own) == [(None, "completed"), (None, "stale"), ("ops", "stale")]
        assert from_json(await body_sent(bench, id))["data"]["job"]["staleAt"] is not None

    async def test_what_ends_nothing_is_not_told(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await bench.enqueue_one()
        await bench.settle(await bench.claim_one(), Released())
        await bench.settle(await bench.claim_one(), Snoozed(1))
        assert await told(bench, id) == []
        assert (await bench.job(id)).webhook_sent is None

    async def test_only_wanted_events_of_wanted_topics(self, bench: Workbench) -> None:
        await endpoint(bench, "failures", events=("job:failed",))
        await endpoint(bench, "news", topics=("news", "gossip"))
        assert await told(bench, await ended(bench)) == []
        assert await told(bench, await bench.make("failed")) == [("failures", "failed")]
        assert await told(bench, await ended(bench, topic="news")) == [("news", "completed")]

    async def test_several_endpoints_and_the_jobs_own_url(self, bench: Workbench) -> None:
        await endpoint(bench, "a")
        await endpoint(bench, "b")
        await endpoint(bench, QUEUE_ENDPOINT, "https://example.com/queue")
        id = await ended(bench, **hooked())
        assert await told(bench, id) == [(None, "completed"), ("a", "completed"), ("b", "completed")]
        assert {one.url for one in await claimed(bench)} == {URL}
        assert (QUEUE_ENDPOINT, "completed") in await told(bench, await ended(bench))

    async def test_a_job_names_its_own_url(self, bench: Workbench) -> None:
        id = await ended(bench, **hooked("https://EXAMPLE.org/x?y"))
        assert await told(bench, id) == [(None, "completed")]
        (one,) = await claimed(bench)
        assert (one.endpoint, one.url, one.host) == (None, "https://EXAMPLE.org/x?y", "example.org:443")
        assert one.secrets == ()
        assert (await bench.job(id)).webhook_url == "https://EXAMPLE.org/x?y"

    async def test_an_endpoint_counts_five_seconds_after_it_was_made(self, bench: Workbench) -> None:
        (made,) = await bench.store.write_records([RecordWrite(KIND, "new", "new", body_of(Endpoint("new", URL)))])
        assert made
        assert await told(bench, await ended(bench)) == []
        await bench.pass_time(6 * SECOND)
        assert await told(bench, await ended(bench)) == [("new", "completed")]

    async def test_other_processes_know_a_new_endpoint(self, bench: Workbench) -> None:
        other = await bench.another()
        await endpoint(bench)
        id = await bench.enqueue_one()
        assert await bench.settle(await bench.claim_one(store=other), Completed(), other)
        assert await told(bench, id) == [("ops", "completed")]

    async def test_a_disabled_endpoint_is_not_told(self, bench: Workbench) -> None:
        await endpoint(bench, enabled=False)
        assert await told(bench, await ended(bench)) == []

    async def test_a_batch_is_told_one_by_one(self, bench: Workbench) -> None:
        await endpoint(bench, topics=("news",))
        ids = [*await bench.enqueue(3, topic="news"), *await bench.enqueue(3)]
        jobs = await bench.claim(6, topics=[TOPIC, "news"])
        assert not await bench.store.settle([settlement(job, Completed()) for job in jobs])
        assert [len(await told(bench, id)) for id in ids] == [1, 1, 1, 0, 0, 0]
        assert len({one.webhook_id for one in await claimed(bench)}) == 3

    async def test_a_lost_ending_tells_nothing(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        assert not await bench.settle(job._replace(token=job.token - 1), Completed())
        assert await told(bench, id) == []

    async def test_an_ending_that_is_undone_leaves_no_delivery(self, bench: Workbench) -> None:
        await endpoint(bench)
        ids = await bench.enqueue(2)
        jobs = await bench.claim(2)
        bad = [settlement(jobs[0], Failed("Boom", "Boom")), settlement(jobs[1], Failed("a\0b", "Boom"))]
        with contextlib.suppress(Exception):  # drivers name "this can't be stored" in many ways
            await bench.store.settle(bad)
        for id in ids:
            ended = (await bench.job(id)).ended
            assert len(await told(bench, id)) == ended, "an ending and its delivery are stored together"

    async def test_a_refused_follow_up_leaves_one_delivery(self, bench: Workbench) -> None:
        """The ending that was undone has left none."""
        await endpoint(bench)
        await bench.insert(new_job(topic="other", limit=Limit("k", REJECT, 1)))
        id = await bench.enqueue_one()
        done = settlement(await bench.claim_one(), Completed())
        refused = new_job(topic="other", limit=Limit("k", REJECT, 1))
        assert not await bench.store.settle([done._replace(effects=Effects(jobs=(refused,)))])
        assert await told(bench, id) == [("ops", "failed")]

    async def test_a_replaced_job_is_told(self, bench: Workbench) -> None:
        await endpoint(bench)
        limit = Limit("k", REPLACE, 1)
        first = await bench.enqueue_one(limit=limit)
        await bench.enqueue_one(limit=limit)
        assert await bench.status(first) is Status.CANCELLED
        assert await told(bench, first) == [("ops", "cancelled")]

    async def test_a_cancelled_run_of_a_worker_that_does_not_know_it(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await bench.enqueue_one()
        job = await bench.claim_one()
        await steering.cancel(bench.store, [id], "not wanted")
        assert await bench.settle(job, Failed("Boom", "Boom"))
        assert await told(bench, id) == [("ops", "cancelled")]

    async def test_large_payloads_are_left_out(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await ended(bench, payload=to_json({"a": "x" * 17_000}).decode())
        data = from_json(await body_sent(bench, id))["data"]
        assert data["truncated"] is True
        assert (data["job"]["payload"], data["job"]["result"], data["job"]["truncated"]) == (None, None, True)

    async def test_secret_fields_are_masked(self, bench: Workbench) -> None:
        await endpoint(bench)
        definition = Template(TOPIC, secret=("card",)).as_json()
        body = first_saved(TOPIC, 1, definition, 0).body()
        await bench.store.write_records([RecordWrite(TEMPLATE_KIND, TOPIC, TOPIC, body)])
        id = await ended(bench, payload='{"card": "4242", "sum": 1}')
        assert from_json(await body_sent(bench, id))["data"]["job"]["payload"] == {"card": "***", "sum": 1}

    async def test_retention_waits_for_a_delivery(self, bench: Workbench) -> None:
        await endpoint(bench)
        waiting, sent = await ended(bench), await ended(bench)
        for one in await claimed(bench):
            await settle(
                bench, one, Delivered() if one.job_id == sent else TryAgain(await bench.store.now() + 90 * DAY)
            )
        await bench.pass_time(30 * DAY)
        assert await bench.store.prune(20 * DAY, dry_run=True) == 1
        assert await bench.store.prune(20 * DAY) == 1
        assert await bench.statuses([waiting, sent]) == [Status.COMPLETED, None]
        assert await bench.store.prune(20 * DAY) == 0
        await bench.pass_time(90 * DAY)
        (one,) = await claimed(bench)
        await settle(bench, one, GaveUp("8 tries"), BROKEN)
        assert await bench.store.prune(20 * DAY) == 1
        assert await bench.statuses([waiting]) == [None]

    async def test_a_deleted_job_takes_its_deliveries_along(self, bench: Workbench) -> None:
        id = await bench.make("failed", **hooked())
        (one,) = await claimed(bench)
        await steering.delete(bench.store, [id])
        assert not await settle(bench, one, Delivered())
        assert await bench.store.deliveries(DeliveryQuery(id=one.id)) == []
        assert await claimed(bench) == []


class DeliveryContract(ContractPart):
    async def test_one_sender_at_a_time(self, bench: Workbench) -> None:
        await ended(bench, **hooked())
        first, second = await bench.others(2)
        found = await asyncio.gather(*(claimed(bench, store=one) for one in (bench.store, first, second)))
        assert sorted(map(len, found)) == [0, 0, 1]
        assert await claimed(bench) == []

    async def test_after_its_lease_another_one_has_it(self, bench: Workbench) -> None:
        id = await ended(bench, **hooked())
        (lost,) = await claimed(bench)
        await bench.pass_time(MINUTE + SECOND)
        (again,) = await claimed(bench)
        assert (again.id, again.webhook_id, again.body) == (lost.id, lost.webhook_id, lost.body)
        assert again.token > lost.token
        assert not await settle(bench, lost, Delivered())
        assert (await bench.job(id)).webhook_sent is False
        assert await settle(bench, again, Delivered())
        assert (await bench.job(id)).webhook_sent is True
        assert not await settle(bench, again, Delivered())

    async def test_a_webhook_id_has_no_dots(self, bench: Workbench) -> None:
        await ended(bench, **hooked())
        (one,) = await claimed(bench)
        assert one.webhook_id.startswith("msg_")
        assert "." not in one.webhook_id

    async def test_tries_are_kept(self, bench: Workbench) -> None:
        id = await ended(bench, **hooked())
        (one,) = await claimed(bench)
        assert one.attempt == 1
        assert await settle(bench, one, TryAgain(await bench.store.now() + HOUR), BROKEN)
        (kept,) = await deliveries(bench, id)
        assert (kept.status, kept.finished_at) == (PENDING, None)
        assert kept.next_try_at
        assert [(x.status, x.answer, x.duration_ms) for x in kept.tries] == [(500, "oh no", 30)]
        assert kept.tries[0].at_ms > 0
        claim = await bench.store.claim_deliveries("s", MINUTE)
        assert not claim.deliveries
        assert claim.next_in_ms is not None
        assert 0 < claim.next_in_ms <= HOUR
        await bench.pass_time(HOUR)
        (again,) = await claimed(bench)
        assert (again.attempt, again.webhook_id) == (2, one.webhook_id)
        assert await settle(bench, again, Delivered())
        (kept,) = await deliveries(bench, id)
        assert (kept.status, kept.next_try_at) == (DELIVERED, None)
        assert kept.finished_at
        assert [x.status for x in kept.tries] == [500, 200]

    async def test_events_tell_what_came_of_it(self, bench: Workbench) -> None:
        id = await ended(bench, **hooked())
        (one,) = await claimed(bench)
        await settle(bench, one, TryAgain(await bench.store.now()), BROKEN)
        assert await bench.history(id) == []
        (one,) = await claimed(bench)
        await settle(bench, one, GaveUp("enough"), Try(None, "the connection was refused"))
        events = await bench.store.events(id)
        assert events
        last = events[-1]
        assert last.type == "job:webhook:failed"
        assert last.metadata["try"] == 2
        assert last.metadata["error"] == "the connection was refused"
        assert (await bench.job(id)).webhook_sent is False
        assert await bench.store.redeliver([one.id]) == [one.id]
        (one,) = await claimed(bench)
        await settle(bench, one, Delivered())
        assert (await bench.history(id))[-1] == "webhook:delivered"
        assert (await bench.job(id)).webhook_sent is True

    async def test_webhook_sent_is_about_the_newest_event(self, bench: Workbench) -> None:
        id = await bench.make("retrying", **hooked())
        (one,) = await claimed(bench)
        await settle(bench, one, Delivered())
        assert (await bench.job(id)).webhook_sent is True
        await bench.pass_time(HOUR)
        await bench.promoted()
        await bench.settle(await bench.claim_one(), Completed())
        assert (await bench.job(id)).webhook_sent is False
        (one,) = await claimed(bench)
        assert one.event == "job:completed"
        await settle(bench, one, Delivered())
        assert (await bench.job(id)).webhook_sent is True

    async def test_a_host_gets_few_at_once(self, bench: Workbench) -> None:
        for _ in range(6):
            await ended(bench, **hooked())
        other = await ended(bench, **hooked("https://other.example/hook"))
        first = await claimed(bench, per_host=4)
        assert sorted(one.host for one in first) == ["example.com:443"] * 4 + ["other.example:443"]
        assert await claimed(bench, per_host=4) == []
        for one in first:
            await settle(bench, one, Delivered())
        assert len(await claimed(bench, per_host=4)) == 2
        assert (await bench.job(other)).webhook_sent is True

    async def test_endpoints_of_one_host_share_its_room(self, bench: Workbench) -> None:
        await endpoint(bench, "a")
        await endpoint(bench, "b", "https://example.com/b")
        for _ in range(3):
            await ended(bench)
        assert len(await claimed(bench, per_host=4)) == 4

    async def test_a_limit_for_all(self, bench: Workbench) -> None:
        for number in range(5):
            await ended(bench, **hooked(f"https://h{number}.example/"))
        assert len(await claimed(bench, limit=3)) == 3
        assert len(await claimed(bench, limit=3)) == 2

    async def test_a_slow_host_hides_nobody(self, bench: Workbench) -> None:
        for _ in range(20):
            await ended(bench, **hooked())
        await ended(bench, **hooked("https://quick.example/"))
        assert "quick.example:443" in {one.host for one in await claimed(bench, limit=5, per_host=4)}

    async def test_deliveries_to_a_disabled_endpoint_are_given_up(self, bench: Workbench) -> None:
        await endpoint(bench)
        first, second = await ended(bench), await ended(bench)
        one = next(one for one in await claimed(bench, limit=1))
        assert await settle(bench, one, DisableEndpoint("410"), Try(410))
        off = await stored(bench)
        assert (off.enabled, off.disabled_reason, off.version) == (False, "410", 2)
        assert await claimed(bench) == []
        assert [(await deliveries(bench, id))[0].status for id in (first, second)] == [FAILED, FAILED]
        assert await bench.store.prune(0) == 2

    async def test_deliveries_to_an_endpoint_that_is_gone_are_given_up(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await ended(bench)
        await bench.store.delete_records([(KIND, "ops")])
        assert await claimed(bench) == []
        assert (await deliveries(bench, id))[0].status is FAILED

    async def test_an_endpoint_may_be_deleted_while_something_is_sent_to_it(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await ended(bench)
        (one,) = await claimed(bench)
        await bench.store.delete_records([(KIND, "ops")])
        assert await settle(bench, one, DisableEndpoint("410"), Try(410))
        assert (await deliveries(bench, id))[0].status is FAILED
        assert await bench.store.get_records([(KIND, "ops"), (STATE_KIND, "ops")]) == [None, None]

    async def test_many_tries_are_written_together(self, bench: Workbench) -> None:
        await endpoint(bench)
        ids = await bench.enqueue(120)
        assert not await bench.store.settle([settlement(job, Completed()) for job in await bench.claim(120)])
        taken = await claimed(bench, limit=200, per_host=200)
        assert len(taken) == 120
        later = await bench.store.now() + HOUR
        verdicts: list[tuple[Verdict, Try]] = [(Delivered(), OK), (TryAgain(later), BROKEN), (GaveUp(), BROKEN)]
        settled = [SettledDelivery(one, verdicts[i % 3][1], verdicts[i % 3][0]) for i, one in enumerate(taken)]
        assert not await bench.store.settle_deliveries(settled)
        found = [(await deliveries(bench, id))[0].status for id in ids]
        assert [found.count(status) for status in (DELIVERED, PENDING, FAILED)] == [40, 40, 40]

    async def test_an_endpoints_state_is_kept(self, bench: Workbench) -> None:
        await endpoint(bench)
        await ended(bench)
        (one,) = await claimed(bench)
        await settle(bench, one, TryAgain(await bench.store.now()), BROKEN)
        (record,) = await bench.store.get_records([(STATE_KIND, "ops")])
        assert record
        assert state_from(record.body).failures == 1
        (one,) = await claimed(bench)
        assert one.failing_since_ms == state_from(record.body).failing_since_ms
        await settle(bench, one, Delivered())
        (record,) = await bench.store.get_records([(STATE_KIND, "ops")])
        assert record
        assert state_from(record.body).failing_since_ms is None
        assert (await stored(bench)).version == 1, "what its owner edits was not touched"

    async def test_a_circuit_lets_one_probe_through(self, bench: Workbench) -> None:
        for _ in range(25):
            await ended(bench, **hooked())
        for one in await claimed(bench, per_host=20):
            await settle(bench, one, TryAgain(await bench.store.now() + 1), BROKEN)
        claim = await bench.store.claim_deliveries("s", MINUTE)
        assert not claim.deliveries, "the host has failed 20 times in a row"
        assert claim.next_in_ms is not None
        assert 0 < claim.next_in_ms <= MINUTE
        (record,) = await bench.store.get_records([(CIRCUIT_KIND, "example.com:443")])
        assert record
        opened = from_json(record.body) | {"probe_ms": 0}
        write = RecordWrite(CIRCUIT_KIND, record.id, record.key, to_json(opened).decode(), None, record.version)
        assert (await bench.store.write_records([write]))[0]
        (probe,) = await claimed(bench)
        assert probe.probe
        await settle(bench, probe, Delivered())
        assert await bench.store.get_records([(CIRCUIT_KIND, "example.com:443")]) == [None]
        assert len(await claimed(bench, per_host=30)) == 24

    async def test_a_test_reaches_a_disabled_endpoint_and_enables_it(self, bench: Workbench) -> None:
        await endpoint(bench, enabled=False, disabled_reason="it has failed for 5 days")
        id = await bench.store.test_delivery("ops", "{}")
        (one,) = await claimed(bench)
        assert (one.id, one.event, one.job_id, one.url) == (id, TEST, None, URL)
        await settle(bench, one, Delivered())
        assert (await stored(bench)).enabled
        assert (await stored(bench)).disabled_reason is None
        (kept,) = await bench.store.deliveries(DeliveryQuery("ops"))
        assert (kept.id, kept.status) == (id, DELIVERED)

    async def test_a_test_leaves_a_switch_of_its_owner_alone(self, bench: Workbench) -> None:
        await endpoint(bench, enabled=False)
        await bench.store.test_delivery("ops", "{}")
        (one,) = await claimed(bench)
        await settle(bench, one, Delivered())
        assert not (await stored(bench)).enabled

    async def test_old_tests_go(self, bench: Workbench) -> None:
        await endpoint(bench)
        id = await bench.store.test_delivery("ops", "{}")
        await bench.pass_time(8 * DAY)
        await bench.store.tidy()
        assert await bench.store.deliveries(DeliveryQuery(id=id)), "it is still to be sent"
        (one,) = await claimed(bench)
        await settle(bench, one, Delivered())
        await bench.store.tidy()
        assert await bench.store.deliveries(DeliveryQuery(id=id)) == []

    async def test_send_again(self, bench: Workbench) -> None:
        id = await ended(bench, **hooked())
        (one,) = await claimed(bench)
        assert await bench.store.redeliver([one.id]) == [one.id], "it is under way"
        assert await claimed(bench) == [], "never two at once"
        await settle(bench, one, Delivered())
        assert await bench.store.redeliver([one.id, 10**12]) == [one.id]
        assert (await bench.job(id)).webhook_sent is False
        (again,) = await claimed(bench)
        assert (again.webhook_id, again.attempt) == (one.webhook_id, 1)
        await settle(bench, again, Delivered())
        (kept,) = await deliveries(bench, id)
        assert len(kept.tries) == 2

    async def test_pages_and_filters(self, bench: Workbench) -> None:
        await endpoint(bench)
        ids = [await ended(bench) for _ in range(5)]
        (one,) = await claimed(bench, limit=1)
        await settle(bench, one, Delivered())
        page = await bench.store.deliveries(DeliveryQuery("ops", limit=3))
        assert [found.job_id for found in page] == ids[:1:-1]
        rest = await bench.store.deliveries(DeliveryQuery("ops", before=page[-1].id))
        assert [found.job_id for found in rest] == ids[1::-1]
        newest = await bench.store.deliveries(DeliveryQuery("ops", since=page[0].created_at))
        assert newest[0] == page[0]
        assert await bench.store.deliveries(DeliveryQuery("ops", since=page[0].created_at + 1)) == []
        done = await bench.store.deliveries(DeliveryQuery("ops", status=DELIVERED))
        assert [found.id for found in done] == [one.id]
        counts = await bench.store.delivery_counts(["ops", "none"], DAY)
        assert {(found.endpoint, found.status): found.total for found in counts} == {
            ("ops", PENDING): 4,
            ("ops", DELIVERED): 1,
        }


class PollContract(ContractPart):
    async def test_events_are_read_in_order_and_acknowledged(self, bench: Workbench) -> None:
        await endpoint(bench, url=None)
        ids = [await ended(bench) for _ in range(5)]
        assert (await bench.store.claim_deliveries("s", MINUTE)).deliveries == []
        first = await bench.store.poll("ops", 0, 3)
        assert [one.number for one in first] == [1, 2, 3]
        assert job_ids(first) == ids[:3]
        assert await bench.store.poll("ops", 0, 3) == first, "nothing was acknowledged"
        assert (await bench.job(ids[0])).webhook_sent is False
        rest = await bench.store.poll("ops", 3)
        assert job_ids(rest) == ids[3:]
        assert [(await bench.job(id)).webhook_sent for id in ids] == [True, True, True, False, False]
        assert await bench.store.poll("ops", 5) == []
        assert [(await deliveries(bench, id))[0].status for id in ids] == [DELIVERED] * 5

    async def test_numbers_go_on_after_their_jobs_are_deleted(self, bench: Workbench) -> None:
        await endpoint(bench, url=None)
        await ended(bench)
        assert [one.number for one in await bench.store.poll("ops", 0)] == [1]
        assert await bench.store.poll("ops", 1) == []
        assert await bench.store.prune(0) == 1
        id = await ended(bench)
        (one,) = await bench.store.poll("ops", 1)
        assert (one.number, job_ids([one])) == (2, [id])

    async def test_readers_at_the_same_time_agree(self, bench: Workbench) -> None:
        await endpoint(bench, url=None)
        for _ in range(20):
            await ended(bench)
        stores = [bench.store, *await bench.others(3)]
        found = await asyncio.gather(*(store.poll("ops", 0) for store in stores))
        assert all([one.number for one in events] == list(range(1, len(events) + 1)) for events in found)
        last = await bench.store.poll("ops", 0)
        assert [one.number for one in last] == list(range(1, 21))
        assert all(list(events) == list(last)[: len(events)] for events in found)

    async def test_retention_waits_for_a_reader(self, bench: Workbench) -> None:
        await endpoint(bench, url=None)
        await ended(bench)
        assert await bench.store.prune(0) == 0
        await bench.store.poll("ops", 0)
        assert await bench.store.prune(0) == 0
        await bench.store.poll("ops", 1)
        assert await bench.store.prune(0) == 1

    async def test_what_nobody_will_read_is_given_up(self, bench: Workbench) -> None:
        await endpoint(bench, "a", None)
        await endpoint(bench, "b", None)
        id = await ended(bench)
        assert await claimed(bench) == []
        assert {one.status for one in await deliveries(bench, id)} == {PENDING}
        await bench.store.delete_records([(KIND, "a")])
        off = await stored(bench, "b")
        await bench.store.write_records([RecordWrite(KIND, "b", "b", body_of(replace(off, enabled=False)), None, 1)])
        assert await claimed(bench) == []
        assert {one.status for one in await deliveries(bench, id)} == {FAILED}
        assert await bench.store.prune(0) == 1

    async def test_one_endpoint_reads_nothing_of_another(self, bench: Workbench) -> None:
        await endpoint(bench, "a", None)
        await endpoint(bench, "b", None)
        await ended(bench)
        assert len(await bench.store.poll("a", 0)) == 1
        assert await bench.store.poll("a", 1) == []
        assert len(await bench.store.poll("b", 0)) == 1
        assert await bench.store.poll("c", 0) == []

    async def test_a_read_event_can_be_sent_again(self, bench: Workbench) -> None:
        await endpoint(bench, url=None)
        await ended(bench)
        (one,) = await bench.store.poll("ops", 0)
        await bench.store.poll("ops", 1)
        (kept,) = await bench.store.deliveries(DeliveryQuery("ops"))
        await bench.store.redeliver([kept.id])
        (again,) = await bench.store.poll("ops", 1)
        assert (again.number, again.webhook_id) == (2, one.webhook_id)


def job_ids(events: Sequence[Any]) -> list[str]:
    return [from_json(one.body)["data"]["job"]["id"] for one in events]
