"""Which jobs may be made and which may start, decided without a store."""

from typing import Any

import pytest

from treadle.model.errors import ConcurrencyRejected, KeyReused, NotRepeatable, WrongState
from treadle.model.status import ENDED, Status
from treadle.policy.admission import (
    DEDUPE,
    EXPIRE,
    HOLD,
    IDEMPOTENCY,
    QUEUE,
    REJECT,
    REPLACE,
    SKIP,
    START,
    START_WITHIN_MS,
    Admit,
    Candidate,
    Decision,
    Existing,
    Facts,
    Limit,
    LiveJob,
    Owner,
    Refuse,
    Request,
    StartFacts,
    StartVerdict,
    UniqueKey,
    admit,
    dedupe_key_becomes,
    rate,
    room,
    start,
    started_in_time,
    wanted,
    within,
)

IDEMPOTENT, DEDUPED = UniqueKey(IDEMPOTENCY, "i"), UniqueKey(DEDUPE, "d")


def request(id: str = "new", *unique: UniqueKey, **options: Any) -> Request:
    return Request(id, "mail", unique, **options)


def limited(id: str, policy: str, most: int = 1, *unique: UniqueKey, **options: object) -> Request:
    return request(id, *unique, limit=Limit("g", policy, most), **options)


def one(asked: Request, facts: Facts) -> Decision:
    return admit([asked], facts)[0]


def refusal(decision: Decision) -> type[Exception]:
    assert isinstance(decision, Refuse)
    return type(decision.error)


def test_what_is_looked_up_is_sorted_and_without_repeats() -> None:
    asked = [request("a", DEDUPED, IDEMPOTENT), limited("b", REJECT, 1, DEDUPED), limited("c", QUEUE), request("d")]
    assert wanted(asked) == ([DEDUPED, IDEMPOTENT], ["g"])
    assert [one.needs_facts for one in asked] == [True, True, False, False]


# -- keys ----------------------------------------------------------------------------------------


def test_a_job_without_keys_is_admitted() -> None:
    assert admit([request("a"), request("b")], Facts()) == [Admit(), Admit()]


@pytest.mark.parametrize("hashed", ["same", "other"])
def test_an_idempotency_key_stands_for_one_payload(hashed: str) -> None:
    facts = Facts({IDEMPOTENT: Owner("old", "same")})
    decision = one(request("new", IDEMPOTENT, payload_hash=hashed), facts)
    if hashed == "same":
        assert decision == Existing("old")
    else:
        assert refusal(decision) is KeyReused


def test_a_dedupe_key_stands_for_any_payload() -> None:
    assert one(request("new", DEDUPED, payload_hash="x"), Facts({DEDUPED: Owner("old", "y")})) == Existing("old")


def test_what_completed_once_is_not_repeated() -> None:
    facts = Facts(completed={"d": "old"})
    assert refusal(one(request("new", DEDUPED, repeatable=False), facts)) is NotRepeatable
    assert one(request("new", DEDUPED), facts) == Admit()


def test_a_batch_sees_its_earlier_jobs() -> None:
    asked = [request("a", DEDUPED), request("b", DEDUPED), request("c", IDEMPOTENT, DEDUPED), request("d", IDEMPOTENT)]
    assert admit(asked, Facts()) == [Admit(), Existing("a"), Existing("a"), Admit()]


def test_a_refused_job_of_the_batch_keeps_no_key() -> None:
    asked = [limited("a", REJECT, 1, DEDUPED), request("b", DEDUPED)]
    decisions = admit(asked, Facts(live={"g": [LiveJob("old")]}))
    assert refusal(decisions[0]) is ConcurrencyRejected
    assert decisions[1] == Admit()


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_reject_counts_all_that_live_the_batch_included(most: int) -> None:
    decisions = admit([limited(f"j{n}", REJECT, most) for n in range(most + 1)], Facts())
    assert decisions[:-1] == [Admit()] * most
    assert isinstance(decisions[-1], Refuse)
    assert decisions[-1].error.data == {"jobId": "j0"}


def test_queue_refuses_no_job() -> None:
    live = {"g": [LiveJob(str(n), running=True) for n in range(9)]}
    assert one(limited("new", QUEUE), Facts(live=live)) == Admit()


def test_replace_cancels_the_oldest() -> None:
    live = {"g": [LiveJob("a"), LiveJob("b"), LiveJob("c", running=True)]}
    assert one(limited("new", REPLACE, 4), Facts(live=live)) == Admit()
    assert one(limited("new", REPLACE, 2), Facts(live=live)) == Admit(("a", "b"))
    assert one(limited("new", REPLACE, 1), Facts(live=live)) == Admit(("a", "b", "c"))


def test_replace_cancels_earlier_jobs_of_the_same_batch() -> None:
    assert admit([limited(id, REPLACE) for id in "abc"], Facts()) == [Admit(), Admit(("a",)), Admit(("b",))]


@pytest.mark.parametrize("running", [True, False])
def test_a_running_job_that_cannot_be_cancelled_is_not_replaced(running: bool) -> None:
    decision = one(limited("new", REPLACE), Facts(live={"g": [LiveJob("old", running, cancelable=False)]}))
    if running:
        assert refusal(decision) is ConcurrencyRejected
    else:
        assert decision == Admit(("old",))


@pytest.mark.parametrize("running", [True, False])
def test_a_replaced_job_gives_its_dedupe_key_back_unless_it_still_runs(running: bool) -> None:
    facts = Facts({DEDUPED: Owner("old")}, live={"g": [LiveJob("old", running)]})
    decisions = admit([limited("a", REPLACE), request("b", DEDUPED)], facts)
    assert decisions == [Admit(("old",)), Existing("old") if running else Admit()]


# -- coming back ---------------------------------------------------------------------------------


def test_a_returning_job_does_not_stand_in_its_own_way() -> None:
    facts = Facts({DEDUPED: Owner("me")}, {"d": "me"}, {"g": [LiveJob("me")]})
    assert one(limited("me", REJECT, 1, DEDUPED, repeatable=False, returning=True), facts) == Admit()


def test_a_returning_job_finds_its_place_taken() -> None:
    back = limited("me", REJECT, 1, DEDUPED, repeatable=False, returning=True)
    assert refusal(one(back, Facts({DEDUPED: Owner("other")}))) is WrongState
    assert refusal(one(back, Facts(completed={"d": "other"}))) is NotRepeatable
    assert refusal(one(back, Facts(live={"g": [LiveJob("other")]}))) is ConcurrencyRejected
    assert one(limited("me", REPLACE, returning=True), Facts(live={"g": [LiveJob("other")]})) == Admit(("other",))


# -- starting ------------------------------------------------------------------------------------


def verdicts(*found: Candidate, free: int = 9, **facts: dict[str, int]) -> list[StartVerdict]:
    return start(found, StartFacts(facts.get("running", {}), facts.get("rate_left", {}), free))


def under(key: str, most: int = 1) -> Candidate:
    return Candidate(0, "mail", Limit(key, QUEUE, most))


def test_jobs_start_as_far_as_their_key_has_room() -> None:
    assert verdicts(under("g", 2), under("g", 2), under("g", 2), running={"g": 0}) == [START, START, HOLD]
    assert verdicts(under("g", 2), under("g", 2), running={"g": 1}) == [START, HOLD]


def test_each_job_has_the_limit_it_came_with() -> None:
    assert verdicts(under("g", 1), under("g", 3), under("g", 1), running={"g": 1}) == [HOLD, START, HOLD]


def test_a_key_that_is_locked_elsewhere_is_left_alone() -> None:
    assert verdicts(under("g"), under("h"), running={"h": 0}) == [SKIP, START]


def test_a_last_attempt_starts_only_in_a_free_slot() -> None:
    last, plain = Candidate(0, "mail", last_attempt=True), Candidate(0, "mail")
    assert verdicts(last, plain, last, free=2) == [START, START, SKIP]
    assert verdicts(last, plain, free=0) == [SKIP, START]


def test_what_is_held_or_expired_takes_no_slot() -> None:
    last = Candidate(0, "mail", last_attempt=True)
    overdue = Candidate(0, "mail", overdue=True)
    assert verdicts(overdue, under("g"), last, free=1, running={"g": 1}) == [EXPIRE, HOLD, START]


def test_a_rate_lets_so_many_through_and_only_into_free_slots() -> None:
    mail, other = Candidate(0, "mail"), Candidate(0, "other")
    assert verdicts(mail, mail, other, mail, rate_left={"mail": 1}) == [START, SKIP, START, SKIP]
    assert verdicts(mail, mail, free=1, rate_left={"mail": 5}) == [START, SKIP]


@pytest.mark.parametrize(
    ("attempt", "expires_at", "last", "overdue"),
    [(0, None, False, False), (0, 100, False, True), (0, 101, False, False), (1, 1, False, False), (2, 1, True, False)],
)
def test_a_deadline_counts_until_the_first_try(attempt: int, expires_at: int | None, last: bool, overdue: bool) -> None:
    found = Candidate.of(7, "mail", None, attempt, 3, expires_at, now=100)
    assert found == Candidate(7, "mail", None, last, overdue)


def test_a_rate_opens_when_its_oldest_start_leaves_the_window() -> None:
    assert rate(5, 1000, [(100, 2), (400, 1)], 500) == (2, None)
    assert rate(3, 1000, [(100, 2), (400, 1)], 500) == (0, 100 + 1000 + START_WITHIN_MS - 500)
    assert rate(3, 1000, [(100, 4)], 5000) == (0, 1)
    assert rate(0, 1000, [], 500) == (0, None)


def test_only_a_job_that_completed_and_may_not_be_repeated_keeps_its_dedupe_key() -> None:
    kept = {(status, once) for status in ENDED for once in (True, False) if dedupe_key_becomes(status, not once)}
    assert kept == {(Status.COMPLETED, True)}


@pytest.mark.parametrize(
    ("limit", "max_bytes", "counted"),
    [(9, 100, 5), (0, 100, 0), (1, 100, 2), (2, 100, 4), (9, 20, 4), (9, 19, 3), (9, 1, 3)],
)
def test_a_claim_takes_so_many_jobs_and_bytes_and_the_first_in_any_case(
    limit: int, max_bytes: int, counted: int
) -> None:
    verdicts = [HOLD, START, EXPIRE, START, START]
    assert within(verdicts, [10] * 5, limit, max_bytes) == verdicts[:counted]


def test_what_is_skipped_counts_but_has_no_bytes() -> None:
    assert within([SKIP, START, START], [99, 10, 10], 2, 10) == [SKIP, START]


@pytest.mark.parametrize(("most", "running", "woken"), [(3, 1, 2), (3, 3, 1), (3, 5, 1), (1, 0, 1)])
def test_as_many_are_woken_as_there_is_room_and_at_least_one(most: int, running: int, woken: int) -> None:
    assert room(most, running) == woken


def test_a_deadline_no_longer_counts_for_a_job_that_has_run() -> None:
    assert not started_in_time(0)
    assert started_in_time(1)
    assert started_in_time(0, has_run=True)
