"""What follows from one try to send a webhook: for the delivery, for its endpoint, and for its host."""

from __future__ import annotations

from treadle.model.webhooks import Circuit, ClaimedDelivery, EndpointState, Try, Verdict


def after_try(delivery: ClaimedDelivery, answer: Try, now_ms: int) -> Verdict:
    """What becomes of the delivery."""
    raise NotImplementedError


def endpoint_after(state: EndpointState, verdict: Verdict, now_ms: int) -> EndpointState:
    """How the endpoint has answered from now on, with warnings. The store calls it for each try."""
    raise NotImplementedError


def circuit_after(circuit: Circuit, worked: bool, now_ms: int) -> Circuit:
    """The store calls it for each try; `CLOSED` is not kept."""
    raise NotImplementedError


def may_send(circuit: Circuit, now_ms: int, per_host: int) -> int:
    """How many deliveries may be under way to this host at once: `per_host` while closed, 1 for a probe, else 0."""
    raise NotImplementedError
