"""Without async: `queue.sync` has the same methods, blocking. Good for scripts, Flask, Django and the shell.

python examples/sync_script.py
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from treadle import Context, Queue

queue = Queue("sqlite:///jobs.db")


@queue.job
def thumbnail(ctx: Context, payload: dict[str, str]) -> str:
    """A plain function runs in a thread."""
    time.sleep(0.05)
    ctx.check_cancelled()  # a thread can't be stopped from outside: it looks
    return payload["file"].replace(".jpg", ".small.jpg")


def main() -> None:
    jobs = queue.sync.enqueue_many("thumbnail", [{"file": f"{n}.jpg"} for n in range(3)])

    # In a shell: treadle worker sync_script:queue
    command = [sys.executable, "-m", "treadle", "worker", "sync_script:queue"]
    worker = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)})
    for job in jobs:
        print(queue.sync.result(job.id, timeout="30s"))
    worker.terminate()
    print("the worker left with", worker.wait())

    # The same key, the same job: safe to send again after a timeout.
    key = f"order-{time.time()}"
    first = queue.sync.enqueue("thumbnail", {"file": "a.jpg"}, idempotency_key=key)
    again = queue.sync.enqueue("thumbnail", {"file": "a.jpg"}, idempotency_key=key)
    print(again.id == first.id, again.deduplicated)
    print(queue.sync.cancel(first.id, "only an example").status)
    queue.sync.close()


if __name__ == "__main__":
    main()
