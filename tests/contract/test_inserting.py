"""New jobs and their keys."""

from treadle.testing import contract


class TestInsert(contract.InsertContract): ...


class TestIdempotency(contract.IdempotencyContract): ...


class TestDedupe(contract.DedupeContract): ...
