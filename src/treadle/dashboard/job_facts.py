"""The facts about one job, and where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote, urlencode

from treadle.accounts import SUPERUSERS, USERS, AccountNotFound, Accounts
from treadle.dashboard import words
from treadle.model.durations import PRIORITIES
from treadle.model.job import Job


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    mono: bool = False
    muted: bool = False
    url: str = ""


def facts(job: Job, kept_ms: int) -> Iterator[Fact]:
    names = {value: name for name, value in PRIORITIES.items()}
    yield Fact("Topic", job.topic, url=f"/jobs?{urlencode({'topic': job.topic})}")
    yield Fact("Status", job.status.value)
    yield Fact("Created", words.date_time(job.created_at))
    yield Fact("Run at", words.date_time(job.run_at))
    yield Fact("Retries", f"{job.retries} / {job.max_attempts}")
    if job.locked_until:
        yield Fact("Locked until", f"{words.date_time(job.locked_until)} by {job.locked_by}")
    else:
        yield Fact("Locked until", "not locked", muted=True)
    yield Fact("Priority", f"{names[job.priority]} ({job.priority})" if job.priority in names else str(job.priority))
    optional = (
        ("Capability", job.capability, True),
        ("Expires", words.date_time(job.expires_at) if job.expires_at else None, False),
        ("Cancel asked", words.date_time(job.cancel_requested_at) if job.cancel_requested_at else None, False),
        ("Reason", job.cancel_reason, False),
        ("Last worker", None if job.locked_by else job.last_worker, False),
        ("Heartbeat", words.date_time(job.last_heartbeat_at) if job.last_heartbeat_at else None, False),
        ("Stale since", words.date_time(job.stale_at) if job.stale_at else None, False),
    )
    for name, value, mono in optional:
        if value:
            yield Fact(name, value, mono=mono)
    end = job.ended_at
    if end:
        gone = end + timedelta(milliseconds=kept_ms)
        yield Fact("Deleted", f"{gone:%Y-%m-%d}, unless requeued")


async def origin(job: Job, accounts: Accounts) -> list[Fact]:
    """Who or what made the job, and in which scope."""
    found = [Fact("Made by", await _maker(job, accounts), muted=not job.created_by and not job.schedule_id)]
    if job.schedule_id:
        found.append(Fact("Schedule", job.schedule_id, url=f"/schedules/{quote(job.schedule_id, safe='')}"))
    if job.scheduled_at:
        found.append(Fact("Slot", words.date_time(job.scheduled_at)))
    if job.template_version:
        topic = quote(job.topic, safe="")
        found.append(Fact("Template", f"{job.topic} version {job.template_version}", url=f"/templates/{topic}"))
    if job.parent_id:
        found.append(Fact("Parent", job.parent_id, mono=True, url=f"/jobs/{job.parent_id}"))
    if job.idempotency_key:
        found.append(Fact("Key", job.idempotency_key, mono=True))
    if scope := " ".join(filter(None, (job.scope, job.scope_id))):
        found.append(Fact("Scope", scope, mono=True))
    return found


async def _maker(job: Job, accounts: Accounts) -> str:
    """The name of the account or the key; its id if it no longer exists."""
    if not job.created_by:
        return "its schedule" if job.schedule_id else "code, without an account"
    for collection in (SUPERUSERS, USERS):
        try:
            return (await accounts.get(collection, job.created_by)).email
        except AccountNotFound:
            continue
    keys = {key.id: key.name for key in await accounts.api_keys.list()}
    return f"{keys[job.created_by]} (API key)" if job.created_by in keys else job.created_by
