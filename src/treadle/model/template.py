"""How jobs of a topic run. Defined with `@queue.job(...)` and saved, so that every process knows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from treadle.model.durations import INT32, Duration, Priority, checked_count, duration_ms, priority_value, seconds
from treadle.model.errors import InvalidInput
from treadle.model.job import checked_topic
from treadle.model.keys import WHOLE_PAYLOAD, checked_expression, checked_expressions
from treadle.model.payload import MAX_BYTES
from treadle.model.retry import Retry
from treadle.model.secrets import secret_paths, touches
from treadle.model.steps import StepSpec

ConcurrencyPolicy = Literal["allow", "reject_same_scope", "queue_same_scope", "replace_same_scope"]
_POLICIES = ("allow", "reject_same_scope", "queue_same_scope", "replace_same_scope")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `limit` concurrent jobs with the same key; `policy` says what happens to further ones.

    The key is the topic with the job's scope and scopeId, or with the values of `keys` (expressions such as
    `input.account_id`).
    """

    policy: ConcurrencyPolicy = "queue_same_scope"
    keys: Sequence[str] = ()
    limit: int = 1

    def __post_init__(self) -> None:
        if self.policy not in _POLICIES:
            raise InvalidInput(
                f"concurrency: {self.policy!r} is not one of {', '.join(_POLICIES)}", field="concurrency"
            )
        checked_expressions(self.keys, "concurrency")
        checked_count(self.limit, "concurrency")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `n` starts in any window of `per`."""

    n: int
    per: Duration

    def __post_init__(self) -> None:
        checked_count(self.n, "rate")
        if duration_ms(self.per, "rate") < 1:
            raise InvalidInput("rate: the window must be longer than 0", field="rate")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs are kept; None: as the settings say."""

    stale_after: Duration | None = None
    """After their end."""
    delete_after: Duration | None = None
    """After that."""

    def __post_init__(self) -> None:
        for name in ("stale_after", "delete_after"):
            if (value := getattr(self, name)) is not None:
                duration_ms(value, f"retention.{name}")

    def as_json(self) -> dict[str, int | float | None]:
        return {
            "staleAfterSeconds": None if self.stale_after is None else seconds(self.stale_after),
            "deleteAfterSeconds": None if self.delete_after is None else seconds(self.delete_after),
        }


@dataclass(frozen=True, slots=True)
class CancelPolicy:
    supported: bool = True
    mode: Literal["cooperative", "kill"] = "cooperative"
    grace: Duration = "30s"

    def __post_init__(self) -> None:
        if self.mode not in ("cooperative", "kill"):
            raise InvalidInput(f"cancel.mode: {self.mode!r} is not cooperative or kill", field="cancel.mode")
        duration_ms(self.grace, "cancel.grace")


@dataclass(frozen=True, slots=True)
class Template:
    topic: str
    name: str = ""
    version: int | None = None
    """Set by the author; if None, incremented each time the saved template changes."""
    description: str = ""
    enabled: bool = True
    repeatable: bool = True
    timeout: Duration = "10m"
    priority: Priority = "normal"
    retry: Retry = field(default_factory=Retry)
    capability: str | None = None
    idempotency_key: str | None = None
    """An expression such as `input.payment_id`, or `*` for the whole payload."""
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    dedupe_keys: Sequence[str] = ()
    cancel: CancelPolicy = field(default_factory=CancelPolicy)
    expires: Duration | None = None
    schedulable: bool = True
    secret: Sequence[str] = ()
    """Payload fields that only handlers see, such as `token` or `card.number`."""
    step_result_limit: int | str | None = None
    """How large the result of a step may be: bytes, or a size such as "8MiB". None: as large as a payload."""
    retention: Retention | None = None
    payload_schema: dict[str, Any] | None = None
    result_schema: dict[str, Any] | None = None
    steps: tuple[StepSpec, ...] = ()
    """The declared steps of a flow; empty for a plain job."""

    def __post_init__(self) -> None:
        checked_topic(self.topic)
        priority_value(self.priority)
        if duration_ms(self.timeout, "timeout") < 1:
            raise InvalidInput("timeout: must be longer than 0", field="timeout")
        if self.expires is not None:
            duration_ms(self.expires, "expires")
        if self.version is not None:
            checked_count(self.version, "version", INT32)
        checked_expressions(self.dedupe_keys, "dedupe_keys")
        if self.idempotency_key not in (None, WHOLE_PAYLOAD):
            checked_expression(self.idempotency_key)
        if not self.repeatable and not self.dedupe_keys:
            raise InvalidInput("repeatable=False needs dedupe_keys, which tell the jobs that count as the same")
        checked_capability(self.capability)
        self._check_secrets()
        if self.step_result_limit is not None:
            checked_result_limit(self.step_result_limit)

    @property
    def step_result_bytes(self) -> int:
        given = self.step_result_limit
        return MAX_BYTES if given is None else checked_result_limit(given)

    def _check_secrets(self) -> None:
        checked_expressions(self.secret, "secret")
        hidden = secret_paths(self.secret)
        keys = [self.idempotency_key] if self.idempotency_key not in (None, WHOLE_PAYLOAD) else []
        for key in (*keys, *self.dedupe_keys, *(self.concurrency.keys if self.concurrency else ())):
            if touches(secret_paths([str(key)])[0], hidden):
                raise InvalidInput(f"secret: {key} is used in a key, and keys are shown to people", field="secret")

    def as_json(self) -> dict[str, Any]:
        """The definition in JSON, with the names of the HTTP API; its version is assigned when it is saved."""
        concurrency = self.concurrency
        return {
            "topic": self.topic,
            "name": self.name or self.topic,
            "description": self.description,
            "enabled": self.enabled,
            "repeatable": self.repeatable,
            "concurrencyPolicy": concurrency.policy if concurrency else "allow",
            "concurrencyKeys": list(concurrency.keys) if concurrency else [],
            "concurrencyLimit": concurrency.limit if concurrency else None,
            "rate": {"n": self.rate.n, "perSeconds": seconds(self.rate.per)} if self.rate else None,
            "dedupeKeys": list(self.dedupe_keys),
            "idempotencyKey": self.idempotency_key,
            "capability": self.capability,
            "priority": priority_value(self.priority),
            "timeoutSeconds": seconds(self.timeout),
            "expiresSeconds": None if self.expires is None else seconds(self.expires),
            "cancelPolicy": {
                "supported": self.cancel.supported,
                "mode": self.cancel.mode,
                "graceSeconds": seconds(self.cancel.grace),
            },
            "retryPolicy": self.retry.as_json(),
            "steps": [step.as_json() for step in self.steps],
            "payloadSchema": self.payload_schema,
            "resultSchema": self.result_schema,
            "schedulable": self.schedulable,
            **({"secret": list(self.secret)} if self.secret else {}),
            **({} if self.step_result_limit is None else {"stepResultLimit": self.step_result_bytes}),
            **({"retention": self.retention.as_json()} if self.retention else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int | None = None) -> Template:
        policy, rate, cancel = data["concurrencyPolicy"], data.get("rate"), data["cancelPolicy"]
        retry, kept = data["retryPolicy"], data.get("retention")
        return cls(
            topic=data["topic"],
            name=data["name"],
            version=version,
            description=data["description"],
            enabled=data["enabled"],
            repeatable=data["repeatable"],
            timeout=data["timeoutSeconds"],
            priority=data["priority"],
            retry=Retry(retry["maxAttempts"], retry["backoffSeconds"] or "fixed"),
            capability=data["capability"],
            idempotency_key=data["idempotencyKey"],
            concurrency=None
            if policy == "allow"
            else Concurrency(policy, data["concurrencyKeys"], data["concurrencyLimit"]),
            rate=Rate(rate["n"], rate["perSeconds"]) if rate else None,
            dedupe_keys=data["dedupeKeys"],
            cancel=CancelPolicy(cancel["supported"], cancel["mode"], cancel["graceSeconds"]),
            expires=data["expiresSeconds"],
            schedulable=data.get("schedulable", True),
            secret=data.get("secret", ()),
            step_result_limit=data.get("stepResultLimit"),
            retention=Retention(kept["staleAfterSeconds"], kept["deleteAfterSeconds"]) if kept else None,
            payload_schema=data["payloadSchema"],
            result_schema=data.get("resultSchema"),
            steps=tuple(StepSpec.from_json(step) for step in data.get("steps") or ()),
        )


@lru_cache(maxsize=1000)
def plain_template(topic: str) -> Template:
    """The default template of a topic without a saved one."""
    return Template(topic)


LARGEST_STEP_RESULT = 12 * 1024 * 1024
_SIZE = re.compile(r"(\d{1,9})\s*(B|KiB|MiB|kB|MB)?")
_UNITS = {None: 1, "B": 1, "kB": 1000, "KiB": 1024, "MB": 1_000_000, "MiB": 1024 * 1024}


def checked_result_limit(given: Any) -> int:
    """In bytes."""
    match = _SIZE.fullmatch(str(given)) if isinstance(given, int | str) and not isinstance(given, bool) else None
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= size <= LARGEST_STEP_RESULT:
        raise InvalidInput(
            f"step_result_limit: {str(given)[:40]!r} is not a size up to 12MiB, such as 8MiB or a number of bytes",
            field="step_result_limit",
        )
    return size


def checked_capability(capability: str | None) -> str | None:
    if capability is not None and (
        not isinstance(capability, str)
        or not 1 <= len(capability) <= 100
        or not capability.isprintable()
        or capability != capability.strip()
    ):
        raise InvalidInput(
            f"capability: {str(capability)[:40]!r} is not a name of 1 to 100 printable characters",
            field="capability",
        )
    return capability
