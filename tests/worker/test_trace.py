"""How many of Treadle's own calls a plain job takes from enqueue to its stored end. It may fall, but not rise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_job.py"


def trace(url: str, option: str) -> str:
    return subprocess.check_output([sys.executable, SCRIPT, url, option], text=True, timeout=240)


@pytest.mark.parametrize(("store", "hops", "calls"), [("sqlite", 52, 147), ("postgres", 53, 142)])
def test_the_way_of_a_plain_job_gets_no_longer(
    store: str, hops: int, calls: int, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    counted = json.loads(trace(url, "--json"))
    assert counted["hops"] <= hops, "run scripts/trace_job.py with --list to see them"
    assert counted["calls"] <= calls


def test_the_tracer_counts_a_hop_when_an_own_call_makes_another(sqlite_url: str) -> None:
    lines = trace(sqlite_url, "--list").splitlines()
    assert "* queue/queue:Queue.enqueue" in lines
    assert any(line.startswith("  worker/attempt:Attempt.__init__") for line in lines)
    *ways, last = lines
    assert last == f"{sum(line.startswith('*') for line in ways)} hops, {len(ways)} calls"
