"""Histograms: one by one or by the batch, the same counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.telemetry.histogram import CALLS, JOBS, Histogram
from treadle.telemetry.labels import OTHER, Labels

BOUNDS = (0.1, 1.0, 10.0)
values = st.lists(st.one_of(st.floats(0, 100), st.sampled_from(BOUNDS)), max_size=50)


def counted(histogram: Histogram) -> list[tuple[float, int]]:
    return list(histogram.cumulative())


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0.05, 0.1, 0.5, 10.0, 11.0):
        histogram.observe(value)
    assert counted(histogram) == [(0.1, 2), (1.0, 3), (10.0, 4), (math.inf, 5)]
    assert histogram.total == pytest.approx(21.65)


@given(values, values)
def test_a_batch_counts_as_its_values_do(first: list[float], second: list[float]) -> None:
    by_one, by_batch = Histogram(BOUNDS), Histogram(BOUNDS)
    for value in (*first, *second):
        by_one.observe(value)
    by_batch.observe_all(list(first))
    by_batch.observe_all(list(second))
    assert by_batch.counts == by_one.counts
    assert by_batch.total == pytest.approx(by_one.total)


@given(values, values)
def test_two_histograms_add_up(first: list[float], second: list[float]) -> None:
    both, mine, theirs = Histogram(BOUNDS), Histogram(BOUNDS), Histogram(BOUNDS)
    both.observe_all([*first, *second])
    mine.observe_all(first)
    theirs.observe_all(second)
    mine.add(theirs)
    assert mine.counts == both.counts
    assert mine.total == pytest.approx(both.total)


@pytest.mark.parametrize("bounds", [CALLS, JOBS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert sorted(set(bounds)) == list(bounds)


def test_names_beyond_the_bound_share_one_label() -> None:
    labels = Labels(2)
    assert [labels.of(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]
