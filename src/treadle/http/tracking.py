"""Who may read one job: callers under the manage rule, and whoever has the track token of that job."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query
from starlette.requests import Request

from treadle.accounts import Caller
from treadle.http.access import CALLER, bearer
from treadle.http.errors import ApiError, bad_field, not_found
from treadle.http.server import Server, ServerDep
from treadle.model import tracking
from treadle.policy import rules
from treadle.policy.rules import Condition

TrackToken = Annotated[
    str | None, Query(max_length=100, description="a track token, for clients that can't send the header Authorization")
]


async def reading(request: Request, here: Server, *ids: str, anew: bool = False) -> Condition:
    """Which jobs the caller may read; refused if there can't be any. `anew` checks again, for streams.

    A track token opens its own job. Any other job is the 404 of an unknown one.
    """
    token = _token(request)
    if token is None:
        if anew:
            await here.access.caller(request, anew=True)
        return await here.access.manage(request)
    request.scope[CALLER] = Caller.anonymous
    if not tracking.is_token(token):
        raise ApiError(401, "invalid_token", "The track token is invalid.")
    await here.access.enabled()
    await here.access.check_query(request)
    if len(set(ids)) != 1:
        raise bad_field("track", "a track token is for one job; name it with id")
    (job,) = await here.jobs(ids[:1])
    if job is None or not tracking.opens(token, job.track_hash):
        raise not_found()
    return rules.always


async def _reading_one(
    request: Request, here: ServerDep, id: Annotated[str, Path(description="the job's id")]
) -> Condition:
    return await reading(request, here, id)


async def _following_one(
    request: Request,
    here: ServerDep,
    id: Annotated[str, Path(description="the job's id")],
    track: TrackToken = None,
) -> Condition:
    return await reading(request, here, id)


# In the place of `Managed`, in routes that read the job of their path.
Readable = Annotated[Condition, Depends(_reading_one)]
Followed = Annotated[Condition, Depends(_following_one)]


def _token(request: Request) -> str | None:
    """The track token; a token of any other kind counts by itself."""
    sent = bearer(request)
    if sent is None:
        return request.query_params.get("track")
    return sent if sent.startswith(tracking.PREFIX) else None
