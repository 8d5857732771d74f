"""Lists by a condition, and in another order."""

from treadle.testing import contract


class TestFilter(contract.FilterContract): ...


class TestSort(contract.SortContract): ...
