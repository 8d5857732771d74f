"""Admission of new and requeued jobs: look up the owners of their keys and the live jobs under their limits, ask
`admission`, and apply its answers to keys and replaced jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from treadle.model.errors import StoreUnavailable
from treadle.policy.admission import (
    DEDUPE,
    ONCE,
    Admit,
    Decision,
    Facts,
    LiveJob,
    Owner,
    Request,
    UniqueKey,
    admit,
    replaced_by,
    wanted,
)
from treadle.policy.retention import Rules
from treadle.policy.rules import always
from treadle.store.sql.rows import UNCANCELABLE, job_from_row, view_row
from treadle.store.sql.scripts.common import LOOKS, Script

# Cancels jobs: the reason by the job's id.
Cancel = Callable[[Mapping[str, str]], Script[Any]]


class Admission(NamedTuple):
    requests: Sequence[Request]
    numbers: Sequence[int]
    """Of the jobs, new or old."""
    decisions: list[Decision]
    taken: Mapping[UniqueKey, int]
    """Keys that were free, with the job that now holds each."""


def ask(requests: Sequence[Request], numbers: Sequence[int]) -> Script[Admission]:
    if not any(request.needs_facts for request in requests):
        return Admission(requests, numbers, admit(requests, Facts()), {})
    want = wanted(requests)
    taken, owners = yield from _take_keys(requests, numbers, want.unique)
    completed = yield from _completed(requests)
    live = yield from _live(want.limits)
    if any(request.counted and request.may_replace is not always for request in requests):
        live = yield from _with_documents(live)
    return Admission(requests, numbers, admit(requests, Facts(owners, completed, live)), taken)


def _take_keys(
    requests: Sequence[Request], numbers: Sequence[int], keys: Sequence[UniqueKey]
) -> Script[tuple[dict[UniqueKey, int], dict[UniqueKey, Owner]]]:
    """Lock keys by taking them, each for the first request: a missing key can't be locked otherwise."""
    first: dict[UniqueKey, dict[str, Any]] = {}
    for request, n in zip(requests, numbers, strict=True):
        for key in request.unique:
            first.setdefault(key, {"kind": key.kind, "key": key.key, "n": n, "hash": request.payload_hash})
    left = [first[key] for key in keys]
    taken: dict[UniqueKey, int] = {}
    owners: dict[UniqueKey, Owner] = {}
    for _ in range(LOOKS):
        if not left:
            break
        taken |= {UniqueKey(kind, key): n for kind, key, n in (yield "take_keys", left)}
        left = [row for row in left if (row["kind"], row["key"]) not in taken]
        found = (yield "find_keys", left) if left else []
        owners |= {UniqueKey(kind, key): Owner(id_, hash_) for kind, key, hash_, id_ in found}
        # If the dedupe key's job ended at this moment, the key is neither taken nor found: try again.
        left = [row for row in left if (row["kind"], row["key"]) not in owners]
    if left:
        raise _busy()
    return taken, owners


def _completed(requests: Sequence[Request]) -> Script[dict[str, str]]:
    """Looked up after the dedupe keys are taken: a job that completed while we waited for its key left this one."""
    keys = {key.key for one in requests if not one.repeatable for key in one.unique if key.kind == DEDUPE}
    if not keys:
        return {}
    found = yield "find_keys", [{"kind": ONCE, "key": key} for key in sorted(keys)]
    return {key: id_ for _, key, _, id_ in found}


def _live(keys: Sequence[str]) -> Script[dict[str, Sequence[LiveJob]]]:
    """First the row lock, then a separate statement to look, so that the previous holder has committed by then."""
    live: dict[str, list[LiveJob]] = defaultdict(list)
    if keys:
        rows = [{"key": key} for key in keys]
        yield "lock_limit_keys", rows
        for key, id_, running, flags in (yield "members", rows):
            live[key].append(LiveJob(id_, bool(running), not flags & UNCANCELABLE))
    return dict(live)


def _with_documents(live: Mapping[str, Sequence[LiveJob]]) -> Script[dict[str, Sequence[LiveJob]]]:
    """For callers who may not cancel everything: a rule may name any field of a job."""
    ids = sorted({job.id for jobs in live.values() for job in jobs})
    rows = (yield "jobs_by_id", [{"id": id_} for id_ in ids]) if ids else []
    found = {job.id: job.as_json() for job in (job_from_row(view_row(row), Rules(), from_json) for row in rows)}
    return {key: [job._replace(document=found.get(job.id)) for job in jobs] for key, jobs in live.items()}


def apply(asked: Admission, cancel: Cancel) -> Script[None]:
    """Cancel replaced jobs outside the batch; admitted jobs get all their keys, the others keep none."""
    owners: dict[UniqueKey, tuple[int, str | None]] = {}
    for request, n, decision in zip(asked.requests, asked.numbers, asked.decisions, strict=True):
        if isinstance(decision, Admit):
            owners.update(dict.fromkeys(request.unique, (n, request.payload_hash)))
    wrong = [(key, n) for key, n in asked.taken.items() if key not in owners or owners[key][0] != n]
    for kind in sorted({key.kind for key, _ in wrong}):
        yield "drop_keys", [{"n": n, "kind": kind} for key, n in wrong if key.kind == kind]
    yield from replace(asked, cancel, within_batch=False)
    # Keys that were taken for another job of the batch, and keys that the replaced jobs released.
    late = {key: owner for key, owner in owners.items() if asked.taken.get(key) != owner[0]}
    rows = [{"kind": key.kind, "key": key.key, "n": n, "hash": hash_} for key, (n, hash_) in sorted(late.items())]
    if rows and len((yield "take_keys", rows)) < len(rows):
        raise _busy()


def replace(asked: Admission, cancel: Cancel, *, within_batch: bool) -> Script[None]:
    """Cancel replaced jobs: the ones outside this batch, or earlier ones in it once they are stored."""
    batch = {request.id for request in asked.requests}
    reasons = {
        id_: replaced_by(request.id).reason
        for request, decision in zip(asked.requests, asked.decisions, strict=True)
        if isinstance(decision, Admit)
        for id_ in decision.cancels
        if (id_ in batch) is within_batch
    }
    if reasons:
        yield from cancel(reasons)


def _busy() -> StoreUnavailable:
    return StoreUnavailable("a unique key changed hands too often; try again")
