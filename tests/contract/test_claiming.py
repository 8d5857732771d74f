"""Claims: whose turn it is, and who has to wait."""

from treadle.testing import contract


class TestClaim(contract.ClaimContract): ...


class TestClaimOrder(contract.ClaimOrderContract): ...


class TestLastAttempt(contract.LastAttemptContract): ...


class TestDeadline(contract.DeadlineContract): ...


class TestPause(contract.PauseContract): ...


class TestManyClaimers(contract.ManyClaimersContract): ...
