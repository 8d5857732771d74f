"""`python -m bench`: measure the bare database and Treadle on it in one run, print ratios, write docs/benchmarks.md.

python -m bench                     everything, some minutes
python -m bench --quick             smaller loads, one run each: a check that it works, not a result
python -m bench --store sqlite --only drain,enqueue
"""

from __future__ import annotations

import argparse
import platform
import sqlite3
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from bench import api, children, events, flows, limits, pages, retention, scenarios, webhooks
from bench.imports import RUNS, imports
from bench.report import render
from bench.scenarios import Figures, run
from bench.stores import PostgresBench, SqliteBench, bench_folder, machine

SECTIONS = (
    "limits enqueue drain topics processes threads pickup delayed scheduled flows children backlog ended retention "
    "snapshot single http pages webhooks streams memory idle imports"
).split()
# Slow, and compared with nothing that changes from minute to minute, or only with its own round.
ONCE = frozenset("ended retention snapshot pages streams memory idle imports".split())
ROUNDS = 3


class Bench:
    """Everything that is measured of one store, in rounds.

    The machine is faster one minute than the next. So a round measures the bare database and Treadle close
    together, a ratio is taken within its round, and what is reported is the median over the rounds.
    """

    def __init__(self, store: Any, folder: Path, quick: bool, rounds: int = ROUNDS) -> None:
        self.store = store
        self.folder = folder
        self.quick = quick
        self.rounds = 1 if quick else rounds
        self.seconds = 0.5 if quick else 2.0
        self.jobs = 10_000 if quick else 200_000

    def run(self, sections: Sequence[str]) -> list[Figures]:
        rounds: list[Figures] = []
        for number in range(self.rounds):
            rounds.append({})
            for name in sections:
                if number and name in ONCE:
                    continue
                figures: Figures = getattr(self, name)()
                rounds[-1] |= figures
                shown = ", ".join(f"{key} {value:,.2f}" for key, value in figures.items())
                print(f"{self.store.name:9} {number + 1} {name}: {shown}", flush=True)
        return rounds

    def _drain(
        self,
        name: str,
        jobs: int | None = None,
        fill: str | None = None,
        rows: int = 0,
        topics: int = 1,
        **options: Any,
    ) -> Figures:
        """One drain on a fresh database, its figures under their own names."""
        with self.store.fresh() as url:
            if fill:
                uvloop.run(scenarios.fill(url, fill, rows))
            uvloop.run(scenarios.load(url, jobs or self.jobs, topics))
            drained = scenarios.drain(
                url, self.folder, jobs or self.jobs, self.store.server_cpu, topics=topics, **options
            )
            found = run(drained)
        if found["left"]:
            raise SystemExit(f"{name}: {found['left']:.0f} jobs were not drained in time")
        return found if name == "drain" else {f"{name} /s": found["drain /s"]}

    # -- sections ------------------------------------------------------------------------------

    def limits(self) -> Figures:
        return self._bare_insert(1) | self._bare_insert(1000) | self._bare_drain()

    def _bare_insert(self, batch: int) -> Figures:
        if self.store.name == "sqlite":
            rate = limits.sqlite_insert(self.folder / "bare.db", batch, self.seconds)
        else:
            with self.store.fresh() as url:
                rate = uvloop.run(limits.postgres_insert(url, batch, self.seconds))
        return {f"bare insert {batch} /s": rate}

    def _bare_drain(self) -> Figures:
        if self.store.name == "sqlite":
            return {"bare drain 100 /s": limits.sqlite_drain(self.folder / "bare.db", 100, self.seconds)}
        with self.store.fresh() as url:
            return {"bare drain 100 /s": uvloop.run(limits.postgres_drain(url, 100, self.seconds))}

    def _two_commits(self) -> Figures:
        times = 5 if self.quick else 50
        if self.store.name == "sqlite":
            took = limits.sqlite_two_commits(self.folder / "bare.db", times)
        else:
            with self.store.fresh() as url:
                took = uvloop.run(limits.postgres_two_commits(url, times))
        return {"bare two commits after a rest, p50 ms": took}

    def enqueue(self) -> Figures:
        with self.store.fresh() as url:
            return run(scenarios.enqueue(url, self.seconds))

    def drain(self) -> Figures:
        return self._drain("drain")

    def topics(self) -> Figures:
        return self._drain("drain, five topics", topics=5)

    def processes(self) -> Figures:
        return self._drain("drain 2", processes=2) | self._drain("drain 10", processes=10)

    def threads(self) -> Figures:
        return self._drain("drain threads", self.jobs // 4, threads=True)

    def pickup(self) -> Figures:
        jobs = 20 if self.quick else 100
        with self.store.fresh() as url:
            there = run(scenarios.pickup(url, self.folder, jobs))
        with self.store.fresh() as url:
            return {**self._two_commits(), **there, **run(scenarios.pickup_here(url, jobs))}

    def delayed(self) -> Figures:
        with self.store.fresh() as url:
            return run(scenarios.delayed(url, self.folder, 50 if self.quick else 300))

    def scheduled(self) -> Figures:
        schedules, seconds = (1_000, 3) if self.quick else (10_000, 20)
        with self.store.fresh() as url:
            return run(scenarios.scheduled(url, self.folder, schedules, seconds))

    def flows(self) -> Figures:
        """Steps per second, and a drain next to jobs that wait, both against a plain drain of the same round."""
        jobs, waiting, plain = (50, 100, 2_000) if self.quick else (1_000, 10_000, 50_000)
        figures = self._drain("drain without flows", plain)
        with self.store.fresh() as url:
            uvloop.run(flows.load(url, jobs))
            figures |= run(flows.steps(url, self.folder, jobs))
        with self.store.fresh() as url:
            figures |= run(flows.map_items(url, self.folder, 500 if self.quick else 10_000))
        with self.store.fresh() as url:
            uvloop.run(flows.park(url, waiting))
            uvloop.run(scenarios.load(url, plain))
            beside = run(scenarios.drain(url, self.folder, plain, self.store.server_cpu))
        return figures | {"drain, 10,000 waiting /s": beside["drain /s"]}

    def children(self) -> Figures:
        """Many parents with a few children each, and one with very many, in windows."""
        parents, items = (20, 200) if self.quick else (1_000, 10_000)
        with self.store.fresh() as url:
            return run(children.families(url, parents, items))

    def backlog(self) -> Figures:
        rows = 10_000 if self.quick else 1_000_000
        return self._drain("drain, 1M other", fill="other", rows=rows) | self._drain(
            "drain, 1M future", fill="future", rows=rows
        )

    def ended(self) -> Figures:
        return self._drain("drain, ended kept", fill="ended", rows=10_000 if self.quick else 10_000_000)

    def retention(self) -> Figures:
        """A pass over old jobs beside a drain, against a drain of the same round without one."""
        old, jobs = (5_000, 2_000) if self.quick else (1_000_000, 200_000)
        figures = self._drain("drain without retention", jobs, fill="ended", rows=old)
        with self.store.fresh() as url:
            uvloop.run(scenarios.fill(url, "old", old))
            uvloop.run(scenarios.load(url, jobs))
            beside = retention.beside_a_drain(url, self.folder, old, jobs, self.store.server_cpu, 120)
            return figures | run(beside)

    def snapshot(self) -> Figures:
        if self.store.name != "postgres":
            return {}

        held, window, rows = (2, 0.5, 200_000) if self.quick else (60, 10, 4_000_000)
        with self.store.fresh() as url:
            uvloop.run(scenarios.fill(url, "waiting", rows))
            return run(scenarios.old_snapshot(url, self.folder, held, window))

    def single(self) -> Figures:
        with self.store.fresh() as url:
            uvloop.run(scenarios.fill(url, "waiting", 10_000 if self.quick else 1_000_000))
            return run(scenarios.single_calls(url, 100 if self.quick else 2000))

    def http(self) -> Figures:
        with self.store.fresh() as url:
            return api.measure(url, self.folder, 0.3 if self.quick else 6)

    def pages(self) -> Figures:
        """The dashboard over a million jobs."""
        with self.store.fresh() as url:
            return run(pages.pages(url, 20_000 if self.quick else 1_000_000))

    def webhooks(self) -> Figures:
        with self.store.fresh() as url:
            return run(webhooks.deliveries(url, 1_000 if self.quick else 20_000))

    def streams(self) -> Figures:
        """Listeners in another process, and streams that are idle or busy."""
        jobs, idle, busy = (5, 20, 5) if self.quick else (40, 1_000, 200)
        figures: Figures = {}
        for measured in (
            lambda url: events.hearing(url, jobs),
            lambda url: events.idle_streams(url, idle, self.seconds * 5),
            lambda url: events.busy_streams(url, busy, self.seconds * 5),
        ):
            with self.store.fresh() as url:
                figures |= run(measured(url))
        return figures

    def memory(self) -> Figures:
        """A worker's memory after a tenth of the jobs and after all of them."""
        few, many = (2_000, 10_000) if self.quick else (100_000, 1_000_000)
        with self.store.fresh() as url:
            uvloop.run(scenarios.load(url, few))
            return run(scenarios.memory_growth(url, self.folder, few, many))

    def imports(self) -> Figures:
        """What a program pays that only enqueues."""
        with self.store.fresh() as url:
            return imports(url, self.folder, 1 if self.quick else RUNS)

    def idle(self) -> Figures:
        with self.store.fresh() as url:
            return run(scenarios.idle(url, self.folder, 10, 3 if self.quick else 20, self.store.server_cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgres"], help="only this one")
    parser.add_argument("--only", help=f"only these sections, comma-separated: {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="small and once")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often to measure (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, help="where to write the report (default: docs/benchmarks.md if complete)"
    )
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else SECTIONS
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}")
    results: dict[str, list[Figures]] = {}
    started = time.time()
    with bench_folder() as folder:
        for name in [options.store] if options.store else ["postgres", "sqlite"]:
            store = SqliteBench(folder) if name == "sqlite" else PostgresBench()
            try:
                results[name] = Bench(store, folder, options.quick, options.rounds).run(wanted)
            finally:
                store.close()
    about = (
        f"{machine()}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{datetime.now(UTC):%Y-%m-%d}, {(time.time() - started) / 60:.0f} minutes"
    )
    text, missed = render(results, about, options.quick)
    print("\n" + text)
    complete = not options.quick and not options.only and not options.store
    output = options.output or (Path("docs/benchmarks.md") if complete else None)
    if output:
        output.parent.mkdir(exist_ok=True)
        output.write_text(text)
    sys.exit(0 if not missed or options.quick else 3)


if __name__ == "__main__":
    main()
