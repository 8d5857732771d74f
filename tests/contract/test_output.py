"""What handlers emit."""

from treadle.testing import contract


class TestOutput(contract.OutputContract): ...
