"""What maintenance moves."""

from treadle.testing import contract


class TestPromote(contract.PromoteContract): ...


class TestReclaim(contract.ReclaimContract): ...
