"""The keys of a job that comes back with another payload: they are the new payload's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from treadle.policy.admission import IDEMPOTENCY, UniqueKey
from treadle.store.requests import owned_as, request_of
from treadle.store.sql.rows import DEDUPE, LIMITED, ONCE, UNCANCELABLE, traits_of
from treadle.store.sql.scripts.common import JobFacts, Script, numbers
from treadle.store.values import NewJob

# The traits that come with keys; the others are not the payload's.
OF_KEYS = DEDUPE | LIMITED | ONCE | UNCANCELABLE


class ChangedJob(NamedTuple):
    job: NewJob
    held: UniqueKey | None = None
    """The idempotency key that it holds."""


def with_owners(changed: Mapping[int, NewJob]) -> Script[dict[int, ChangedJob]]:
    """By number, with the owners of their idempotency keys, which only the keys themselves tell."""
    rows = (yield "idempotency_keys", numbers(changed)) if changed else []
    held = {n: (UniqueKey(IDEMPOTENCY, key), old) for n, key, old in rows}
    found = {}
    for n, job in changed.items():
        key, old = held.get(n, (None, None))
        found[n] = ChangedJob(owned_as(job, key, old) if key and old is not None else job, key)
    return found


def with_keys(job: JobFacts, changed: Mapping[int, ChangedJob]) -> JobFacts:
    """The job as it will be."""
    if job.n not in changed:
        return job
    new = changed[job.n].job
    key, policy, most = new.limit or (None, None, None)
    flags = (job.flags & ~OF_KEYS) | (traits_of(new) & OF_KEYS)
    return job._replace(flags=flags, limit_key=key, limit_policy=policy, limit_most=most, dedupe_key=new.dedupe_key)


def set_keys(changed: Mapping[int, ChangedJob]) -> Script[None]:
    """Of jobs that were admitted: their dedupe keys are taken, and their idempotency keys are theirs or free."""
    if not changed:
        return
    for kind in (IDEMPOTENCY, "once"):
        yield "drop_keys", [{"n": n, "kind": kind} for n in sorted(changed)]
    taken, rows = [], []
    for n, (job, _) in sorted(changed.items()):
        request = request_of(job)
        taken += [
            {"kind": key.kind, "key": key.key, "n": n, "hash": request.payload_hash}
            for key in request.unique
            if key.kind == IDEMPOTENCY
        ]
        limit_key, policy, most = job.limit or (None, None, None)
        traits = traits_of(job) & OF_KEYS
        row = {"n": n, "idempotency_key": job.given.idempotency_key, "dedupe_key": job.dedupe_key, "traits": traits}
        rows.append({**row, "limit_key": limit_key, "limit_policy": policy, "limit_most": most})
    if taken:
        yield "take_keys", taken
    yield "set_job_keys", rows
