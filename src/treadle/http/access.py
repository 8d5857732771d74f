"""Authentication and authorization: tokens, cookies, rules, scopes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from starlette.requests import Request

from treadle.accounts import Accounts, Caller
from treadle.http.application_auth import Auth, application_caller
from treadle.http.bodies import ANYBODY, SIGNED_IN, STRANGERS, header_of, is_large, json_object
from treadle.http.candidates import Candidate
from treadle.http.errors import ApiError, not_found
from treadle.http.fast_routes import path_here
from treadle.http.origin import READS, Origin
from treadle.http.query_params import check_query, flags_of
from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.job import Job, rfc3339
from treadle.policy import rules
from treadle.policy.rules import Condition, PreparedRule, RequestFacts, Rule, parse_rule
from treadle.queue.runtime_settings import RuntimeSettings, StoredSettings
from treadle.queue.slices import in_slices

# The scope entry that caches the request's caller.
CALLER = "treadle.caller"
API = ("/api/", "/_api/")
SIGN_IN = "/api/collections/"
PUBLIC = "true"
"""Open to everyone without signing in. A keyword of the settings; the rule language does not have it."""


class Permit(NamedTuple):
    """What a caller may enqueue."""

    caller: Caller
    topics: Sequence[str]
    """Empty: all topics."""
    asked_at: datetime
    """The rule's `@now`, fixed early so that a job due immediately counts as due for the rule too."""
    jobs: Sequence[Condition] = (rules.always,)
    """One condition per job of the request, or a single one for all of them."""

    @property
    def restricted(self) -> bool:
        return bool(self.topics) or any(condition != rules.always for condition in self.jobs)

    def admit(self, place: int, job: Mapping[str, Any]) -> None:
        """Raise unless the job at this position of the request may be enqueued."""
        if not rules.matches(self.jobs[place if len(self.jobs) > 1 else 0], job):
            raise refusal(self.caller)
        _check_topic(self.topics, job["topic"])


class Remaking(NamedTuple):
    """What a caller may make of existing jobs."""

    caller: Caller
    topics: Sequence[str] = ()
    """Empty: all topics."""
    rule: PreparedRule | None = None

    @property
    def restricted(self) -> bool:
        return bool(self.topics) or self.rule is not None

    def admit(self, candidate: Candidate) -> None:
        """Raise unless the caller could enqueue this job."""
        if self.rule and not rules.matches(self.rule.bind(normalised(candidate.body)), candidate.job):
            raise refusal(self.caller)
        _check_topic(self.topics, candidate.job["topic"])


def _check_topic(allowed: Sequence[str], topic: str) -> None:
    if allowed and topic not in allowed:
        message = f"Jobs of topic {topic} can't be enqueued over HTTP (allowed_topics)."
        raise ApiError(403, "topic_not_allowed", message)


class Access:
    def __init__(
        self,
        accounts: Accounts,
        site: RuntimeSettings,
        origin: Origin,
        *,
        read_only: bool = False,
        auth: Auth | None = None,
    ) -> None:
        """`read_only`: sessions of the dashboard change nothing, here either. `auth` knows the application's users."""
        self._read_only = read_only
        self._auth = auth
        self._accounts = accounts
        self._site = site
        self.origin = origin

    # -- who asks ----------------------------------------------------------------------------------

    async def caller(self, request: Request, *, anew: bool = False) -> Caller:
        """The account behind the request's token or cookie. An invalid token is refused on every route.

        `anew` checks again, because a stream can outlive its token.
        """
        known: Caller | None = request.scope.get(CALLER)
        if known is None or anew:
            known = request.scope[CALLER] = await self._check(request)
        return known

    async def _check(self, request: Request) -> Caller:
        token = bearer(request)
        if self._auth is not None and (known := await application_caller(self._auth, request)):
            if token is None:  # browsers send the application's session with requests from any page
                self._check_session(request)
            return known
        if token is None and (token := self.origin.token(request)):
            self._check_session(request)
        if token is None:
            return Caller.anonymous
        caller = await self._accounts.caller(token)
        if caller is None:
            raise ApiError(401, "invalid_token", "The token is invalid or has expired; sign in again.")
        return caller

    def _check_session(self, request: Request) -> None:
        """What only requests without a token have to pass."""
        self.origin.require_same_origin(request)
        path = path_here(request.scope)
        changes = request.method not in READS and path.startswith(API) and not path.startswith(SIGN_IN)
        if self._read_only and changes:
            raise ApiError(403, "read_only", "This dashboard is read-only, and so is its session; send a token.")

    def token(self, request: Request) -> str | None:
        """The token that the request came with, in its header or its cookie."""
        return bearer(request) or self.origin.token(request)

    async def who(self, request: Request) -> str:
        """A name for the caller: the id of an account or API key, or the address of an anonymous client."""
        caller = await self.caller(request)
        return caller.account_id or (request.client.host if request.client else "")

    # -- may they ----------------------------------------------------------------------------------

    async def require(self, request: Request, scope: str) -> Caller:
        """For routes that no rule opens: superusers, and API keys with this scope."""
        caller = await self.caller(request)
        if not caller.may(scope):
            raise refusal(caller)
        return caller

    async def enabled(self) -> StoredSettings:
        """The settings; refused if the API is switched off."""
        settings = await self._site.settings()
        if not settings.http_enabled:
            raise ApiError(403, "http_disabled", "The jobs API is switched off in the settings (http_enabled).")
        return settings

    async def check_query(self, request: Request) -> None:
        """Refuse parameters that neither the route nor a rule uses."""
        if request.scope["query_string"]:
            settings = await self._site.settings()
            texts = (settings.enqueue_rule, settings.manage_rule)
            check_query(request, {name for text in texts if (rule := parsed(text)) for name in rule.query_names})

    async def enqueue(self, request: Request) -> Permit:
        """Refuses immediately if the caller could not enqueue any job."""
        asked_at = datetime.now(UTC)
        caller = await self.caller(request)
        settings = await self.enabled()
        permit = Permit(caller, () if caller.is_superuser else settings.allowed_topics, asked_at)
        if not caller.may("enqueue") and settings.enqueue_rule != PUBLIC:
            conditions = await self._enqueued(request, caller, settings.enqueue_rule, asked_at)
            permit = permit._replace(jobs=conditions)
        await self.check_query(request)
        await self._read_unknown(request, caller)
        return permit

    async def remaking(self, request: Request, *scopes: str) -> Remaking:
        """What the caller may make of existing jobs: only what they could also enqueue.

        Superusers and API keys with one of these scopes need no rule.
        """
        caller = await self.caller(request)
        settings = await self.enabled()
        topics = () if caller.is_superuser else settings.allowed_topics
        if any(caller.may(scope) for scope in scopes) or settings.enqueue_rule == PUBLIC:
            return Remaking(caller, topics)
        rule = parsed(settings.enqueue_rule)
        if rule is None:
            raise refusal(caller)
        prepared = rule.prepare(_facts(request, caller, rule.text, datetime.now(UTC)))
        if prepared.hopeless:
            raise refusal(caller)
        return Remaking(caller, topics, prepared)

    async def _read_unknown(self, request: Request, caller: Caller) -> None:
        """A rule lets in callers without an account; what they may send is limited."""
        if caller.kind == "anonymous" and request.method not in READS:
            await json_object(request, STRANGERS)

    async def _enqueued(self, request: Request, caller: Caller, text: str, now: datetime) -> Sequence[Condition]:
        """The conditions for the jobs of this request. Refuses immediately if one of them can't be met."""
        rule = parsed(text)
        if rule is None:
            raise refusal(caller)
        if rule.asks_only_who:
            return (_possible(_of_caller(text, caller), caller),)
        prepared = rule.prepare(_facts(request, caller, text, now))
        if prepared.hopeless:
            raise refusal(caller)
        if not rule.names_body:
            return (_possible(prepared.bind({}), caller),)
        bodies = job_bodies(request, await _body(request, caller))
        if is_large(request):
            conditions = await asyncio.to_thread(lambda: [prepared.bind(normalised(body, now)) for body in bodies])
        else:
            conditions = [prepared.bind(normalised(body, now)) async for body in in_slices(bodies)]
        return [_possible(condition, caller) for condition in conditions]

    async def manage(self, request: Request, *, strict: bool = True) -> Condition:
        """The condition for the jobs that the caller may see and change. Refuses immediately if no job could match.

        Not `strict`: unknown query parameters are ignored.
        """
        condition = await self._managed(request)
        if strict:
            await self.check_query(request)
        await self._read_unknown(request, await self.caller(request))
        return condition

    async def _managed(self, request: Request) -> Condition:
        caller = await self.caller(request)
        settings = await self.enabled()
        if caller.may("manage") or settings.manage_rule == PUBLIC:
            return rules.always
        rule = parsed(settings.manage_rule)
        if rule is None:
            raise refusal(caller)
        if rule.asks_only_who:
            condition = _of_caller(rule.text, caller)
        else:
            prepared = rule.prepare(_facts(request, caller, rule.text, datetime.now(UTC)))
            if prepared.hopeless:
                if not rule.names_job_fields:
                    raise refusal(caller)
                return rules.never
            body = {**await _body(request, caller), **flags_of(request)} if rule.names_body else {}
            condition = await _bind(request, prepared, body)
        if condition == rules.never and not rule.names_job_fields:
            raise refusal(caller)
        return condition

    async def manageable(self, request: Request) -> Condition:
        """The condition for the jobs that the caller may see and change; never, instead of a refusal."""
        try:
            return await self._managed(request)
        except ApiError:
            return rules.never

    async def may_answer(self, request: Request, job: Job, rule_text: str) -> bool:
        """Whether the caller may answer a step of this job under the step's own rule."""
        caller = await self.caller(request)
        await self.enabled()
        if caller.may("manage") or rule_text == PUBLIC:
            return True
        rule = parsed(rule_text)
        if rule is None:
            return False
        prepared = rule.prepare(_facts(request, caller, rule.text, datetime.now(UTC)))
        if prepared.hopeless:
            return False
        body = await _body(request, caller) if rule.names_body else {}
        return rules.matches(await _bind(request, prepared, body), job.as_json())


@lru_cache(maxsize=64)
def parsed(text: str) -> Rule | None:
    """None for the two values that are not expressions: `""` (superusers only) and `"true"` (everyone)."""
    return None if text in ("", PUBLIC) else parse_rule(text)


@lru_cache(maxsize=512)
def _of_caller(text: str, caller: Caller) -> Condition:
    return parse_rule(text).bind(RequestFacts(auth=caller.record))


def of_job(condition: Condition, job: Job) -> Job:
    """The job, or 404 if the caller may not see it."""
    if condition != rules.always and not rules.matches(condition, job.as_json()):
        raise not_found()
    return job


async def _bind(request: Request, rule: PreparedRule, body: Mapping[str, Any]) -> Condition:
    """A large body is searched in a thread."""
    if is_large(request):
        return await asyncio.to_thread(rule.bind, normalised(body))
    return rule.bind(normalised(body))


def _possible(condition: Condition, caller: Caller) -> Condition:
    if condition == rules.never:
        raise refusal(caller)
    return condition


def refusal(caller: Caller) -> ApiError:
    if caller.kind == "anonymous":
        return ApiError(401, "unauthorized", "The request requires valid record authorization token.")
    return ApiError(403, "forbidden", "The authorized record is not allowed to perform this action.")


def bearer(request: Request) -> str | None:
    """`Authorization: TOKEN` or `Bearer TOKEN`; None without the header."""
    header = header_of(request, b"authorization")
    if not header:
        return None
    scheme, blank, rest = header.partition(" ")
    return rest if blank and scheme.lower() == "bearer" else header


def _facts(request: Request, caller: Caller, text: str, now: datetime) -> RequestFacts:
    """The parts of the request that the rule can refer to, except the body."""
    return RequestFacts(
        method=request.method,
        context="default",
        headers=_headers(request) if "headers" in text else {},
        query=_query(request) if "query" in text else {},
        auth=caller.record,
        now=now,
    )


async def _body(request: Request, caller: Caller) -> dict[str, Any]:
    """The body for a rule; `{}` if it can't be read, since the route reports that error later."""
    if request.method in READS:
        return {}
    try:
        return await json_object(request, ANYBODY if caller.kind == "anonymous" else SIGNED_IN)
    except (ApiError, TreadleError):
        return {}


def job_bodies(request: Request, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The requested jobs in the format of `enqueue`, for each of the three enqueue routes."""
    if "topic" in request.path_params:
        rest = {name: value for name, value in body.items() if name != "args"}
        payload = {"payload": body["args"]} if "args" in body else {}
        return [{**rest, **payload, "topic": request.path_params["topic"]}]
    if request.scope["route"].name == "enqueue_many":
        jobs = body.get("jobs")
        return [job if isinstance(job, dict) else {} for job in jobs] if isinstance(jobs, list) and jobs else [{}]
    return [body]


def normalised(body: Mapping[str, Any], asked_at: datetime | None = None) -> dict[str, Any]:
    """Fill in both spellings of an option, so that a client can't get around a rule by using the other one.

    A null counts as missing, as it does for the routes.
    """
    found = dict(body)
    for name, other in (("maxRetries", "maxAttempts"), ("maxAttempts", "maxRetries")):
        if body.get(name) is None and body.get(other) is not None:
            found[name] = body[other]
    if asked_at and body.get("delay") is not None and body.get("runAt") is None:
        with contextlib.suppress(InvalidInput, OverflowError):
            found["runAt"] = rfc3339(asked_at + timedelta(milliseconds=duration_ms(body["delay"], "delay")))
    return found


def _headers(request: Request) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        # A name that already has an underscore could pass for one with a dash.
        if name != "host" and "_" not in name:
            headers.setdefault(name.replace("-", "_"), value.strip())
    return headers


def _query(request: Request) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        query.setdefault(name, value)
    return query
