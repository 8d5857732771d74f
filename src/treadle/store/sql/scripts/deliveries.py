"""Sending deliveries: whose turn it is, what came of a try, sending again, and reading by cursor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from treadle.model import events
from treadle.model.webhooks import (
    CLOSED,
    TEST,
    Circuit,
    ClaimedDelivery,
    Delivered,
    DeliveryClaim,
    DeliveryStatus,
    DisableEndpoint,
    Endpoint,
    EndpointEvent,
    EndpointState,
    GaveUp,
    NewDelivery,
    PolledEvent,
    SettledDelivery,
    TryAgain,
)
from treadle.policy.delivery import host_of
from treadle.policy.delivery_tries import circuit_after, enables, endpoint_after, host_works, may_send, with_event
from treadle.policy.saved_endpoint import (
    CIRCUIT_KIND,
    KIND,
    READER_KIND,
    STATE_KIND,
    body_of,
    circuit_body,
    circuit_from,
    endpoint_from,
    state_body,
    state_from,
)
from treadle.store.sql.scripts.common import Script, event_row, numbers
from treadle.store.sql.scripts.outbox import READ, add_deliveries, endpoints, new_webhook_id, outbox_row
from treadle.store.values import Record

TESTED = "!"
"""Begins the receiver of a test, which an endpoint gets even while it is disabled."""
MOST_TRIES = 50
"""That are kept of a delivery, the newest."""
MOST_HOSTS = 10_000


class Receiver(NamedTuple):
    """Someone with deliveries in the outbox."""

    name: str
    due_in_ms: int | None
    """None: it reads them itself."""
    held: int
    host: str | None = None
    """None: it is gone or disabled, or reads them itself."""

    @property
    def is_due(self) -> bool:
        return self.due_in_ms is not None and self.due_in_ms <= 0


class _Turn(NamedTuple):
    """A delivery that was taken from the outbox."""

    token: int
    tried: int
    host: str


# -- claiming --------------------------------------------------------------------------------------


def claim_deliveries(holder: str, lease_ms: int, limit: int, per_host: int) -> Script[DeliveryClaim]:
    now: int = (yield "clock", [])[0][0]
    found = [Receiver(*row) for row in (yield "receivers", [])]
    if not any(one.is_due or one.due_in_ms is None for one in found):
        return DeliveryClaim([], _next(found, {}, now), now)
    known: dict[str, Endpoint] = yield from endpoints()
    receivers = [one._replace(host=_host(one.name, known)) for one in found if one.due_in_ms is not None]
    gone = [one.name for one in receivers if one.host is None]
    yield from _give_up([*gone, *(one.name for one in found if one.due_in_ms is None and not _reads(one.name, known))])
    circuits = yield from _circuits()
    turns = yield from _take(receivers, _room(receivers, circuits, now, per_host), holder, lease_ms, limit)
    taken = yield from _claimed(turns, known, circuits, now)
    return DeliveryClaim(taken, _next(receivers, circuits, now), now)


def _host(receiver: str, known: Mapping[str, Endpoint]) -> str | None:
    if receiver.startswith("@"):
        return receiver[1:]
    endpoint = known.get(receiver.removeprefix(TESTED))
    if endpoint is None or endpoint.url is None or not (endpoint.enabled or receiver.startswith(TESTED)):
        return None
    return host_of(endpoint.url)


def _reads(receiver: str, known: Mapping[str, Endpoint]) -> bool:
    endpoint = known.get(receiver.removeprefix(READ))
    return endpoint is not None and endpoint.enabled and endpoint.url is None


def _give_up(receivers: Sequence[str]) -> Script[None]:
    """Its endpoint is gone or disabled: everything can be sent again later."""
    if receivers:
        gone = yield "take_undeliverable", [{"receiver": one} for one in receivers]
        if gone:
            yield "give_up_deliveries", [{"id": id} for id, _ in sorted(gone)]


def _circuits() -> Script[dict[str, Circuit]]:
    rows = yield "oldest_records", [{"kind": CIRCUIT_KIND, "top": MOST_HOSTS}]
    return {one.id: circuit_from(one.body) for one in [Record(*row) for row in rows]}


def _room(receivers: Sequence[Receiver], circuits: Mapping[str, Circuit], now: int, per_host: int) -> dict[str, int]:
    """How many more each host may get."""
    room = {
        host: may_send(circuits.get(host, CLOSED), now, per_host) for host in {one.host for one in receivers} if host
    }
    for one in receivers:
        if one.host:
            room[one.host] -= one.held
    return room


def _take(
    receivers: Sequence[Receiver], room: dict[str, int], holder: str, lease_ms: int, limit: int
) -> Script[dict[int, _Turn]]:
    """The longest due first."""
    turns: dict[int, _Turn] = {}
    for one in receivers:
        top = min(room.get(one.host or "", 0), limit - len(turns))
        if one.host and one.is_due and top > 0:
            rows = yield "take_deliveries", [{"receiver": one.name, "holder": holder, "ms": lease_ms, "top": top}]
            turns |= {id: _Turn(token, tried, one.host) for id, token, tried in rows}
            room[one.host] -= len(rows)
    return turns


def _claimed(
    turns: Mapping[int, _Turn], known: Mapping[str, Endpoint], circuits: Mapping[str, Circuit], now: int
) -> Script[list[ClaimedDelivery]]:
    rows = (yield "deliveries_to_send", [{"id": id} for id in sorted(turns)]) if turns else []
    states = yield from _states({row[2] for row in rows} & known.keys())
    found: list[ClaimedDelivery] = []
    for id, webhook_id, name, job_id, topic, event, url, body, created_at in rows:
        turn, endpoint = turns[id], known.get(name)
        found.append(
            ClaimedDelivery(
                id=id,
                token=turn.token,
                webhook_id=webhook_id,
                endpoint=name,
                job_id=job_id,
                topic=topic,
                event=event,
                url=endpoint.url if endpoint and endpoint.url else url,
                host=turn.host,
                body=body,
                attempt=turn.tried + 1,
                created_at=created_at,
                secrets=endpoint.secrets(now) if endpoint else (),
                failing_since_ms=states[name].failing_since_ms if name in states else None,
                probe=circuits.get(turn.host, CLOSED).opened_ms is not None,
            )
        )
    return found


def _states(names: Iterable[str]) -> Script[dict[str, EndpointState]]:
    rows = [{"kind": STATE_KIND, "id": name} for name in sorted(names)]
    records = [Record(*row) for row in ((yield "get_records", rows) if rows else [])]
    return {one.id: state_from(one.body) for one in records}


def _next(receivers: Sequence[Receiver], circuits: Mapping[str, Circuit], now: int) -> int | None:
    """A receiver that was due has got its share, or waits for its host."""
    waits = [one.due_in_ms for one in receivers if one.due_in_ms is not None and not one.is_due]
    for one in receivers:
        if one.host and one.is_due:
            circuit = circuits.get(one.host, CLOSED)
            waits.append(max(circuit.probe_ms - now, 0) if circuit.probe_ms is not None else 0)
    return min(waits, default=None)


# -- what came of tries ----------------------------------------------------------------------------


class _Kept(NamedTuple):
    n: int
    tries: list[Any]


def settle_deliveries(settled: Sequence[SettledDelivery]) -> Script[list[SettledDelivery]]:
    ids = [{"id": id} for id in sorted({one.delivery.id for one in settled})]
    kept = {id: _Kept(n, from_json(tries)) for id, n, tries in (yield "lock_deliveries", ids)}
    held = dict((yield "held_deliveries", ids))
    mine = [one for one in settled if held.get(one.delivery.id) == one.delivery.token and one.delivery.id in kept]
    now: int = (yield "clock", [])[0][0]
    if mine:
        yield "write_deliveries", [_written(one, kept[one.delivery.id], now) for one in mine]
        yield from _move_on(mine)
        yield from _tell(mine, kept, now)
        yield from _judge_endpoints(mine, now)
        yield from _judge_hosts(mine, now)
    counted = set(map(id, mine))
    return [one for one in settled if id(one) not in counted]


def _written(one: SettledDelivery, kept: _Kept, now: int) -> dict[str, Any]:
    tries = [*kept.tries, list(one.answer._replace(at_ms=now))][-MOST_TRIES:]
    status = _status(one)
    return {
        "id": one.delivery.id,
        "status": status.value,
        "tries": to_json(tries).decode(),
        "finished_at": None if status is DeliveryStatus.PENDING else now,
        "url": one.delivery.url,
    }


def _status(one: SettledDelivery) -> DeliveryStatus:
    if isinstance(one.verdict, TryAgain):
        return DeliveryStatus.PENDING
    return DeliveryStatus.DELIVERED if isinstance(one.verdict, Delivered) else DeliveryStatus.FAILED


def _move_on(mine: Sequence[SettledDelivery]) -> Script[None]:
    again = {one.delivery.id: one.verdict.at_ms for one in mine if isinstance(one.verdict, TryAgain)}
    if again:
        yield "try_again", [{"id": id, "due_at": at} for id, at in sorted(again.items())]
    if done := sorted({one.delivery.id for one in mine} - again.keys()):
        yield "drop_from_outbox", [{"id": id} for id in done]


def _tell(mine: Sequence[SettledDelivery], kept: Mapping[int, _Kept], now: int) -> Script[None]:
    finished = [one for one in mine if not isinstance(one.verdict, TryAgain) and kept[one.delivery.id].n]
    if finished:
        yield "webhook_done", numbers({kept[one.delivery.id].n for one in finished})
        yield "add_events", [_event(kept[one.delivery.id].n, one, now) for one in finished]


def _event(n: int, one: SettledDelivery, now: int) -> dict[str, Any]:
    """`attempt` in metadata would be one of the job."""
    delivery, answer = one.delivery, one.answer
    delivered = isinstance(one.verdict, Delivered)
    metadata: dict[str, Any] = {
        "deliveryId": str(delivery.id),
        "webhookId": delivery.webhook_id,
        "endpoint": delivery.endpoint,
        "event": delivery.event,
        "host": delivery.host,
        "try": delivery.attempt,
        "status": answer.status,
        "error": answer.error,
        "durationMs": answer.duration_ms,
    }
    outcome = f"answered {answer.status}" if answer.status is not None else answer.error or "no answer"
    message = f"{delivery.event} to {delivery.host}: {outcome}"
    if isinstance(one.verdict, GaveUp | DisableEndpoint):
        message += f"; given up after try {delivery.attempt}"
    return event_row(
        n, events.WEBHOOK_DELIVERED if delivered else events.WEBHOOK_FAILED, None, None, message, metadata, now
    )


def _judge_endpoints(mine: Sequence[SettledDelivery], now: int) -> Script[None]:
    """How endpoints have answered, and what becomes of them. One that is gone is left alone."""
    by_endpoint: dict[str, list[SettledDelivery]] = defaultdict(list)
    for one in mine:
        if one.delivery.endpoint is not None:
            by_endpoint[one.delivery.endpoint].append(one)
    if not by_endpoint:
        return
    names = [{"kind": kind, "id": id} for kind in (KIND, STATE_KIND) for id in sorted(by_endpoint)]
    found = {(one.kind, one.id): one for one in [Record(*row) for row in (yield "lock_records", names)]}
    for id, some in sorted(by_endpoint.items()):
        if (KIND, id) not in found:
            continue
        record, old = found[KIND, id], found.get((STATE_KIND, id))
        state = state_from(old.body if old else None)
        for one in some:
            state = endpoint_after(state, one.verdict, now)
        endpoint = endpoint_from(id, record.body, record.version, record.created_at, record.updated_at)
        changed = _switched(endpoint, some)
        if changed.enabled > endpoint.enabled:
            state = with_event(state, EndpointEvent(now, "enabled", "enabled: it has received a test"))
        yield from _put_record(STATE_KIND, id, state_body(state), old)
        if changed is not endpoint:
            yield from _put_record(KIND, id, body_of(changed), record)


def _switched(endpoint: Endpoint, some: Sequence[SettledDelivery]) -> Endpoint:
    """A good test enables it again, if nobody has disabled it on purpose."""
    for one in some:
        if isinstance(one.verdict, DisableEndpoint) and endpoint.enabled:
            endpoint = replace(endpoint, enabled=False, disabled_reason=one.verdict.reason)
        if enables(one.delivery, one.verdict) and endpoint.disabled_reason is not None:
            endpoint = replace(endpoint, enabled=True, disabled_reason=None)
    return endpoint


def _judge_hosts(mine: Sequence[SettledDelivery], now: int) -> Script[None]:
    hosts = sorted({one.delivery.host for one in mine})
    names = [{"kind": CIRCUIT_KIND, "id": host} for host in hosts]
    found = {one.id: one for one in [Record(*row) for row in (yield "lock_records", names)]}
    closed = []
    for host in hosts:
        old = found.get(host)
        circuit = before = circuit_from(old.body if old else None)
        for one in mine:
            if one.delivery.host == host:
                circuit = circuit_after(circuit, host_works(one.answer), now)
        if circuit == CLOSED and old:
            closed.append({"kind": CIRCUIT_KIND, "id": host})
        elif circuit != before:
            yield from _put_record(CIRCUIT_KIND, host, circuit_body(circuit), old)
    if closed:
        yield "drop_records", closed


def _put_record(kind: str, id: str, body: str, old: Record | None) -> Script[None]:
    """`old` is locked. If two make the first one at the same moment, the other's stays."""
    row = {"kind": kind, "id": id, "key": id, "body": body, "due": None}
    if old is None:
        yield "add_records", [row]
    elif old.body != body:
        yield "change_records", [row | {"version": old.version}]


# -- sending again, and tests ----------------------------------------------------------------------


def redeliver(ids: Sequence[int]) -> Script[list[int]]:
    """Those that exist, from now on with all tries. One that is under way is left to its sender."""
    now: int = (yield "clock", [])[0][0]
    rows = yield "reopen_deliveries", [{"id": id} for id in sorted(set(ids))]
    known: dict[str, Endpoint] = (yield from endpoints()) if rows else {}
    waiting = []
    for id, n, endpoint, url, event in sorted(rows):
        waiting.append(outbox_row(id, n, endpoint, _receiver(endpoint, url, event, known), now))
    if waiting:
        yield "put_outbox", waiting
    if due := {row["n"] for row in waiting if row["n"]}:
        yield "webhook_due", numbers(due)
    return [row["id"] for row in waiting]


def _receiver(endpoint: str | None, url: str | None, event: str, known: Mapping[str, Endpoint]) -> str | None:
    if endpoint is None:
        return f"@{host_of(url or '')}"
    if endpoint in known and known[endpoint].url is None:
        return None
    return f"{TESTED}{endpoint}" if event == TEST else endpoint


def test_delivery(endpoint: str, body: str) -> Script[int]:
    now: int = (yield "clock", [])[0][0]
    webhook_id = new_webhook_id()
    row = {"n": 0, "endpoint": endpoint, "webhook_id": webhook_id, "event": TEST, "url": None}
    known: dict[str, Endpoint] = yield from endpoints()
    new = {webhook_id: NewDelivery(endpoint, None, _receiver(endpoint, None, TEST, known))}
    return (yield from add_deliveries([row | {"created_at": now, "body": body}], new, now))[0]


# -- reading by cursor -----------------------------------------------------------------------------


def poll(endpoint: str, after: int, limit: int) -> Script[list[PolledEvent]]:
    """Events get their numbers when they are first read, in a row that is locked: so the numbers rise in the order in
    which they are read, whatever the order of the commits that wrote them."""
    receiver = f"{READ}{endpoint}"
    acknowledged = yield "acknowledge_events", [{"receiver": receiver, "number": after}]
    if acknowledged:
        yield "deliver_events", [{"id": id} for id, _ in sorted(acknowledged)]
        if jobs := {n for _, n in acknowledged if n}:
            yield "webhook_done", numbers(jobs)
    yield from _number(endpoint, receiver, limit)
    rows = yield "read_events", [{"endpoint": endpoint, "number": after, "top": limit}]
    return [PolledEvent(*row) for row in rows]


def _number(endpoint: str, receiver: str, limit: int) -> Script[None]:
    if not (yield "unread_events", [{"receiver": receiver, "top": 1}]):
        return
    name = [{"kind": READER_KIND, "id": endpoint}]
    if not (found := (yield "lock_records", name)):
        yield "add_records", [name[0] | {"key": endpoint, "body": "0", "due": None}]
        found = yield "lock_records", name
    last = Record(*found[0])
    # Only now, with the lock: what another reader has numbered is not unread.
    unread = [row[0] for row in (yield "unread_events", [{"receiver": receiver, "top": limit}])]
    rows = [{"id": id, "number": int(last.body) + place} for place, id in enumerate(unread, 1)]
    if rows:
        yield "number_deliveries", rows
        yield "number_events", rows
        yield from _put_record(READER_KIND, endpoint, str(int(last.body) + len(rows)), last)
