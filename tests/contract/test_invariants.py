"""The twelve invariants, as far as a store alone can break them."""

from treadle.testing import contract


class TestWalk(contract.WalkContract): ...


class TestInvariant(contract.InvariantContract): ...
