"""A state machine that does the same to both stores and to the model, and compares everything after each step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, ClassVar, NamedTuple

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.model.model import Model, ModelJob
from tests.model.stores import Pair, Side
from tests.model.transactions import UserTransaction, answer_of, enqueued
from treadle.model.errors import StepEnded, TreadleError
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.model.steps import StepState
from treadle.policy.admission import Limit
from treadle.policy.lifecycle import (
    CancelAcknowledged,
    Completed,
    Failed,
    Outcome,
    Parked,
    Released,
    RowState,
    Snoozed,
    decide,
)
from treadle.queue import steering
from treadle.store.protocol import Store
from treadle.store.values import (
    HAS_STEPS,
    Answer,
    Checkpoint,
    Claimed,
    Effects,
    Graces,
    Moved,
    NewChild,
    NewChildren,
    NewJob,
    NewStep,
    Refusal,
    Settlement,
    StepKey,
    StepWrite,
    Touch,
    Wants,
)
from treadle.store.views import FOREVER
from treadle.testing.workbench import new_job

# Time is counted in units that are far longer than a run takes, and everything is due in the middle of one: how fast
# the machine runs never decides. Each step also takes a second, so that no two steps happen at the same time.
UNIT = 600_000
HALF = UNIT // 2
STEP = 1_000
STALE_AFTER = 4 * UNIT + HALF

TOPICS = ("mail", "video", "orders")
LIMITS = {"g1": 1, "g2": 2, "g3": 2}
# Under keys that jobs of the other topics don't use: while a user's transaction is open, it alone has to do with them.
SET_APART = "orders"
STEPS = (("fetch", ""), ("approve", ""), ("page", "1"), ("page", "2"))
"""The first two are declared by a flow; a handler makes pages."""
CHILDREN = (("child", ""), ("child", "k"), ("job", ""))
WAITS = (("approve", ""), ("approve", ""), ("page", "1"), ("page", "2"))
ERRORS = {"failed": ("Boom: no", "Boom"), "timed out": ("nobody answered", "WaitTimeout")}
LARGE = '"' + "x" * 5_000 + '"'
"""A result that is kept apart from its step."""
POLICIES = ("queue_same_scope", "reject_same_scope", "replace_same_scope")
UNKNOWN = "00000000-0000-7000-8000-ffffffffffff"
OUTCOMES = {"completed": 3, "retry": 3, "fatal": 1, "snoozed": 1, "released": 1, "acknowledged": 1}


class Hand(NamedTuple):
    """A claim as a worker remembers it, perhaps for longer than it is worth."""

    id: str
    token: int
    """The model's."""
    lease: str
    claimed: dict[Side, Claimed]


class Report(NamedTuple):
    """What a worker says of a claim."""

    hand: Hand
    outcome: Outcome
    ran: bool


class Lockstep(RuleBasedStateMachine):
    pair: ClassVar[Pair]
    numbers: ClassVar[itertools.count[int]]

    def __init__(self) -> None:
        super().__init__()
        self.pair.empty()
        self.model = Model()
        self.hands: list[Hand] = []
        self.leases: dict[str, dict[Side, int]] = {}
        self.ids: list[str] = []
        self.last_tokens: dict[tuple[Side, str], int] = {}
        self.offsets = itertools.count(1)
        self.user: UserTransaction | None = None
        """The one that is open, on PostgreSQL. In SQLite it would keep everybody from writing, so there it begins and
        ends in the step in which the other ends."""

    def teardown(self) -> None:
        if self.user:
            self.user.end(commit=False)

    # -- choosing ------------------------------------------------------------------------------

    @initialize()
    def somebody_works(self) -> None:
        self._open_lease(5)

    # A seed for each step, not a choice for each detail: the details are then as varied as their weights say, and a
    # failing run is shortened by leaving steps out.
    @rule(random=st.randoms(use_true_random=True))
    def step(self, random: Random) -> None:
        """One action, chosen by weight among the ones that can do something now."""
        action = weighted(random, self._possible_beside(self.user) if self.user else self._possible())
        getattr(self, action)(random)

    def _possible(self) -> dict[str, int]:
        model, jobs = self.model, self.model.jobs.values()
        places = [job.place for job in jobs]
        working = any(map(model.live, model.leases))
        running, ready, ended = "running" in places, "ready" in places, "ended" in places
        orphaned = any(job.lease and not model.live(job.lease) for job in jobs)
        overdue = any(job.status == "pending" and job.expires_at and job.expires_at <= model.now for job in jobs)
        cancelling = any(job.status == "cancelling" for job in jobs)
        waited = any(job.place == "parked" and job.flow.overdue(model.now) for job in jobs)
        held = any(self._is_free(hand.id) for hand in self.hands)
        return {
            "insert": 2 if places.count("ready") > 4 else 8,
            "insert_many": 2,
            "transact": 2,
            "begin": 2 if "g3" not in model.wakes else 0,
            "open_lease": 1 if working else 10,
            "renew": 1,
            "close_lease": 1,
            "claim": 10 if working and ready else 1,
            "settle": held * (8 if running else 1),
            "settle_many": held * (4 if running else 1),
            "touch": 2 * held,
            "checkpoint": held * (6 if running else 1),
            "park": held * (8 if running else 1),
            "make_child": held * (8 if running else 1),
            "park_for_child": held * (12 if running else 1),
            "answer": 8 if "parked" in places else int(bool(places)),
            "release_unknown": int(running),
            "time_passes": 8 if "parked" in places else 4,
            "advance": 10 if overdue or waited else 5 if "later" in places else 1,
            "reap": 8 if orphaned else 4 if cancelling else 1,
            "prune": int(ended),
            "tidy": 1,
            "cancel": 3 if places else 0,
            "release": int(running),
            "requeue": 3 if ended else 0,
            "reschedule": 2 if places else 0,
            "delete": 1 if places else 0,
            "pause": 1,
            "resume": 8 if model.paused else 0,
        }

    def _possible_beside(self, user: UserTransaction) -> dict[str, int]:
        """What does not wait for an open transaction, nor depend on the time, which does not pass."""
        keyed = any(one.given.idempotency_key for one in user.made)
        names = "insert insert_many open_lease renew claim settle settle_many touch cancel reschedule delete"
        names += " pause checkpoint park answer"
        usual = self._possible()
        return {name: usual[name] for name in names.split()} | {"end": 8, "run_into_it": 3 * keyed}

    def _is_free(self, id: str) -> bool:
        """Not bound up with the transaction that is open."""
        job = self.model.jobs.get(id)
        return self.user is None or job is None or job.new.topic != SET_APART

    def _topics(self) -> tuple[str, ...]:
        return TOPICS if self.user is None else tuple(topic for topic in TOPICS if topic != SET_APART)

    def _id(self, random: Random, place: str) -> str:
        """Mostly of a job in this place; perhaps of any that was ever made, or of none."""
        there = [job.id for job in self.model.jobs.values() if job.place == place and self._is_free(job.id)]
        if there and random.random() < 0.8:
            return random.choice(there)
        return random.choice([*filter(self._is_free, self.ids), UNKNOWN])

    def _lease(self, random: Random) -> str:
        """Mostly the newest one."""
        labels = list(self.leases)
        return labels[-1] if random.random() < 0.6 else random.choice(labels)

    def _moment(self) -> int:
        """A different few milliseconds for each instant, so that no two jobs are due at the same time."""
        return next(self.offsets)

    # -- asking both ---------------------------------------------------------------------------

    def ask(
        self,
        what: str,
        expected: Any,
        call: Callable[[Store, Side], Awaitable[Any]],
        view: Callable[[Any], Any] = lambda answer: answer,
        only: Side | None = None,
    ) -> Any:
        """Both stores, or the only one, must answer as the model did; an error of Treadle's counts by its name."""
        note(f"{what} -> {expected}")

        async def one(side: Side) -> Any:
            try:
                return await call(side.store, side)
            except TreadleError as error:
                return error

        answers = self.pair.each(one, only)
        seen = {
            side.dialect: name_of(answer) if isinstance(answer, TreadleError) else view(answer)
            for side, answer in answers.items()
        }
        assert seen == {side.dialect: expected for side in answers}, f"the model says {expected}, the stores {seen}"
        return answers

    # -- making jobs ---------------------------------------------------------------------------

    def insert(self, random: Random) -> None:
        self._insert([self._plan(random)], atomic=True)

    def insert_many(self, random: Random) -> None:
        self._insert(self._batch(random, self._topics()), atomic=random.random() < 0.5)

    def _batch(self, random: Random, topics: Sequence[str]) -> list[dict[str, Any]]:
        batch = [{"delay": 0} | self._plan(random, topics) for _ in range(random.randint(2, 5))]
        policy = random.choice(POLICIES)
        for plan in batch:
            # In one batch a key is under one policy, because a template has only one.
            if limit := plan.get("limit"):
                plan["limit"] = limit._replace(policy=policy)
        return batch

    def _plan(self, random: Random, topics: Sequence[str] = ()) -> dict[str, Any]:
        topic = random.choice(topics or self._topics())
        plan: dict[str, Any] = {
            "topic": topic,
            "payload": random.choice(['{"v":1}', '{"v":1}', '{"v":2}']),
            "priority": random.choice([50, 50, 75]),
            "capability": random.choice(["", "", "gpu"]),
            "max_attempts": random.choice([1, 2, 2, 3]),
        }
        if random.random() < 0.4:
            plan["delay"] = random.randint(-2, 2)
        if random.random() < 0.25:
            plan["expires"] = random.randint(1, 3)
        if random.random() < 0.3:
            after = random.choice([None, (), ("fetch",)])
            plan["steps"] = (NewStep("fetch", "Fetch"), NewStep("approve", "Approve", after))
        if random.random() < 0.2:
            plan |= {"idempotency_key": random.choice(["k1", "k2"]), "scope_id": random.choice([None, "s1"])}
        if random.random() < 0.25:
            keys = ["d3"] if topic == SET_APART else ["d1", "d2"]
            plan |= {"dedupe_key": random.choice(keys), "repeatable": random.random() < 0.5}
        if random.random() < 0.4:
            key = "g3" if topic == SET_APART else random.choice(["g1", "g2"])
            plan["limit"] = Limit(key, random.choice(POLICIES), LIMITS[key])
        return plan

    def _insert(self, batch: Sequence[dict[str, Any]], atomic: bool) -> None:
        if self.user:  # no time passes, so each job needs a different instant
            batch = [{"delay": 0} | plan for plan in batch]
        now = time.time_ns() // 1_000_000
        made = [self._new(dict(plan), now) for plan in batch]
        call = answer_of(self.model, made, atomic, joined=False)
        what = "insert" + "".join(f"\n    {mine.id[-4:]}: {plan}" for (mine, _), plan in zip(made, batch, strict=True))
        self.ask(f"{what}\n    atomic={atomic}", call.expected, lambda store, _: enqueued(store, call))
        self.ids += [mine.id for mine, _ in made if mine.id in self.model.jobs]

    def _new(self, plan: dict[str, Any], now: int, *, named: bool = False) -> tuple[NewJob, NewJob]:
        """The job as the model sees it (relative to its own time), and as the stores do. `named`: by its instants."""
        id = f"00000000-0000-7000-8000-{next(self.numbers):012x}"
        delay, expires = plan.pop("delay", None), plan.pop("expires", None)
        expires_in = None if expires is None else expires * UNIT - HALF
        if delay is None:  # due now, by the database's clock
            new = new_job(id=id, **plan, expires_in_ms=expires_in)
            return new, new
        # In the future, or at a named instant in the past or just now.
        delay_ms = delay * UNIT - (HALF if delay > 0 else STEP // 2) + self._moment()
        mine = new_job(id=id, **plan, delay_ms=delay_ms, expires_in_ms=expires_in)
        if delay > 0 and not named:
            return mine, mine
        expires_at = None if expires_in is None else now + expires_in
        return mine, mine._replace(run_at=now + delay_ms, delay_ms=0, expires_at=expires_at, expires_in_ms=None)

    # -- in users' transactions ------------------------------------------------------------------

    def transact(self, random: Random) -> None:
        """One that begins and ends while nothing else happens."""
        user, commit = self._enqueue_in_one(random, TOPICS), random.random() < 0.7
        self.ask(f"    {commit=}", user.expected, lambda _, side: user.run(side, commit=commit))
        if commit:
            self._committed(user)

    def begin(self, random: Random) -> None:
        user = self._enqueue_in_one(random, (SET_APART,))
        self.user = user
        self.ask("    begun", user.expected, lambda _, side: user.begin(side), only=self.pair.postgres)

    def run_into_it(self, random: Random) -> None:
        """Another caller wants a key that the open transaction has taken: a caller that can't wait gets an error."""
        assert self.user
        theirs = random.choice([one for one in self.user.made if one.given.idempotency_key])
        mine = theirs._replace(id=UNKNOWN, dedupe_key=None, limit=None, delay_ms=0, expires_in_ms=None)
        self.ask(
            f"run_into {theirs.id[-4:]}",
            "StoreBusy",
            lambda store, _: store.insert([mine], patient=False),
            only=self.pair.postgres,
        )

    def end(self, random: Random) -> None:
        user, commit = self.user, random.random() < 0.7
        assert user
        self.user = None
        user.end(commit=commit)
        self.ask(f"end {commit=}", user.expected, lambda _, side: user.run(side, commit=commit), only=self.pair.sqlite)
        if commit:
            self._committed(user)

    def _enqueue_in_one(self, random: Random, topics: Sequence[str]) -> UserTransaction:
        user, now = UserTransaction(self.model), time.time_ns() // 1_000_000
        for _ in range(random.randint(1, 3)):
            batch = self._batch(random, topics)[: random.choice([1, 1, 5])]
            atomic = random.random() < 0.5
            made = [self._new(dict(plan), now, named=True) for plan in batch]
            lines = "".join(f"\n    {mine.id[-4:]}: {plan}" for (mine, _), plan in zip(made, batch, strict=True))
            note(f"in a user's transaction{lines}\n    {atomic=}")
            user.add(made, atomic)
        return user

    def _committed(self, user: UserTransaction) -> None:
        user.replay(self.model)
        self.ids += [one.id for one in user.made]

    # -- running jobs --------------------------------------------------------------------------

    def open_lease(self, random: Random) -> None:
        self._open_lease(random.randint(1, 5))

    def _open_lease(self, length: int) -> None:
        label = f"worker-{len(self.leases)}"
        ms = length * UNIT - HALF
        note(f"open_lease {label} for {length}")
        self.model.leases[label] = self.model.now + ms
        self.leases[label] = self.pair.each(lambda side: side.store.open_lease(label, ms))

    def renew(self, random: Random) -> None:
        label, ms = self._lease(random), random.randint(1, 5) * UNIT - HALF
        self.ask(
            f"renew {label}",
            self.model.renew(label, ms),
            lambda store, side: self._renewed(store, side, label, ms),
        )

    async def _renewed(self, store: Store, side: Side, label: str, ms: int) -> set[str] | None:
        renewed = await store.renew(self.leases[label][side], ms)
        if renewed is None:
            return None
        claims = {(hand.claimed[side].n, hand.claimed[side].token): hand.id for hand in self.hands}
        return {claims[one.n, one.token] for one in renewed.cancels}

    def close_lease(self, random: Random) -> None:
        label = self._lease(random)
        note(f"close_lease {label}")
        self.model.close_lease(label)
        self.pair.each(lambda side: side.store.close_lease(self.leases[label][side]))

    def claim(self, random: Random) -> None:
        label = self._lease(random)
        topics = self._topics() if random.random() < 0.8 else (random.choice(self._topics()),)
        capabilities = ("gpu",) if random.random() < 0.8 else ()
        limit = random.randint(1, 6)
        free = max(limit - random.choice([0, 0, 0, 1, 2]), 0)
        expected = self.model.claim(label, topics, capabilities, limit, free)
        wants = Wants(topics, capabilities, limit, free)
        answers = self.ask(
            f"claim {label} {topics} {capabilities} {limit=} {free=}",
            expected,
            lambda store, side: store.claim(self.leases[label][side], wants),
            lambda claim: [(job.id, job.attempt) for job in claim.jobs],
        )
        if not isinstance(expected, str):
            for i, (id, _) in enumerate(expected):
                self._take(Hand(id, self.model.tokens, label, {side: answers[side].jobs[i] for side in answers}))

    def _take(self, hand: Hand) -> None:
        self.hands.append(hand)
        mine = self.model.jobs[hand.id]
        for side, job in hand.claimed.items():
            assert (job.topic, job.payload, job.max_attempts) == (mine.new.topic, mine.new.payload, mine.max_attempts)
            assert job.token > self.last_tokens.get((side, job.id), 0), "a token must rise"
            self.last_tokens[side, job.id] = job.token

    def _hand(self, random: Random) -> int:
        """Mostly a claim that is still worth something."""
        free = [i for i, hand in enumerate(self.hands) if self._is_free(hand.id)]
        live = [i for i in free if self._is_live(self.hands[i])]
        return random.choice(live) if live and random.random() < 0.8 else random.choice(free)

    def _is_live(self, hand: Hand) -> bool:
        job = self.model.jobs.get(hand.id)
        return job is not None and job.place == "running" and job.token == hand.token

    def settle(self, random: Random) -> None:
        self._settle({self._hand(random)}, random)

    def settle_many(self, random: Random) -> None:
        self._settle({self._hand(random) for _ in range(random.randint(2, 5))}, random)

    def _settle(self, chosen: set[int], random: Random) -> None:
        reports = {i: self._report(self.hands[i], random) for i in sorted(chosen)}
        expected: dict[int, bool] = {}
        for lease in self.leases:  # each has a separate transaction
            for i, (hand, outcome, ran) in reports.items():
                if hand.lease == lease:
                    expected[i] = self.model.settle(hand.id, hand.token, hand.lease, outcome, ran=ran)
            self.model.settled()

        async def call(store: Store, side: Side) -> dict[int, bool]:
            batch = {i: self._settlement(report, side) for i, report in reports.items()}
            lost = await store.settle(list(batch.values()))
            return {i: not any(one is other for other in lost) for i, one in batch.items()}

        what = "".join(f"\n    {i}: {hand.id[-4:]} {outcome} {ran=}" for i, (hand, outcome, ran) in reports.items())
        self.ask(f"settle{what}\n   ", expected, call)
        # What is not forgotten may be settled again.
        self.hands = [hand for i, hand in enumerate(self.hands) if i not in chosen or random.random() < 0.3]

    def _report(self, hand: Hand, random: Random) -> Report:
        job = self.model.jobs.get(hand.id)
        # A worker that reported a start knows how long it ran, and none acknowledges a cancel without a request.
        ran = random.random() < 0.5 or (job is not None and job.started)
        asked = job is not None and job.cancel_at is not None and job.token == hand.token
        match weighted(random, OUTCOMES):
            case "completed":
                return Report(hand, Completed('{"done":true}'), ran)
            case "retry":
                error = f"Traceback\nOSError: route {random.randint(1, 3)}"
                return Report(hand, Failed(error, "OSError", UNIT - HALF + self._moment()), ran)
            case "fatal":
                return Report(hand, Failed("Fail: never", "Fail"), ran)
            case "snoozed":
                return Report(hand, Snoozed(UNIT - HALF + self._moment(), "not yet"), ran)
            case "acknowledged" if asked:
                return Report(hand, CancelAcknowledged("stopped"), ran)
        return Report(hand, Released("the worker stopped"), ran)

    def _settlement(self, report: Report, side: Side) -> Settlement:
        """As a worker does it: it need not know of a cancel, but it acknowledges only one that it has seen."""
        job = report.hand.claimed[side]
        asked = isinstance(report.outcome, CancelAcknowledged)
        state = RowState(Status.CANCELLING, job.attempt, job.max_attempts) if asked else job
        return Settlement(job, decide(state, report.outcome), 0 if report.ran else None)

    def touch(self, random: Random) -> None:
        hand = self.hands[self._hand(random)]
        progress, message = random.choice([None, 0, 40, 99]), random.choice([None, "half", "soon"])
        expected = self.model.touch(hand.id, hand.token, hand.lease, progress, message)

        async def call(store: Store, side: Side) -> bool:
            job = hand.claimed[side]
            return not await store.touch(job.lease, [Touch(job.n, job.token, 0, progress, message)])

        self.ask(f"touch {hand.id[-4:]} {progress} {message}", expected, call)

    def release_unknown(self, random: Random) -> None:
        """A claim's answer was lost: its worker names the tokens that it has."""
        label = self._lease(random)
        claims = {hand.token for hand in self.hands if hand.lease == label}
        known = {token for token in sorted(claims) if random.random() < 0.5}
        # All of a claim's jobs: a store may give them more than one token.
        kept = [hand for hand in self.hands if hand.lease == label and hand.token in known]
        expected = self.model.release_unknown(label, {hand.token for hand in kept})
        self.ask(
            f"release_unknown {label} but {[hand.id[-4:] for hand in kept]}",
            expected,
            lambda store, side: store.release_unknown(
                self.leases[label][side], [hand.claimed[side].token for hand in kept]
            ),
        )

    # -- steps, waits, answers -----------------------------------------------------------------

    def checkpoint(self, random: Random) -> None:
        hand = self.hands[self._hand(random)]
        job = self.model.jobs.get(hand.id)
        done = {step for step, one in job.flow.steps.items() if one.state == "completed"} if job else set()
        step = random.choice([step for step in STEPS if step not in done] or [("another", "")])
        place = job.flow.place(step) if job else 0
        state = random.choice(["processing", "completed", "completed", "failed", "timed out"])
        if state == "timed out":
            step = random.choice(WAITS)
            place = job.flow.place(step) if job else 0
        result = random.choice(["1", LARGE]) if state == "completed" else None
        used = [step] if state == "completed" else []
        expected = self.model.checkpoint(hand.id, hand.token, hand.lease, (step, place, state, result), used)
        error, error_type = ERRORS.get(state, (None, None))
        stored = StepState.FAILED if error else StepState(state)
        write = StepWrite(*step, stored, place, 1, error=error, error_type=error_type, result=result)
        write = write._replace(started_ago_ms=0)

        async def call(store: Store, side: Side) -> bool:
            claimed = hand.claimed[side]
            one = Checkpoint(claimed.n, claimed.token, 0, (write,), tuple(StepKey(*step) for step in used))
            try:
                return not await store.checkpoint(claimed.lease, [one])
            except StepEnded:  # it has an answer
                return False

        self.ask(f"checkpoint {hand.id[-4:]} {step} {state}", expected, call)
        # The store leaves the steps of a job alone when it is settled as one without: its owner has to know better.
        for side, claimed in hand.claimed.items():
            hand.claimed[side] = claimed._replace(flags=claimed.flags | HAS_STEPS)

    def park(self, random: Random) -> None:
        hand = self.hands[self._hand(random)]
        step, length = random.choice(WAITS), random.choice([None, 1, 1, 2])
        wait_ms = None if length is None else length * UNIT - HALF
        job = self.model.jobs.get(hand.id)
        place = job.flow.place(step) if job else 0
        expected = self.model.park(hand.id, hand.token, hand.lease, step, place, wait_ms)
        wait = StepWrite(*step, StepState.WAITING, place, 1, started_ago_ms=0, until_ms=wait_ms, schema="{}")

        async def call(store: Store, side: Side) -> bool:
            settlement = self._settlement(Report(hand, Parked(step[0]), True), side)
            return not await store.settle([settlement._replace(effects=Effects(steps=(wait,)))])

        self.ask(f"park {hand.id[-4:]} for {step} {length=}", expected, call)

    def make_child(self, random: Random) -> None:
        """Its topic stands as far from an open transaction as its parent's."""
        hand, step = self.hands[self._hand(random)], random.choice(CHILDREN)
        job = self.model.jobs.get(hand.id)
        apart = job is not None and job.new.topic == SET_APART
        plan = self._plan(random, [SET_APART] if apart else [topic for topic in TOPICS if topic != SET_APART])
        plan.pop("idempotency_key", None)
        plan |= {"delay": plan.get("delay", 0), "parent_id": hand.id, "parent_step": step[0], "parent_key": step[1]}
        mine, theirs = self._new(plan, time.time_ns() // 1_000_000)
        place = job.flow.place(step) if job else 0
        expected = self.model.make_child(hand.id, hand.token, hand.lease, step, place, mine)

        async def call(store: Store, side: Side) -> str:
            claimed = hand.claimed[side]
            wanted = NewChildren(claimed.n, claimed.token, 0, step[0], place, (NewChild(step[1], theirs),))
            made = await store.make_children(claimed.lease, wanted)
            return made.children[0].state.value if made else "lost"

        self.ask(f"make_child {mine.id[-4:]} of {hand.id[-4:]} {step} {plan}", expected, call)
        if mine.id in self.model.jobs:
            self.ids.append(mine.id)
        for side, claimed in hand.claimed.items():
            hand.claimed[side] = claimed._replace(flags=claimed.flags | HAS_STEPS)

    def park_for_child(self, random: Random) -> None:
        parents = [hand for hand in self.hands if self._is_free(hand.id) and self._child_steps(hand.id)]
        if not parents:
            return self.make_child(random)
        hand = random.choice(parents)
        step = random.choice(self._child_steps(hand.id))
        expected = self.model.park_for_child(hand.id, hand.token, hand.lease, step)

        async def call(store: Store, side: Side) -> bool:
            settlement = self._settlement(Report(hand, Parked(step[0]), True), side)
            return not await store.settle([settlement._replace(effects=Effects(awaits=(StepKey(*step),)))])

        self.ask(f"park_for_child {hand.id[-4:]} {step}", expected, call)

    def _child_steps(self, id: str) -> list[tuple[str, str]]:
        job = self.model.jobs.get(id)
        return [step for step in CHILDREN if job and step in job.flow.steps]

    def answer(self, random: Random) -> None:
        id = self._id(random, random.choice(["parked", "parked", "parked", "running", "ready", "ended"]))
        step = random.choice([*WAITS, ("page", ""), ("another", ""), CHILDREN[0]])
        result, unannounced = random.choice(['"yes"', '"yes"', LARGE, None]), random.random() < 0.5
        one = Answer(id, *step, result=result, error=None if result else "no", unannounced=unannounced)
        self.ask(
            f"answer {id[-4:]} {step} {result and result[:5]} {unannounced=}",
            self.model.answer(id, step, result, unannounced),
            lambda store, _: store.answer([one]),
            lambda answers: name_of(answers[0]),
        )

    # -- what maintenance does -----------------------------------------------------------------

    def time_passes(self, random: Random) -> None:
        length = random.choice([1, 1, 1, 2])
        note(f"time_passes {length}")
        self.model.now += length * UNIT
        self.pair.pass_time(length * UNIT)

    def advance(self, _: Random) -> None:
        self.ask(
            "advance",
            self.model.advance(),
            lambda store, _: store.advance(),
            lambda answer: (answer.promoted, {(one.id, one.status) for one in answer.moved}),
        )

    def reap(self, random: Random) -> None:
        grace, default = {"mail": random.randint(1, 2) * UNIT - HALF}, random.choice([HALF, 100 * UNIT])
        expected = self.model.reap(grace, default)

        async def call(store: Store, _: Side) -> list[Moved]:
            reaped = await store.reap(Graces(default, grace))
            assert not reaped.more
            return reaped.moved

        self._moves(f"reap {grace} {default}", expected, call)

    def prune(self, random: Random) -> None:
        ms = random.randint(1, 3) * UNIT - HALF
        self.ask(f"prune {ms}", self.model.prune(ms), lambda store, _: store.prune(ms))

    def tidy(self, _: Random) -> None:
        note("tidy")
        self.model.tidy()
        self.pair.each(lambda side: side.store.tidy())

    def _moves(self, task: str, expected: Any, call: Callable[[Store, Side], Awaitable[Any]]) -> None:
        self.ask(task, expected, call, lambda moved: {(one.id, one.status) for one in moved})

    # -- what people ask for -------------------------------------------------------------------

    def cancel(self, random: Random) -> None:
        places = [
            random.choice(["running", "ready", "held", "later", "parked", "ended"]) for _ in range(random.randint(1, 3))
        ]
        ids = list(dict.fromkeys(self._id(random, place) for place in places))
        uncancelable = random.choice([(), (), (TOPICS[0],)])
        expected = self.model.cancel(ids, "by hand", uncancelable)
        self.ask(
            f"cancel {[id[-4:] for id in ids]} {uncancelable=}",
            expected,
            lambda store, _: steering.cancel(store, ids, "by hand", uncancelable),
            lambda answers: [name_of(answer) for answer in answers],
        )

    def requeue(self, random: Random) -> None:
        id, force = self._id(random, "ended"), random.random() < 0.7
        mode = random.choice(["unfinished", "unfinished", "all", "from", "from"])
        job = self.model.jobs.get(id)
        names = [name for name, _ in job.flow.steps] if job else []
        step = random.choice([*names, *names, "another"]) if mode == "from" else None
        again = steering.Again(force, mode, step)
        planned = self.model.would_run(id, mode, step)

        async def dry_run(store: Store, _: Side) -> list[str] | None:
            runs: dict[str, Sequence[str]] = {}
            await steering.requeue(store, [id], dry_run=True, again=again, runs=runs)
            return list(runs[id]) if id in runs else None

        self.ask(f"requeue {id[-4:]} {mode=} {step=} would run", planned, dry_run)
        expected = self.model.requeue(id, force, STALE_AFTER, mode, step)
        self._steer(
            f"requeue {id[-4:]} {force=} {mode=} {step=}",
            expected,
            lambda store, _: steering.requeue(store, [id], again=again),
        )

    def release(self, random: Random) -> None:
        id = self._id(random, "running")
        self._steer(f"release {id[-4:]}", self.model.release(id), lambda store, _: steering.release(store, [id]))

    def delete(self, random: Random) -> None:
        id, force = self._id(random, random.choice(["ended", "held", "ready"])), random.random() < 0.5
        expected = self.model.delete(id, force)
        self._steer(f"delete {id[-4:]} {force=}", expected, lambda store, _: steering.delete(store, [id], force))

    def _steer(self, what: str, expected: str, call: Callable[[Store, Side], Awaitable[Any]]) -> None:
        self.ask(what, expected, call, lambda answers: name_of(answers[0]))

    def reschedule(self, random: Random) -> None:
        id = self._id(random, random.choice(["ready", "later", "held"]))
        delay = random.choice([None, -2, 0, 1, 2])
        delay_ms = None if delay is None else delay * UNIT - HALF + self._moment()
        run_at = None if delay_ms is None else time.time_ns() // 1_000_000 + delay_ms
        priority, most = random.choice([None, None, 50, 75]), random.choice([None, None, 1, 4])
        expected = self.model.reschedule(id, delay_ms, priority, most)
        self.ask(
            f"reschedule {id[-4:]} {delay=} {priority=} {most=}",
            expected,
            lambda store, _: steering.reschedule(store, [id], run_at=run_at, priority=priority, max_attempts=most),
            lambda answers: name_of(answers[0]),
        )

    def pause(self, random: Random) -> None:
        topic, length = random.choice(TOPICS), random.choice([None, 1, 2])
        note(f"pause {topic} for {length}")
        ms = FOREVER if length is None else length * UNIT - HALF
        self.model.paused[topic] = FOREVER if length is None else self.model.now + ms
        until = FOREVER if length is None else time.time_ns() // 1_000_000 + ms
        self.pair.each(lambda side: side.store.pause(topic, until))

    def resume(self, _: Random) -> None:
        topic = next(iter(self.model.paused))
        note(f"resume {topic}")
        del self.model.paused[topic]
        self.pair.each(lambda side: side.store.pause(topic, 0))

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
            seen = {id: seen_job(job, now) for id, job in jobs.items()}
            assert seen == expected, f"{side.dialect}: {differences(seen, expected)}"
            assert tallied == counts, f"{side.dialect}: counts {tallied}, not {counts}"
            for id, job in self.model.jobs.items():
                told = [tuple(row[1:]) for row in events if row[0] == id]
                assert told == job.events, f"{side.dialect}: of job {id} it tells {told}, not {job.events}"
        assert all(self.model.running(key) <= most for key, most in LIMITS.items())
        if self.user is None:
            self.model.now += STEP
            self.pair.pass_time(STEP)

    def _expected(self, job: ModelJob) -> dict[str, Any]:
        in_vain = job.status in ("pending", "waiting", "failed", "cancelled", "expired")
        error, error_type = job.error or (None, None)
        assert 0 <= job.attempt <= job.max_attempts
        return {
            "status": job.status,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "retries": job.attempt if in_vain else job.attempt - 1,
            "priority": job.priority,
            "payload": job.new.payload,
            "steps": job.flow.shown(),
            "progress": job.shown_progress,
            "progress_message": job.shown_message,
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


def seen_job(job: Job, now: int) -> dict[str, Any]:
    def halves_from_now(when: Any) -> int | None:
        return None if when is None else round((when.timestamp() * 1000 - now) / HALF)

    assert (job.cancel_requested_at is None) == (job.cancel_reason is None)
    return {
        "status": job.status.value,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "retries": job.retries,
        "priority": job.priority,
        "payload": '{"v":%d}' % job.payload["v"],
        "steps": {step["id"]: (step["status"], step["resultSize"] is not None, step["items"]) for step in job.steps},
        "progress": job.progress,
        "progress_message": job.progress_message,
        "result": None if job.result_value is None else '{"done":true}',
        "error": job.last_error,
        "error_type": job.error_type,
        "cancel": job.cancel_reason,
        "started": job.started_at is not None,
        "worker": job.locked_by,
        "stale": job.stale_at is not None,
        "run_in": halves_from_now(job.run_at),
        "expires_in": halves_from_now(job.expires_at),
    }


def weighted(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def name_of(answer: Any) -> str:
    """A refusal's type, in the way in which the model says it; "" for any other answer."""
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
