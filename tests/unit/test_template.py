"""Templates: what they refuse, and their JSON."""

from typing import Any

import pytest

from treadle.model.durations import INT32
from treadle.model.errors import InvalidInput
from treadle.model.retry import Retry
from treadle.model.template import CancelPolicy, Concurrency, Rate, Template, checked_capability

NAMES = set(
    "topic name description enabled repeatable concurrencyPolicy concurrencyKeys concurrencyLimit rate dedupeKeys "
    "idempotencyKey capability priority timeoutSeconds expiresSeconds cancelPolicy retryPolicy steps payloadSchema "
    "resultSchema schedulable".split()
)

FULL = Template(
    "media.transcode",
    name="Transcode",
    version=4,
    description="makes videos small",
    enabled=False,
    repeatable=False,
    timeout="30m",
    priority="high",
    retry=Retry(4, [1, "10s", 0.5]),
    capability="media",
    idempotency_key="input.video_id",
    concurrency=Concurrency("reject_same_scope", ["input.account", "scope"], 3),
    rate=Rate(100, "1m"),
    dedupe_keys=["video_id", "payload.format"],
    cancel=CancelPolicy(supported=False, mode="kill", grace="5s"),
    expires="1h",
    payload_schema={"type": "object"},
)


# -- JSON --------------------------------------------------------------------------------------------


def test_a_bare_template_has_the_defaults_of_the_design() -> None:
    assert Template("mail_digest").as_json() == {
        "topic": "mail_digest",
        "name": "mail_digest",
        "description": "",
        "enabled": True,
        "repeatable": True,
        "concurrencyPolicy": "allow",
        "concurrencyKeys": [],
        "concurrencyLimit": None,
        "rate": None,
        "dedupeKeys": [],
        "idempotencyKey": None,
        "capability": None,
        "priority": 50,
        "timeoutSeconds": 600,
        "expiresSeconds": None,
        "cancelPolicy": {"supported": True, "mode": "cooperative", "graceSeconds": 30},
        "retryPolicy": {"maxAttempts": 3, "backoffSeconds": [60, 240]},
        "steps": [],
        "payloadSchema": None,
        "resultSchema": None,
        "schedulable": True,
    }


def test_a_full_template_says_everything() -> None:
    assert FULL.as_json() == {
        "topic": "media.transcode",
        "name": "Transcode",
        "description": "makes videos small",
        "enabled": False,
        "repeatable": False,
        "concurrencyPolicy": "reject_same_scope",
        "concurrencyKeys": ["input.account", "scope"],
        "concurrencyLimit": 3,
        "rate": {"n": 100, "perSeconds": 60},
        "dedupeKeys": ["video_id", "payload.format"],
        "idempotencyKey": "input.video_id",
        "capability": "media",
        "priority": 75,
        "timeoutSeconds": 1_800,
        "expiresSeconds": 3_600,
        "cancelPolicy": {"supported": False, "mode": "kill", "graceSeconds": 5},
        "retryPolicy": {"maxAttempts": 4, "backoffSeconds": [1, 10, 0.5]},
        "steps": [],
        "payloadSchema": {"type": "object"},
        "resultSchema": None,
        "schedulable": True,
    }


@pytest.mark.parametrize(
    "template",
    [
        Template("mail_digest"),
        FULL,
        Template("once", retry=Retry(1)),
        Template("shared", concurrency=Concurrency()),
        Template("open", concurrency=Concurrency("allow", ["a"], 5)),
    ],
)
def test_a_template_read_from_json_is_the_same_for_everybody_else(template: Template) -> None:
    read = Template.from_json(template.as_json(), version=7)
    assert read.version == 7
    assert set(template.as_json()) == NAMES
    if template.topic != "open":  # an "allow" needs neither keys nor limit
        assert read.as_json() == template.as_json()
    assert read.concurrency is None or read.concurrency.policy != "allow"


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "../x"},
        {"timeout": 0},
        {"timeout": "0.1ms"},
        {"timeout": -1},
        {"timeout": "soon"},
        {"timeout": None},
        {"priority": "urgent"},
        {"priority": 2**31},
        {"expires": -1},
        {"expires": "soon"},
        {"capability": ""},
        {"idempotency_key": ""},
        {"idempotency_key": "input.payment-id"},
        {"idempotency_key": 5},
        {"dedupe_keys": ["a..b"]},
        {"dedupe_keys": "user_id"},
        {"dedupe_keys": [None]},
        {"repeatable": False},
        {"version": 0},
        {"version": -1},
        {"version": 1.5},
        {"version": True},
        {"version": INT32 + 1},
    ],
)
def test_a_template_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Template(**({"topic": "mail"} | options))


@pytest.mark.parametrize("version", [None, 1, 20_260_108, INT32])
def test_an_author_may_fix_the_version(version: int | None) -> None:
    assert Template("mail", version=version).version == version


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "sometimes"},
        {"limit": 0},
        {"limit": -1},
        {"limit": 1_000_001},
        {"limit": True},
        {"limit": 1.5},
        {"limit": "2"},
        {"keys": "account_id"},
        {"keys": ["account id"]},
        {"keys": [""]},
    ],
)
def test_a_concurrency_limit_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Concurrency(**options)


def test_by_default_one_job_of_a_scope_runs_at_a_time() -> None:
    assert Concurrency() == Concurrency("queue_same_scope", (), 1)


@pytest.mark.parametrize(("n", "per"), [(0, "1m"), (-1, "1m"), (True, "1m"), (1.5, "1m"), (1, 0), (1, -1), (1, "x")])
def test_a_rate_that_makes_no_sense_is_refused(n: Any, per: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Rate(n, per)
    assert refusal.value.data == {"field": "rate"}


@pytest.mark.parametrize("options", [{"grace": -1}, {"grace": "soon"}, {"mode": "gently"}, {"mode": None}])
def test_a_cancel_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        CancelPolicy(**options)
    assert refusal.value.data == {"field": f"cancel.{next(iter(options))}"}


@pytest.mark.parametrize("name", [None, "media", "GPU 4090", "é", "x" * 100])
def test_a_capability_is_a_short_printable_name(name: str | None) -> None:
    assert checked_capability(name) == name


@pytest.mark.parametrize("name", ["", " ", " media", "media ", "a\nb", "a\x00", "\ud800", "x" * 101, 5, b"media"])
def test_anything_else_is_no_capability(name: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        checked_capability(name)
    assert refusal.value.data == {"field": "capability"}
