"""The time axis of a waterfall: work to scale, waits short, labels apart."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from treadle.dashboard.time_axis import LABEL_ROOM, TimeAxis

START = datetime(2026, 10, 23, 11, 2, 14, tzinfo=UTC)


def at(**span: float) -> datetime:
    return START + timedelta(**span)


def test_time_in_which_the_job_ran_is_to_scale() -> None:
    axis = TimeAxis(START, at(minutes=10), [(START, at(minutes=10))])
    assert [axis.x(at(minutes=m)) for m in (0, 1, 5, 10)] == [0, 10, 50, 100]
    assert [label.text for label in axis.labels(None, waits=False)] == ["0", "2m", "4m", "6m", "8m", "10m"]


def test_three_days_of_waiting_leave_room_for_a_minute_of_work() -> None:
    axis = TimeAxis(START, at(days=3), [(START, at(minutes=1))])
    assert 70 < axis.x(at(minutes=1)) < 73
    assert axis.x(at(days=3)) == pytest.approx(100)
    assert axis.labels(None, waits=True)[-1].text == "waits 2d 23h"


def test_a_short_break_is_to_scale_too() -> None:
    axis = TimeAxis(START, at(seconds=100), [(START, at(seconds=50)), (at(seconds=60), at(seconds=100))])
    assert axis.x(at(seconds=60)) - axis.x(at(seconds=50)) == pytest.approx(10)


def test_many_breaks_together_stay_short() -> None:
    active = [(at(hours=h), at(hours=h, seconds=10)) for h in range(20)]
    axis = TimeAxis(START, at(hours=19, seconds=10), active)
    worked = sum(axis.x(stop) - axis.x(begin) for begin, stop in active)
    assert worked == pytest.approx(100 / 1.4)


def test_later_is_never_left_of_earlier_and_nothing_leaves_the_axis() -> None:
    axis = TimeAxis(START, at(hours=5), [(at(minutes=1), at(minutes=2)), (at(hours=3), at(hours=4))])
    places = [axis.x(at(minutes=m)) for m in range(-10, 400)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == pytest.approx(100)


@pytest.mark.parametrize("seconds", [0, 0.001, 0.3, 7, 61, 5000, 10**5, 10**8])
def test_labels_do_not_run_into_each_other(seconds: float) -> None:
    end = at(seconds=seconds)
    for active in ([(START, end)], [(START, at(seconds=seconds / 50))], []):
        labels = TimeAxis(START, end, active).labels(at(seconds=seconds / 2), waits=True)
        places = [float(label.x.rstrip("%")) for label in labels]
        assert all(b - a >= LABEL_ROOM - 0.01 for a, b in pairwise(places)), labels
        assert len(places) <= 7
