"""A rule that is prepared for a request decides as it does when it is bound at once."""

from typing import Any

import pytest

from treadle.policy import rules
from treadle.policy.rules import RequestFacts, parse_rule

ANN = {"id": "ann", "team": "red"}
TEXTS = [
    "@request.auth.id != ''",
    "@request.auth.id != '' && @request.body.x = 1",
    "@request.auth.id = '' || @request.body.x = 1",
    "@request.body.x = 1 && @request.auth.team = scopeId",
    "(@request.body.x = 1 || topic = 'a') && (@request.body.payload.a ~ 'b' || @request.auth.team = 'red')",
    "@request.body.payload = '{\"a\":1}' || @request.body.priority:changed = true",
    "@request.body.long ~ @request.body.long && 1 = 1",
    "1 = 2 && @request.body.x = 1",
    "1 = 1 || @request.body.long ~ @request.body.long",
]
BODIES: list[dict[str, Any]] = [
    {},
    {"x": 1},
    {"payload": {"a": "b"}},
    {"payload": {"a": 1}, "priority": 3},
    {"long": "x" * 300},
]
JOB = dict.fromkeys(rules.FIELDS) | {"topic": "a", "scopeId": "red", "priority": 3, "payload": {}}


@pytest.mark.parametrize("text", TEXTS)
def test_preparing_a_rule_changes_no_answer(text: str) -> None:
    for auth in ({}, ANN):
        prepared = parse_rule(text).prepare(RequestFacts(auth=auth))
        answers = []
        for body in BODIES:
            whole = parse_rule(text).bind(RequestFacts(auth=auth, body=body))
            assert rules.matches(prepared.bind(body), JOB) == rules.matches(whole, JOB)
            answers.append(whole)
        if prepared.hopeless:
            assert set(answers) == {rules.never}


def test_a_rule_is_hopeless_if_no_body_helps() -> None:
    hopeless = {text: parse_rule(text).prepare(RequestFacts()).hopeless for text in TEXTS}
    assert [text for text, is_so in hopeless.items() if is_so] == [TEXTS[0], TEXTS[1], TEXTS[3], TEXTS[7]]


def test_an_error_in_a_part_that_does_not_matter_still_denies() -> None:
    prepared = parse_rule(TEXTS[8]).prepare(RequestFacts())
    assert prepared.bind({}) is True
    assert prepared.bind({"long": "x" * 300}) is rules.never
