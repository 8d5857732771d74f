"""How far a numbered table has been read, and which numbers may still appear."""

import pytest

from treadle.store.sql.changes import Gap, Mark


def test_a_mark_moves_to_the_last_number() -> None:
    assert Mark(3).advance((), [4, 5, 6], oldest=90, until=100) == Mark(6)
    assert Mark(3).advance((), [], oldest=90, until=100) == Mark(3)


def test_what_is_skipped_is_watched_while_a_transaction_may_still_fill_it() -> None:
    assert Mark(3).advance((), [5, 9], oldest=90, until=100) == Mark(9, (Gap(4, 4, 100), Gap(6, 8, 100)))


def test_when_every_transaction_has_ended_a_gap_stays_empty() -> None:
    assert Mark(3).advance((), [5, 9], oldest=100, until=100) == Mark(9)


@pytest.mark.parametrize(("new", "skips"), [([], False), ([4], False), ([4, 5, 6], False), ([5], True), ([4, 6], True)])
def test_a_mark_tells_whether_numbers_were_left_out(new: list[int], skips: bool) -> None:
    assert Mark(3).skips(new) is skips


def test_a_gap_is_watched_until_all_transactions_that_could_fill_it_have_ended() -> None:
    mark = Mark(9, (Gap(4, 4, 100),))
    assert mark.advance((), [], oldest=99, until=120).gaps == mark.gaps
    assert mark.advance((), [], oldest=100, until=120).gaps == ()


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
    gaps = mark.advance(found, [], oldest=90, until=100).gaps
    assert gaps == (Gap(1, 2, 95), *(Gap(first, last, 95) for first, last in left))


def test_while_late_ones_are_left_to_read_no_gap_is_closed() -> None:
    mark = Mark(9, (Gap(4, 8, 95),))
    assert mark.advance([4], [], oldest=100, until=100, late_left=True).gaps == (Gap(5, 8, 95),)
