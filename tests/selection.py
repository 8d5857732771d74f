"""Which tests run, and in which order.

`pytest` alone runs all of them. With `--short` (`make test`) a test of the queue, the worker, the API, the command
line or the pages in a browser runs on SQLite only, unless it is marked `every_store`: that both stores do the same is
what the contract suite shows, on each of them. `--slice COMMIT` adds a part of what `--short` leaves out. The commit's
hash chooses the part, so that over some days all of it is run.
"""

import zlib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLICES = 8
ON_ONE_STORE = [HERE / name for name in "browser cli http queue worker".split()]

# Measuring coverage doubles the price of a test (before Python 3.12), so lines are counted where a test was written for
# them, not where a test runs many lines to show something else.
UNCOUNTED = [
    *(HERE / name for name in "acceptance benchmarks browser examples fault model plans sdk types".split()),
    HERE / "cli/test_usage.py",
    HERE / "contract/test_postgres_pgbouncer.py",
    HERE / "contract/test_races.py",
    HERE / "contract/test_rule_agreement.py",
    HERE / "dashboard/test_bulk_many.py",
    HERE / "http/test_fuzz.py",
    HERE / "unit/rules/test_pocketbase.py",
]
# The browser's driver keeps an event loop running in its process, in which no later test could start one.
LAST = [HERE / "browser"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("treadle", "which tests run")
    group.addoption("--short", action="store_true", help="leave out what `make test` leaves to `make test-all`")
    group.addoption("--slice", metavar="COMMIT", help="with --short: also the part that this hash chooses of the rest")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if below(item, UNCOUNTED):
            item.add_marker(pytest.mark.uncounted)
    if config.getoption("--short"):
        slice_ = slice_of(config.getoption("--slice"))
        left_out = [item for item in items if not in_short(item) and slice_number(item.nodeid) != slice_]
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    # A process that has stopped measuring, or has the driver, does not go back.
    items.sort(key=lambda item: (below(item, LAST), item.get_closest_marker("uncounted") is not None))


def in_short(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    second_store = parameters is not None and parameters.params.get("url") == "postgres"
    return not (second_store and below(item, ON_ONE_STORE)) or item.get_closest_marker("every_store") is not None


def slice_of(commit: str | None) -> int | None:
    return None if not commit else int(commit[:8], 16) % SLICES


def slice_number(test: str) -> int:
    return zlib.crc32(test.encode()) % SLICES


def below(item: pytest.Item, places: list[Path]) -> bool:
    return any(item.path.is_relative_to(place) for place in places)
