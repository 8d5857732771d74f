"""SQLite and PostgreSQL do what the model says, for random actions in random order.

`make test` runs the short form, the same examples each time; TREADLE_FAULT=full runs 2,000 × 50 steps and
TREADLE_FAULT=0.1 a tenth of the examples.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fault.scale import ASKED, scaled
from tests.model.machine import STALE_AFTER, Lockstep
from tests.model.stores import Pair

EXAMPLES, STEPS = scaled(40, 2_000), scaled(30, 50)


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[Pair]:
    with Pair(tmp_path / "jobs.db", postgres_url, STALE_AFTER) as pair:
        yield pair


@pytest.mark.fault
@pytest.mark.timeout(600 if ASKED == "short" else 7_200)
def test_both_stores_agree_with_the_model(pair: Pair) -> None:
    class Machine(Lockstep):
        pass

    Machine.pair, Machine.numbers = pair, itertools.count()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            derandomize=True,
            deadline=None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
