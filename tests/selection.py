"""Which tests run, and in which order.

`pytest` alone runs all of them. With `--short` (`make test`) a test of the queue, the worker, the API, the command
line or the pages in a browser runs on SQLite only, unless it is marked `every_store`: that both stores do the same is
what the contract suite shows, on each of them. `--slice COMMIT` adds a part of what `--short` leaves out. The commit's
hash chooses the part, so that over some days all of it is run. Of the rows of a test that is marked `turns("verb")`,
`--short` takes one for each verb and store: the first for one, the second for the next.
"""

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SLICES = 8
ON_ONE_STORE = [HERE / name for name in "browser cli http queue worker".split()]

# Measuring coverage doubles the price of a test (before Python 3.12), so lines are counted where a test was written for
# them, not where a test runs many lines to show something else.
UNCOUNTED = [
    *(HERE / name for name in "acceptance benchmarks browser examples fault model plans sdk types".split()),
    HERE / "cli/test_usage.py",
    HERE / "contract/test_batch_costs.py",
    HERE / "contract/test_postgres_pgbouncer.py",
    HERE / "contract/test_races.py",
    HERE / "contract/test_rule_agreement.py",
    HERE / "dashboard/test_bulk_many.py",
    HERE / "http/test_fuzz.py",
    HERE / "http/test_slices.py",  # it measures CPU time, of which a tracer of calls takes most
    HERE / "unit/rules/test_pocketbase.py",
    HERE / "unit/test_lifecycle_mutants.py",
]
# Nor are they counted twice where both stores run the same code. What is PostgreSQL's own is counted in its part of
# the contract suite, what is SQLite's own in all other tests.
COUNTED_ON = {
    "postgres": [HERE / "contract"],
    "sqlite": [HERE / name for name in "cli dashboard http queue worker".split()],
}
# The browser's driver keeps an event loop running in its process, in which no later test could start one.
LAST = [HERE / "browser"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("treadle", "which tests run")
    group.addoption("--short", action="store_true", help="leave out what `make test` leaves to `make test-all`")
    group.addoption("--slice", metavar="COMMIT", help="with --short: also the part that this hash chooses of the rest")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not is_counted(item):
            item.add_marker(pytest.mark.uncounted)
    if config.getoption("--short"):
        slice_ = slice_of(config.getoption("--slice"))
        out = {*on_second_store(items), *out_of_turn(items)}
        out = {item for item in out if slice_number(item.nodeid) != slice_}
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]
    # A process that has the driver does not go back; to measure now and then costs more than once.
    items.sort(key=lambda item: (below(item, LAST), item.get_closest_marker("uncounted") is not None))


def is_counted(item: pytest.Item) -> bool:
    elsewhere = [below(item, places) for store, places in COUNTED_ON.items() if store_of(item) not in (None, store)]
    return not below(item, UNCOUNTED) and not any(elsewhere)


def on_second_store(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    for item in items:
        on_postgres = store_of(item) == "postgres" and below(item, ON_ONE_STORE)
        if on_postgres and not item.get_closest_marker("every_store"):
            yield item


def out_of_turn(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    groups: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if turns := item.get_closest_marker("turns"):
            alike = tuple(parameters(item)[name] for name in turns.args)
            groups.setdefault((item.path, store_of(item), *alike), []).append(item)
    for turn, rows in zip(itertools.count(), groups.values(), strict=False):
        yield from (item for number, item in enumerate(rows) if number != turn % len(rows))


def store_of(item: pytest.Item) -> str | None:
    found: str | None = parameters(item).get("url", parameters(item).get("database"))
    return found


def parameters(item: pytest.Item) -> dict[str, Any]:
    call = getattr(item, "callspec", None)
    return {} if call is None else call.params


def slice_of(commit: str | None) -> int | None:
    return None if not commit else int(commit[:8], 16) % SLICES


def slice_number(test: str) -> int:
    return zlib.crc32(test.encode()) % SLICES


def below(item: pytest.Item, places: list[Path]) -> bool:
    return any(item.path.is_relative_to(place) for place in places)
