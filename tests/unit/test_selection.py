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


@pytest.fixture
def ran(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(selection, "ON_ONE_STORE", [pytester.path])
    monkeypatch.setattr(selection, "SLICES", 3)
    pytester.makeini("[pytest]\nmarkers =\n    every_store\nasyncio_default_fixture_loop_scope = function")
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
