"""`queue.enqueue_many`: all or nothing, in the order given."""

from typing import Any

import pytest

from tests.queue.hands import Hands
from treadle import Context, InvalidInput, InvalidPayload, JobRequest, KeyReused, Queue, TemplateDisabled


async def test_a_topic_and_its_payloads(queue: Queue, hands: Hands) -> None:
    jobs = await queue.enqueue_many("mail", ({"n": n} for n in range(50)), priority="high", scope="user", scope_id="u")
    assert [job.payload["n"] for job in jobs] == list(range(50))
    assert {(job.priority, job.scope, job.scope_id) for job in jobs} == {(75, "user", "u")}
    assert await hands.claimable("mail") == [job.id for job in jobs]
    assert [(await queue.get(job.id)).payload for job in jobs] == [job.payload for job in jobs]


async def test_none_makes_none(queue: Queue) -> None:
    assert await queue.enqueue_many("mail", []) == []
    assert await queue.enqueue_many([]) == []
    assert await queue.count() == 0


async def test_mixed_requests_with_options_of_their_own(queue: Queue) -> None:
    jobs = await queue.enqueue_many(
        [
            JobRequest("mail", {"to": "ann"}, {"priority": "low"}),
            JobRequest("report"),
            JobRequest("mail", {"to": "bob"}, {"delay": "1h", "idempotency_key": "b"}),
        ]
    )
    assert [job.topic for job in jobs] == ["mail", "report", "mail"]
    assert [job.payload for job in jobs] == [{"to": "ann"}, {}, {"to": "bob"}]
    assert [job.priority for job in jobs] == [25, 50, 50]
    assert jobs[2].run_at > jobs[2].created_at
    assert jobs[2].idempotency_key == "b"


async def test_options_of_the_call_hold_for_requests_that_say_nothing_else(queue: Queue) -> None:
    jobs = await queue.enqueue_many(
        [JobRequest("mail", None, {"priority": "low"}), JobRequest("mail")], priority="high", scope_id="u"
    )
    assert [(job.priority, job.scope_id) for job in jobs] == [(25, "u"), (75, "u")]


@pytest.mark.parametrize(
    "bad",
    [
        JobRequest("mail", [1]),
        JobRequest("mail", {"a": float("nan")}),
        JobRequest("Not A Topic"),
        JobRequest("mail", {}, {"priority": "urgent"}),
        JobRequest("mail", {}, {"no_such_option": 1}),
        JobRequest("mail", {}, {"connection": 1}),
        {"topic": "mail"},
        "mail",
        None,
    ],
)
async def test_one_bad_request_and_nothing_is_stored(queue: Queue, bad: Any) -> None:
    with pytest.raises(InvalidInput):
        await queue.enqueue_many([JobRequest("mail"), bad, JobRequest("mail")])
    assert await queue.count() == 0


async def test_one_bad_payload_and_nothing_is_stored(queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        await queue.enqueue_many("mail", [{}, {"a": "\x00"}, {}])
    assert await queue.count() == 0


async def test_an_option_that_does_not_exist_is_named(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="run_on: enqueue has no such option") as refused:
        await queue.enqueue_many("mail", [{}], run_on="sunday")  # type: ignore[call-arg]
    assert refused.value.data["field"] == "run_on"


async def test_one_refused_and_nothing_is_stored(queue: Queue) -> None:
    await queue.enqueue("mail", {"n": 1}, idempotency_key="a")
    with pytest.raises(KeyReused):
        await queue.enqueue_many(
            [
                JobRequest("mail", {"n": 2}, {"idempotency_key": "b"}),
                JobRequest("mail", {"n": 2}, {"idempotency_key": "a"}),
                JobRequest("other", {"n": 3}),
            ]
        )
    assert await queue.count() == 1
    # The key of a job that was not made is free.
    assert not (await queue.enqueue("mail", {"n": 9}, idempotency_key="b")).deduplicated


async def test_a_disabled_template_refuses_the_whole_batch(queue: Queue) -> None:
    queue.register("off", lambda: None, enabled=False)
    with pytest.raises(TemplateDisabled):
        await queue.enqueue_many([JobRequest("mail"), JobRequest("off")])
    assert await queue.count() == 0


async def test_a_key_twice_in_one_batch_makes_one_job(queue: Queue) -> None:
    requests = [JobRequest("mail", {"n": 1}, {"idempotency_key": "a"}) for _ in range(3)]
    jobs = await queue.enqueue_many(requests)
    assert len({job.id for job in jobs}) == 1
    assert [job.deduplicated for job in jobs] == [False, True, True]
    assert await queue.count() == 1
    with pytest.raises(KeyReused):
        await queue.enqueue_many([*requests, JobRequest("mail", {"n": 2}, {"idempotency_key": "a"})])


async def test_jobs_that_were_there_stand_for_new_ones(queue: Queue) -> None:
    first = await queue.enqueue("mail", {"n": 1}, idempotency_key="a")
    jobs = await queue.enqueue_many("mail", [{"n": 1}], idempotency_key="a")
    assert [(job.id, job.deduplicated) for job in jobs] == [(first.id, True)]
    assert (await jobs[0].refresh()).deduplicated is False


async def test_thousands_in_one_call(queue: Queue) -> None:
    jobs = await queue.enqueue_many("mail", [{"n": n} for n in range(5000)])
    assert len({job.id for job in jobs}) == 5000
    assert await queue.count(topic="mail", status="pending") == 5000


async def test_the_jobs_of_a_batch_share_no_list(queue: Queue) -> None:
    flow = queue.flow("import")

    @flow.step
    async def prepare(ctx: Context, payload: dict[str, Any]) -> None: ...

    first, second = await queue.enqueue_many(flow, [{"n": 1}, {"n": 2}])
    first.steps[0]["status"] = "changed"
    assert second.steps[0]["status"] == "pending"
    assert (await queue.get(second.id)).steps == second.steps
