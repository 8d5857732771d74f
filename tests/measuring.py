"""Coverage rests while a test runs that is marked `uncounted` (tests/selection.py)."""

import importlib
import os

import pytest
from coverage import Coverage

FOR_CHILDREN = "COVERAGE_PROCESS_CONFIG"
# Imported when a queue is opened, which could be while coverage rests.
STORES = ("treadle.store.postgres.store", "treadle.store.sqlite.store")

_resting: list[Coverage] = []
_for_children: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    if item.get_closest_marker("uncounted"):
        rest()
    else:
        go_on()


def rest() -> None:
    if Coverage.current():
        for name in STORES:
            importlib.import_module(name)
    # A process of pytest-xdist has two: below pytest-cov's is the one of any process that is started.
    while measuring := Coverage.current():
        measuring.stop()
        measuring.save()  # once, or every fork of this process would save it again
        _resting.append(measuring)
    if FOR_CHILDREN in os.environ:
        _for_children.append(os.environ.pop(FOR_CHILDREN))


def go_on() -> None:
    while _resting:
        measuring = _resting.pop()
        measuring.set_option("run:patch", [])  # what it patched at its first start is patched still
        measuring.start()
    if _for_children:
        os.environ[FOR_CHILDREN] = _for_children.pop()
