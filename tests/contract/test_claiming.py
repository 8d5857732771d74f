"""Claims: which jobs are next, and which have to wait."""

from treadle.testing import contract


class TestClaim(contract.ClaimContract): ...


class TestClaimOrder(contract.ClaimOrderContract): ...


class TestLastAttempt(contract.LastAttemptContract): ...


class TestDeadline(contract.DeadlineContract): ...


class TestPause(contract.PauseContract): ...


class TestManyClaimers(contract.ManyClaimersContract): ...
