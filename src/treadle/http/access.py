"""Who asks, and whether they may: tokens, cookies, rules, scopes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from treadle import rules
from treadle.accounts import Accounts, Caller
from treadle.errors import TreadleError
from treadle.http.bodies import header_of, json_object
from treadle.http.errors import ApiError, not_found
from treadle.job import Job
from treadle.rules import Condition, RequestFacts, Rule, parse_rule
from treadle.site import Site, SiteSettings

COOKIE = "treadle_auth"
# Where a request's caller is kept once they are known.
CALLER = "treadle.caller"
PUBLIC = "true"
"""Everybody, without signing in: our own word, which the rule language does not have."""
READS = frozenset(("GET", "HEAD", "OPTIONS"))


class Permit(NamedTuple):
    """What somebody may enqueue."""

    caller: Caller
    jobs: Condition
    topics: Sequence[str]
    """Without one: of every topic."""
    asked_at: datetime
    """Not after the rule's `@now`, so that a job that is due at once is due for the rule too."""

    @property
    def restricted(self) -> bool:
        return self.jobs != rules.always or bool(self.topics)

    def admit(self, job: Mapping[str, Any]) -> None:
        """This job, or it is refused."""
        if not rules.matches(self.jobs, job):
            raise refusal(self.caller)
        if self.topics and job["topic"] not in self.topics:
            message = f"Jobs of topic {job['topic']} can't be enqueued over HTTP (allowed_topics)."
            raise ApiError(403, "topic_not_allowed", message)


class Access:
    def __init__(self, accounts: Accounts, site: Site) -> None:
        self._accounts = accounts
        self._site = site

    # -- who asks ----------------------------------------------------------------------------------

    async def caller(self, request: Request, *, anew: bool = False) -> Caller:
        """Who the request's token or cookie says it is. One that is there but bad is refused, whatever was asked.

        `anew`: ask again; a stream lives longer than some tokens.
        """
        known: Caller | None = request.scope.get(CALLER)
        if known is None or anew:
            known = request.scope[CALLER] = await self._check(request)
        return known

    async def _check(self, request: Request) -> Caller:
        token = _bearer(request)
        if token is None and (token := request.cookies.get(COOKIE)):
            require_same_origin(request)
        if token is None:
            return Caller.anonymous
        caller = await self._accounts.caller(token)
        if caller is None:
            raise ApiError(401, "invalid_token", "The token is not valid, or no longer; sign in again.")
        return caller

    # -- may they ----------------------------------------------------------------------------------

    async def require(self, request: Request, scope: str) -> Caller:
        """For what no rule opens: superusers, and API keys with this scope."""
        caller = await self.caller(request)
        if not caller.may(scope):
            raise refusal(caller)
        return caller

    async def enabled(self) -> SiteSettings:
        """The settings, unless the API is switched off."""
        settings = await self._site.settings()
        if not settings.http_enabled:
            raise ApiError(403, "http_disabled", "The jobs API is switched off in the settings (http_enabled).")
        return settings

    async def enqueue(self, request: Request) -> Permit:
        """Refused outright where no job could be enqueued."""
        asked_at = datetime.now(UTC)
        caller = await self.caller(request)
        settings = await self.enabled()
        topics = () if caller.is_superuser else settings.allowed_topics
        if caller.may("enqueue"):
            return Permit(caller, rules.always, topics, asked_at)
        condition = await self._condition(settings.enqueue_rule, request, caller)
        if condition is None or condition == rules.never:
            raise refusal(caller)
        return Permit(caller, condition, topics, asked_at)

    async def manage(self, request: Request) -> Condition:
        """Which jobs the caller may see and steer. Refused outright where no job could be among them."""
        caller = await self.caller(request)
        settings = await self.enabled()
        if caller.may("manage"):
            return rules.always
        condition = await self._condition(settings.manage_rule, request, caller)
        rule = parsed(settings.manage_rule)
        if condition is None or (condition == rules.never and not (rule and rule.names_job_fields)):
            raise refusal(caller)
        return condition

    async def _condition(self, text: str, request: Request, caller: Caller) -> Condition | None:
        """The rule for this request, everything but the job filled in; None: superusers only."""
        if text == PUBLIC:
            return rules.always
        rule = parsed(text)
        if rule is None:
            return None
        return _of_caller(rule.text, caller) if rule.asks_only_who else rule.bind(await _facts(request, caller, text))


@lru_cache(maxsize=64)
def parsed(text: str) -> Rule | None:
    """None for the two that are no expressions: `""`, superusers only, and `"true"`, everybody."""
    return None if text in ("", PUBLIC) else parse_rule(text)


@lru_cache(maxsize=512)
def _of_caller(text: str, caller: Caller) -> Condition:
    return parse_rule(text).bind(RequestFacts(auth=caller.record))


def of_job(condition: Condition, job: Job) -> Job:
    """The job, unless it is somebody else's."""
    if condition != rules.always and not rules.matches(condition, job.as_json()):
        raise not_found()
    return job


def refusal(caller: Caller) -> ApiError:
    if caller.kind == "anonymous":
        return ApiError(401, "unauthorized", "The request requires valid record authorization token.")
    return ApiError(403, "forbidden", "The authorized record is not allowed to perform this action.")


def require_same_origin(request: Request) -> None:
    """A browser sends the cookie along whoever's page asks: only our own pages may."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = urlsplit(origin).netloc != request.headers.get("host") if origin else site in ("cross-site", "same-site")
    if foreign and (request.method not in READS or origin):
        raise ApiError(403, "cross_origin", "A page of another origin can't use this session; send a token.")


def _bearer(request: Request) -> str | None:
    """`Authorization: TOKEN` or `Bearer TOKEN`; None without the header."""
    header = header_of(request, b"authorization")
    if not header:
        return None
    scheme, blank, rest = header.partition(" ")
    return rest if blank and scheme.lower() == "bearer" else header


async def _facts(request: Request, caller: Caller, text: str) -> RequestFacts:
    """As much of them as the rule can name."""
    body: dict[str, Any] = {}
    if request.method not in READS:
        with contextlib.suppress(ApiError, TreadleError):  # who reads the body next will say what is wrong with it
            body = await json_object(request)
    return RequestFacts(
        method=request.method,
        context="default",
        headers=_headers(request) if "headers" in text else {},
        query=_query(request) if "query" in text else {},
        body=body,
        auth=caller.record,
        now=datetime.now(UTC),
    )


def _headers(request: Request) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        # A name with an underscore of its own could pass for one with a dash.
        if name != "host" and "_" not in name:
            headers.setdefault(name.replace("-", "_"), value.strip())
    return headers


def _query(request: Request) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        query.setdefault(name, value)
    return query
