"""Leases, and what is done under them."""

from treadle.testing import contract


class TestLease(contract.LeaseContract): ...


class TestTouch(contract.TouchContract): ...


class TestCancelRequest(contract.CancelRequestContract): ...


class TestLostClaim(contract.LostClaimContract): ...


class TestSplitLease(contract.SplitLeaseContract): ...
