"""Webhooks in the store."""

from treadle.testing import contract


class TestOutbox(contract.OutboxContract): ...


class TestDelivery(contract.DeliveryContract): ...


class TestPoll(contract.PollContract): ...
