"""`python -m bench`: measure the bare database and Treadle on it in one run, print ratios, write docs/benchmarks.md.

python -m bench                     everything, some minutes
python -m bench --quick             smaller loads, one run each: a check that it works, not a result
python -m bench --store sqlite --only drain,enqueue
"""

from __future__ import annotations

import argparse
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from bench import limits, scenarios
from bench.report import render
from bench.scenarios import Figures, run
from bench.stores import PostgresBench, SqliteBench, bench_folder, machine

SECTIONS = "limits enqueue drain processes threads pickup delayed backlog snapshot single memory idle".split()


class Bench:
    def __init__(self, store: Any, folder: Path, quick: bool) -> None:
        self.store = store
        self.folder = folder
        self.quick = quick
        self.repeat = 1 if quick else 3
        self.seconds = 0.5 if quick else 2.0
        self.jobs = 10_000 if quick else 200_000
        self.figures: Figures = {}
        self.spread: dict[str, list[float]] = {}

    def measure(self, name: str, section: Callable[[], Figures]) -> None:
        """Median of the runs, figure by figure."""
        runs = [section() for _ in range(self.repeat)]
        for key in runs[0]:
            values = [one[key] for one in runs]
            self.figures[key] = statistics.median(values)
            self.spread[key] = values
        shown = ", ".join(f"{key} {self.figures[key]:,.1f}" for key in runs[0])
        print(f"{self.store.name:9} {name}: {shown}", flush=True)

    def drain(
        self, name: str, jobs: int | None = None, fill: str | None = None, rows: int = 0, **options: Any
    ) -> Figures:
        """One drain on a fresh database, its figures under their own names."""
        with self.store.fresh() as url:
            if fill:
                uvloop.run(scenarios.fill(url, fill, rows))
            uvloop.run(scenarios.load(url, jobs or self.jobs))
            found = run(scenarios.drain(url, self.folder, jobs or self.jobs, self.store.server_cpu, **options))
        if found["left"]:
            raise SystemExit(f"{name}: {found['left']:.0f} jobs were not drained in time")
        return found if name == "drain" else {f"{name} /s": found["drain /s"]}

    # -- sections ------------------------------------------------------------------------------

    def limits(self) -> None:
        def bare() -> Figures:
            if self.store.name == "sqlite":
                file = self.folder / "bare.db"
                return {
                    "bare insert 1 /s": limits.sqlite_insert(file, 1, self.seconds),
                    "bare insert 1000 /s": limits.sqlite_insert(file, 1000, self.seconds),
                    "bare drain 100 /s": limits.sqlite_drain(file, 100, self.seconds),
                }
            with self.store.fresh() as url:
                return {
                    "bare insert 1 /s": uvloop.run(limits.postgres_insert(url, 1, self.seconds)),
                    "bare insert 1000 /s": uvloop.run(limits.postgres_insert(url, 1000, self.seconds)),
                    "bare drain 100 /s": uvloop.run(limits.postgres_drain(url, 100, self.seconds)),
                }

        self.measure("limits", bare)

    def enqueue(self) -> None:
        def once() -> Figures:
            with self.store.fresh() as url:
                return run(scenarios.enqueue(url, self.seconds))

        self.measure("enqueue", once)

    def drain_one(self) -> None:
        self.measure("drain", lambda: self.drain("drain"))

    def processes(self) -> None:
        self.measure("2 processes", lambda: self.drain("drain 2", processes=2))
        self.measure("10 processes", lambda: self.drain("drain 10", processes=10))

    def threads(self) -> None:
        self.measure("threads", lambda: self.drain("drain threads", self.jobs // 4, threads=True))

    def pickup(self) -> None:
        jobs = 20 if self.quick else 100

        def once() -> Figures:
            with self.store.fresh() as url:
                there = run(scenarios.pickup(url, self.folder, jobs))
            with self.store.fresh() as url:
                return {**there, **run(scenarios.pickup_here(url, jobs))}

        self.measure("pick-up", once)

    def delayed(self) -> None:
        def once() -> Figures:
            with self.store.fresh() as url:
                return run(scenarios.delayed(url, self.folder, 50 if self.quick else 300))

        self.measure("delayed", once)

    def backlog(self) -> None:
        rows = 10_000 if self.quick else 1_000_000
        ended = 10_000 if self.quick else 10_000_000
        self.measure("1M other", lambda: self.drain("drain, 1M other", fill="other", rows=rows))
        self.measure("1M future", lambda: self.drain("drain, 1M future", fill="future", rows=rows))
        kept, self.repeat = self.repeat, 1
        self.measure(f"{ended:,} ended", lambda: self.drain("drain, ended kept", fill="ended", rows=ended))
        self.repeat = kept

    def snapshot(self) -> None:
        if self.store.name != "postgres":
            return

        async def held(url: str) -> Figures:
            async with scenarios.old_snapshot(url):
                return await scenarios.drain(url, self.folder, self.jobs, self.store.server_cpu)

        def once() -> Figures:
            with self.store.fresh() as url:
                uvloop.run(scenarios.load(url, self.jobs))
                return {"drain, old snapshot /s": run(held(url))["drain /s"]}

        self.measure("old snapshot", once)

    def single(self) -> None:
        def once() -> Figures:
            with self.store.fresh() as url:
                uvloop.run(scenarios.fill(url, "waiting", 10_000 if self.quick else 1_000_000))
                return run(scenarios.single_calls(url, 100 if self.quick else 2000))

        self.measure("single calls", once)

    def memory(self) -> None:
        """A worker's memory after a tenth of the jobs and after all of them."""
        few, many = (2_000, 10_000) if self.quick else (100_000, 1_000_000)

        def once() -> Figures:
            with self.store.fresh() as url:
                uvloop.run(scenarios.load(url, few))
                return run(scenarios.memory_growth(url, self.folder, few, many))

        kept, self.repeat = self.repeat, 1
        self.measure("memory", once)
        self.repeat = kept

    def idle(self) -> None:
        def once() -> Figures:
            with self.store.fresh() as url:
                seconds = 3 if self.quick else 20
                return run(scenarios.idle(url, self.folder, 10, seconds, self.store.server_cpu))

        kept, self.repeat = self.repeat, 1
        self.measure("idle", once)
        self.repeat = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgres"], help="only this one")
    parser.add_argument("--only", help=f"only these sections, comma-separated: {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="small and once")
    parser.add_argument(
        "--output", type=Path, help="where to write the report (default: docs/benchmarks.md if complete)"
    )
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else SECTIONS
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}")
    results: dict[str, Bench] = {}
    started = time.time()
    with bench_folder() as folder:
        for name in [options.store] if options.store else ["postgres", "sqlite"]:
            store = SqliteBench(folder) if name == "sqlite" else PostgresBench()
            try:
                bench = results[name] = Bench(store, folder, options.quick)
                for section in wanted:
                    getattr(bench, "drain_one" if section == "drain" else section)()
            finally:
                store.close()
    about = (
        f"{machine()}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{datetime.now(UTC):%Y-%m-%d}, {(time.time() - started) / 60:.0f} minutes"
    )
    text, missed = render({name: bench.figures for name, bench in results.items()}, about, options.quick)
    print("\n" + text)
    complete = not options.quick and not options.only and not options.store
    output = options.output or (Path("docs/benchmarks.md") if complete else None)
    if output:
        output.parent.mkdir(exist_ok=True)
        output.write_text(text)
    sys.exit(0 if not missed or options.quick else 3)


if __name__ == "__main__":
    main()
