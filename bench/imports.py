"""What a program pays that only enqueues: the CPU time of imports in fresh processes, and of a first enqueue."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from bench.scenarios import Figures

RUNS = 7
MEASURED = "import time; at = time.process_time(); {program}; print((time.process_time() - at) * 1000)"
PROGRAMS = {
    "import pydantic ms": "import pydantic",
    "import pydantic.BaseModel ms": "from pydantic import BaseModel",
    "import treadle ms": "import treadle",
    "import treadle.Queue ms": "from treadle import Queue",
    "import and enqueue ms": (
        "from treadle import Queue; queue = Queue({url!r}); queue.sync.enqueue('mail', {{}}); queue.sync.close()"
    ),
}


def imports(url: str, folder: Path, runs: int = RUNS) -> Figures:
    """In turn, so that a busy minute of the machine touches all of them; the first run compiles and is dropped."""
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(runs + 1):
        for name, program in PROGRAMS.items():
            code = MEASURED.replace("{program}", program.format(url=url))
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=folder, capture_output=True, encoding="utf-8", check=True
            )
            found[name].append(float(done.stdout))
    return {name: statistics.median(times[1:]) for name, times in found.items()}
