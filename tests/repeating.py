"""A test that fails names the command that repeats it alone."""

import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.failed:
        report.sections.append(("repeat with", command(item)))
    return report


def command(item: pytest.Item) -> str:
    """With everything that changes what the test does: the length, the server, the seed."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items()) if of_tests(name)]
    seed = item.config.getoption("--hypothesis-seed", None)
    seed = seed or getattr(getattr(item, "obj", None), "_hypothesis_internal_use_generated_seed", None)
    options = [] if seed is None else [f"--hypothesis-seed={seed}"]
    return " ".join([*settings, ".venv/bin/pytest", *options, shlex.quote(item.nodeid)])


def of_tests(name: str) -> bool:
    return name == "TREADLE_FAULT" or name.startswith("TREADLE_TEST_")
