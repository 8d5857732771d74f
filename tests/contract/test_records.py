"""Records: accounts, keys, settings."""

from treadle.testing import contract


class TestRecord(contract.RecordContract): ...
