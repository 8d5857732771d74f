"""A web application that answers immediately and leaves the work to a queue.

    python examples/web_producer.py

It only needs the standard library; with Flask, Django or FastAPI the two methods look the same.
`POST /reports` enqueues and answers 202 with a job id, `GET /reports/ID` returns the progress.
"""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from treadle import Context, InvalidInput, JobNotFound, Queue

queue = Queue("sqlite:///jobs.db")


@queue.job
def report(ctx: Context, payload: dict[str, Any]) -> dict[str, int]:
    for step in range(payload["pages"]):
        time.sleep(0.02)
        ctx.progress(100 * step / payload["pages"], f"page {step}")
    return {"pages": payload["pages"]}


class Web(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            # The browser's own key: a second click, or a retry after a timeout, makes no second report.
            job = queue.sync.enqueue("report", json.loads(body), idempotency_key=self.headers["Idempotency-Key"])
        except InvalidInput as error:
            return self.answer(400, {"message": error.message})
        self.answer(202, {"id": job.id})

    def do_GET(self) -> None:
        try:
            job = queue.sync.get(self.path.rsplit("/", 1)[-1])
        except JobNotFound as error:
            return self.answer(404, {"message": error.message})
        self.answer(200, {"status": job.status, "progress": job.progress, "result": job.result_value})

    def answer(self, code: int, body: dict[str, Any]) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def call(method: str, url: str, body: dict[str, Any] | None = None, key: str = "") -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Idempotency-Key": key}, method=method), timeout=10) as answer:
        return json.load(answer)


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # In a shell: treadle worker web_producer:queue
    command = [sys.executable, "-m", "treadle", "worker", "web_producer:queue"]
    worker = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)})

    url, key = f"http://127.0.0.1:{server.server_port}/reports", str(time.time())
    first = call("POST", url, {"pages": 5}, key)
    again = call("POST", url, {"pages": 5}, key)
    print("one report for two clicks:", first == again)
    while (answer := call("GET", f"{url}/{first['id']}"))["status"] != "completed":
        time.sleep(0.05)
    print(answer)

    worker.terminate()
    worker.wait()
    server.shutdown()
    server.server_close()
    queue.sync.close()


if __name__ == "__main__":
    main()
