"""Templates: defined by the decorator, saved and versioned, followed by processes without the handler's code."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

import treadle.queue.enqueueing.known_templates
from tests.queue.hands import Hands
from treadle import (
    CancelPolicy,
    Concurrency,
    Context,
    InvalidInput,
    JobRequest,
    Queue,
    Rate,
    Retry,
    Status,
    Task,
    TemplateDisabled,
    TemplateNotFound,
    VersionConflict,
)
from treadle.store.values import RecordWrite


async def saved(queue: Queue) -> dict[str, tuple[dict[str, Any], int]]:
    return {one.topic: (dict(one.definition), one.version) for one in await queue.templates.list()}


# -- decorator forms -------------------------------------------------------------------------------------------


async def test_the_decorator_without_and_with_options(queue: Queue) -> None:
    @queue.job
    async def plain() -> None: ...

    @queue.job()
    async def empty() -> None: ...

    @queue.job(topic="mail.digest", priority="high")
    async def named() -> None: ...

    registered = queue.register("mail_digest", lambda: None)
    topics = ["plain", "empty", "mail.digest", "mail_digest"]
    assert [task.topic for task in (plain, empty, named, registered)] == topics
    assert list(queue.handlers) == topics
    assert (await named.enqueue()).priority == 75


async def test_one_decorator_for_two_functions(queue: Queue) -> None:
    urgent = queue.job(priority="high")

    @urgent
    def first() -> None: ...

    @urgent
    def second() -> None: ...

    assert set(queue.handlers) == {"first", "second"}


async def test_two_handlers_for_one_topic_are_refused(queue: Queue) -> None:
    @queue.job
    def mail() -> None: ...

    with pytest.raises(InvalidInput, match=r"topic mail has a handler already, tests\.queue\.test_templates\..*mail;"):
        queue.register("mail", lambda: None)
    assert queue.handlers["mail"].function is mail.__wrapped__


async def test_a_task_is_still_the_function(queue: Queue) -> None:
    @queue.job
    def add(payload: dict[str, int]) -> int:
        """Adds."""
        return payload["a"] + payload["b"]

    assert isinstance(add, Task)
    assert add({"a": 1, "b": 2}) == 3
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds.", __name__)
    assert repr(add) == "<Task add>"


async def test_an_async_task_is_awaited_as_before(queue: Queue) -> None:
    @queue.job
    async def double(payload: dict[str, int]) -> int:
        return payload["n"] * 2

    assert await double({"n": 4}) == 8


async def test_a_task_is_enqueued_with_the_options_of_enqueue(queue: Queue) -> None:
    @queue.job
    async def mail(payload: dict[str, int]) -> None: ...

    job = await mail.enqueue({"n": 1}, delay="15m", idempotency_key="k", priority="low")
    assert (job.topic, job.payload, job.idempotency_key, job.priority) == ("mail", {"n": 1}, "k", 25)
    many = await mail.enqueue_many([{"n": n} for n in range(3)], scope_id="s")
    assert [(one.payload["n"], one.scope_id) for one in many] == [(0, "s"), (1, "s"), (2, "s")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": "0s"}, "timeout"),
        ({"timeout": "long"}, "timeout"),
        ({"priority": "urgent"}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"capability": ""}, "capability"),
        ({"idempotency_key": "input[0]"}, "key"),
        ({"dedupe_keys": ["a b"]}, "key"),
        ({"rate": (0, "1s")}, "rate"),
        ({"rate": (1, "0s")}, "rate"),
        ({"repeatable": False}, "repeatable=False needs dedupe_keys"),
        ({"expires": "later"}, "expires"),
        ({"worker_capability": "media"}, "worker_capability: a job has no such option; use capability="),
        ({"max_backoff": "10m"}, "max_backoff: a job has no such option; use retry=Retry\\(…, max_delay=…\\)"),
        ({"retries": 3}, "retries: a job has no such option; use max_attempts="),
        ({"name": "Mail"}, "name: a job has no such option; use topic= or title="),
        ({"prioritty": "high"}, "prioritty: a job has no such option; use priority="),
        ({"xyz": 1}, "xyz: a job has no such option$"),
        ({"idempotent": True, "idempotency_key": "a"}, "give idempotent or idempotency_key, not both"),
    ],
)
def test_a_bad_option_is_refused_where_it_is_written(tmp_path: Any, options: dict[str, Any], words: str) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(InvalidInput, match=words):
        queue.job(topic="mail", **options)(lambda: None)
    assert queue.handlers == {}


def test_bad_policies_are_refused_where_they_are_written() -> None:
    with pytest.raises(InvalidInput, match="concurrency: 'deny' is not one of"):
        Concurrency("deny")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="concurrency"):
        Concurrency(limit=0)
    with pytest.raises(InvalidInput, match="1x"):
        Concurrency(keys=["1x"])
    with pytest.raises(InvalidInput, match=r"cancel\.grace"):
        CancelPolicy(grace="soon")


async def test_a_bad_topic_or_function_is_refused_where_it_is_written(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        queue.register("Mail Digest", lambda: None)
    with pytest.raises(InvalidInput, match=r"\*payloads has none"):
        queue.register("mail", lambda *payloads: None)

    def backwards(payload: dict[str, Any], ctx: Context) -> None: ...

    with pytest.raises(InvalidInput, match="the context comes once, before all other parameters"):
        queue.register("mail", backwards)


# -- saving ----------------------------------------------------------------------------------------------------


def with_everything(queue: Queue) -> None:
    class Mail(BaseModel):
        account_id: int

    @queue.job(
        title="Mail digest",
        description="Sends one",
        timeout="30m",
        priority="high",
        retry=Retry(5, backoff="exponential", max_delay="10m"),
        capability="media",
        idempotency_key="input.account_id",
        concurrency=Concurrency("reject_same_scope", ["input.account_id"], 2),
        rate=(5, "1m"),
        dedupe_keys=["scope_id", "account_id"],
        repeatable=False,
        cancel=CancelPolicy(mode="kill", grace="5s"),
        expires="1d",
    )
    async def mail(ctx: Context, payload: Mail) -> None: ...


async def test_templates_are_saved_when_the_queue_opens(url: str) -> None:
    queue = Queue(url)
    with_everything(queue)
    async with queue:
        template, version = (await saved(queue))["mail"]
        assert version == 1
        schema = template.pop("payloadSchema")
        assert schema["required"] == ["account_id"]
        assert template == {
            "topic": "mail",
            "name": "Mail digest",
            "description": "Sends one",
            "enabled": True,
            "repeatable": False,
            "concurrencyPolicy": "reject_same_scope",
            "concurrencyKeys": ["input.account_id"],
            "concurrencyLimit": 2,
            "rate": {"n": 5, "perSeconds": 60},
            "dedupeKeys": ["scope_id", "account_id"],
            "idempotencyKey": "input.account_id",
            "capability": "media",
            "priority": 75,
            "timeoutSeconds": 1800,
            "expiresSeconds": 86400,
            "cancelPolicy": {"supported": True, "mode": "kill", "graceSeconds": 5},
            "retryPolicy": {"maxAttempts": 5, "backoffSeconds": [1, 2, 4, 8]},
            "steps": [],
            "resultSchema": None,
            "schedulable": True,
        }


async def test_a_template_gets_a_version_more_when_it_is_new_and_only_then(url: str) -> None:
    """An old release that comes back gets its old number, and the newest first seen stays the current one."""
    turns = (("normal", 1, 1), ("normal", 1, 1), ("high", 2, 2), ("high", 2, 2), ("normal", 1, 2), ("low", 3, 3))
    for priority, version, current in turns:
        queue = Queue(url)
        queue.register("mail", lambda: None, priority=priority)
        async with queue:
            assert (await saved(queue))["mail"][1] == current
            assert (await queue.enqueue("mail")).template_version == version


async def test_an_author_may_fix_the_version(url: str) -> None:
    for fixed in (7, 7, 8):
        queue = Queue(url)
        queue.register("mail", lambda: None, version=fixed)
        async with queue:
            assert (await saved(queue))["mail"][1] == fixed


async def test_many_processes_that_save_the_same_template_make_one_version(url: str) -> None:
    async def start() -> None:
        queue = Queue(url)
        queue.register("mail", lambda: None, priority="high")
        async with queue:
            pass

    async with Queue(url) as queue:
        await asyncio.gather(*(start() for _ in range(8)))
        assert (await saved(queue))["mail"][1] == 1


async def test_handlers_that_come_later_are_saved_on_demand(queue: Queue) -> None:
    queue.register("mail", lambda: None)
    assert await saved(queue) == {}
    await queue.save_templates()
    assert set(await saved(queue)) == {"mail"}


async def test_templates_of_topics_without_a_handler_here_stay(url: str) -> None:
    first = Queue(url)
    first.register("mail", lambda: None)
    second = Queue(url)
    second.register("report", lambda: None)
    async with first, second:
        assert set(await saved(first)) == {"mail", "report"}


# -- a process without handler code -----------------------------------------------------------------------------


async def test_defaults_of_a_template_hold_for_a_process_without_the_handler(url: str) -> None:
    author = Queue(url)
    author.register("mail", lambda: None, priority="high", capability="media", max_attempts=7, expires="1h")
    async with author, Queue(url) as other:
        job = await other.enqueue("mail")
        assert (job.priority, job.capability, job.max_attempts, job.template_version) == (75, "media", 7, 1)
        assert job.expires_at is not None
        given = await other.enqueue("mail", priority="low", capability="gpu", max_attempts=2)
        assert (given.priority, given.capability, given.max_attempts) == (25, "gpu", 2)
        many = await other.enqueue_many([JobRequest("mail"), JobRequest("unknown")])
        assert [job.priority for job in many] == [75, 50]


async def test_policies_hold_for_the_very_first_enqueues_of_a_process(url: str) -> None:
    """A hundred concurrent enqueues before the templates have been read: each must know them."""
    author = Queue(url)
    author.register("mail", lambda: None, dedupe_keys=["user"], priority="high")
    async with author, Queue(url) as other:
        jobs = await asyncio.gather(*(other.enqueue("mail", {"user": 1, "n": n}) for n in range(100)))
        assert len({job.id for job in jobs}) == 1
        assert await other.count() == 1


async def test_a_template_that_is_switched_off_refuses_new_jobs_everywhere(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treadle.queue.enqueueing.known_templates, "MAX_AGE_SECONDS", 0.0)
    first = Queue(url)
    first.register("mail", lambda: None)
    async with first, Queue(url) as other:
        waiting = await other.enqueue("mail")
        second = Queue(url)
        second.register("mail", lambda: None, enabled=False)
        async with second:
            for queue in (second, other):
                with pytest.raises(TemplateDisabled, match="the template of mail is disabled"):
                    await queue.enqueue("mail")
            # What is there already is done.
            assert await Hands(second).claimable("mail") == [waiting.id]
            assert (await other.get(waiting.id)).status is Status.PENDING


async def test_a_rate_is_obeyed_by_a_worker_that_never_saw_the_template(url: str) -> None:
    author = Queue(url)
    author.register("mail", lambda: None, rate=Rate(2, "1h"))
    async with author, Queue(url) as other:
        await other.enqueue_many("mail", [{}] * 5)
        hands = Hands(other)
        assert len(await hands.claim("mail")) == 2
        assert await hands.claim("mail") == []


# -- versions and the operator ----------------------------------------------------------------------------------


def release(url: str, **options: Any) -> Queue:
    """A process with the code of a release."""
    queue = Queue(url)
    queue.register("mail", lambda: None, **options)
    return queue


async def test_every_version_is_kept_and_listed_newest_first(url: str) -> None:
    for priority in ("normal", "high", "normal", "low"):
        async with release(url, priority=priority):
            pass
    async with Queue(url) as queue:
        found = await queue.templates.versions("mail")
        assert [(one["version"], one["priority"], one["current"]) for one in found] == [
            (3, 25, True),
            (2, 75, False),
            (1, 50, False),
        ]
        assert all(one["createdAt"] for one in found)


async def test_a_rollback_holds_for_every_process_until_a_new_definition_comes(url: str) -> None:
    async with release(url, priority="normal"):
        pass
    async with release(url, priority="high") as new, Queue(url) as other:
        assert (await new.enqueue("mail")).template_version == 2
        saved = await new.templates.use("mail", 1)
        assert (saved.version, saved.rolled_back) == (1, True)
        for queue in (new, Queue(url)):
            async with queue:
                job = await queue.enqueue("mail")
                assert (job.template_version, job.priority) == (1, 50)
        await other.close()
    async with release(url, priority="high") as restarted:
        assert (await restarted.templates.get("mail")).version == 1, "a definition seen before changes nothing"
    async with release(url, priority="low") as newer:
        assert (await newer.templates.get("mail")).version == 3
        assert (await newer.enqueue("mail")).template_version == 3


async def test_the_newest_version_can_be_chosen_again(url: str) -> None:
    async with release(url, priority="normal"):
        pass
    async with release(url, priority="high") as queue:
        await queue.templates.use("mail", 1)
        saved = await queue.templates.use("mail", 2)
        assert (saved.version, saved.rolled_back) == (2, False)
        assert (await queue.enqueue("mail")).priority == 75


async def test_a_rollback_takes_its_rate_along(url: str) -> None:
    async with release(url, rate=(1, "1h")):
        pass
    async with release(url) as queue:
        await queue.enqueue_many("mail", [{}] * 5)
        hands = Hands(queue)
        assert len(await hands.claim("mail", limit=2)) == 2
        await queue.templates.use("mail", 1)
        assert len(await hands.claim("mail")) == 1
        await queue.templates.use("mail", 2)
        assert len(await hands.claim("mail")) == 2


async def test_an_operators_switch_stands_over_restarts_and_deploys(url: str) -> None:
    async with release(url) as queue:
        pending = await queue.enqueue("mail")
        assert not (await queue.templates.disable("mail")).enabled
        with pytest.raises(TemplateDisabled):
            await queue.enqueue("mail")
        with pytest.raises(TemplateDisabled):
            await queue.enqueue_many("mail", [{}, {}])
        assert await Hands(queue).claimable("mail") == [pending.id]
    for options in ({}, {"priority": "high"}):
        async with release(url, **options) as queue:
            assert not (await queue.templates.get("mail")).enabled
            with pytest.raises(TemplateDisabled):
                await queue.enqueue("mail")
    async with release(url, priority="high") as queue:
        assert (await queue.templates.enable("mail")).enabled
        await queue.enqueue("mail")
    async with release(url, enabled=False) as queue:
        assert (await queue.enqueue("mail")).template_version == 3


async def test_another_process_notices_the_switch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(treadle.queue.enqueueing.known_templates, "MAX_AGE_SECONDS", 0.0)
    async with release(url) as first, release(url) as second, Queue(url) as producer:
        await second.enqueue("mail")
        await first.templates.disable("mail")
        for queue in (second, producer):
            with pytest.raises(TemplateDisabled):
                await queue.enqueue("mail")
        await first.templates.enable("mail")
        await second.enqueue("mail")


async def test_a_job_of_a_disabled_template_is_not_requeued(url: str) -> None:
    async with release(url) as queue:
        job = await queue.enqueue("mail")
        await queue.cancel(job.id)
        await queue.templates.disable("mail")
        with pytest.raises(TemplateDisabled):
            await queue.requeue(job.id)
        await queue.templates.enable("mail")
        assert (await queue.requeue(job.id)).status is Status.PENDING


async def test_what_is_not_there(url: str) -> None:
    async with release(url) as queue:
        with pytest.raises(TemplateNotFound, match="no template is saved for the topic other"):
            await queue.templates.get("other")
        with pytest.raises(TemplateNotFound):
            await queue.templates.disable("other")
        with pytest.raises(InvalidInput, match="the template of mail has no version 2; there are 1"):
            await queue.templates.use("mail", 2)
        with pytest.raises(VersionConflict, match="is at version 1, not 3"):
            await queue.templates.use("mail", 1, expected=3)


async def test_many_releases_that_start_together_get_numbers_of_their_own(url: str) -> None:
    async def start(i: int) -> int | None:
        async with release(url, priority=i) as queue:
            return (await queue.enqueue("mail")).template_version

    async with Queue(url) as queue:
        versions = await asyncio.gather(*(start(i) for i in range(8)))
        assert sorted(one or 0 for one in versions) == list(range(1, 9))
        assert len(await queue.templates.versions("mail")) == 8


async def test_a_definition_from_an_older_release_of_treadle_keeps_its_number(url: str) -> None:
    async with release(url) as queue:
        saved = await queue.templates.get("mail")
        old = {name: value for name, value in saved.definition.items() if name not in ("resultSchema", "schedulable")}
        body = json.dumps({"version": 1, "definition": old, "versions": [{"version": 1, "created_ms": 1}]})
        await queue.store.write_records([RecordWrite("template", "mail", "mail", body, version=1)])
    async with release(url) as queue:
        saved = await queue.templates.get("mail")
        assert (saved.version, saved.as_json()["schedulable"]) == (1, True)
        assert len(saved.versions) == 1


def test_templates_can_be_changed_from_code_without_a_loop(url: str) -> None:
    queue = release(url)
    queue.sync.enqueue("mail")
    queue.sync.templates.disable("mail")
    with pytest.raises(TemplateDisabled):
        queue.sync.enqueue("mail")
    assert [one.topic for one in queue.sync.templates.list()] == ["mail"]
    queue.sync.close()
