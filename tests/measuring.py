"""Coverage is measured until the first test that is marked `uncounted`; such tests come last (tests/selection.py)."""

import os

import pytest
from coverage import Coverage


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    measuring = Coverage.current()
    if measuring and item.get_closest_marker("uncounted"):
        measuring.stop()
        measuring.save()
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # processes that tests start are not measured either
