"""What the short suite leaves out is run in slices; a test that fails says how it is repeated."""

from collections import Counter

import pytest

from tests import selection

pytest_plugins = ["pytester"]

QUIET = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:treadle", "-p", "no:xdist"]

ON_TWO_STORES = """
import pytest

@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    return request.param

@pytest.mark.parametrize("n", range(40))
def test_it(url, n):
    pass

@pytest.mark.every_store
def test_on_every_store(url):
    pass
"""


IN_TURNS = """
import pytest

@pytest.mark.turns("verb")
@pytest.mark.parametrize(("verb", "rows"), [(verb, rows) for verb in "abcd" for rows in range(3)])
def test_it(verb, rows):
    pass
"""


@pytest.fixture
def ran(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(selection, "ON_ONE_STORE", [pytester.path])
    monkeypatch.setattr(selection, "SLICES", 3)
    pytester.makeini(
        "[pytest]\nmarkers =\n    every_store\n    turns\n    uncounted\nasyncio_default_fixture_loop_scope = function"
    )
    pytester.makepyfile(ON_TWO_STORES)
    return pytester


def chosen(ran: pytest.Pytester, *options: str) -> set[str]:
    words = [*QUIET, "-p", "tests.selection", "--collect-only", "-q", *options]
    return {line for line in ran.runpytest_inprocess(*words).outlines if "::" in line}


def test_the_short_suite_is_on_sqlite_but_for_what_is_marked(ran: pytest.Pytester) -> None:
    names = [line.partition("::")[2] for line in chosen(ran, "--short")]
    assert {name for name in names if "postgres" in name} == {"test_on_every_store[postgres]"}
    assert len(names) == 40 + 2


def test_the_slices_together_are_all_tests(ran: pytest.Pytester) -> None:
    short = chosen(ran, "--short")
    slices = [chosen(ran, "--short", "--slice", f"{number:08x}") for number in range(selection.SLICES)]
    assert all(short < each for each in slices)
    assert set().union(*slices) == chosen(ran)
    assert set(Counter(test for each in slices for test in each - short).values()) == {1}


def test_of_rows_that_are_alike_one_is_run_by_turns(ran: pytest.Pytester) -> None:
    ran.makepyfile(test_turns=IN_TURNS)
    names = {line.partition("::")[2] for line in chosen(ran, "--short", "test_turns.py")}
    assert names == {"test_it[a-0]", "test_it[b-1]", "test_it[c-2]", "test_it[d-0]"}
    assert len(chosen(ran, "test_turns.py")) == 12


def test_a_failure_names_the_command_that_repeats_it(ran: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_FAULT", "0.5")
    ran.makepyfile(
        test_failing="import pytest\n\n@pytest.mark.parametrize('word', ['a b'])\ndef test_it(word): assert 0"
    )
    done = ran.runpytest_inprocess(*QUIET, "-p", "tests.repeating", "test_failing.py")
    done.stdout.fnmatch_lines(
        ["*- repeat with -*", "TREADLE_FAULT=0.5 .venv/bin/pytest 'test_failing.py::test_it[[]a b]'"], consecutive=True
    )


def test_a_property_is_repeated_with_its_seed(ran: pytest.Pytester) -> None:
    ran.makepyfile(
        test_property="""
        from hypothesis import given, settings, strategies

        @settings(database=None, derandomize=False)
        @given(strategies.integers())
        def test_it(number):
            assert number < 100
        """
    )
    done = ran.runpytest_inprocess(*QUIET, "-p", "tests.repeating", "test_property.py")
    done.stdout.re_match_lines([r"\.venv/bin/pytest --hypothesis-seed=\d+ test_property\.py::test_it"])


NOW_AND_THEN = """
import os
import pytest
from coverage import Coverage

@pytest.mark.parametrize("counted", [True, False, True, False, True])
def test_it(request, counted):
    assert (Coverage.current() is not None) is counted
    assert ("COVERAGE_PROCESS_CONFIG" in os.environ) is counted
    import lines
    lines.run(counted)
"""


def test_lines_are_counted_but_for_tests_that_are_not(ran: pytest.Pytester) -> None:
    ran.makepyfile(lines="def run(counted):\n    if counted:\n        return 1\n    return 2\n")
    ran.makepyfile(test_it=NOW_AND_THEN)
    ran.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                if not item.callspec.params["counted"]:
                    item.add_marker(pytest.mark.uncounted)
        """
    )
    ran.makefile(".toml", pyproject="[tool.coverage.run]\nsource = ['lines']\npatch = ['_exit', 'subprocess']")
    words = ["-p", "tests.measuring", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:treadle"]
    path = f"pythonpath={selection.HERE.parent} ."
    done = ran.runpytest_subprocess(*words, "-o", path, "--cov", "--cov-report=term-missing", "-n", "1", "test_it.py")
    done.assert_outcomes(passed=5)
    done.stdout.re_match_lines([r"lines\.py +4 +1 +75% +4"])
