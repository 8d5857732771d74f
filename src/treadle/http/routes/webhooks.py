"""Webhooks: endpoints, what was sent to them, and reading by cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic_core import from_json
from starlette.responses import Response

from treadle.http import documents as doc
from treadle.http import request_models as req
from treadle.http.access import bearer
from treadle.http.bodies import body_of
from treadle.http.errors import ApiError, bad_field, not_found
from treadle.http.instants import since_instant
from treadle.http.openapi import spec
from treadle.http.server import KNOWN_QUERY, ServerDep, answer, needs
from treadle.model.webhooks import LARGEST_NUMBER
from treadle.queue.webhooks import KEEP, KEY_PREFIX, WebhookEndpoint, delivery_as_json

router = APIRouter(tags=["webhooks"])
OPERATORS = [needs("webhooks")]
PAGE = 50


@router.get("/api/webhooks", **spec(doc.EndpointList), dependencies=OPERATORS)
async def webhooks(here: ServerDep) -> Response:
    """All endpoints, oldest first."""
    return answer({"items": [one.as_json() for one in await here.queue.webhooks.list()]})


@router.post(
    "/api/webhooks", **spec(doc.NewEndpointDocument, body=req.EndpointBody, errors=(409,)), dependencies=OPERATORS
)
async def create_webhook(
    request: Request, here: ServerDep, body: Annotated[req.EndpointBody, Depends(body_of(req.EndpointBody))]
) -> Response:
    """Make an endpoint; it is told of events from 5 seconds later on. Its secret is shown only in this answer."""
    given = body.model_dump(exclude_unset=True)
    made = await here.queue.webhooks.create(given.pop("url"), **_known(given))
    await here.note(request, "create_webhook", made.id)
    return answer(await _with_hints(here, made))


async def _with_hints(here: ServerDep, one: WebhookEndpoint) -> dict[str, Any]:
    return one.as_json() | {"key": one.key, "hints": list(await here.queue.webhooks.hints(one))}


@router.get("/api/webhooks/{id}", **spec(doc.EndpointDocument, errors=(404,)), dependencies=OPERATORS)
async def webhook(here: ServerDep, id: str) -> Response:
    """One endpoint, without its secret."""
    return answer((await here.queue.webhooks.get(id)).as_json())


@router.patch(
    "/api/webhooks/{id}",
    **spec(doc.EndpointDocument, body=req.EndpointPatch, errors=(404, 409)),
    dependencies=OPERATORS,
)
async def change_webhook(
    request: Request,
    here: ServerDep,
    id: str,
    body: Annotated[req.EndpointPatch, Depends(body_of(req.EndpointPatch))],
) -> Response:
    """Change the given fields. `enabled: true` switches it on again."""
    given = body.model_dump(exclude_unset=True)
    version = given.pop("version", None)
    changed = await here.queue.webhooks.update(id, version=version, **_known(given, "url"))
    switched = "enable_webhook" if given.get("enabled") else "disable_webhook"
    await here.note(request, switched if given.keys() == {"enabled"} else "edit_webhook", id)
    return answer(changed.as_json())


@router.delete("/api/webhooks/{id}", **spec(status=204, errors=(404,)), dependencies=OPERATORS)
async def delete_webhook(request: Request, here: ServerDep, id: str) -> Response:
    """Delete an endpoint. What is still to be delivered to it is given up."""
    await here.queue.webhooks.delete(id)
    await here.note(request, "delete_webhook", id)
    return Response(status_code=204)


@router.post(
    "/api/webhooks/{id}/rotate",
    **spec(doc.NewEndpointDocument, body=req.RotateBody, errors=(404,)),
    dependencies=OPERATORS,
)
async def rotate_webhook(
    request: Request, here: ServerDep, id: str, body: Annotated[req.RotateBody, Depends(body_of(req.RotateBody))]
) -> Response:
    """Make a new secret, shown only in this answer. Both sign until the old one ends, after `keep`."""
    rotated = await here.queue.webhooks.rotate(id, keep=KEEP if body.keep is None else body.keep)
    await here.note(request, "rotate_webhook", id)
    return answer(await _with_hints(here, rotated))


@router.post(
    "/api/webhooks/{id}/test", **spec(doc.DeliveryDocument, body=req.NoBody, errors=(404,)), dependencies=OPERATORS
)
async def test_webhook(
    request: Request, here: ServerDep, id: str, body: Annotated[req.NoBody, Depends(body_of(req.NoBody))]
) -> Response:
    """Send a test event once and wait up to 5 seconds for what comes of it. It reaches a disabled endpoint too."""
    await here.note(request, "test_webhook", id)
    return answer(delivery_as_json(await here.queue.webhooks.test(id)))


@router.get("/api/webhooks/{id}/deliveries", **spec(doc.DeliveryList, errors=(404,)), dependencies=OPERATORS)
async def webhook_deliveries(
    here: ServerDep,
    id: str,
    status: Annotated[str | None, Query(description="pending, delivered or failed", max_length=20)] = None,
    after: Annotated[str | None, Query(description="the `next` of the page before", max_length=20)] = None,
    limit: Annotated[int | None, Query(description="1 to 500; default: 50")] = None,
) -> Response:
    """What was or is to be sent to it, newest first, with each attempt."""
    await here.queue.webhooks.get(id)
    top = PAGE if limit is None else max(1, min(limit, 500))
    before = None if after is None else _number(after, "after")
    found = await here.queue.webhooks.deliveries(id, status=status, after=before, limit=top)
    last = str(found[-1].id) if len(found) == top else None
    return answer({"items": [delivery_as_json(one) for one in found], "next": last})


@router.post(
    "/api/webhooks/{id}/deliveries/{delivery}/redeliver",
    **spec(doc.DeliveryDocument, body=req.NoBody, errors=(404,)),
    dependencies=OPERATORS,
)
async def redeliver(
    request: Request,
    here: ServerDep,
    id: str,
    delivery: str,
    body: Annotated[req.NoBody, Depends(body_of(req.NoBody))],
) -> Response:
    """Send one again, with the same webhook-id."""
    if not _is_number(delivery):
        raise not_found()
    sent = await here.queue.webhooks.redeliver(id, int(delivery))
    await here.note(request, "redeliver", id, reason=f"delivery {delivery}")
    return answer(delivery_as_json(sent))


@router.post(
    "/api/webhooks/{id}/redeliver",
    **spec(doc.RedeliveredDocument, body=req.RedeliverSinceBody, errors=(404,)),
    dependencies=OPERATORS,
)
async def redeliver_since(
    request: Request,
    here: ServerDep,
    id: str,
    body: Annotated[req.RedeliverSinceBody, Depends(body_of(req.RedeliverSinceBody))],
) -> Response:
    """Send all events since a time again, or only those that were not delivered."""
    since = since_instant(body.since)
    count = await here.queue.webhooks.redeliver_since(id, since, only_undelivered=body.undelivered)
    await here.note(request, "redeliver_since", id, reason=f"{count} since {body.since}")
    return answer({"redelivered": count})


@router.get("/api/webhooks/{id}/events", **spec(doc.PolledEventList, errors=(404,)), dependencies=[KNOWN_QUERY])
async def webhook_events(
    request: Request,
    here: ServerDep,
    id: str,
    after: Annotated[int, Query(description="the last `next`; acknowledges everything up to it")] = 0,
    limit: Annotated[int | None, Query(description="1 to 500; default: 100")] = None,
) -> Response:
    """The events of an endpoint without a URL, for a receiver that can't be reached. The endpoint's key is enough."""
    key = bearer(request)
    if key is None or not key.startswith(KEY_PREFIX):
        await here.access.require(request, "webhooks")
    elif not await here.queue.webhooks.has_key(id, key):
        raise ApiError(401, "invalid_token", "The key is not that of an enabled endpoint that reads its events.")
    if not 0 <= after < LARGEST_NUMBER:
        raise bad_field("after", "is no number of an event")
    found = await here.queue.webhooks.poll(id, after, 100 if limit is None else limit)
    items = [{"id": one.webhook_id, **from_json(one.body)} for one in found]
    return answer({"items": items, "next": found[-1].number if found else after})


def _known(given: Mapping[str, Any], *removable: str) -> dict[str, Any]:
    """Null leaves most fields as they are; events and topics get their default."""
    defaults = ("events", "topics", *removable)
    return {name: value for name, value in given.items() if value is not None or name in defaults}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _number(text: str, field: str) -> int:
    if not _is_number(text):
        raise bad_field(field, "is not the `next` of a page")
    return int(text)
