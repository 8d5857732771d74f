"""The contract's `database`, once on each store."""

import pytest

pytest.register_assert_rewrite("treadle.testing.contract")

from tests.contract.relational import RelationalDatabase  # noqa: E402 - after the rewrite is registered


@pytest.fixture
def database(url: str) -> RelationalDatabase:
    return RelationalDatabase(url)
