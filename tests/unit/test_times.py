"""Percentiles from histograms of powers of two."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.insights.times import Distribution, by_span, distribution
from treadle.store.views import TIME_BUCKETS, Times


def of(values: list[int]) -> Distribution:
    return distribution([Times(0, "mail", "run", min(ms.bit_length(), 23), 1) for ms in values], "run")


def test_no_data_is_not_zero() -> None:
    assert of([]).percentile(0.5) is None
    assert Distribution(()).percentile(0.95) is None


def test_times_below_a_millisecond_stay_below_it() -> None:
    assert of([0] * 100).percentile(0.5) == pytest.approx(0.5)
    assert of([0] * 100).percentile(0.99) == pytest.approx(0.99)


@given(st.lists(st.integers(0, 2**22 - 1), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_within_the_bucket_of_the_exact_one(values: list[int], part: float) -> None:
    exact = sorted(values)[min(math.ceil(len(values) * part), len(values)) - 1]
    bucket = exact.bit_length()
    found = of(values).percentile(part)
    assert found is not None
    assert (2 ** (bucket - 1) if bucket else 0) <= found <= 2**bucket


def test_topics_kinds_and_spans_are_apart() -> None:
    found = [
        Times(0, "mail", "run", 3, 2),
        Times(0, "mail", "wait", 5, 1),
        Times(60_000, "mail", "run", 4, 1),
        Times(60_000, "other", "run", 9, 7),
    ]
    assert distribution(found, "run").jobs == 10
    assert distribution(found, "run", "mail").jobs == 3
    assert distribution(found, "wait").jobs == 1
    spans = by_span(found, "run", "mail")
    assert {at: one.jobs for at, one in spans.items()} == {0: 2, 60_000: 1}
    assert len(spans[0].counts) == TIME_BUCKETS
