"""Schemathesis against a running server, guided to where the interesting things are.

By itself it would ask for jobs that don't exist. The guide puts ids of real jobs, in every state, into most of the
requests, and tokens of claimed ones, and words of the filter language.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.engine import Status, events, from_schema
from schemathesis.hooks import unregister

from tests.http.served import PASSWORD, ROOT

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
TOPIC = "fuzz.deep"
TEMPLATE = "fuzz_template"
FLOW, STEP = "fuzz.flow", "approve"
WORKER = "fuzz-worker"
FILTERS = (
    "payload.n > 3",
    f"topic = '{TOPIC}' && (status = 'failed' || status ?= 'pending')",
    "lastError ~ 'boom%' || progress >= 10",
    "createdAt <= @now && runAt != ''",
    "payload.nothing.at.all = null",
    "(((attempt < 1)))",
)
SEARCHES = ("boom", f"topic:{TOPIC} -status:failed", 'payload.n:3 "a b"', "error:boom id:x")
SORTS = ("-priority,createdAt", "status", "-payload.n", "attempt,-runAt,topic")


@dataclass
class Report:
    """What was asked, and what was wrong."""

    operations: set[str]
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reached: set[str] = field(default_factory=set)
    """The operations that answered at least once as they do when all is well."""
    wrong: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {dict(sorted(self.statuses.items()))}, {len(self.wrong)} kinds of failures\n"
            + ("\n".join(f"--- {what}\n{how}" for what, how in self.wrong.items()))
        )


def fuzz(guide: Guide, *, requests: int, seed: int, exhaustive: bool = False) -> Report:
    """At least this many requests along the guide; `exhaustive`: first every case that the document implies."""
    with guide.leading():
        document = guide.document()
        report = Report(
            {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
        )
        for round_ in itertools.count():
            examples = min(-(-(requests - report.requests) // len(report.operations)), 50)
            config = _config(guide.url, guide.token, seed + round_, examples, exhaustive and not round_)
            _run(schemathesis.openapi.from_dict(document, config=config), report)
            if report.requests >= requests:
                return report
    raise AssertionError  # the rounds never end by themselves


def _config(url: str, token: str | None, seed: int, examples: int, exhaustive: bool) -> schemathesis.Config:
    return schemathesis.Config.from_dict(
        {
            "seed": seed,
            "base-url": url,
            **({} if token is None else {"headers": {"Authorization": token}}),
            "request-timeout": 60,
            "max-stream-events": 1,
            "continue-on-failure": True,
            "cache": {"enabled": False},
            "generation": {
                "max-examples": max(examples, 1),
                "deterministic": True,
                "database": "none",
                "no-shrink": True,
            },
            "phases": {
                "coverage": {"enabled": exhaustive},
                "examples": {"enabled": exhaustive},
                "fuzzing": {"enabled": examples > 0},
                "stateful": {"enabled": False},
            },
            "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        }
    )


def _run(schema: Any, report: Report) -> None:
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            _add(event, report)
        elif isinstance(event, events.NonFatalError):
            report.wrong.setdefault(f"{event.label}: {event.info.title}", event.info.format())
        elif isinstance(event, events.FatalError):
            raise event.exception


def _add(event: events.ScenarioFinished, report: Report) -> None:
    recorder = event.recorder
    for interaction in recorder.interactions.values():
        report.requests += 1
        if interaction.response is None:
            continue
        report.statuses[interaction.response.status_code] += 1
        # Other methods are tried on its path, too, and OPTIONS is answered everywhere.
        label = event.label or ""
        if interaction.response.status_code < 300 and label.partition(" ")[0] == interaction.request.method:
            report.reached.add(label)
    for case_id, checks in recorder.checks.items():
        for check in checks:
            if check.status is not Status.SUCCESS and check.failure_info:
                answer = recorder.interactions[case_id].response
                text = "" if answer is None else f"{answer.status_code} {answer.text_lossy()[:500]}"
                failure = check.failure_info.failure
                how = f"{failure.message}\n{text}\n{check.failure_info.code_sample}"
                report.wrong.setdefault(f"{event.label}: {check.name}: {failure.title}", how)


class Guide:
    """Points two of three requests at existing jobs; the third stays as generated."""

    def __init__(self, url: str, root: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._root = root
        self._client = httpx.Client(base_url=url, timeout=60)
        self._numbers = itertools.count()
        self._jobs: list[str] = []
        self._claimed: list[tuple[str, str]] = []
        self._ended: list[str] = []
        self._endpoints: list[str] = []
        self._client_id = ""

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """While this lasts, every request of schemathesis passes through here."""

        @schemathesis.hook
        def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
            self.before(case)

        @schemathesis.hook
        def after_call(context: HookContext, case: Case, response: Response) -> None:
            self.after(case, response)

        try:
            with self._client, self._connected():
                self.open_the_api()
                yield
        finally:
            unregister(before_call)
            unregister(after_call)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """A connection of PocketBase's protocol, which requests can subscribe for."""
        with self._client.stream("GET", "/api/realtime") as response:
            lines = response.iter_lines()
            self._client_id = next(line for line in lines if line.startswith("id:")).partition(":")[2].strip()
            yield

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get("/api/openapi.json").json()
        return found

    def before(self, case: Case) -> None:
        path = case.operation.path
        number = next(self._numbers)
        if path.endswith("/stream") and case.query.get("snapshot", "false") in (False, "false"):
            case.query["snapshot"] = "true"  # else there is nothing to read before a job happens to change
        if path == "/api/workers/claim":
            self._claim_quickly(case, number)
        rare = path == "/api/realtime" or "{delivery}" in path  # with few requests, and only one is right
        if (number % 3 == 0 and not rare) or case.method.lower() != case.operation.method.lower():
            return
        if path.startswith("/api/workers/jobs/"):
            self._hold(case)
        elif path.startswith("/api/webhooks/"):
            self._webhook(case)
        elif path == "/api/jobs/{id}/release":
            case.path_parameters["id"] = self._held()[0]
        elif path.endswith(("/requeue", "/output/{channel}")):  # the stream of a job that has not ended does not end
            case.path_parameters["id"] = self._ended_job()
        elif path.startswith("/api/schedules/"):
            case.path_parameters["id"] = self._schedule()
        elif path.startswith("/api/operations/"):
            case.path_parameters["id"] = self._operation()
        elif path.endswith(("/drain", "/undrain")):
            case.path_parameters["name"] = WORKER
        elif "{step}" in path or path.endswith("/signal"):
            self._wait(case)
        elif path.startswith("/api/templates/"):
            case.path_parameters["topic"] = TEMPLATE
        elif "{id}" in path:
            case.path_parameters["id"] = self._job(number)
        elif path.endswith("/auth-with-password"):
            self._sign_in(case)
        elif path == "/api/realtime" and isinstance(case.body, dict) and _is_text(case.body.get("clientId"), 255):
            case.body["clientId"] = self._client_id
        elif path == "/api/jobs":
            self._search(case, number)
        elif path == "/api/jobs/bulk" and isinstance(case.body, dict) and _is_text(case.body.get("filter"), 3500):
            case.body["filter"] = FILTERS[number % len(FILTERS)]

    def after(self, case: Case, response: Response) -> None:
        if case.operation.path == "/api/settings" and case.method == "PATCH" and response.status_code == 200:
            self.open_the_api()

    def open_the_api(self) -> None:
        """Rules that give users access to their own jobs, and anonymous callers to none. Nothing is stale."""
        jobs = {
            "enqueue_rule": "@request.auth.id != ''",
            "manage_rule": "createdBy = @request.auth.id || scopeId = @request.query.scopeId",
            "http_enabled": True,
            "allowed_topics": [],
        }
        retention = {"stale_after": None, "delete_after": None}
        self._call("PATCH", "/api/settings", {"jobs": jobs, "retention": retention})

    def _claim_quickly(self, case: Case, number: int) -> None:
        if not isinstance(case.body, dict):
            return
        wait = case.body.get("wait")
        if _is_number(wait, 0.01, 1e10):
            case.body["wait"] = 0.01
        elif isinstance(wait, str) and wait.strip().endswith(("s", "m", "h", "d")):
            case.body["wait"] = "5ms"
        if number % 3 and isinstance(case.body.get("topics"), list) and case.body["topics"]:
            case.body["topics"] = [TOPIC]
            self._job(number)

    def _hold(self, case: Case) -> None:
        id, token = self._held()
        case.path_parameters["id"] = id
        if case.operation.path.endswith("/ack-cancel"):
            # Not sure to be there still: some requests delete what they can.
            self._client.post(f"/api/jobs/{id}/cancel", headers={"Authorization": self._root})
        if isinstance(case.body, dict) and _is_text(case.body.get("token"), 255):
            case.body["token"] = token

    def _held(self) -> tuple[str, str]:
        if len(self._claimed) < 2:
            self._make_jobs()
        return self._claimed.pop()

    def _webhook(self, case: Case) -> None:
        """A new endpoint each time, because some requests delete it. It reads its events itself."""
        case.path_parameters["id"] = id = self._call("POST", "/api/webhooks", {"url": None})["id"]
        if "delivery" in case.path_parameters:
            case.path_parameters["delivery"] = self._call("POST", f"/api/webhooks/{id}/test", {})["id"]
        if self._endpoints:
            self._client.delete(f"/api/webhooks/{self._endpoints.pop()}", headers={"Authorization": self._root})
        self._endpoints.append(id)

    def _job(self, number: int) -> str:
        if number % 100 == 1 or not self._jobs:
            self._make_jobs()
        return self._jobs[number % len(self._jobs)]

    def _schedule(self) -> str:
        """A new one each time, because some requests delete it."""
        made: dict[str, Any] = self._call("POST", "/api/schedules", {"topic": TOPIC, "cron": "0 9 1 1 *"})
        return str(made["id"])

    def _operation(self) -> str:
        """A new one each time, because some requests stop it."""
        body = {"action": "cancel", "filter": "topic = 'no_such_topic'", "background": True}
        return str(self._call("POST", "/api/jobs/bulk", body)["operationId"])

    def _wait(self, case: Case) -> None:
        """A job with a step that waits for an answer."""
        case.path_parameters["id"] = self._enqueue(1, topic=FLOW)[0]
        if "step" in case.path_parameters:
            case.path_parameters["step"] = STEP
        elif isinstance(case.body, dict) and _is_text(case.body.get("step"), 100):
            case.body["step"] = STEP

    def _ended_job(self) -> str:
        if not self._ended:
            self._make_jobs()
        return self._ended.pop()

    def _sign_in(self, case: Case) -> None:
        if not isinstance(case.body, dict) or case.path_parameters["collection"] != "_superusers":
            return
        if _is_text(case.body.get("identity"), 255) and _is_text(case.body.get("password"), 1000):
            case.body |= {"identity": ROOT, "password": PASSWORD}

    def _search(self, case: Case, number: int) -> None:
        for name, words, most in (("filter", FILTERS, 3500), ("q", SEARCHES, 500), ("sort", SORTS, 200)):
            if _is_text(case.query.get(name), most):
                case.query[name] = words[number % len(words)]

    def _make_jobs(self) -> None:
        """A job in each state, as the caller's own if the caller may have some, and three that are held."""
        waiting = self._enqueue(5) + self._enqueue(1, delay="1h") + self._enqueue(1, idempotencyKey="once")
        topic = f"{TOPIC}.{next(self._numbers)}"
        self._enqueue(7, topic=topic)
        body = {"workerId": "guide", "topics": [topic], "limit": 7}
        held = [(job["id"], job["token"]) for job in self._call("POST", "/api/workers/claim", body)["items"]]
        (done, first), (failed, second), (stopping, _), (gone, third), *self._claimed = held
        self._call("POST", f"/api/workers/jobs/{done}/complete", {"token": first, "result": {"n": 1}})
        self._call("POST", f"/api/workers/jobs/{failed}/fail", {"token": second, "error": "boom: a b", "fatal": True})
        self._call("POST", f"/api/jobs/{stopping}/cancel", {"reason": "fuzz"})
        self._call("POST", f"/api/workers/jobs/{gone}/fail", {"token": third, "error": "boom, once"})
        self._call("POST", f"/api/jobs/{waiting[0]}/cancel", {})
        self._ended = [waiting[0], failed, done]
        self._jobs = [*waiting, *(id for id, _ in held)]

    def _enqueue(self, count: int, **options: Any) -> list[str]:
        jobs = [{"topic": TOPIC, "payload": {"n": n}, **options} for n in range(count)]
        made = self._call("POST", "/api/jobs/enqueue-many", {"jobs": jobs}, self.token or self._root)
        return [job["id"] for job in made["items"]]

    def _call(self, method: str, path: str, body: dict[str, Any], token: str | None = None) -> Any:
        headers = {"Authorization": token or self._root}
        answer = self._client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 200, (method, path, body, answer.text)
        return answer.json()


# Only what is right already is replaced: what was made wrong on purpose must be refused.
def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= most


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
