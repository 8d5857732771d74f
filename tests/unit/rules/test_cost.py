"""What a rule or a filter may cost: bounded when it is read, linear when it is asked."""

import pytest

from tests.unit.rules.timing import timed
from treadle.policy import rules
from treadle.policy.rules import InvalidRule, RequestFacts, matches
from treadle.policy.rules.values import MAX_PATTERN, canonical_pattern, like

MEGABYTE = "a" * 1_000_000


@pytest.mark.parametrize(
    "pattern",
    [
        "%" + "a" * 150 + "b%",
        "%" + "a_" * 75 + "b%",
        "%" + "_" * 150 + "b%",
        "%a" * 60 + "b",
        "%" + "a_%" * 60 + "b_c",
    ],
)
def test_no_pattern_goes_back_over_a_long_text(pattern: str) -> None:
    found, seconds = timed(lambda: like(MEGABYTE, canonical_pattern(pattern)))
    assert not found
    assert seconds < 1.0, pattern


@pytest.mark.parametrize("sign", ["~", "!~", "?~", "?!~"])
def test_a_text_to_look_for_is_short(sign: str) -> None:
    rules.parse_rule(f"topic {sign} '{'x' * MAX_PATTERN}'")
    for read in (rules.parse_rule, rules.parse_filter):
        with pytest.raises(InvalidRule, match="200 characters"):
            read(f"topic {sign} '{'x' * (MAX_PATTERN + 1)}'")


def test_a_request_that_looks_for_a_long_text_is_denied() -> None:
    rule = rules.parse_rule("topic ~ @request.query.x || topic = 'mail'")
    assert matches(rule.bind(RequestFacts(query={"x": "ail"})), {"topic": "mail"})
    assert rule.bind(RequestFacts(query={"x": "x" * 201})) == rules.never


@pytest.mark.parametrize("sign", ["~", "!~"])
def test_a_long_text_of_the_job_is_not_looked_for(sign: str) -> None:
    condition = rules.parse_filter(f"payload.a {sign} payload.b")
    assert not matches(condition, {"payload": {"a": MEGABYTE, "b": "a" * 201}})
    assert matches(condition, {"payload": {"a": MEGABYTE, "b": "a" if sign == "~" else "b"}})


def test_a_filter_looks_into_documents_thirty_times_at_most() -> None:
    terms = [f"payload.p{i} = {i}" for i in range(31)]
    assert rules.looks_inside(rules.parse_filter(" || ".join(terms[:30]))) == 30
    with pytest.raises(InvalidRule, match="payload, result or steps"):
        rules.parse_filter(" || ".join(terms))
    rules.parse_rule(" || ".join(terms))  # a rule is the operator's own


def test_the_texts_that_a_filter_looks_for_are_short_together() -> None:
    word = "x" * 200
    rules.parse_filter(f"topic ~ '{word}' || lastError ~ '{word}'")
    for terms in (f"topic ~ '{word}' || topic ~ '%{word[2:]}' || topic ~ '{word}'", " || ".join(["topic ~ scope"] * 3)):
        with pytest.raises(InvalidRule, match="500 characters together"):
            rules.parse_filter(terms)


def test_what_looks_into_documents_stands_apart() -> None:
    condition = rules.parse_filter("topic = 'mail' && (payload.x = 1 || priority = 5) && priority > 3")
    plain, inside = rules.by_cost(condition)
    assert plain == rules.parse_filter("topic = 'mail' && priority > 3")
    assert inside == rules.parse_filter("payload.x = 1 || priority = 5")
    assert rules.by_cost(plain) == (plain, rules.always)
    assert rules.by_cost(inside) == (rules.always, inside)
