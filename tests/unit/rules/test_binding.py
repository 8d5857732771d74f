"""Rules against requests and jobs: what the language means."""

from datetime import UTC, datetime
from typing import Any

import pytest

from treadle.policy import rules
from treadle.policy.rules import RequestFacts, always, matches, never, parse_rule

NOW = datetime(2026, 6, 15, 12, 30, tzinfo=UTC)
JOB: dict[str, Any] = {
    "id": "01890000-0000-7000-8000-000000000001",
    "topic": "mail_digest",
    "status": "pending",
    "priority": 50,
    "attempt": 0,
    "progress": 0,
    "payload": {
        "userId": 123,
        "name": "Ann",
        "empty": "",
        "nothing": None,
        "yes": True,
        "tags": ["a", "b"],
        "deep": {"x": {"y": 2.5}},
        "0": "zero",
    },
    "result": None,
    "runAt": "2026-06-15T12:00:00.000Z",
    "createdAt": "2026-06-15T11:00:00.000Z",
    "startedAt": None,
    "scope": "user",
    "scopeId": "ann",
    "createdBy": "u1",
    "lastError": None,
    "templateVersion": None,
    "staleAt": None,
    "updatedAt": "2026-06-15T12:10:00.000Z",
    "steps": [],
    "webhookSent": None,
}
ANN = {
    "id": "u1",
    "collectionName": "users",
    "email": "Ann@example.com",
    "verified": True,
    "role": "editor",
    "level": 3,
    "team": "",
    "percent": "50%",
    "roles": ["editor", "author"],
    "none": [],
    "meta": {"a": [1, "two"], "s": "", "n": None},
    "created": "2026-01-01 00:00:00.000Z",
}
REQUEST = RequestFacts(
    method="PATCH",
    headers={"x_job_token": "Secret", "blank": ""},
    query={"n": "3", "empty": "", "pattern": "mail%"},
    body={
        "priority": "75",
        "topic": 5,
        "scope": None,
        "extra": None,
        "payload": {"x": "", "list": [{"k": "v"}], "7": "seven"},
        "runAt": "2026-06-15 12:00:00Z",
        "flag": True,
        "word": "ABCÄ",
    },
    auth=ANN,
    now=NOW,
)
ANONYMOUS = RequestFacts(now=NOW)


def holds(rule: str, request: RequestFacts = REQUEST, **job: Any) -> bool:
    return matches(parse_rule(rule).bind(request), {**JOB, **job})


TRUE = [
    # literals
    "1 = 1",
    "'a' ~ 'A'",
    "null = ''",
    "null != 0",
    "false != ''",
    "true = 1",
    "1 != '1'",
    "'10' < '9'",
    # the job's fields
    "topic = 'mail_digest'",
    "topic ~ 'MAIL'",
    "topic:lower = 'mail_digest'",
    "priority = 50",
    "priority = 50.0",
    "priority ~ 5",
    "priority !~ '7'",
    "lastError = ''",
    "lastError = null",
    "lastError !~ 'x'",
    "lastError ~ ''",
    "lastError < 'a'",
    "templateVersion = null",
    "templateVersion = ''",
    "templateVersion != 0",
    "startedAt = ''",
    "startedAt < @now",
    "runAt < @now",
    "runAt > @todayStart && runAt <= @todayEnd",
    "runAt >= '2026-06-15 12:00:00.000Z'",
    "runAt = '2026-06-15 12:00'",
    "runAt = '2026-06-15T12:00:00Z'",
    "runAt > '2026'",
    "runAt < '2026-06-16'",
    "runAt < 'abc'",
    "runAt ~ '2026-06%'",
    "runAt > createdAt",
    "updatedAt > runAt",
    "steps = '[]'",
    "steps.0.name = null",
    "webhookSent = null",
    "webhookSent != true && webhookSent != false",
    # inside documents
    "payload.userId = 123",
    "payload.userId != '123'",
    "payload.userId > 100",
    "payload.userId ~ '12'",
    "payload.name = 'Ann'",
    "payload.name ~ 'AN%'",
    "payload.missing = null",
    "payload.missing != ''",
    "payload.nothing = null",
    "payload.empty = ''",
    "payload.empty != null",
    "payload.yes = true",
    "payload.yes = 1",
    "payload.yes ~ '1'",
    "payload.tags.0 = 'a'",
    "payload.tags.2 = null",
    "payload.tags.x = null",
    "payload.0 = null",
    'payload.tags = \'["a","b"]\'',
    "payload.tags ~ '\"b\"'",
    "payload.deep.x.y = 2.5",
    "payload.deep.x = '{\"y\":2.5}'",
    "payload.name.x = null",
    "payload ~ 'userid'",
    "result = null",
    "result.x = null",
    # the request
    "@request.method = 'PATCH'",
    "@request.context = 'default'",
    "@request.headers.x_job_token = 'Secret'",
    "@request.headers.x_job_token:lower = 'secret'",
    "@request.headers.nope = null",
    "@request.headers.nope:isset = false",
    "@request.headers.blank:isset = true",
    "@request.query.n = '3'",
    "@request.query.n != 3",
    "@request.query.empty:isset = true",
    "@request.query.empty = null",
    "@request.query.n.x = null",
    "@request.headers.x.y:isset = false",
    "topic ~ @request.query.pattern",
    "@request.body.priority = 75",
    "@request.body.topic = '5'",
    "@request.body.scope = ''",
    "@request.body.extra = null",
    "@request.body.extra:isset = true",
    "@request.body.nope:isset = false",
    "@request.body.payload.x:isset = true",
    "@request.body.payload.y:isset = false",
    "@request.body.payload.list.0.k:isset = true",
    "@request.body.payload.list.1:isset = false",
    "@request.body.payload.list.0.k = 'v'",
    "@request.body.payload.7 = 'seven'",
    "@request.body.payload.missing = ''",
    '@request.body.payload.list = \'[{"k":"v"}]\'',
    "@request.body.flag = true",
    "@request.body.word:lower = 'abcÄ'",
    "@request.body.runAt = runAt",
    "@request.body.runAt < @now",
    # the caller
    "createdBy = @request.auth.id",
    "@request.auth.collectionName = 'users'",
    "@request.auth.verified = true",
    "@request.auth.level >= 3",
    "@request.auth.email:lower = 'ann@example.com'",
    "@request.auth.nope = null",
    "@request.auth.team = ''",
    "@request.auth.meta.a.0 = 1",
    "@request.auth.meta.a.1 = 'two'",
    "@request.auth.meta.zz = null",
    "@request.auth.nope.zz = null",
    "@request.auth.created < @yesterday",
    "@request.auth.created = '2026-01-01 00:00:00.000Z'",
    "'100%' !~ @request.auth.percent",
    "'a 50% b' ~ @request.auth.percent",
    # lists
    "@request.auth.roles:each ?= 'author'",
    "@request.auth.roles:each != 'admin'",
    "@request.auth.roles:each ~ 'o'",
    "@request.auth.roles:length = 2",
    "@request.auth.none:length = 0",
    "@request.auth.none:each = ''",
    "@request.auth.none:each != 'a'",
    "@request.auth.nope:length = 0",
    "@request.auth.role:each = 'editor'",
    '@request.auth.roles = \'["editor","author"]\'',
    "@request.auth.role ?= 'editor'",
    # changes
    "@request.body.priority:changed = true",
    "@request.body.runAt:changed = false",
    "@request.body.scopeId:changed = false",
    "@request.body.payload:changed = true",
    "true = @request.body.topic:changed",
    "@request.body.topic:changed = @request.body.priority:changed",
    # joins
    "1 = 2 || 1 = 1 && 2 = 2",
    "(1 = 2 || 1 = 1) && 2 = 2",
]

FALSE = [
    "null = 0",
    "null = false",
    "1 = '1'",
    "null ~ ''",
    "'' !~ null",
    "1 < 'a'",
    "1 > 'a'",
    "null < 1",
    "topic = 'MAIL_DIGEST'",
    "topic ~ 'mail_digest_'",
    "topic ~ '_ail%'  && 1 = 2",
    "topic = 5",
    "priority = '50'",
    "priority > '4'",
    "templateVersion >= 0",
    "startedAt > @now",
    "webhookSent < 1",
    "steps ~ 'a'",
    "payload.missing = ''",
    "payload.missing < 'z'",
    "payload.missing !~ 'x'",
    "payload.userId = '123'",
    "payload.userId > 'a'",
    "payload.tags.a = 'a'",
    "@request.query.n > 5",
    "@request.query.n = 3",
    "@request.query.nope !~ 'x'",
    "@request.body.payload.missing != ''",
    "@request.auth.roles:each = 'editor'",
    "@request.auth.roles:each ?= 'admin'",
    "@request.auth.none:each = 'a'",
    "@request.auth.none:each !~ 'a'",
    "'abc50' ~ @request.auth.percent",
    "1 = 1 && 1 = 2 || 2 = 3",
]


@pytest.mark.parametrize("rule", TRUE)
def test_what_holds(rule: str) -> None:
    assert holds(rule)


@pytest.mark.parametrize("rule", FALSE)
def test_what_does_not_hold(rule: str) -> None:
    assert not holds(rule)


# -- the traps -------------------------------------------------------------------------------------


def test_the_anonymous_are_nobodys_owner() -> None:
    ownerless: dict[str, Any] = {"createdBy": None, "scopeId": "", "payload": {}}
    for rule in (
        "createdBy = @request.auth.id",
        "@request.auth.id = createdBy",
        "scopeId = @request.auth.team",
        "payload.owner = @request.auth.id",
        "payload.owner != @request.auth.id",
        "payload.owner != @request.query.q",
        "createdBy != @request.auth.id",
        "createdBy ~ @request.query.q",
        "createdBy !~ @request.query.q",
        "createdBy >= @request.query.q",
        "createdBy <= @request.query.q",
        "createdBy ?= @request.auth.id",
    ):
        for request in (ANONYMOUS, RequestFacts(auth={"id": "", "team": ""}, query={"q": ""})):
            assert not holds(rule, request, **ownerless), rule


def test_an_empty_caller_differs_from_every_account() -> None:
    assert holds("createdBy != @request.auth.id", ANONYMOUS)
    assert holds("payload.name != @request.auth.id", ANONYMOUS)
    assert holds("createdBy > @request.query.empty")
    assert holds("createdBy = ''", ANONYMOUS, createdBy=None)


def test_the_callers_empty_texts_among_themselves_are_equal() -> None:
    assert holds("@request.auth.id = @request.query.x", ANONYMOUS)
    assert holds("@request.auth.id = ''", ANONYMOUS)


def test_stale_is_a_mark_that_a_status_can_be_asked_for() -> None:
    marked: dict[str, Any] = {"status": "failed", "staleAt": "2026-06-15T12:00:00.000Z"}
    asking = RequestFacts(query={"status": "stale"})
    for rule in ("status = 'stale'", "'stale' = status", "status ?= @request.query.status", "status:lower = 'stale'"):
        assert holds(rule, asking, **marked), rule
        assert not holds(rule, asking), rule
        assert not holds(rule.replace("=", "!="), asking, **marked), rule
        assert holds(rule.replace("=", "!="), asking), rule
    assert holds("status = 'failed' && status !~ 'stale'", **marked)


def test_a_missing_role_is_not_that_role() -> None:
    assert holds("@request.auth.role != 'admin'", ANONYMOUS)
    assert not holds("@request.auth.role !~ 'admin'", ANONYMOUS)
    assert not holds("@request.auth.level < 5", ANONYMOUS)
    assert holds("@request.auth.verified != true", ANONYMOUS)
    assert not holds("@request.auth.roles:length = 0", ANONYMOUS)


def test_a_path_below_a_plain_field_denies_the_whole_rule() -> None:
    for rule in ("@request.auth.role.x = ''", "@request.auth.role.x != 'y'", "1 = 1 || @request.auth.role.x = 1"):
        assert parse_rule(rule).bind(REQUEST) is never
    assert holds("@request.auth.role.x = ''", ANONYMOUS)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_texts_that_no_database_holds_deny(text: str) -> None:
    request = RequestFacts(query={"q": text}, body={"q": text, "createdBy": text})
    for rule in ("topic != @request.query.q", "topic ~ @request.body.q", "@request.body.createdBy:changed = true"):
        assert parse_rule(rule).bind(request) is never


def test_a_number_too_large_for_the_databases_is_a_float() -> None:
    assert not holds("payload.userId = @request.body.n", RequestFacts(body={"n": 10**30}))
    assert holds("payload.userId < @request.body.n", RequestFacts(body={"n": 10**30}))


def test_a_pattern_that_is_too_long_denies() -> None:
    request = RequestFacts(query={"q": "%" * 10_001})
    assert parse_rule("topic ~ @request.query.q || 1 = 1").bind(request) is never
    assert parse_rule("topic !~ @request.query.q").bind(request) is never


def test_lists_that_are_too_long_deny() -> None:
    request = RequestFacts(auth={"id": "u1", "a": ["x"] * 50, "b": ["x"] * 50, "c": ["x"] * 1_500})
    for rule in (
        "@request.auth.a:each ?= @request.auth.b:each",
        "scopeId ?= @request.auth.c:each || topic ?= @request.auth.c:each",
    ):
        assert parse_rule(rule).bind(request) is never
    assert rules.matches(parse_rule("scopeId ?= @request.auth.c:each").bind(request), {"scopeId": "x"})


def test_nothing_is_like_a_pattern_that_ends_in_an_escape() -> None:
    assert not holds(r"topic ~ '%\\'")
    assert holds(r"topic !~ '%\\'")
    assert not holds(r"payload.missing !~ '%\\'")


def test_body_values_have_the_type_of_their_field() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"priority": "high"}, "@request.body.priority = 75"),
        ({"priority": "abc"}, "@request.body.priority = 0"),
        ({"priority": None}, "@request.body.priority = 0"),
        ({"priority": True}, "@request.body.priority = 1"),
        ({"priority": "nan"}, "@request.body.priority = 0"),
        ({"priority": [1]}, "@request.body.priority = 0"),
        ({"priority": 7.5}, "@request.body.priority = 7.5"),
        ({}, "@request.body.priority = null"),
        ({"topic": True}, "@request.body.topic = 'true'"),
        ({"topic": 2.5}, "@request.body.topic = '2.5'"),
        ({"topic": ["a"]}, "@request.body.topic = ''"),
        ({"payload": {"b": 1, "a": None}}, '@request.body.payload = \'{"a":null,"b":1}\''),
        ({"runAt": "soon"}, "@request.body.runAt = ''"),
        ({"runAt": "2026-01-01"}, "@request.body.runAt = '2026-01-01T00:00:00.000Z'"),
        ({"other": "7"}, "@request.body.other = '7'"),
    ]
    for sent, rule in cases:
        assert holds(rule, RequestFacts(body=sent)), rule


def test_changed_is_about_the_stored_job() -> None:
    rule = "@request.body.priority:changed = false"
    assert holds(rule, RequestFacts(body={"priority": 50}))
    assert holds(rule, RequestFacts(body={}))
    assert not holds(rule, RequestFacts(body={"priority": 51}))
    assert not holds("@request.body.scope:changed = true", RequestFacts(body={"scope": None}), scope=None)
    assert holds("@request.body.scope:changed = true", RequestFacts(body={"scope": ""}), scope="user")


# -- folding ---------------------------------------------------------------------------------------


def test_a_rule_without_job_fields_is_decided_by_the_request() -> None:
    rule = parse_rule("@request.auth.role = 'editor' && @request.method = 'PATCH'")
    assert not rule.names_job_fields
    assert rule.bind(REQUEST) is always
    assert rule.bind(ANONYMOUS) is never


def test_a_rule_with_job_fields_may_be_decided_too() -> None:
    rule = parse_rule("@request.auth.id != '' && createdBy = @request.auth.id")
    assert rule.names_job_fields
    assert rule.text == "@request.auth.id != '' && createdBy = @request.auth.id"
    assert rule.bind(ANONYMOUS) is never
    assert rule.bind(REQUEST) == rules.Comparison(rules.JobField("createdBy"), "=", rules.Constant("u1"))


@pytest.mark.parametrize("rule", ["payload.x = 1", "result = ''", "@request.body.priority:changed = false"])
def test_what_names_job_fields(rule: str) -> None:
    assert parse_rule(rule).names_job_fields


@pytest.mark.parametrize(
    ("rule", "only"),
    [
        ("@request.auth.id != ''", True),
        ("createdBy = @request.auth.id && payload.x = 1", True),
        ("scopeId ?= @request.auth.teams:each", True),
        ("@request.auth.id != '' && @request.method = 'GET'", False),
        ("createdBy = @request.auth.id || @request.query.all = '1'", False),
        ("@request.headers.x_team = scopeId", False),
        ("@request.body.scope = 'x'", False),
        ("@request.body.priority:changed = false", False),
        ("createdAt > @todayStart", False),
    ],
)
def test_what_asks_only_who(rule: str, only: bool) -> None:
    assert parse_rule(rule).asks_only_who is only


def test_joining_conditions() -> None:
    a, b, c = (rules.parse_filter(f"topic = '{letter}'") for letter in "abc")
    assert rules.both(a, always) == a
    assert rules.both(a, never) is never
    assert rules.either(a, never) == a
    assert rules.either(a, always) is always
    assert rules.both(rules.both(a, b), c) == rules.All((a, b, c))  # type: ignore[arg-type]
    assert rules.either(a, rules.either(b, c)) == rules.Either((a, b, c))  # type: ignore[arg-type]
    assert rules.both(always, always) is always


@pytest.mark.parametrize(
    "rule",
    ["payload.x != 1", "payload.x !~ 'a'", "status != 'failed'", "result.a = null", "attempt < 5", "lastError = ''"],
)
def test_nothing_is_true_of_what_is_not_known_of_a_job(rule: str) -> None:
    known = {"id": "1", "topic": "mail"}
    assert not matches(rules.parse_filter(rule), known)
    assert not matches(rules.parse_filter(f"{rule} && topic = 'mail'"), known)
    assert matches(rules.parse_filter(f"{rule} || topic = 'mail'"), known)
    assert matches(rules.parse_filter(rule), {**JOB, "payload": {"x": "z"}, "lastError": None, "result": None})


# -- filters ---------------------------------------------------------------------------------------


def test_a_filter_is_about_jobs_only() -> None:
    for text in (
        "@request.auth.id = ''",
        "topic = 'a' || @request.body.priority:changed = true",
        "@collection.x.y = 1",
    ):
        with pytest.raises(rules.InvalidRule):
            rules.parse_filter(text)


def test_no_filter_lets_everything_through() -> None:
    assert rules.parse_filter("") is always
    with pytest.raises(rules.InvalidRule):
        rules.parse_filter(" ")


def test_a_filter_knows_the_time() -> None:
    assert matches(rules.parse_filter("runAt < @now", NOW), JOB)
    assert not matches(rules.parse_filter("runAt < @now", datetime(2020, 1, 1, tzinfo=UTC)), JOB)
    assert matches(rules.parse_filter("runAt < @now || runAt >= @now"), JOB)
