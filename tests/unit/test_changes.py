"""How far a numbered table has been read, and which numbers may still appear."""

import pytest

from treadle.store.changes import Gap, Mark, Snapshot


def snapshot(oldest: int, next: int) -> Snapshot:
    return Snapshot(0, oldest, next)


QUIET = snapshot(100, 100)
BUSY = snapshot(90, 100)


def test_a_mark_moves_to_the_last_number() -> None:
    assert Mark(3).advance((), [4, 5, 6], BUSY) == Mark(6)
    assert Mark(3).advance((), [], BUSY) == Mark(3)


def test_what_is_skipped_is_watched_while_somebody_may_still_fill_it() -> None:
    assert Mark(3).advance((), [5, 9], BUSY) == Mark(9, (Gap(4, 4, 100), Gap(6, 8, 100)))


def test_with_nobody_at_work_a_gap_stays_empty() -> None:
    assert Mark(3).advance((), [5, 9], QUIET) == Mark(9)


def test_a_gap_is_watched_until_all_who_could_fill_it_have_ended() -> None:
    mark = Mark(9, (Gap(4, 4, 100),))
    assert mark.advance((), [], snapshot(99, 120)).gaps == mark.gaps
    assert mark.advance((), [], snapshot(100, 120)).gaps == ()


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ([4], [(5, 8)]),
        ([8], [(4, 7)]),
        ([6], [(4, 5), (7, 8)]),
        ([4, 5, 6, 7, 8], []),
        ([5, 7], [(4, 4), (6, 6), (8, 8)]),
    ],
)
def test_what_is_found_is_no_gap_any_more(found: list[int], left: list[tuple[int, int]]) -> None:
    mark = Mark(9, (Gap(1, 2, 95), Gap(4, 8, 95)))
    gaps = mark.advance(found, [], BUSY).gaps
    assert gaps == (Gap(1, 2, 95), *(Gap(first, last, 95) for first, last in left))


def test_while_late_ones_are_left_to_read_no_gap_is_closed() -> None:
    mark = Mark(9, (Gap(4, 8, 95),))
    assert mark.advance([4], [], snapshot(100, 100), late_left=True).gaps == (Gap(5, 8, 95),)
