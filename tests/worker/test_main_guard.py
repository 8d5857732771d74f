"""A script that starts processes needs a guard, or it would run again in each of them."""

import subprocess
import sys
from pathlib import Path

import pytest

HANDLERS = "def crunch(): return 1\n"
SCRIPT = """
import asyncio
from treadle import Queue
from handlers import crunch

print("begins", flush=True)
queue = Queue("sqlite:///jobs.db")
task = queue.register("crunch", crunch, process=True)

async def main():
    async with queue:
        job = await task.enqueue()
        await queue.run_until_empty()
        print((await job.refresh()).status, flush=True)

"""


@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_without_a_main_guard_is_told_instead_of_run_twice(tmp_path: Path, guarded: bool) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    guard = 'if __name__ == "__main__":\n    ' if guarded else ""
    (tmp_path / "script.py").write_text(f"{SCRIPT}{guard}asyncio.run(main())\n")
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    if guarded:
        assert done.stdout.split().count("completed") == 1
        return
    assert done.returncode == 1
    assert done.stdout.split() == ["begins"]
    assert "script.py again, and would run it from its start; put what it does under: if __name__ ==" in done.stderr
