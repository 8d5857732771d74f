"""Jobs: enqueue and read."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from treadle.accounts import Caller
from treadle.http import candidates
from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.access import Permit, of_job
from treadle.http.bodies import body_of, is_large, read_body
from treadle.http.errors import ApiError, bad_field, not_found
from treadle.http.fast_routes import direct
from treadle.http.instants import optional_instant, since_instant
from treadle.http.openapi import spec
from treadle.http.server import Enqueuing, Managed, Server, ServerDep, answer, the_server
from treadle.http.tracking import reading
from treadle.insights import lists, timeline
from treadle.insights.lists import COUNT_CAP
from treadle.insights.stats import stats_of
from treadle.insights.why import why as why_of
from treadle.model.errors import Refused
from treadle.model.job import Job, checked_topic
from treadle.model.other_names import STALE, STATUS_WORDS
from treadle.policy import rules
from treadle.policy.admission import REPLACE
from treadle.policy.rules import Condition
from treadle.queue.enqueueing.new_jobs import JobRequest
from treadle.queue.on_behalf import on_behalf_of
from treadle.queue.slices import in_slices

router = APIRouter(tags=["jobs"])

PER_PAGE = 30
StatusName = Annotated[
    str,
    Query(max_length=60, description="aliases are accepted, see docs/words.md"),
    WithJsonSchema({"type": "string", "enum": [*STATUS_WORDS, STALE]}),
]
JobId = Annotated[str, Path(description="the job's id")]

# -- enqueue -------------------------------------------------------------------------------------

REFUSALS = (409, 422)


@direct(router, "POST", "/api/jobs/enqueue", **spec(doc.EnqueuedAnswer, body=req.EnqueueBody, errors=REFUSALS))
async def enqueue(request: Request) -> Response:
    """Store a job."""
    here = await the_server(request)
    permit = await here.access.enqueue(request)
    body = await read_body(request, req.EnqueueBody)
    return answer((await _enqueued(request, here, permit, [body]))[0])


@router.post("/api/jobs/enqueue-many", **spec(doc.EnqueuedList, body=req.EnqueueManyBody, errors=REFUSALS))
async def enqueue_many(
    request: Request,
    here: ServerDep,
    permit: Enqueuing,
    body: Annotated[req.EnqueueManyBody, Depends(body_of(req.EnqueueManyBody))],
) -> Response:
    """Store many jobs, all or none."""
    return answer({"items": await _enqueued(request, here, permit, body.jobs)})


@router.post("/api/jobs/{topic}/dispatch", **spec(doc.EnqueuedAnswer, body=req.DispatchBody, errors=REFUSALS))
@router.post("/_api/jobs/{topic}/dispatch", include_in_schema=False)
async def dispatch(
    request: Request,
    here: ServerDep,
    topic: req.TopicName,
    permit: Enqueuing,
    body: Annotated[req.DispatchBody, Depends(body_of(req.DispatchBody))],
) -> Response:
    """Store a job of this topic; `args` is its payload."""
    options = body.model_dump(exclude={"args"}, exclude_unset=True)
    wanted = req.EnqueueBody.model_construct(topic=checked_topic(topic), payload=body.args, **options)
    return answer((await _enqueued(request, here, permit, [wanted]))[0])


async def _enqueued(
    request: Request, here: Server, permit: Permit, bodies: Sequence[req.EnqueueBody]
) -> list[dict[str, Any]]:
    made_by = _made_by(permit.caller)
    options = [_options(body) async for body in in_slices(bodies)]
    if any("webhook_url" in chosen for chosen in options):
        await _admit_urls(here, permit.caller)
    if permit.restricted:
        await _admit(request, here, permit, bodies, options)
    with on_behalf_of(await replaceable(request, here, {body.topic for body in bodies})):
        async with no_foreign_ids(request, here):
            jobs = await _stored(here, bodies, options, made_by)
    return [await _shown(request, here, job, body) async for job, body in in_slices(zip(jobs, bodies, strict=True))]


async def _stored(
    here: Server,
    bodies: Sequence[req.EnqueueBody],
    options: Sequence[Mapping[str, Any]],
    made_by: Mapping[str, Any],
) -> Sequence[Job]:
    if len(bodies) == 1:
        return [await here.queue.enqueue(bodies[0].topic, bodies[0].payload, **made_by, **options[0])]
    wanted = in_slices(zip(bodies, options, strict=True))
    return await here.queue.enqueue_many(
        [JobRequest(body.topic, body.payload, {**chosen, **made_by}) async for body, chosen in wanted]
    )


async def _admit(
    request: Request,
    here: Server,
    permit: Permit,
    bodies: Sequence[req.EnqueueBody],
    options: Sequence[Mapping[str, Any]],
) -> None:
    templates = {topic: await here.queue.template(topic) for topic in {body.topic for body in bodies}}
    by = permit.caller.account_id

    def admit(place: int) -> None:
        body = bodies[place]
        permit.admit(place, candidates.new(body, options[place], templates[body.topic], permit.asked_at, by))

    if is_large(request):
        await asyncio.to_thread(lambda: collections.deque(map(admit, range(len(bodies))), maxlen=0))
    else:
        async for place in in_slices(range(len(bodies))):
            admit(place)


async def _admit_urls(here: Server, caller: Caller) -> None:
    """A URL makes this server send requests, so users name one only if the settings say so."""
    if caller.kind not in ("superuser", "api_key") and not (await here.site.settings()).job_urls:
        message = "webhookUrl: only superusers and API keys may name one (webhooks.job_urls in the settings)."
        raise ApiError(403, "forbidden", message, {"webhookUrl": {"code": "forbidden", "message": message}})


def _made_by(caller: Caller) -> dict[str, Any]:
    """Users have separate idempotency keys; anonymous callers share theirs, and so do API keys and superusers."""
    owner = {"user": caller.account_id, "anonymous": ""}.get(caller.kind)
    return {"created_by": caller.account_id, "key_owner": owner}


async def _shown(request: Request, here: Server, job: Job, body: req.JobOptions) -> dict[str, Any]:
    """Of an existing job that stands for the new one, only what the caller may know."""
    found = {**job.as_json(), "deduplicated": job.deduplicated}
    if body.track:
        found["trackToken"] = job.track_token
    if not job.deduplicated or await _may_see(request, here, job):
        return found
    if body.idempotencyKey is not None and body.idempotencyKey == job.idempotency_key:
        return found | _PRIVATE  # a client that asks again with its key
    return dict.fromkeys(found) | {"deduplicated": True}


async def _may_see(request: Request, here: Server, job: Job) -> bool:
    by = (await here.access.caller(request)).account_id
    if by is not None and job.created_by == by:
        return True
    return rules.matches(await here.access.manageable(request), job.as_json())


@contextlib.asynccontextmanager
async def no_foreign_ids(request: Request, here: Server) -> AsyncIterator[None]:
    """A refusal because of another job names it only to callers who may see it."""
    try:
        yield
    except Refused as error:
        id = error.data.get("jobId")
        (job,) = await here.jobs([id]) if id else (None,)
        if id is None or (job is not None and await _may_see(request, here, job)):
            raise
        told = {name: value for name, value in error.data.items() if name != "jobId"}
        raise type(error)(error.message.replace(f"job {id}", "another job"), **told) from None


async def replaceable(request: Request, here: Server, topics: Iterable[str]) -> Condition:
    """The live jobs that new ones of these topics may replace: those that the caller may manage."""
    for topic in topics:
        limit = (await here.queue.template(topic)).concurrency
        if limit and limit.policy == REPLACE:
            return await here.access.manageable(request)
    return rules.always


def _options(body: req.JobOptions) -> dict[str, Any]:
    """The given options, with the names that `enqueue` uses."""
    given = body.model_fields_set
    if given <= _NO_OPTIONS:
        return {}
    options = {option: getattr(body, name) for name, option in _OPTIONS.items() if name in given}
    for name in ("runAt", "expiresAt"):
        if name in given:
            options[_OPTIONS[name]] = optional_instant(getattr(body, name), name)
    return options


_NO_OPTIONS = frozenset(("topic", "payload", "args"))
_OPTIONS = {
    "runAt": "run_at",
    "delay": "delay",
    "expiresAt": "expires_at",
    "maxRetries": "max_retries",
    "maxAttempts": "max_attempts",
    "priority": "priority",
    "capability": "capability",
    "idempotencyKey": "idempotency_key",
    "scope": "scope",
    "scopeId": "scope_id",
    "track": "track",
    "webhookUrl": "webhook_url",
}


_PRIVATE: dict[str, Any] = {
    "payload": {},
    **dict.fromkeys("result lastError errorType progressMessage cancelReason createdBy lockedBy".split()),
}

# -- look ----------------------------------------------------------------------------------------


@router.get("/api/jobs", **spec(doc.JobPage))
async def list_jobs(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    topic: Annotated[req.TopicName | None, Query()] = None,
    status: StatusName | None = None,
    scope: Annotated[req.ShortText | None, Query()] = None,
    scopeId: Annotated[req.ShortText | None, Query()] = None,
    parentId: Annotated[req.ShortText | None, Query(description="only the children of this job")] = None,
    q: Annotated[str, Query(max_length=500, description="words, and qualifiers such as topic:mail status:failed")] = "",
    filter: Annotated[str, Query(max_length=3500, description="an expression over the job's fields")] = "",
    sort: Annotated[
        str,
        Query(max_length=200, description="field names, separated by commas; a leading - sorts in descending order"),
    ] = "",
    limit: Annotated[int | None, Query(description="1 to 1,000; default: 30")] = None,
    offset: int | None = None,
    page: int | None = None,
    perPage: Annotated[int | None, Query(description="instead of limit, with page")] = None,
    skipTotal: Annotated[bool, Query(description="skip counting; totalItems is then -1")] = False,
) -> Response:
    """Jobs, newest first."""
    condition = rules.both(allowed, _wanted(filter, q))
    size, start = _window(limit, offset, page, perPage)
    listing = lists.listing(topic, status, scope, scopeId, size, start, condition, rules.parse_sort(sort), parentId)
    async with here.searching(request):
        found = await lists.page(here.queue.store, listing, counted=not skipTotal)
    shown = -1 if found.total is None else min(found.total, COUNT_CAP)
    return answer(
        {
            "items": [job.as_json() for job in found.jobs],
            "totalItems": shown,
            "totalCapped": (found.total or 0) > COUNT_CAP,
            "searched": found.searched,
            "limit": listing.limit,
            "offset": listing.offset,
            "page": listing.offset // listing.limit + 1,
            "perPage": listing.limit,
            "totalPages": -1 if skipTotal else -(-shown // listing.limit),
        }
    )


def _wanted(filter: str, q: str) -> Condition:
    try:
        condition = rules.parse_filter(filter) if filter else rules.always
        return rules.both(condition, rules.parse_search(q)) if q.strip() else condition
    except rules.InvalidRule as error:
        raise ApiError(
            400, "invalid_filter", error.message, {"filter": {"code": "invalid_filter", "message": error.message}}
        ) from None


def _window(limit: int | None, offset: int | None, page: int | None, per_page: int | None) -> tuple[int, int]:
    """Limit and offset; values out of range are clamped."""
    by_page = [name for name, value in (("page", page), ("perPage", per_page)) if value is not None]
    by_limit = [name for name, value in (("limit", limit), ("offset", offset)) if value is not None]
    if by_page and by_limit:
        raise bad_field(by_limit[0], f"give limit and offset, or page and perPage; {by_page[0]} is given too")
    if page is None and per_page is None:
        size = _clamped(PER_PAGE if limit is None else limit, 1, lists.MAX_LIMIT)
        return size, _clamped(offset or 0, 0, lists.MAX_OFFSET)
    size = _clamped(per_page if per_page and per_page > 0 else PER_PAGE, 1, lists.MAX_LIMIT)
    return size, _clamped(((page or 1) - 1) * size, 0, lists.MAX_OFFSET // size * size)


def _clamped(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)


@router.get("/api/jobs/stats", **spec(doc.StatsDocument))
async def stats(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    topic: Annotated[req.TopicName | None, Query()] = None,
    since: Annotated[str | None, Query(max_length=64, description='a time, or an age such as "1h"')] = None,
) -> Response:
    """Job counts by status, success rate and average run time."""
    start = None if since is None else since_instant(since)
    if allowed == rules.always:
        found = await here.queue.stats(topic=topic, since=start)
    else:
        async with here.searching(request):
            found = await stats_of(here.queue.store, allowed, topic, start)
    return answer(found.as_json())


@direct(router, "GET", "/api/jobs/{id}", **spec(doc.JobDocument, errors=(404,)))
async def get_job(request: Request, id: JobId) -> Response:
    """One job with all its fields."""
    here = await the_server(request)
    allowed = await reading(request, here, id)
    return answer((await visible(here, allowed, id)).as_json())


@router.get("/api/jobs/{id}/events", **spec(doc.EventList, errors=(404,)))
async def events(
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """The job's timeline, oldest first. A payload or result that a requeue replaced comes along up to 16 KiB."""
    await visible(here, allowed, id)
    told = await here.queue.events(id)
    items = [timeline.event_as_json(event) for event in told[offset : offset + limit]]
    return answer({"items": items, "totalItems": len(told), "limit": limit, "offset": offset})


@router.get("/api/jobs/{id}/steps/{step}", **spec(doc.StepPageDocument, errors=(404,)))
@router.get("/api/jobs/{id}/steps/{step}/{nested:path}", include_in_schema=False)
async def steps(
    request: Request,
    here: ServerDep,
    allowed: Managed,
    id: JobId,
    step: Annotated[str, Path(description="the step's id")],
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """The runs of one step with their whole results, in the order in which they began."""
    await visible(here, allowed, id)
    nested = request.path_params.get("nested")
    name = f"{step}/{nested}" if nested else step
    page = await here.queue.steps(id, name, offset=offset, limit=limit)
    return answer({"items": page.items, "totalItems": page.total, "limit": limit, "offset": offset})


@router.get("/api/jobs/{id}/why", **spec(doc.WhyDocument, errors=(404,)))
async def why(here: ServerDep, allowed: Managed, id: JobId) -> Response:
    """Why the job is not running, in sentences; empty if nothing blocks it."""
    job = await visible(here, allowed, id)
    if allowed == rules.always:
        reasons = await here.queue.why(id)
    else:
        reasons = await why_of(here.queue.store, id, lambda other: rules.matches(allowed, other.as_json()))
    return answer({"id": job.id, "status": job.status, "reasons": reasons})


async def visible(here: Server, allowed: Condition, id: str) -> Job:
    """The job, if the caller may see it."""
    (job,) = await here.jobs([id])
    if job is None:
        raise not_found()
    return of_job(allowed, job)
