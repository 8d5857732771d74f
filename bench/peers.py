"""`make bench-peers`: steps per second of ten-step no-op flows, ours next to DBOS's workflows.

Both run on one PostgreSQL with fsync and `synchronous_commit`, in one worker process, in turn. DBOS is
installed from its package into a separate environment (`.cache/dbos`).

python -m bench.peers --flows 100 --rounds 1     small: a check that it works, not a result
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import uvloop

from bench import flows
from bench.scenarios import run
from bench.stores import PostgresBench, bench_folder, machine
from bench.work import STEPS

ROOT = Path(__file__).resolve().parent.parent
DBOS = ROOT / ".cache/dbos/bin/python"
TARGET = 10.0


def ours(store: PostgresBench, folder: Path, jobs: int) -> float:
    with store.fresh() as url:
        uvloop.run(flows.load(url, jobs))
        return run(flows.steps(url, folder, jobs))["flow steps /s"]


def theirs(store: PostgresBench, jobs: int) -> float:
    with store.fresh() as url:
        command = [str(DBOS), str(Path(__file__).with_name("dbos_steps.py")), url, str(jobs), str(STEPS)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured = json.loads(answer.splitlines()[-1])
    return float(measured["steps"] / measured["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flows", type=int, default=1_000, help="how many, of ten steps each (1,000)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not DBOS.exists():
        parser.error("DBOS is not there: run `make bench-peers`")
    store, rounds = PostgresBench(), []
    try:
        with bench_folder() as folder:
            for number in range(options.rounds):
                rounds.append((ours(store, folder, options.flows), theirs(store, options.flows)))
                print(f"{number + 1}: Treadle {rounds[-1][0]:,.0f} steps/s, DBOS {rounds[-1][1]:,.0f}", flush=True)
    finally:
        store.close()
    ratio = statistics.median(mine / other for mine, other in rounds)
    print(f"{machine()}: {ratio:.1f} × DBOS's steps per second (target {TARGET:.0f})")
    sys.exit(0 if ratio >= TARGET else 3)


if __name__ == "__main__":
    main()
