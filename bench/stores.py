"""The databases that are measured: a fresh one for every run, with the safe default durability."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.processes import tree_cpu_seconds
from tests.servers import PostgresServer, find_postgres

_numbers = itertools.count(1)


class SqliteBench:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        folder = self.folder / f"sqlite-{next(_numbers)}"
        folder.mkdir()
        yield f"sqlite:///{folder}/jobs.db"
        shutil.rmtree(folder, ignore_errors=True)

    def server_cpu(self) -> float:
        return 0.0

    def close(self) -> None: ...


class PostgresBench:
    name = "postgres"

    def __init__(self) -> None:
        settings = {"shared_buffers": "512MB", "max_connections": "300", "max_wal_size": "4GB"}
        self.server = PostgresServer(find_postgres(), fsync=True, settings=settings)
        self.server.start()

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        name = f"bench_{next(_numbers)}"
        self.server.create_database(name)
        yield self.server.url(name)
        self.server.drop_database(name)

    def server_cpu(self) -> float:
        return tree_cpu_seconds(self.server.pid)

    def close(self) -> None:
        self.server.stop()
        self.server.remove()


@contextlib.contextmanager
def bench_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="treadle-bench-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def machine() -> str:
    """What the figures were measured on."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown CPU",
    )
    cores = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{cores} cores ({cpu})"
