"""What the doctor knows beyond the database: retention, the enqueue rule, the versions of the workers."""

import pytest

from tests.waiting import until
from treadle import Job, Queue
from treadle.accounts.signing_keys import SigningKeys
from treadle.queue import doctor
from treadle.queue.handlers.retention_hooks import register
from treadle.store.views import Finding


async def found(queue: Queue, check: str) -> Finding:
    return next(one for one in await doctor.examine(queue.store, queue.settings, queue.key_file) if one.check == check)


async def test_retention_that_is_behind_is_told(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [await queue.enqueue("mail") for _ in range(3)]
    for job in jobs:
        await queue.cancel(job.id)
    await queue.site.change({"stale_after_ms": 1, "delete_after_ms": 1})
    assert (await found(queue, "retention")).level == "ok", "two intervals may pass"
    monkeypatch.setattr(doctor, "LATE_MS", 60 - 2 * queue.settings.retention_interval_ms)

    async def behind() -> Finding | None:
        finding = await found(queue, "retention")
        return finding if "3 jobs" in finding.message else None

    finding = await until(behind)
    assert finding.level == "warn"
    assert finding.message == "retention is behind: 3 jobs should have been deleted more than 60ms ago"
    monkeypatch.setattr(doctor, "COUNTED", 2)
    assert "2+ jobs" in (await found(queue, "retention")).message
    assert await queue.store.prune(0) == 3
    assert (await found(queue, "retention")).message == "no ended job is kept longer than 2ms"


async def test_a_retention_hook_without_a_process_is_told(queue: Queue) -> None:
    assert (await found(queue, "retention hooks")).message == "none"

    @queue.on_delete("mail")
    def hook(job: Job) -> None: ...

    (registration,) = queue.retention_hooks.registrations
    await register(queue.store, [registration])
    finding = await found(queue, "retention hooks")
    assert finding.level == "warn"
    assert "no running process has the retention hook on_delete of mail" in finding.message
    assert "treadle retention forget-hook on_delete mail" in finding.advice
    await queue.store.elect(registration.office, "w", 60_000)
    assert (await found(queue, "retention hooks")).level == "ok"


async def test_retention_that_is_behind_is_told_by_topic_and_status(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LATE_MS", -2 * queue.settings.retention_interval_ms)
    for topic in ("mail", "log"):
        await queue.cancel((await queue.enqueue(topic)).id)
    now = {"stale_after_ms": 0, "delete_after_ms": 0}
    await queue.site.change({"by_topic": {"mail": now}})
    assert "1 jobs" in (await found(queue, "retention")).message
    await queue.site.change({"by_status": {"cancelled": now}})
    assert "2 jobs" in (await found(queue, "retention")).message


@pytest.mark.parametrize(
    ("rule", "level", "told"),
    [
        ("", "ok", "no rule"),
        ("scopeId = @request.auth.id", "ok", "no rule"),
        ("@request.auth.id != '' && scopeId:lower = @request.auth.team", "ok", "no rule"),
        ("@request.auth.id != ''", "warn", "users can enqueue jobs in the name of others"),
        ("true", "warn", "everybody, without signing in, can enqueue jobs in the name of others"),
    ],
)
async def test_a_rule_that_lets_users_set_any_scope_is_told(queue: Queue, rule: str, level: str, told: str) -> None:
    await queue.site.change({"enqueue_rule": rule})
    finding = await found(queue, "access")
    assert finding.level == level
    assert told in finding.message


async def test_versions_that_run_side_by_side_are_told(queue: Queue) -> None:
    assert (await found(queue, "versions")).message == "no worker is connected"
    await queue.store.open_lease("a", 3_600_000, {"slots": 1, "version": "1.1"})
    await queue.store.open_lease("outside", 3_600_000, {"slots": 0})
    assert (await found(queue, "versions")).message == "all workers run 1.1"
    await queue.store.open_lease("b", 3_600_000, {"slots": 1, "version": "1.0"})
    finding = await found(queue, "versions")
    assert (finding.level, finding.message) == ("warn", "2 versions of Treadle run side by side: 1.0, 1.1")


@pytest.mark.every_store
async def test_the_doctor_says_where_the_signing_key_is(queue: Queue) -> None:
    assert (await found(queue, "signing key")).message == "the key that signs tokens is made when somebody signs in"
    await SigningKeys(queue.store).current()
    finding = await found(queue, "signing key")
    assert finding.level == "warn"
    if queue.key_file is None:
        assert "in the database, and so in its backups" in finding.message
        assert "TREADLE_SECRET_KEY" in finding.advice
    else:
        assert "in the database file" in finding.message
        await SigningKeys(queue.store, queue.key_file).current()
        finding = await found(queue, "signing key")
        assert (finding.level, "only its owner can read" in finding.message) == ("ok", True)
        queue.key_file.chmod(0o644)
        finding = await found(queue, "signing key")
        assert (finding.level, f"chmod 600 {queue.key_file}" in finding.advice) == ("warn", True)
    queue.settings = queue.settings.override({"secret_key": "x" * 32})
    assert "the key before it is still accepted" in (await found(queue, "signing key")).message
    await SigningKeys(queue.store, queue.key_file, "x" * 32).rotate()
    finding = await found(queue, "signing key")
    assert (finding.level, finding.message) == ("ok", "TREADLE_SECRET_KEY signs tokens")
