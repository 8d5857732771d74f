"""A FastAPI application: its own users, its own database session, and the worker in the same process.

    pip install treadle fastapi sqlalchemy aiosqlite httpx2
    python examples/fastapi_app.py

`uvicorn fastapi_app:app` serves it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from treadle import Caller, Queue

queue = Queue("sqlite:///shop.db")
engine = create_async_engine("sqlite+aiosqlite:///shop.db", connect_args={"timeout": 30})
sessions = async_sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


@queue.job
async def send_invoice(order: int) -> str:
    async with sessions() as session:
        found = await session.get_one(Order, order)
        return f"invoice for {found.customer}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


async def current_user(request: Request) -> Caller | None:
    """However the application knows its users: here by a token that is the user's name."""
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Caller(id=name, superuser=name == "root") if name in ("ada", "root") else None


async def the_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session, session.begin():
        yield session


app = FastAPI(lifespan=queue.lifespan(lifespan, worker=True))
app.mount("/jobs", queue.asgi(auth=current_user))


@app.post("/orders")
async def order(
    request: Request, customer: str, session: Annotated[AsyncSession, Depends(the_session)]
) -> dict[str, Any]:
    user = await current_user(request)
    if user is None:
        raise HTTPException(401)
    new = Order(customer=customer)
    session.add(new)
    await session.flush()
    job = await send_invoice.options(connection=session, created_by=user.id).enqueue(new.id)
    if customer == "nobody":
        raise HTTPException(400, "nobody can't order")  # rolls back the order and its job
    return {"job": job.id}


def main() -> None:
    ada, root = {"Authorization": "Bearer ada"}, {"Authorization": "Bearer root"}
    with TestClient(app) as client:
        client.patch("/jobs/api/settings", json={"jobs": {"manage_rule": "createdBy = @request.auth.id"}}, headers=root)
        before = client.get("/jobs/api/jobs", headers=ada).json()["totalItems"]
        print("refused:", client.post("/orders?customer=nobody", headers=ada).status_code)
        job = client.post("/orders?customer=Ada", headers=ada).json()["job"]
        while (found := client.get(f"/jobs/api/jobs/{job}", headers=ada).json())["status"] != "completed":
            pass
        print(found["result"], "for", found["createdBy"])
        print("new jobs:", client.get("/jobs/api/jobs", headers=ada).json()["totalItems"] - before)
        print("a stranger:", client.get("/jobs/api/jobs").json()["totalItems"])


if __name__ == "__main__":
    main()
