"""A state machine that does the same to both stores and to the model, and compares everything after each step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.model.model import Model, ModelJob
from tests.model.stores import Pair, Side
from treadle.errors import Refused, TreadleError
from treadle.job import Job
from treadle.lifecycle import (
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Status,
    decide,
)
from treadle.store.base import (
    FOREVER,
    Claimed,
    Gate,
    Inserted,
    NewJob,
    Refusal,
    RowState,
    Settlement,
    Store,
    Touch,
)

# Time is counted in units that are far longer than a run takes, and everything is due in the middle of one: how fast
# the machine runs never decides. Each step also takes a second, so that no two steps happen at the same time.
UNIT = 600_000
HALF = UNIT // 2
STEP = 1_000
STALE_AFTER = 4 * UNIT + HALF

TOPICS = ("mail", "video")
UNKNOWN = "00000000-0000-7000-8000-ffffffffffff"

picks = st.integers(0, 1_000)
units = st.integers(1, 3)
some_topics = st.sampled_from([*[(topic,) for topic in TOPICS], TOPICS, TOPICS, TOPICS])
some_capabilities = st.sampled_from([(), ("gpu",), ("gpu",)])
few = st.sampled_from([0, 0, 0, 1, 2])
TASKS = ("reclaim", "reclaim", "reclaim", "expire_overdue", "expire_overdue", "end_overdue_cancels", "prune", "tidy")

plans = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(TOPICS),
        "payload": st.sampled_from(['{"v":1}', '{"v":2}']),
        "priority": st.sampled_from([50, 50, 75]),
        "capability": st.sampled_from(["", "", "gpu"]),
        "max_attempts": st.sampled_from([3, 2, 1]),
    },
    optional={
        "delay": st.integers(-2, 3),
        "expires": units,
        "idempotency_key": st.sampled_from(["k1", "k2"]),
        "scope_id": st.sampled_from(["s1"]),
        "dedupe_key": st.sampled_from(["d1", "d2"]),
        "once": st.just(True),
        "gate": st.sampled_from(
            [
                Gate("g1", "queue_same_scope", 1),
                Gate("g2", "queue_same_scope", 2),
                Gate("g1", "reject_same_scope", 1),
                Gate("g2", "reject_same_scope", 2),
                Gate("g1", "replace_same_scope", 1),
                Gate("g2", "replace_same_scope", 2),
            ]
        ),
    },
)

outcome_kinds = st.sampled_from(["completed", "completed", "retry", "fatal", "snoozed", "released", "acknowledged"])
choices = st.tuples(picks, outcome_kinds, st.booleans())
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Hand(NamedTuple):
    """A claim as a worker remembers it, perhaps for longer than it is worth."""

    id: str
    token: int
    """The model's."""
    lease: str
    claimed: dict[Side, Claimed]


def name_of(answer: Any) -> Any:
    """A refusal's type, in the way in which the model says it."""
    error = answer.error if isinstance(answer, Refusal) else answer
    return type(error).__name__ if isinstance(error, Exception) else ""


def differences(seen: dict[str, Any], expected: dict[str, Any]) -> str:
    """For each job that is not as it should be: what it is, and what it should be."""
    lines = []
    for id in sorted(seen.keys() | expected.keys()):
        one, other = seen.get(id), expected.get(id)
        if one is None or other is None:
            lines.append(f"job {id} is {'missing' if one is None else 'still there'}")
        elif one != other:
            fields = [f"{name} {one[name]!r}, not {other[name]!r}" for name in other if one[name] != other[name]]
            lines.append(f"job {id} ({other['status']}) has {'; '.join(fields)}")
    return "\n".join(lines)


class Lockstep(RuleBasedStateMachine):
    pair: ClassVar[Pair]
    numbers: ClassVar[Any] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.pair.empty()
        self.model = Model()
        self.hands: list[Hand] = []
        self.leases: dict[str, dict[Side, int]] = {}
        self.ids: list[str] = []
        self.last_tokens: dict[tuple[Side, str], int] = {}
        self.offsets = itertools.count(1)

    # -- choosing ------------------------------------------------------------------------------

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One action, chosen by its weight among those that can do something now."""
        action = data.draw(st.sampled_from(self._possible()), label="action")
        getattr(self, action)(data.draw)

    def _possible(self) -> list[str]:
        places = [job.place for job in self.model.jobs.values()]
        working = any(map(self.model.live, self.model.leases))
        weights = {
            "insert": 2 if places.count("ready") > 5 else 8,
            "insert_many": 2,
            "open_lease": 1 if working else 8,
            "extend": 1,
            "close_lease": 1,
            "claim": 12 if working and "ready" in places else 1,
            "settle": bool(self.hands) * (10 if "running" in places else 1),
            "settle_many": bool(self.hands) * (4 if "running" in places else 1),
            "touch": 2 * bool(self.hands),
            "release_unknown": "running" in places,
            "time_passes": 3,
            "promote": 4 if "later" in places else 0,
            "maintain": 4,
            "cancel": 2 * bool(self.ids),
            "release": "running" in places,
            "requeue": 3 * ("ended" in places),
            "reschedule": 2 * bool(self.ids),
            "delete": bool(self.ids),
            "pause": 1,
            "resume": 6 * bool(self.model.paused),
        }
        return [action for action, weight in weights.items() for _ in range(weight)]

    # -- asking both ---------------------------------------------------------------------------

    def ask(self, call: Callable[[Store, Side], Awaitable[Any]], view: Callable[[Any], Any], expected: Any) -> Any:
        """Both stores must answer as the model did; an error that Treadle raises counts by its name."""

        async def one(side: Side) -> Any:
            try:
                return await call(side.store, side)
            except TreadleError as error:
                return error

        answers = self.pair.each(one)
        seen = {
            side.dialect: type(answer).__name__ if isinstance(answer, TreadleError) else view(answer)
            for side, answer in answers.items()
        }
        assert seen == {side.dialect: expected for side in answers}, f"the model says {expected}, the stores {seen}"
        return answers

    def offset(self) -> int:
        """A few milliseconds of its own for each instant, so that no two jobs are due at the same time."""
        return next(self.offsets)

    # -- making jobs ---------------------------------------------------------------------------

    def insert(self, draw: Draw) -> None:
        self._insert([draw(plans)], atomic=True)

    def insert_many(self, draw: Draw) -> None:
        batch = draw(st.lists(plans, min_size=2, max_size=4))
        policies: dict[str, str] = {}
        for plan in batch:
            plan.setdefault("delay", 0)
            # In one batch, a job whose two keys belong to two other jobs gets either answer …
            if "idempotency_key" in plan:
                plan.pop("dedupe_key", None)
            # … and one key is under one policy: a template has only one.
            if gate := plan.get("gate"):
                plan["gate"] = gate._replace(policy=policies.setdefault(gate.key, gate.policy))
        self._insert(batch, atomic=draw(st.booleans()))

    def _insert(self, batch: list[dict[str, Any]], atomic: bool) -> None:
        now = time.time_ns() // 1_000_000
        made = [self._new(dict(plan), now) for plan in batch]
        expected = self.model.insert([mine for mine, _ in made], atomic)

        async def call(store: Store, _: Side) -> list[str]:
            try:
                answers = await store.insert([theirs for _, theirs in made], atomic=atomic)
            except Refused as refusal:
                # Of several refusals an atomic batch raises any one.
                return expected if atomic and name_of(refusal) in expected else [name_of(refusal)]
            return [
                answer.existing_id or "made" if isinstance(answer, Inserted) else name_of(answer) for answer in answers
            ]

        self.ask(call, lambda answer: answer, expected)
        self.ids += [mine.id for mine, _ in made if mine.id in self.model.jobs]

    def _new(self, plan: dict[str, Any], now: int) -> tuple[NewJob, NewJob]:
        """The job as the model sees it (relative to its own time), and as the stores do."""
        id = f"00000000-0000-7000-8000-{next(self.numbers):012x}"
        delay, expires = plan.pop("delay", None), plan.pop("expires", None)
        if plan.pop("once", False) and "dedupe_key" in plan:
            plan["repeatable"] = False
        expires_in = None if expires is None else expires * UNIT - HALF
        if delay is None:  # due now, by the database's clock
            new = NewJob(id, **plan, expires_in_ms=expires_in)
            return new, new
        if delay > 0:
            new = NewJob(id, **plan, delay_ms=delay * UNIT - HALF + self.offset(), expires_in_ms=expires_in)
            return new, new
        # A named instant in the past or just now.
        delay_ms = delay * UNIT - STEP // 2 + self.offset()
        mine = NewJob(id, **plan, delay_ms=delay_ms, expires_in_ms=expires_in)
        expires_at = None if expires_in is None else now + expires_in
        return mine, replace(mine, run_at=now + delay_ms, delay_ms=0, expires_at=expires_at, expires_in_ms=None)

    # -- running jobs --------------------------------------------------------------------------

    @initialize()
    def first_lease(self) -> None:
        self._open_lease(5)

    def open_lease(self, draw: Draw) -> None:
        self._open_lease(draw(st.integers(2, 5)))

    def _open_lease(self, length: int) -> None:
        label = f"worker-{len(self.leases)}"
        ms = length * UNIT - HALF
        self.model.leases[label] = self.model.now + ms
        self.leases[label] = self.pair.each(lambda side: side.store.open_lease(label, ms))

    def _a_lease(self, draw: Draw) -> str:
        """Mostly the newest live one."""
        labels = sorted(self.leases, key=lambda label: (self.model.live(label), int(label.split("-")[1])))
        return labels[-1 - draw(few) % len(labels)]

    def extend(self, draw: Draw) -> None:
        label, ms = self._a_lease(draw), draw(st.integers(2, 5)) * UNIT - HALF
        expected = self.model.extend(label, ms)
        self.ask(lambda store, side: store.extend(self.leases[label][side], ms), lambda answer: answer, expected)

    def close_lease(self, draw: Draw) -> None:
        label = self._a_lease(draw)
        self.model.close_lease(label)
        self.pair.each(lambda side: side.store.close_lease(self.leases[label][side]))

    def claim(self, draw: Draw) -> None:
        label, topics, capabilities = self._a_lease(draw), draw(some_topics), draw(some_capabilities)
        limit = draw(st.integers(1, 6))
        free = max(limit - draw(few), 0)
        expected = self.model.claim(label, topics, capabilities, limit, free)
        answers = self.ask(
            lambda store, side: store.claim(self.leases[label][side], topics, capabilities, limit, free),
            lambda claim: ([(job.id, job.attempt) for job in claim.jobs], claim.overdue),
            expected,
        )
        if isinstance(expected, str):
            return
        for i, (id, _) in enumerate(expected[0]):
            claimed = {side: answer.jobs[i] for side, answer in answers.items()}
            self.hands.append(Hand(id, self.model.tokens, label, claimed))
            for side, job in claimed.items():
                mine = self.model.jobs[id]
                assert (job.topic, job.payload, job.max_attempts) == (
                    mine.new.topic,
                    mine.new.payload,
                    mine.max_attempts,
                )
                assert job.token > self.last_tokens.get((side, id), 0), "a token must rise"
                self.last_tokens[side, id] = job.token

    def settle(self, draw: Draw) -> None:
        self._settle([draw(choices)], forget=False)

    def settle_many(self, draw: Draw) -> None:
        self._settle(draw(st.lists(choices, min_size=1, max_size=5)), forget=True)

    def _settle(self, choices: list[tuple[int, str, bool]], forget: bool) -> None:
        """Some of the claims that workers remember, the newest first; not forgotten, it may be settled again."""
        chosen: dict[int, tuple[Hand, Outcome, bool]] = {}
        for number, kind, started in choices:
            index = len(self.hands) - 1 - number % len(self.hands)
            hand = self.hands[index]
            job = self.model.jobs.get(hand.id)
            # Whoever has told of a start knows how long it ran.
            chosen[index] = (hand, self._outcome(kind, hand), started or (job is not None and job.started))
        expected = {
            index: self.model.settle(hand.id, hand.token, hand.lease, outcome, started=started)
            for index, (hand, outcome, started) in chosen.items()
        }

        async def call(store: Store, side: Side) -> dict[int, bool]:
            batch = {
                index: Settlement(hand.claimed[side], self._transition(hand, outcome, side), 0 if started else None)
                for index, (hand, outcome, started) in chosen.items()
            }
            lost = await store.settle(list(batch.values()))
            return {index: not any(one is other for other in lost) for index, one in batch.items()}

        self.ask(call, lambda answer: answer, expected)
        if forget:
            self.hands = [hand for index, hand in enumerate(self.hands) if index not in chosen]

    def _outcome(self, kind: str, hand: Hand) -> Outcome:
        match kind:
            case "completed":
                return Completed('{"done":true}')
            case "retry":
                return Failed("Traceback\nOSError: no route", "OSError", UNIT - HALF + self.offset())
            case "fatal":
                return Failed("Fail: never", "Fail")
            case "snoozed":
                return Snoozed(UNIT - HALF + self.offset(), "not yet")
            case "acknowledged" if self._was_asked_to_stop(hand):
                return CancelAcknowledged("stopped")
        return Released("the worker stopped")

    def _was_asked_to_stop(self, hand: Hand) -> bool:
        job = self.model.jobs.get(hand.id)
        return job is not None and job.cancel_at is not None and job.token == hand.token

    def _transition(self, hand: Hand, outcome: Outcome, side: Side) -> Any:
        """As a worker does it: it need not know of the cancel, but it acknowledges only one that it has seen."""
        job = hand.claimed[side]
        if isinstance(outcome, CancelAcknowledged):
            return decide(RowState(Status.CANCELLING, job.attempt, job.max_attempts), outcome)
        return decide(job, outcome)

    def touch(self, draw: Draw) -> None:
        hand = self.hands[-1 - draw(picks) % len(self.hands)]
        progress, message = draw(st.none() | st.integers(0, 100)), draw(st.sampled_from([None, "half", "soon"]))
        expected = self.model.touch(hand.id, hand.token, hand.lease, progress, message)

        def call(store: Store, side: Side) -> Awaitable[list[int]]:
            job = hand.claimed[side]
            return store.touch(job.lease, [Touch(job.n, job.token, 0, progress, message)])

        self.ask(call, lambda lost: not lost, expected)

    # -- what maintenance does -----------------------------------------------------------------

    def time_passes(self, draw: Draw) -> None:
        ms = draw(st.integers(1, 2)) * UNIT
        self.model.now += ms
        self.pair.pass_time(ms)

    def promote(self, _: Draw) -> None:
        self.ask(lambda store, _: store.promote(), lambda answer: answer[0], self.model.promote())

    def maintain(self, draw: Draw) -> None:
        ms = draw(units) * UNIT - HALF
        match draw(st.sampled_from(TASKS)):
            case "reclaim":
                self._moves(self.model.reclaim(), lambda store, _: store.reclaim())
            case "expire_overdue":
                self._moves(self.model.expire_overdue(), lambda store, _: store.expire_overdue())
            case "end_overdue_cancels":
                expected = self.model.end_overdue_cancels({"mail": ms}, HALF)
                self._moves(expected, lambda store, _: store.end_overdue_cancels({"mail": ms}, HALF))
            case "prune":
                self.ask(lambda store, _: store.prune(ms), lambda count: count, self.model.prune(ms))
            case "tidy":
                self.pair.each(lambda side: side.store.tidy())

    def _moves(self, expected: set[tuple[str, str]], call: Callable[[Store, Side], Awaitable[Any]]) -> None:
        self.ask(call, lambda moved: {(one.id, one.status) for one in moved}, expected)

    def release_unknown(self, draw: Draw) -> None:
        """A claim's answer was lost: its worker names the tokens that it has."""
        label = self._a_lease(draw)
        mine = [hand for hand in self.hands if hand.lease == label]
        kept = mine[draw(picks) % (len(mine) + 1) :]
        expected = self.model.release_unknown(label, {hand.token for hand in kept})

        def call(store: Store, side: Side) -> Awaitable[int]:
            return store.release_unknown(self.leases[label][side], [hand.claimed[side].token for hand in kept])

        self.ask(call, lambda count: count, expected)

    # -- what people ask for -------------------------------------------------------------------

    def _an_id(self, draw: Draw) -> str:
        """Of a job that was made, mostly a new one; perhaps it is gone by now."""
        return self.ids[-1 - draw(picks) % len(self.ids)]

    def cancel(self, draw: Draw) -> None:
        ids = [self._an_id(draw) for _ in range(draw(st.integers(1, 3)))]
        ids = list(dict.fromkeys(ids + [UNKNOWN] * draw(st.booleans())))
        uncancelable = draw(st.sampled_from([(), (), TOPICS[:1]]))
        expected = self.model.cancel(ids, "by hand", uncancelable)
        self.ask(
            lambda store, _: store.cancel(ids, "by hand", uncancelable),
            lambda answers: [name_of(answer) for answer in answers],
            expected,
        )

    def requeue(self, draw: Draw) -> None:
        ended = [job.id for job in self.model.jobs.values() if job.place == "ended"]
        id = draw(st.sampled_from([*ended, *ended, self._an_id(draw), UNKNOWN]))
        force = draw(st.booleans())
        expected = self.model.requeue(id, force, STALE_AFTER)
        self.ask(lambda store, _: store.requeue([id], force), lambda answers: name_of(answers[0]), expected)

    def release(self, draw: Draw) -> None:
        id = self._an_id(draw)
        expected = self.model.release(id)
        self.ask(lambda store, _: store.release([id]), lambda answers: name_of(answers[0]), expected)

    def delete(self, draw: Draw) -> None:
        id, force = self._an_id(draw), draw(st.booleans())
        expected = self.model.delete(id, force)
        self.ask(lambda store, _: store.delete([id], force), lambda answers: name_of(answers[0]), expected)

    def reschedule(self, draw: Draw) -> None:
        id, delay = self._an_id(draw), draw(st.none() | st.integers(-2, 3))
        priority, most = draw(st.sampled_from([None, None, 50, 75])), draw(st.none() | st.integers(1, 4))
        delay_ms = None if delay is None else delay * UNIT - HALF + self.offset()
        run_at = None if delay_ms is None else time.time_ns() // 1_000_000 + delay_ms
        expected = self.model.reschedule(id, delay_ms, priority, most)
        self.ask(
            lambda store, _: store.reschedule(id, run_at=run_at, priority=priority, max_attempts=most),
            name_of,
            expected,
        )

    def pause(self, draw: Draw) -> None:
        topic, length = draw(st.sampled_from(TOPICS)), draw(st.sampled_from([None, 1, 2]))
        until = None if length is None else length * UNIT - HALF
        self.model.paused[topic] = FOREVER if until is None else self.model.now + until
        now = time.time_ns() // 1_000_000
        self.pair.each(lambda side: side.store.pause(topic, FOREVER if until is None else now + until))

    def resume(self, draw: Draw) -> None:
        topic = draw(st.sampled_from(TOPICS))
        self.model.paused.pop(topic, None)
        self.pair.each(lambda side: side.store.resume(topic))

    # -- comparing -----------------------------------------------------------------------------

    @invariant()
    def everything_agrees(self) -> None:
        expected = {id: self._expected(job) for id, job in self.model.jobs.items()}
        counts = dict.fromkeys(Status, 0)
        for job in self.model.jobs.values():
            counts[Status(job.status)] += 1

        async def read(side: Side) -> tuple[dict[str, Any], Any, int]:
            jobs = await side.store.get(self.ids)
            stats = await side.store.stats()
            return {job.id: job for job in jobs if job}, stats.counts, await side.store.now()

        for side, (jobs, tallied, now) in self.pair.each(read).items():
            problems, events = side.look()
            assert not problems, f"{side.dialect}: {problems}"
            seen = {id: self._seen(job, now) for id, job in jobs.items()}
            assert seen == expected, f"{side.dialect}: {differences(seen, expected)}"
            assert tallied == counts, side.dialect
            for id, job in self.model.jobs.items():
                told = [tuple(row[1:]) for row in events if row[0] == id]
                assert told == job.events, f"{side.dialect}: of job {id} it tells {told}, not {job.events}"
        for gate, limit in (("g1", 1), ("g2", 2)):
            assert self.model.inside(gate) <= limit
        self.model.now += STEP
        self.pair.pass_time(STEP)

    def _expected(self, job: ModelJob) -> dict[str, Any]:
        unsuccessful = job.status in ("pending", "failed", "cancelled", "expired")
        error, error_type = job.error or (None, None)
        assert 0 <= job.attempt <= job.max_attempts
        return {
            "status": job.status,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "retries": job.attempt if unsuccessful else job.attempt - 1,
            "priority": job.priority,
            "payload": job.new.payload,
            "progress": 100 if job.ended_as == "completed" else job.progress or 0,
            "progress_message": job.message,
            "result": job.result,
            "error": error,
            "error_type": error_type,
            "cancel": job.cancel_reason,
            "started": job.started,
            "worker": job.lease,
            "stale": self.model.stale(job, STALE_AFTER),
            "run_in": round((job.run_at - self.model.now) / HALF),
            "expires_in": None if job.expires_at is None else round((job.expires_at - self.model.now) / HALF),
        }

    def _seen(self, job: Job, now: int) -> dict[str, Any]:
        def units_from_now(when: Any) -> int | None:
            return None if when is None else round((when.timestamp() * 1000 - now) / HALF)

        assert (job.cancel_requested_at is None) == (job.cancel_reason is None)
        return {
            "status": job.status.value,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "retries": job.retries,
            "priority": job.priority,
            "payload": '{"v":%d}' % job.payload["v"],
            "progress": job.progress,
            "progress_message": job.progress_message,
            "result": None if job.result_value is None else '{"done":true}',
            "error": job.last_error,
            "error_type": job.error_type,
            "cancel": job.cancel_reason,
            "started": job.started_at is not None,
            "worker": job.locked_by,
            "stale": job.stale_at is not None,
            "run_in": units_from_now(job.run_at),
            "expires_in": units_from_now(job.expires_at),
        }
