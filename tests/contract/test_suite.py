"""The suite itself: complete, and usable by authors of other stores."""

import inspect
from pathlib import Path

import pytest

from treadle.testing import contract
from treadle.testing.contract import ContractPart, StoreContract

pytest_plugins = ["pytester"]

THEIRS = """
import pytest
from tests.contract.relational import RelationalDatabase
from treadle.testing.contract import StoreContract

class TestTheirs(StoreContract):
    @pytest.fixture
    def database(self, tmp_path):
        return RelationalDatabase(f"sqlite:///{tmp_path / 'theirs.db'}")
"""


def test_the_whole_contract_has_every_part() -> None:
    parts = {one for _, one in inspect.getmembers(contract, inspect.isclass) if issubclass(one, ContractPart)}
    nested = {one.__bases__[0] for name, one in vars(StoreContract).items() if name.startswith("Test")}
    assert nested == parts - {ContractPart}
    assert {part.__name__ for part in parts} | {"StoreContract"} == set(contract.__all__)


def test_another_authors_store_can_be_tested(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(THEIRS)
    arguments = ("-p", "no:cacheprovider", "-p", "no:xdist", "-k", "TestLeader or TestTopics")
    options = ("-o", "asyncio_default_fixture_loop_scope=function", "-o", f"pythonpath={Path(__file__).parents[2]}")
    result = pytester.runpytest_subprocess(*arguments, *options)
    result.assert_outcomes(passed=10, deselected=result.parseoutcomes()["deselected"])


def test_no_module_but_the_contract_needs_pytest(pytester: pytest.Pytester) -> None:
    script = "import sys, treadle.testing.workbench; sys.exit('pytest' in sys.modules)"
    assert pytester.runpython_c(script).ret == 0
