"""Messages between a worker and its child processes arrive unchanged."""

import pytest

from treadle import JobCancelled, KeyReused
from treadle.worker.child import wire


@pytest.mark.parametrize(
    "error", [KeyReused("taken", jobId="7"), JobCancelled("enough"), TimeoutError("over its limit")], ids=type
)
def test_an_error_that_a_handler_may_catch_keeps_its_type(error: BaseException) -> None:
    arrived = wire.error_from(wire.error_message(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))
    assert getattr(arrived, "data", None) == getattr(error, "data", None)


def test_any_other_error_says_what_it_was() -> None:
    arrived = wire.error_from(wire.error_message(ZeroDivisionError("by zero")))
    assert (type(arrived), str(arrived)) == (RuntimeError, "ZeroDivisionError: by zero")
