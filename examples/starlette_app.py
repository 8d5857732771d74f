"""A Starlette application that enqueues, runs the jobs in the same process, and shows how far one is.

    pip install treadle starlette httpx2
    python examples/starlette_app.py

`uvicorn starlette_app:app` serves it; the dashboard is at /jobs/_/.
"""

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from treadle import Context, Queue

queue = Queue("sqlite:///reports.db")


@queue.job
async def report(ctx: Context, pages: int) -> int:
    for page in range(pages):
        await asyncio.sleep(0.01)
        await ctx.emit(f"page {page}")
    return pages


async def start(request: Request) -> JSONResponse:
    job = await report.enqueue(int(request.path_params["pages"]))
    return JSONResponse({"id": job.id}, 202)


async def follow(request: Request) -> StreamingResponse:
    """A stream for the application's own page: each line as the job emits it."""
    lines = (f"{line}\n" async for line in queue.output(request.path_params["id"]))
    return StreamingResponse(lines, media_type="text/plain")


app = Starlette(
    routes=[
        Route("/reports/{pages:int}", start, methods=["POST"]),
        Route("/reports/{id}", follow),
        Mount("/jobs", queue.asgi()),
    ],
    lifespan=queue.lifespan(worker=True, slots=2),
)


def main() -> None:
    with TestClient(app) as client:
        answer = client.post("/reports/3")
        print(answer.status_code)
        print(client.get(f"/reports/{answer.json()['id']}").text, end="")
        print("health:", client.get("/jobs/api/health").status_code)


if __name__ == "__main__":
    main()
