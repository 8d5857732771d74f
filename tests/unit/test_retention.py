"""When an ended job is stale and when it is deleted."""

from __future__ import annotations

from treadle.model.status import ENDED, Status
from treadle.policy.retention import (
    MOST_FORMER,
    Ages,
    Former,
    Rules,
    classes,
    exceptions_from,
    former_from,
    stored,
    stored_former,
)

RULES = Rules(
    100,
    50,
    by_status={"failed": Ages(300, None), "cancelled": Ages(None, 5)},
    by_topic={"mail": Ages(delete_after_ms=7), "log": Ages(0, 0)},
)


def test_a_job_is_stale_when_its_time_is_over() -> None:
    rules = Rules(500)
    assert [rules.stale_at("mail", "failed", 1_000, now) for now in (1_499, 1_500, 9_999)] == [None, 1_500, 1_500]


def test_a_topic_goes_before_a_status_and_both_before_the_rest() -> None:
    ages = {
        (topic, status): (RULES.stale_after(topic, status), RULES.kept(topic, status))
        for topic in ("other", "mail", "log")
        for status in ("completed", "failed", "cancelled")
    }
    assert ages == {
        ("other", "completed"): (100, 150),
        ("other", "failed"): (300, 350),
        ("other", "cancelled"): (100, 105),
        ("mail", "completed"): (100, 107),
        ("mail", "failed"): (300, 307),
        ("mail", "cancelled"): (100, 107),
        ("log", "completed"): (0, 0),
        ("log", "failed"): (0, 0),
        ("log", "cancelled"): (0, 0),
    }


def test_each_ended_job_is_in_one_class_which_says_the_same() -> None:
    for topic in ("mail", "log", "other", "other.too"):
        for status in ENDED:
            mine = [
                one
                for one in classes(RULES)
                if status in one.statuses
                and (topic not in one.other_topics if one.topics is None else topic in one.topics)
            ]
            assert [(one.stale_after_ms, one.kept_ms) for one in mine] == [
                (RULES.stale_after(topic, status), RULES.kept(topic, status))
            ]


def test_one_class_without_exceptions() -> None:
    (only,) = classes(Rules(1, 2))
    assert only == (None, (), tuple(s for s in Status if s in ENDED), 1, 2)


def test_a_mark_stays_when_its_time_is_raised() -> None:
    rules = Rules(1_000).replacing(Rules(100), now=500)
    assert rules.stale_at("mail", "failed", 400, 501) == 500, "it was stale just in time"
    assert rules.stale_at("mail", "failed", 401, 501) is None
    assert rules.stale_at("mail", "failed", 401, 1_401) == 1_401
    assert rules.stale_at("mail", "failed", 400, 9_999) == 500, "the mark does not move on either"


def test_only_rules_that_were_raised_are_kept() -> None:
    assert Rules(50).replacing(Rules(100), 500).former == ()
    assert Rules(100, 50).replacing(Rules(100, 1), 500).former == ()
    assert Rules(100, by_topic={"mail": Ages(50)}).replacing(Rules(100), 500).former == ()
    raised = Rules(100).replacing(Rules(100, by_topic={"mail": Ages(50)}), 500)
    assert raised.former == (Former(500, Rules(100, by_topic={"mail": Ages(50)})),)


def test_former_rules_go_once_they_can_say_nothing_more() -> None:
    rules = Rules(10, 10)
    for step in range(1, 100):
        rules = Rules(10 + step, 10).replacing(rules, now=step)
    assert len(rules.former) == MOST_FORMER
    assert [one.until_ms for one in rules.former] == list(range(80, 100))
    assert Rules(20, 10).replacing(rules, now=1_000_000).former == (Former(1_000_000, Rules(109, 10)),)[:0], (
        "lowered, and nothing of that age is left"
    )


def test_rules_are_stored_without_what_they_leave_open() -> None:
    kept = stored(RULES.by_status)
    assert kept == {"failed": {"stale_after_ms": 300}, "cancelled": {"delete_after_ms": 5}}
    assert exceptions_from(kept) == RULES.by_status
    former = (Former(7, RULES),)
    assert former_from(stored_former(former)) == former
    assert former_from(None) == ()
