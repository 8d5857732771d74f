"""What FastAPI itself allows: `python -m bench.bare PORT` serves a route that takes an enqueue and keeps nothing."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from treadle.http.request_models import EnqueueBody

app = FastAPI()


@app.post("/api/jobs/enqueue")
async def enqueue(body: EnqueueBody) -> dict[str, Any]:
    return {"id": "01890000-0000-7000-8000-000000000000", "status": "pending", "payload": body.payload}


if __name__ == "__main__":
    # As `treadle serve` does it.
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
