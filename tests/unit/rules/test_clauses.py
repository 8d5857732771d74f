"""The comparisons of a rule, one by one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from treadle.policy.rules import RequestFacts, clauses, matches, parse_rule

ANN: dict[str, Any] = {"id": "u1", "verified": True, "teams": ["a", "b"]}
JOB: dict[str, Any] = {"topic": "mail", "status": "pending", "scopeId": "acc_1", "priority": 50, "payload": {"n": 1}}
FACTS = RequestFacts(auth=ANN, now=datetime(2026, 6, 15, tzinfo=UTC))


def test_each_comparison_has_its_own_answer_and_values() -> None:
    rule = '@request.auth.verified = true && (scopeId = @request.auth.id || topic ~ "ai") // why'
    first, second, third = clauses(rule, FACTS, JOB)
    assert (first.text, first.holds, first.values) == (
        "@request.auth.verified = true",
        True,
        [("@request.auth.verified", 1)],
    )
    assert (second.text, second.holds) == ("scopeId = @request.auth.id", False)
    assert second.values == [("scopeId", "acc_1"), ("@request.auth.id", "u1")]
    assert (third.text, third.holds, third.values) == ('topic ~ "ai"', True, [("topic", "mail")])


def test_without_a_job_a_comparison_of_its_fields_is_open() -> None:
    verified, scope, owner = clauses('@request.auth.verified=true&&scopeId="x"&&scopeId=@request.auth.no', FACTS, None)
    assert (verified.holds, scope.holds) == (True, None)
    assert owner.holds is False, "an empty value of the request matches no job"


@pytest.mark.parametrize(
    ("rule", "texts"),
    [
        ("topic = 'a && b'", ["topic = 'a && b'"]),
        (r'topic = "say \"(||)\"" || priority<=50', [r'topic = "say \"(||)\""', "priority <= 50"]),
        ("((topic = 'a'))", ["topic = 'a'"]),
        ("topic // a comment && more\n = 'a' // (\n && priority > 1", ["topic = 'a'", "priority > 1"]),
        ("topic = '// no comment' && @request.auth.teams:each ?= 'a'", None),
    ],
)
def test_texts_comments_and_brackets_are_told_apart(rule: str, texts: list[str] | None) -> None:
    wanted = ["topic = '// no comment'", "@request.auth.teams:each ?= 'a'"] if texts is None else texts
    assert [one.text for one in clauses(rule, FACTS, JOB)] == wanted


def test_a_list_shows_each_of_its_values_and_a_document_none() -> None:
    each, inside = clauses("@request.auth.teams:each ?= 'a' && payload.n = 1", FACTS, JOB)
    assert each.values == [("@request.auth.teams:each", "a"), ("@request.auth.teams:each", "b")]
    assert (inside.holds, inside.values) == (True, [])


def test_the_answers_agree_with_the_whole_rule() -> None:
    rule = 'topic = "mail" && priority > 50'
    answers = [one.holds for one in clauses(rule, FACTS, JOB)]
    assert answers == [True, False]
    assert matches(parse_rule(rule).bind(FACTS), JOB) is all(answers)
