"""Concurrency by key and rate limits."""

from treadle.testing import contract


class TestQueuePolicy(contract.QueuePolicyContract): ...


class TestRejectPolicy(contract.RejectPolicyContract): ...


class TestReplacePolicy(contract.ReplacePolicyContract): ...


class TestRate(contract.RateContract): ...
