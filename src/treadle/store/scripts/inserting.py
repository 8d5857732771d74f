"""New jobs: lanes, numbers, unique keys, gates, places."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from treadle.errors import ConcurrencyRejected, KeyReused, NotRepeatable, Refused, StoreUnavailable
from treadle.store.base import EXPIRES, GATED, Inserted, NewJob
from treadle.store.scripts.common import LOOKS, Script, numbers
from treadle.store.scripts.gates import enter_gates, open_gates
from treadle.store.scripts.lanes import lane_of, register_lanes
from treadle.store.scripts.requests import cancel


def insert(jobs: Sequence[NewJob], atomic: bool) -> Script[list[Inserted | Refused]]:
    """Any jobs, with keys, gates and deadlines. Refusals are raised if `atomic`, else returned in place."""
    answers: list[Inserted | Refused] = []
    for part in _parts(jobs):
        answers += yield from _insert(part, atomic)
    return answers


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Keys are looked at before gates. So who brings a dedupe key comes after those who may have freed it by replacing
    its owner, or it would be told that a cancelled job stands for it."""
    start, replacing = 0, False
    for i, job in enumerate(jobs):
        if replacing and job.dedupe_key is not None:
            yield jobs[start:i]
            start, replacing = i, False
        replacing = replacing or (job.gate is not None and job.gate.policy == "replace_same_scope")
    yield jobs[start:]


def _insert(jobs: Sequence[NewJob], atomic: bool) -> Script[list[Inserted | Refused]]:
    now: int = (yield "clock", [])[0][0]
    lanes = yield from register_lanes(jobs)
    reserved = [row[0] for row in (yield "reserve_numbers", [{"count": len(jobs)}])]
    answers: list[Inserted | Refused] = [Inserted(now)] * len(jobs)
    free, repeats = _first_of_each_key(jobs)
    free = yield from _take_keys(jobs, free, reserved, answers, now)
    replaced: dict[str, str] = {}
    free = yield from _pass_gates(jobs, free, reserved, answers, replaced)
    made = set(free)
    for i, first, key in repeats:
        if first in made:
            answers[i] = _resolve(jobs[i], key, _payload_hash(jobs[first]), jobs[first].id, now)
    if atomic:
        _raise_first_refusal(answers)
    rows = [_job_row(jobs[i], reserved[i], lanes[lane_of(jobs[i])], now) for i in free]
    if rows:
        yield "insert_jobs", rows
        yield from _place_new(rows)
    for old, by in replaced.items():
        yield from cancel([old], _replaced_by(by), ())
    yield from _insert_again(jobs, [i for i, first, _ in repeats if first not in made], answers, atomic)
    return answers


def _insert_again(
    jobs: Sequence[NewJob], indexes: Sequence[int], answers: list[Inserted | Refused], atomic: bool
) -> Script[None]:
    """Jobs that stood behind one of their own batch that was not made: now they stand for themselves."""
    if indexes:
        found = yield from _insert([jobs[i] for i in indexes], atomic)
        for i, answer in zip(indexes, found, strict=True):
            answers[i] = answer


def _raise_first_refusal(answers: Iterable[Inserted | Refused]) -> None:
    for answer in answers:
        if isinstance(answer, Refused):
            raise answer


def _job_row(job: NewJob, n: int, lane: int, now: int) -> dict[str, Any]:
    run_at = now + job.delay_ms if job.run_at is None else job.run_at
    expires_at = job.expires_at if job.expires_in_ms is None else now + job.expires_in_ms
    return {
        "n": n,
        "id": job.id,
        "lane": lane,
        "topic": job.topic,
        "run_at": run_at,
        "created_at": now,
        "max_attempts": job.max_attempts,
        "flags": job.flags,
        "expires_at": expires_at,
        "template_version": job.template_version,
        "scope": job.scope,
        "scope_id": job.scope_id,
        "created_by": job.created_by,
        "idempotency_key": job.idempotency_key,
        "dedupe_key": job.dedupe_key,
        "gate": job.gate.key if job.gate else None,
        "payload": job.payload,
        "trace": job.trace,
        "attempt": 0,
    }


def _place_new(rows: list[dict[str, Any]]) -> Script[None]:
    due = [row for row in rows if row["run_at"] <= row["created_at"]]
    if free := [row for row in due if not row["flags"] & GATED]:
        yield "place_ready", _positions(free)
    if later := [row for row in rows if row["run_at"] > row["created_at"]]:
        yield "place_later", _positions(later)
    if expiring := [row for row in rows if row["flags"] & EXPIRES]:
        yield "add_deadlines", [{"n": row["n"], "expires_at": row["expires_at"]} for row in expiring]
    if gated := [row for row in rows if row["flags"] & GATED]:
        yield "add_members", [{"gate": row["gate"], "n": row["n"]} for row in gated]
        waiting = [row for row in gated if row["run_at"] <= row["created_at"]]
        yield from enter_gates([(row["gate"], row["n"], 0) for row in waiting])
        # A limit that was raised lets others in, even if the job that brought it is not due yet.
        if quiet := {row["gate"] for row in gated} - {row["gate"] for row in waiting}:
            yield from open_gates(quiet)


def _positions(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, int]]:
    return [{"n": row["n"], "attempt": row["attempt"]} for row in rows]


class _Key(NamedTuple):
    kind: str
    key: str


def _first_of_each_key(jobs: Sequence[NewJob]) -> tuple[list[int], list[tuple[int, int, _Key]]]:
    """A key that stands twice in one batch belongs to its first job: the firsts, and (repeat, its first, key)."""
    owners: dict[_Key, int] = {}
    free: list[int] = []
    repeats: list[tuple[int, int, _Key]] = []
    for i, job in enumerate(jobs):
        keys = _keys_of(job)
        clash = next((key for key in keys if key in owners), None)
        if clash:
            repeats.append((i, owners[clash], clash))
        else:
            owners.update(dict.fromkeys(keys, i))
            free.append(i)
    return free, repeats


def _take_keys(
    jobs: Sequence[NewJob],
    indexes: list[int],
    reserved: Sequence[int],
    answers: list[Inserted | Refused],
    now: int,
) -> Script[list[int]]:
    """Claim every job's unique keys; the indexes of the jobs that may be made."""
    owners = {key: i for i in indexes for key in _keys_of(jobs[i])}
    if not owners:
        return indexes
    lost = yield from _claim_keys(jobs, reserved, owners)
    return [i for i in indexes if not _apply_lost(jobs[i], i, lost, answers, now)]


def _claim_keys(
    jobs: Sequence[NewJob], reserved: Sequence[int], owners: Mapping[_Key, int]
) -> Script[dict[_Key, tuple[str | None, str]]]:
    """Insert the keys; for those that others hold: (payload hash, job id)."""
    wanted: list[dict[str, Any]] = [
        {"kind": key.kind, "key": key.key, "n": reserved[i], "hash": _payload_hash(jobs[i])}
        for key, i in owners.items()
        if key.kind != "once"
    ]
    lost: dict[_Key, tuple[str | None, str]] = {}
    for _ in range(LOOKS):
        taken = {(kind, key) for kind, key, _ in (yield "take_keys", wanted)}
        wanted = [row for row in wanted if (row["kind"], row["key"]) not in taken]
        if not wanted:
            break
        found = yield "find_keys", wanted
        lost |= {_Key(kind, key): (hash_, id_) for kind, key, hash_, id_ in found}
        # A dedupe key whose job has ended in this very moment is neither taken nor found: try again.
        wanted = [row for row in wanted if _Key(row["kind"], row["key"]) not in lost]
        if not wanted:
            break
    else:
        raise StoreUnavailable("a unique key changed hands too often; try again")
    # Looked for last: a job that completed while we waited for its dedupe key has turned it into this one.
    once = [{"kind": key.kind, "key": key.key} for key in owners if key.kind == "once"]
    if once:
        lost |= {_Key(kind, key): (hash_, id_) for kind, key, hash_, id_ in (yield "find_keys", once)}
    # A job that loses one key must not keep another.
    losers = {reserved[owners[key]] for key in lost}
    surplus = [
        {"n": reserved[i], "kind": key.kind} for key, i in owners.items() if reserved[i] in losers and key not in lost
    ]
    if surplus:
        yield "drop_keys", surplus
    return lost


def _apply_lost(
    job: NewJob,
    index: int,
    lost: Mapping[_Key, tuple[str | None, str]],
    answers: list[Inserted | Refused],
    now: int,
) -> bool:
    for key in _keys_of(job):
        if key in lost:
            hash_, id_ = lost[key]
            answers[index] = _resolve(job, key, hash_, id_, now)
            return True
    return False


def _keys_of(job: NewJob) -> list[_Key]:
    keys = []
    if job.idempotency_key is not None:
        keys.append(_Key("idempotency", _joined(job.topic, job.scope, job.scope_id, job.idempotency_key)))
    if job.dedupe_key is not None:
        keys.append(_Key("dedupe", job.dedupe_key))
        if not job.repeatable:
            keys.append(_Key("once", job.dedupe_key))
    return keys


def _joined(*parts: str | None) -> str:
    """Parts that can't run into each other: ("a", "b:c") and ("a:b", "c") differ."""
    return to_json(parts).decode()


def _payload_hash(job: NewJob) -> str:
    """The same for the same JSON, whatever the order of its keys."""
    text = json.dumps(from_json(job.payload), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _resolve(job: NewJob, key: _Key, hash_: str | None, existing_id: str, now: int) -> Inserted | Refused:
    """The same key and payload return the first job; a dedupe key does so whatever the payload."""
    if key.kind == "once":
        return NotRepeatable(
            f"{job.topic} is not repeatable and job {existing_id} has completed for the same keys",
            jobId=existing_id,
        )
    if key.kind == "dedupe" or hash_ == _payload_hash(job):
        return Inserted(now, existing_id)
    return KeyReused(
        f"the idempotency key {job.idempotency_key!r} belongs to job {existing_id} with another payload",
        jobId=existing_id,
    )


def _pass_gates(
    jobs: Sequence[NewJob],
    indexes: list[int],
    reserved: Sequence[int],
    answers: list[Inserted | Refused],
    replaced: dict[str, str],
) -> Script[list[int]]:
    """Lock every gate in question and apply `reject` and `replace`; the indexes of the jobs that may be made.

    Those that a later job of the same batch replaces are put into `replaced`: they must be there to be cancelled.
    """
    gates = {gate.key: gate for i in indexes if (gate := jobs[i].gate)}
    if not gates:
        return indexes
    yield "lock_gates", [{"gate": key, "max": gates[key].limit} for key in sorted(gates)]
    strict = {key for key, gate in gates.items() if gate.policy != "queue_same_scope"}
    live: dict[str, list[tuple[int, str]]] = defaultdict(list)
    if strict:
        for key, n, id_ in (yield "members", [{"gate": key} for key in sorted(strict)]):
            live[key].append((n, id_))
    allowed = []
    for i in indexes:
        gate = jobs[i].gate
        if gate and gate.policy == "reject_same_scope" and len(live[gate.key]) >= gate.limit:
            other = live[gate.key][0][1]
            answers[i] = ConcurrencyRejected(
                f"job {other} is still live for the same key and {jobs[i].topic} allows {gate.limit}",
                jobId=other,
            )
            # It must not keep the keys that it has just claimed.
            yield "drop_all_keys", numbers([reserved[i]])
            continue
        if gate and gate.policy == "replace_same_scope":
            yield from _replace(gate.limit, live[gate.key], jobs[i].id, replaced)
        if gate and gate.key in strict:
            live[gate.key].append((-1, jobs[i].id))
        allowed.append(i)
    return allowed


def _replace(limit: int, live: list[tuple[int, str]], by: str, replaced: dict[str, str]) -> Script[None]:
    """Cancel the oldest until there is room for one more."""
    surplus = live[: max(len(live) - limit + 1, 0)]
    del live[: len(surplus)]
    replaced |= {id_: by for n, id_ in surplus if n < 0}
    if there := [id_ for n, id_ in surplus if n >= 0]:
        yield from cancel(there, _replaced_by(by), ())


def _replaced_by(id_: str) -> str:
    return f"replaced by job {id_}"
