"""The same rules in a real PocketBase: the same answers, except for the deviations listed here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers import needed
from tests.unit.rules.pocketbase import PocketBase, find_pocketbase
from tests.unit.rules.test_grammar import REFUSED
from treadle.policy import rules
from treadle.policy.rules import FIELDS, FieldKind, RequestFacts, matches

RECORDS = "/api/collections/jobs/records"
TYPES = {FieldKind.TEXT: "text", FieldKind.NUMBER: "number", FieldKind.DATE: "date"}
USER: dict[str, Any] = {
    "name": "Ann",
    "role": "editor",
    "level": 3,
    "team": "",
    "meta": {"a": [1, "two"], "s": "", "n": None, "yes": True, "o": {"k": "v"}},
    "roles": ["a", "b"],
    "none": [],
}
ROWS: list[dict[str, Any]] = [
    {
        "topic": "mail_digest",
        "status": "pending",
        "priority": 50,
        "payload": {"x": 1},
        "scope": "user",
        "scopeId": "ann",
    },
    {"topic": "Mail", "priority": -1, "payload": {"x": "1"}, "createdBy": "OWNER", "runAt": "2026-01-01 00:00:00.000Z"},
    {"topic": "a_b", "priority": 5, "payload": {"x": None}, "scope": "5"},
    {"topic": "a%b", "priority": 2.5, "payload": {"x": ""}, "scopeId": "editor", "createdBy": "someone"},
    {
        "topic": "aXb",
        "payload": {"x": True, "y": {"z": ["p", 2.5, {"q": "deep"}]}},
        "runAt": "2999-12-31 23:59:59.999Z",
    },
    {
        "topic": "ÄRGER",
        "payload": {"x": [1, "two"], "0": "zero", "tags": ["red", "blue"]},
        "lastError": "SMTP: 550 %_\\",
    },
    {"topic": "back\\slash", "payload": {"x": 10, "long": "The Quick brown"}, "scope": 'it\'s "quoted"\nhere'},
    {"topic": "10", "payload": {"x": "10", "X": "upper"}, "progress": 100, "scope": "ab"},
    {"topic": "9", "payload": {}, "attempt": 3},
    {"topic": "e", "payload": {"x": {"y": 1}}, "scope": "scope", "lastError": "topic e"},
]
HEADERS = {"X-Job-Token": "Secret", "X-Empty": ""}
QUERY = {"n": "3", "empty": "", "wild": "a%b", "part": "aX", "Case": "YES"}


class Stage(NamedTuple):
    server: PocketBase
    jobs: list[dict[str, Any]]
    user: Mapping[str, Any]

    def theirs(self, rule: str, caller: Mapping[str, Any]) -> list[str]:
        """The topics of the rows that PocketBase lists."""
        headers = {**HEADERS, **(self.server.user if caller else {})}
        response = self.server.client.get(RECORDS, params={**QUERY, "perPage": 100}, headers=headers)
        assert response.is_success, f"{rule}: {response.text}"
        return sorted(item["topic"] for item in response.json()["items"])

    def ours(self, rule: str, caller: Mapping[str, Any]) -> list[str]:
        condition = rules.parse_rule(rule).bind(request(auth=caller))
        return sorted(job["topic"] for job in self.jobs if matches(condition, job))


def request(**facts: Any) -> RequestFacts:
    headers = {name.lower().replace("-", "_"): value.strip() for name, value in HEADERS.items()}
    return RequestFacts(**{"headers": headers, "query": QUERY, **facts})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    binary = needed(find_pocketbase)
    with PocketBase(binary, tmp_path_factory.mktemp("pocketbase") / "server.log") as server:
        server.create_collection(
            "jobs",
            {
                **{name: TYPES[kind] for name, kind in FIELDS.items() if name != "id"},
                "payload": "json",
                "result": "json",
            },
        )
        server.extend_users(
            {"role": "text", "level": "number", "team": "text", "meta": "json", "roles": "select", "none": "select"}
        )
        user = server.create_user(**USER)
        jobs = []
        for row in ROWS:
            made = {key: user["id"] if value == "OWNER" else value for key, value in row.items()}
            jobs.append(as_job(server.ask("POST", RECORDS, **made)))
        yield Stage(server, jobs, user)


def as_job(record: dict[str, Any]) -> dict[str, Any]:
    """A record with its dates written as ours are."""
    dates = {name: record[name].replace(" ", "T") for name, kind in FIELDS.items() if kind is FieldKind.DATE}
    return {**record, **dates}


# -- lists -----------------------------------------------------------------------------------------

AGREED = [
    line
    for line in Path(__file__).with_name("pocketbase_rules.txt").read_text().splitlines()
    if line and line[:2] != "//"
]


@pytest.mark.parametrize("rule", AGREED)
def test_a_list_is_the_same(stage: Stage, rule: str) -> None:
    assert stage.server.accepts("jobs", listRule=rule), f"PocketBase refuses {rule}"
    for caller in ({}, stage.user):
        assert stage.ours(rule, caller) == stage.theirs(rule, caller), "anonymous" if not caller else "signed in"


# Where ours is stricter on purpose. PocketBase answers otherwise to at least one of the two callers.
DEVIATIONS = {
    "a number is neither before nor after a text": [
        "payload.x > 0",
        "payload.x >= 10",
        "payload.x < 'z'",
        "@request.query.n > 5",
        "1 < 'a'",
        "topic > 5",
    ],
    "a text is never turned into a number": ["priority = '5'", "priority != '5'", "priority > '4'"],
    "what :isset says is the number 1 or 0, and a field is not asked whether it is true": [
        "topic != @request.query.n:isset",
        "priority != @request.query.n:isset",
    ],
    "a text is not turned into a number for the caller's record either": ["@request.auth.level != '3'"],
    "an empty value of the request never matches an empty field": [
        "createdBy = @request.auth.id",
        "scopeId = @request.auth.team",
        "payload.nope = @request.auth.id",
        "lastError ~ @request.query.empty",
        "payload.nope != @request.query.empty",
    ],
    "a pattern from a field or from the caller's record has no wildcards": ["'aXb' ~ topic", "'aXb' !~ topic"],
    "a path into the caller's record is one into JSON, also where the record has no such field": [
        "@request.auth.nope.zz = ''"
    ],
    "every _ without a % is an underscore": ["topic ~ '__'"],
}


@pytest.mark.parametrize("rule", [rule for group in DEVIATIONS.values() for rule in group])
def test_a_deviation_is_one(stage: Stage, rule: str) -> None:
    assert stage.server.accepts("jobs", listRule=rule)
    callers: list[Mapping[str, Any]] = [{}, stage.user]
    assert any(stage.ours(rule, caller) != stage.theirs(rule, caller) for caller in callers)


# What PocketBase refuses and ours allows: docs/rules.md has each of them, with the reason.
ALLOWED_HERE_ALONE = [
    "priority != '5'",
    "@request.auth.level != '3'",
    "topic != @request.query.n:isset",
    "@request.auth.nope.x != ''",
    "topic !~ '__'",
    "'aXb' !~ topic",
]
OF_THE_SAME_KIND = ["priority != @request.query.n:isset"]
RULES_PAGE = Path(__file__).parents[3] / "docs" / "rules.md"


@pytest.mark.parametrize("rule", ALLOWED_HERE_ALONE)
def test_what_ours_alone_allows_stands_on_the_page(stage: Stage, rule: str) -> None:
    page = RULES_PAGE.read_text().partition("## Where it allows what PocketBase refuses")[2].partition("\n## ")[0]
    assert f"`{rule}`" in page
    assert stage.server.accepts("jobs", listRule=rule)
    callers: list[Mapping[str, Any]] = [{}, stage.user]
    assert any(set(stage.ours(rule, caller)) - set(stage.theirs(rule, caller)) for caller in callers)


@pytest.mark.parametrize(
    "rule",
    [
        rule
        for group in DEVIATIONS.values()
        for rule in group
        if rule not in ALLOWED_HERE_ALONE and rule not in OF_THE_SAME_KIND
    ],
)
def test_every_other_deviation_only_refuses_more(stage: Stage, rule: str) -> None:
    assert stage.server.accepts("jobs", listRule=rule)
    for caller in ({}, stage.user):
        assert set(stage.ours(rule, caller)) <= set(stage.theirs(rule, caller)), caller


def test_what_ours_alone_allows_to_create_stands_on_the_page(stage: Stage) -> None:
    rule, body = "priority !~ 0", {"priority": 5}
    assert f"`{rule}`" in RULES_PAGE.read_text()
    assert stage.server.accepts("jobs", createRule=rule)
    assert not stage.server.client.post(RECORDS, json=body).is_success
    made = as_job(stage.server.ask("POST", RECORDS, **body))
    assert matches(rules.parse_rule(rule).bind(RequestFacts(method="POST", body=body)), made)
    stage.server.ask("DELETE", f"{RECORDS}/{made['id']}")


def test_a_path_below_a_plain_field_is_an_error_there_and_nobodys_here(stage: Stage) -> None:
    rule = "1 = 1 || @request.auth.role.x = ''"
    assert stage.server.accepts("jobs", listRule=rule)
    response = stage.server.client.get(RECORDS, headers=stage.server.user)
    assert response.status_code == 400
    assert stage.ours(rule, stage.user) == []


# -- what is refused -------------------------------------------------------------------------------

# PocketBase saves these; ours refuses them, because they don't mean what they seem to.
REFUSED_BY_US_ALONE = {
    "not (topic = 'a')",
    "topic = 'a' (topic = 'b')",
    f"priority = {'9' * 400}",
    "payload..x = 1",
    "@request.auth.id:isset = true",
    "@request.auth.id:changed = true",
    "@request.auth.meta.x:lower = ''",
    "@request.auth.roles:foo = 1",
    "@request.auth.tokenKey = ''",
    "@request.auth.password = null",
    "@request.query.q:lower:isset = true",
    "@request.query.q:isset.x = true",
    "@collection.users.id = 1",
    "topic:isset = true",
    "topic:changed = true",
    "topic:length = 1",
    "topic:each = 'a'",
    "priority:lower = 'a'",
    "createdAt:lower = 'a'",
    "payload.tags:length = 1",
    "payload:lower = 'a'",
    "geoDistance(1, 2, 3, 4) < 5",
    "strftime('%Y', createdAt) = '2026'",
    "payload" + ".a" * 100 + " = 1",
}


@pytest.mark.parametrize("rule", [text for text in REFUSED if text and (text.isprintable() or "\n" in text)])
def test_what_we_refuse_is_refused_there_too(stage: Stage, rule: str) -> None:
    assert stage.server.accepts("jobs", listRule=rule) is (rule in REFUSED_BY_US_ALONE)


def test_two_hundred_comparisons_are_the_limit_there_too(stage: Stage) -> None:
    for count in (200, 201):
        assert stage.server.accepts("jobs", listRule=" && ".join(["1=1"] * count)) is (count == 200)


# -- bodies ----------------------------------------------------------------------------------------

BODIES: list[dict[str, Any]] = [
    {},
    {"topic": 5, "priority": "7", "payload": {"a": {"b": [1, {"c": "x"}]}, "1": "one"}},
    {"topic": None, "priority": "abc", "payload": {"a": None}, "extra": None},
    {"topic": "Mail", "priority": None, "extra": "Word", "runAt": "2026-01-01 00:00:00Z"},
    {"topic": "", "priority": 2.5, "extra": {"k": [True, 1]}, "runAt": "nonsense"},
    {"topic": {"a": 1}, "priority": {"a": 1}, "payload": None},
    {"topic": ["Mail"], "payload": "text"},
    {"topic": False, "extra": False},
    {"topic": True, "extra": True},
]
BODY_RULES = [
    "@request.body.topic = '5'",
    "@request.body.topic = ''",
    "@request.body.topic = null",
    "@request.body.topic:isset = true",
    "@request.body.topic:lower = 'mail'",
    "@request.body.topic ~ 'AI'",
    "@request.body.topic = topic || topic = ''",
    "@request.body.priority = 7",
    "@request.body.priority = 0",
    "@request.body.priority > 2",
    "@request.body.priority != null",
    "@request.body.priority:isset = false",
    "@request.body.extra = null",
    "@request.body.extra:isset = true",
    "@request.body.extra:lower = 'word'",
    "@request.body.extra:lower ~ 0",
    "@request.body.extra:lower = 0",
    "@request.body.extra:lower !~ 'false'",
    "@request.body.extra.k.0 = true",
    "@request.body.extra.k.1 = 1",
    "@request.body.extra.k:isset = true",
    "@request.body.extra.z:isset = false",
    "@request.body.payload.a.b.0 = 1",
    "@request.body.payload.a.b.1.c = 'x'",
    "@request.body.payload.1 = 'one'",
    "@request.body.payload.a = null",
    "@request.body.payload.a != ''",
    "@request.body.payload.a:isset = true",
    "@request.body.payload.nope = ''",
    "@request.body.payload = null",
    "@request.body.payload = 'null'",
    "@request.body.payload > 'null'",
    "@request.body.payload = '\"text\"'",
    "@request.body.topic > 'null'",
    "@request.body.topic ~ 1",
    "@request.body.topic:lower != null",
    "@request.body.runAt > '2025-01-01'",
    "@request.body.runAt = ''",
    "@request.body.topic:changed = false",
    "@request.body.priority:changed = false",
    "@request.method = 'POST' && @request.context = 'default'",
    "payload.a.b.1.c = 'x'",
    "topic = 'Mail' && priority = 0",
]


@pytest.mark.parametrize("rule", BODY_RULES)
def test_creating_is_allowed_alike(stage: Stage, rule: str) -> None:
    assert stage.server.accepts("jobs", createRule=rule)
    for body in BODIES:
        allowed = stage.server.client.post(RECORDS, json=body).is_success
        made = as_job(stage.server.ask("POST", RECORDS, **body))
        assert matches(rules.parse_rule(rule).bind(RequestFacts(method="POST", body=body)), made) is allowed, body
        stage.server.ask("DELETE", f"{RECORDS}/{made['id']}")


@pytest.mark.parametrize(
    "rule",
    [
        "@request.body.topic:changed = true",
        "@request.body.topic:changed = false",
        "@request.body.priority:changed != true",
        "@request.body.payload:changed = false && @request.body.runAt:changed = false",
        "@request.body.topic:isset = false || @request.body.topic = topic",
        "@request.method = 'PATCH'",
        "@request.body.payload:changed = false",
        "@request.body.payload:changed = true",
        "@request.body.payload:changed != true || @request.body.topic:changed = true",
    ],
)
def test_changing_is_allowed_alike(stage: Stage, rule: str) -> None:
    stored = {
        "topic": "Mail",
        "priority": 7,
        "payload": {"a": None, "b": {"x": 1, "y": [1, "two"]}},
        "runAt": "2026-01-01 00:00:00.000Z",
    }
    assert stage.server.accepts("jobs", updateRule=rule)
    changes: list[dict[str, Any]] = [
        {"topic": "Mail", "priority": 7},
        {"topic": "Other"},
        {"payload": {"a": 1}},
        {"payload": {"b": {"y": [1, "two"], "x": 1}, "a": None}},
        {"payload": {"b": {"y": ["two", 1], "x": 1}, "a": None}},
        {"payload": {"b": {"y": [1.0, "two"], "x": 1.0}, "a": None}},
        {"payload": {"b": {"y": [1, "two"], "x": 1}}},
        {"payload": None},
    ]
    for body in [*BODIES, *changes]:
        made = as_job(stage.server.ask("POST", RECORDS, **stored))
        allowed = stage.server.client.patch(f"{RECORDS}/{made['id']}", json=body).is_success
        assert matches(rules.parse_rule(rule).bind(RequestFacts(method="PATCH", body=body)), made) is allowed, body
        stage.server.ask("DELETE", f"{RECORDS}/{made['id']}")
